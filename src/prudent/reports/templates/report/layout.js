// How plots look: colors, panels, legends.

const THEMES = {
  light: { ink: "#1b1f24", soft: "#57606a", paper: "#ffffff", line: "#d0d7de", shade: "rgba(110,118,129,0.13)", band: "rgba(110,118,129,0.3)" },
  dark: { ink: "#e6edf3", soft: "#a6b0ba", paper: "#14181d", line: "#3a424b", shade: "rgba(160,170,180,0.13)", band: "rgba(160,170,180,0.3)" },
};
const darkMode = matchMedia("(prefers-color-scheme: dark)");
const coarse = matchMedia("(pointer: coarse)");
const PRINT_WIDTH = 700; // of A4 and Letter, less their margins
let printing = false;
const theme = () => (darkMode.matches && !printing ? THEMES.dark : THEMES.light);

const visible = (color) => (color === "#000000" ? theme().ink : color); // black cannot be seen on a dark page

function faint(color, opacity) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
}

// A title in one line, or in two at its last comma.
function broken(title, most) {
  const at = title.lastIndexOf(", ") + 1;
  if (title.length <= most || !at) return plain(short(title, most));
  return [title.slice(0, at), title.slice(at + 1)].map((part) => plain(short(part, most))).join("<br>");
}

// Panels side by side as the width allows; sizes in pixels, places in Plotly's shares.
function arrange(titles, space, legendLabels, { least = 290, most = 3, ratio = 0.9 } = {}) {
  const able = Math.max(1, Math.min(most, titles.length, Math.floor(space / least)));
  const rows = Math.ceil(titles.length / able), columns = Math.ceil(titles.length / rows);
  const width = Math.min(space, 80 + 540 * columns);
  const widest = Math.max(90, ...legendLabels.map((l) => 56 + 7.2 * Math.min(l.length, LONGEST)));
  const perRow = Math.max(1, Math.floor((width - 30) / widest));
  // On the right of wide screens, not on paper, is the bar of tools, which must not lie on a curve.
  const margins = { l: 62, r: space <= 700 ? 16 : 44, t: 40 + 22 * Math.ceil(legendLabels.length / perRow), b: 52 };
  const gap = { x: 66, y: 84 };
  const area = width - margins.l - margins.r;
  const w = (area - gap.x * (columns - 1)) / columns, h = Math.min(380, Math.max(190, w * ratio));
  const heads = titles.map((title) => broken(title, Math.floor(w / 7.5)));
  if (heads.some((head) => head.includes("<br>"))) { margins.t += 16; gap.y += 16; }
  const inner = rows * h + gap.y * (rows - 1);
  const colors = theme(), clear = "rgba(0,0,0,0)";
  const layout = {
    width, height: inner + margins.t + margins.b, margin: margins,
    paper_bgcolor: colors.paper, plot_bgcolor: colors.paper,
    font: { family: "system-ui, sans-serif", size: 12, color: colors.ink },
    hovermode: "closest", hoverlabel: { align: "left" }, dragmode: coarse.matches ? false : "zoom",
    legend: {
      orientation: "h", x: 0, xref: "container", y: 1, yref: "container", yanchor: "top",
      font: { size: 12 }, bgcolor: clear,
    },
    shapes: [], annotations: [],
    modebar: { orientation: "v", bgcolor: clear, color: colors.soft, activecolor: colors.ink },
  };
  const suffix = (at) => (at ? String(at + 1) : "");
  titles.forEach((_, at) => {
    const row = Math.floor(at / columns), column = at % columns, n = suffix(at);
    const left = (column * (w + gap.x)) / area, top = 1 - (row * (h + gap.y)) / inner;
    const axis = {
      gridcolor: colors.line, linecolor: colors.soft, zeroline: false, ticks: "outside",
      tickcolor: colors.line, automargin: false,
    };
    layout["xaxis" + n] = { ...axis, domain: [left, left + w / area], anchor: "y" + n };
    layout["yaxis" + n] = { ...axis, domain: [Math.max(0, top - h / inner), top], anchor: "x" + n };
    layout.annotations.push({
      text: `<b>${heads[at]}</b>`, font: { size: 13 }, showarrow: false,
      x: 0, y: 1, xref: `x${n} domain`, yref: `y${n} domain`, xanchor: "left", yanchor: "bottom", yshift: 4,
    });
  });
  const axes = (at) => ({ xaxis: "x" + suffix(at), yaxis: "y" + suffix(at) });
  // Axes that agree have their titles once, at the left and at the bottom.
  const set = (at, { always = false, ...x }, y) => {
    const bottom = always || at + columns >= titles.length, first = always || at % columns === 0;
    Object.assign(layout["xaxis" + suffix(at)], x, { title: { text: bottom ? x.title : "", standoff: 6 } });
    Object.assign(layout["yaxis" + suffix(at)], y, { title: { text: first ? y.title ?? "" : "", standoff: 8 } });
  };
  const say = (at, text, x, y, more = {}) => layout.annotations.push({
    text, x, y, xref: axes(at).xaxis + " domain", yref: axes(at).yaxis + " domain", showarrow: false,
    xanchor: x > 0.5 ? "right" : "left", yanchor: y > 0.5 ? "top" : "bottom",
    font: { size: 11, color: colors.soft }, ...more,
  });
  const draw = (at, shape) => {
    const { xaxis, yaxis } = axes(at);
    layout.shapes.push({ xref: xaxis, yref: yaxis, layer: "below", line: { width: 0 }, ...shape });
  };
  const rule = (at, shape, dash = "solid") =>
    draw(at, { type: "line", ...shape, line: { color: colors.soft, width: 1, dash } });
  return { layout, axes, set, say, draw, rule, colors };
}

// The area between two curves.
const band = (x, lower, upper, fillcolor) => ({
  x: [...x, ...[...x].reverse()], y: [...lower, ...[...upper].reverse()], fill: "toself", fillcolor,
  line: { width: 0 }, mode: "lines", hoverinfo: "skip", showlegend: false,
});

// The first trace of a series speaks for all of them in the legend.
function legendary(traces) {
  const seen = new Set();
  for (const trace of traces) {
    if (trace.showlegend === false || !trace.legendgroup) continue;
    trace.showlegend = !seen.has(trace.legendgroup);
    seen.add(trace.legendgroup);
  }
  return traces;
}

const names = (rows) => unique(rows.map((row) => row.name));
const nothing = (why) => ({ empty: why });
