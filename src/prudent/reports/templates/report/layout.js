// How plots look: colours, panels, legends.

const THEMES = {
  light: { ink: "#1b1f24", soft: "#57606a", paper: "#ffffff", line: "#d0d7de", shade: "rgba(110,118,129,0.13)" },
  dark: { ink: "#e6edf3", soft: "#a6b0ba", paper: "#14181d", line: "#3a424b", shade: "rgba(160,170,180,0.13)" },
};
const darkMode = matchMedia("(prefers-color-scheme: dark)");
const coarse = matchMedia("(pointer: coarse)");
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const MARKERS = ["circle", "square", "diamond", "triangle-up", "x", "star", "hexagon"];
const PRINT_WIDTH = 700; // of A4 and Letter, less their margins
let printing = false;
const theme = () => (darkMode.matches && !printing ? THEMES.dark : THEMES.light);

// A method keeps its colour everywhere; settings of one method differ in dashes and markers.
function style(cell) {
  const same = data.settings.length > 1 ? data.settings.indexOf(cell.setting) : 0;
  const { colour, dash, symbol } = cell.method;
  return {
    colour,
    dash: same ? DASHES[same % DASHES.length] : dash,
    symbol: same ? MARKERS[same % MARKERS.length] : symbol,
  };
}

function faint(colour, opacity) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
}

// Panels side by side as the width allows; sizes in pixels, places in Plotly's shares.
function arrange(titles, space, legendLabels, { least = 290, most = 3, ratio = 0.9 } = {}) {
  const able = Math.max(1, Math.min(most, titles.length, Math.floor(space / least)));
  const rows = Math.ceil(titles.length / able), columns = Math.ceil(titles.length / rows);
  const width = Math.min(space, 80 + 540 * columns);
  const perRow = Math.max(1, Math.floor((width - 30) / Math.max(90, ...legendLabels.map((l) => 56 + 7.2 * Math.min(l.length, LONGEST)))));
  const margins = { l: 62, r: 16, t: 40 + 22 * Math.ceil(legendLabels.length / perRow), b: 52 };
  const gap = { x: 66, y: 84 };
  const area = width - margins.l - margins.r;
  const w = (area - gap.x * (columns - 1)) / columns, h = Math.min(380, Math.max(190, w * ratio));
  const inner = rows * h + gap.y * (rows - 1);
  const colours = theme();
  const layout = {
    width, height: inner + margins.t + margins.b, margin: margins,
    paper_bgcolor: colours.paper, plot_bgcolor: colours.paper,
    font: { family: "system-ui, sans-serif", size: 12, color: colours.ink },
    hovermode: "closest", hoverlabel: { align: "left" }, dragmode: coarse.matches ? false : "zoom",
    legend: { orientation: "h", x: 0, xref: "container", y: 1, yref: "container", yanchor: "top", font: { size: 12 }, bgcolor: "rgba(0,0,0,0)" },
    shapes: [], annotations: [], modebar: { orientation: "v", bgcolor: "rgba(0,0,0,0)", color: colours.soft, activecolor: colours.ink },
  };
  titles.forEach((title, at) => {
    const row = Math.floor(at / columns), column = at % columns, n = at ? String(at + 1) : "";
    const left = (column * (w + gap.x)) / area, top = 1 - (row * (h + gap.y)) / inner;
    const axis = { gridcolor: colours.line, linecolor: colours.soft, zeroline: false, ticks: "outside", tickcolor: colours.line, automargin: false };
    const bottom = at + columns >= titles.length;
    layout["xaxis" + n] = { ...axis, domain: [left, left + w / area], anchor: "y" + n, bottom };
    layout["yaxis" + n] = { ...axis, domain: [Math.max(0, top - h / inner), top], anchor: "x" + n, first: column === 0 };
    layout.annotations.push({ text: `<b>${plain(short(title, Math.floor(w / 7.5)))}</b>`, x: 0, y: 1, xref: `x${n} domain`, yref: `y${n} domain`, xanchor: "left", yanchor: "bottom", yshift: 4, showarrow: false, font: { size: 13 } });
  });
  const axes = (at) => ({ x: "x" + (at ? at + 1 : ""), y: "y" + (at ? at + 1 : "") });
  const set = (at, x, y) => {
    const n = at ? String(at + 1) : "", { bottom } = layout["xaxis" + n], { first } = layout["yaxis" + n];
    delete layout["xaxis" + n].bottom; delete layout["yaxis" + n].first;
    Object.assign(layout["xaxis" + n], x, { title: { text: bottom || x.always ? x.title : "", standoff: 6 } });
    Object.assign(layout["yaxis" + n], y, { title: { text: first || y.always ? y.title : "", standoff: 8 } });
    delete layout["xaxis" + n].always; delete layout["yaxis" + n].always;
  };
  const say = (at, text, x, y, more = {}) => layout.annotations.push({ text, x, y, xref: axes(at).x + " domain", yref: axes(at).y + " domain", showarrow: false, xanchor: x > 0.5 ? "right" : "left", yanchor: y > 0.5 ? "top" : "bottom", font: { size: 11, color: colours.soft }, ...more });
  const draw = (at, shape) => layout.shapes.push({ xref: axes(at).x, yref: axes(at).y, layer: "below", line: { width: 0 }, ...shape });
  return { layout, axes, set, say, draw, colours };
}

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

const names = (cells) => unique(cells.map((cell) => cell.name));
const nothing = (why) => ({ empty: why });
