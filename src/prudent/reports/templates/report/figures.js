// Figures of all runs: coverage, trade-off, budgets.

// ---- Coverage ---------------------------------------------------------------------------------

function panelsOf(cells) {
  const found = new Map();
  for (const cell of cells) {
    const key = `${cell.problem}, ${whole(cell.budget)} simulations`;
    if (!found.has(key)) found.set(key, { title: key, problem: cell.problem, budget: cell.budget, cells: [] });
    found.get(key).cells.push(cell);
  }
  const all = [...found.values()];
  if (all.length <= data.most_panels) return { all, shown: all };
  const smallest = unique(all.map((p) => p.problem)).map((problem) => all.find((p) => p.problem === problem));
  return { all, shown: smallest.slice(0, data.most_panels) };
}

function meanCurve(cell) {
  const total = cell.num_pairs;
  return data.coverage.levels.map((_, k) => sum(cell.done.map((i) => runs.num_pairs[i] * data.coverage.coverage[i][k])) / total);
}

function coveragePlot(width) {
  const cells = chosenCells();
  const { all, shown } = panelsOf(cells.filter((cell) => cell.done.length));
  const missing = cells.filter((cell) => cell.done.length < cell.members.length);
  const notes = [];
  if (shown.length < all.length) notes.push(`Shown: ${shown.length} of ${all.length} combinations, the smallest budget of each problem, where honesty is hardest. Choose a problem or a budget above for the others.`);
  if (missing.length) notes.push("Not complete: " + missing.slice(0, 4).map((c) => `${c.name} on ${c.problem} with ${whole(c.budget)}, ${c.done.length} of ${c.members.length} seeds`).join("; ") + (missing.length > 4 ? `; and ${missing.length - 4} more` : "") + ". The reasons are below.");
  $("coverage-note").textContent = notes.join(" ");
  $("coverage-note").hidden = !notes.length;
  if (!shown.length) return nothing("No finished run with these filters.");
  const labels = names(shown.flatMap((p) => p.cells));
  const { layout, axes, set, say, draw, colours } = arrange(shown.map((p) => p.title), width, labels, { ratio: 1 });
  const traces = [], rows = [], spoken = [], levels = data.coverage.levels;
  shown.forEach((panel, at) => {
    const { x, y } = axes(at), on = { xaxis: x, yaxis: y };
    draw(at, { type: "path", path: "M0,0 L1,1 L1,0 Z", fillcolor: colours.shade });
    draw(at, { type: "line", x0: 0, y0: 0, x1: 1, y1: 1, line: { color: colours.soft, width: 1 } });
    say(at, "cautious", 0.04, 0.97);
    say(at, "over-confident", 0.97, 0.03);
    set(at, { range: [0, 1], title: "claimed credibility" }, { range: [0, 1], title: "share of truths inside" });
    const said = [];
    for (const cell of panel.cells) {
      const { colour, dash, symbol } = style(cell), group = { legendgroup: cell.series, ...on };
      if (cell.done.length === 1) {
        const [i] = cell.done, { lower, upper } = data.coverage;
        traces.push({ ...group, x: [...levels, ...[...levels].reverse()], y: [...lower[i], ...[...upper[i]].reverse()], fill: "toself", fillcolor: faint(colour, 0.2), line: { width: 0 }, mode: "lines", hoverinfo: "skip", showlegend: false });
      } else {
        const lines = cell.done.flatMap((i) => [...data.coverage.coverage[i], null]);
        traces.push({ ...group, x: cell.done.flatMap(() => [...levels, null]), y: lines, mode: "lines", line: { color: faint(colour, 0.35), width: 1 }, hoverinfo: "skip", showlegend: false });
      }
      const mean = meanCurve(cell);
      const seeds = cell.done.length === 1 ? `seed ${runs.seed[cell.done[0]]}` : `mean of ${cell.done.length} seeds`;
      traces.push({ ...group, x: levels, y: mean, name: inPlot(cell.name), mode: "lines+markers", line: { color: colour, dash, width: 2 }, marker: { symbol, size: 6, color: colour }, hoverinfo: "text",
        text: mean.map((value, k) => `${inPlot(cell.name)}, ${seeds}<br>claimed ${levels[k].toFixed(2)}, contains ${value.toFixed(3)}<br>${whole(cell.num_pairs)} test pairs`) });
      mean.forEach((value, k) => rows.push([cell.problem, cell.budget, cell.method.name, cell.setting, cell.done.length, cell.num_pairs, levels[k], Number(value.toPrecision(6))]));
      const near = levels.findIndex((level) => Math.abs(level - 0.9) < 0.001);
      if (near >= 0) said.push(`${cell.name} ${(100 * mean[near]).toFixed(0)} %`);
    }
    spoken.push(`${panel.title}: 90 % regions contain the truth: ${said.join(", ")}`);
  });
  return { traces: legendary(traces), layout, alt: `Coverage. ${spoken.join(". ")}.`, rows, columns: ["problem", "budget", "method", "setting", "seeds", "test_pairs", "level", "coverage"] };
}

// ---- Trade-off and budgets --------------------------------------------------------------------

function byProblem(cells) {
  return unique(cells.map((cell) => cell.problem)).map((problem) => ({ problem, cells: cells.filter((cell) => cell.problem === problem) }));
}

function seriesOf(cells) {
  return unique(cells.map((cell) => cell.series)).map((key) => cells.filter((cell) => cell.series === key).sort((a, b) => a.budget - b.budget));
}

function describe(cell, key, unit = "") {
  const found = cell.get(key);
  return `${withError(found, key)}${unit}${found.number < cell.members.length ? ` (${found.number} of ${cell.members.length} seeds)` : ""}`;
}

function tradeoffPlot(width) {
  const cells = chosenCells().filter((cell) => cell.get("information_gain").number && cell.get("worst_shortfall").number);
  if (!cells.length) return nothing("No finished run with an information gain with these filters.");
  const panels = byProblem(cells).slice(0, data.most_panels);
  const { layout, axes, set, say, draw, colours } = arrange(panels.map((p) => p.problem), width, names(cells));
  const traces = [], rows = [], spoken = [], budgets = unique(cells.map((c) => c.budget)).sort((a, b) => a - b);
  panels.forEach((panel, at) => {
    const { x, y } = axes(at), worst = Math.max(...panel.cells.map((c) => c.get("worst_shortfall").mean));
    const limit = Math.max(...panel.cells.map((c) => c.get("worst_shortfall").error));
    const top = 1.12 * Math.max(worst, 2 * limit);
    draw(at, { type: "rect", y0: limit, y1: 1, x0: 0, x1: 1, xref: x + " domain", fillcolor: colours.shade });
    set(at, { title: "information gain, nats (right is sharper)" }, { range: [-0.05 * top, top], title: "worst shortfall (down is safer)" });
    say(at, "over-confident", 0.03, 0.97);
    say(at, "best is bottom right ↘", 0.97, 0.97);
    for (const line of seriesOf(panel.cells)) {
      const { colour, dash, symbol } = style(line[0]);
      traces.push({ xaxis: x, yaxis: y, legendgroup: line[0].series, name: inPlot(line[0].name), mode: "lines+markers",
        x: line.map((c) => c.get("information_gain").mean), y: line.map((c) => c.get("worst_shortfall").mean),
        error_x: { type: "data", array: line.map((c) => c.get("information_gain").error ?? 0), color: faint(colour, 0.6), thickness: 1, width: 2 },
        line: { color: faint(colour, 0.6), dash, width: 1.2 }, hoverinfo: "text",
        marker: { symbol, color: colour, opacity: 1, size: line.map((c) => 7 + (7 * budgets.indexOf(c.budget)) / Math.max(1, budgets.length - 1)) },
        text: line.map((c) => `${inPlot(c.name)}, ${whole(c.budget)} simulations<br>worst shortfall ${describe(c, "worst_shortfall")}<br>information gain ${describe(c, "information_gain", " nats")}<br>${inPlot(c.kind)}, ${several(c.done.length, "seed")}`) });
      for (const c of line) {
        const gain = c.get("information_gain"), lack = c.get("worst_shortfall");
        rows.push([c.problem, c.budget, c.method.name, c.setting, c.done.length, c.num_pairs, lack.mean, lack.error, gain.mean, gain.error]);
        spoken.push(`${c.name} on ${c.problem} with ${whole(c.budget)}: shortfall ${withError(lack, "worst_shortfall")}, gain ${withError(gain, "information_gain")}`);
      }
    }
  });
  return { traces: legendary(traces), layout, alt: `Worst shortfall and information gain. ${few(spoken)}.`, rows, columns: ["problem", "budget", "method", "setting", "seeds", "test_pairs", "worst_shortfall", "worst_shortfall_margin", "information_gain", "information_gain_error"] };
}

const few = (texts, most = 12) => texts.slice(0, most).join("; ") + (texts.length > most ? `; and ${texts.length - most} more, in the data to download` : "");

const TRENDS = [
  { key: "log_posterior", title: "log posterior (up is sharper)" },
  { key: "auc", title: "AUC of coverage" },
  { key: "train_seconds", title: "time to train one run" },
];

// Round times, as many as fit on an axis.
const TIMES = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 604800];
const clock = (s) => (s < 60 ? `${s} s` : s < 3600 ? `${s / 60} min` : s < 86400 ? `${s / 3600} h` : `${s / 86400} d`);

function timeAxis(cells) {
  const values = cells.map((c) => c.get("train_seconds").mean).filter((v) => v > 0);
  const low = Math.min(...values) / 1.3, high = Math.max(...values) * 1.3;
  const inside = TIMES.filter((t) => low <= t && t <= high), step = Math.ceil(inside.length / 6);
  const shown = inside.filter((_, k) => k % step === 0);
  return { type: "log", range: [Math.log10(low), Math.log10(high)], tickvals: shown, ticktext: shown.map(clock), title: "" };
}

function trendsPlot(problem, width) {
  const cells = chosenCells().filter((cell) => cell.problem === problem && cell.done.length);
  const { layout, axes, set, say, draw, colours } = arrange(TRENDS.map((t) => t.title), width, names(cells), { least: 230, ratio: 0.85 });
  const traces = [], rows = [], spoken = [], budgets = unique(cells.map((c) => c.budget)).sort((a, b) => a - b);
  const ends = [Math.log10(budgets[0]) - 0.12, Math.log10(budgets.at(-1)) + 0.12];
  TRENDS.forEach(({ key }, at) => {
    const { x, y } = axes(at);
    const shown = budgets.length <= 4 ? budgets : budgets.filter((_, k) => k % Math.ceil(budgets.length / 4) === 0);
    set(at, { type: "log", range: ends, tickvals: shown, ticktext: shown.map(whole), title: "simulations", always: true }, key === "train_seconds" ? timeAxis(cells) : { title: "" });
    if (key === "auc") {
      draw(at, { type: "line", xref: x + " domain", x0: 0, x1: 1, y0: 0, y1: 0, line: { color: colours.soft, width: 1 } });
      say(at, "+ cautious", 0.97, 0.97);
      say(at, "− over-confident", 0.97, 0.03);
    }
    if (key === "log_posterior") {
      const prior = estimate(cells.flatMap((c) => c.done), "log_prior").mean;
      if (prior !== null) {
        draw(at, { type: "line", xref: x + " domain", x0: 0, x1: 1, y0: prior, y1: prior, line: { color: colours.soft, width: 1, dash: "dot" } });
        layout.annotations.push({ text: "prior", x: 0.02, xref: x + " domain", y: prior, yref: y, yanchor: "bottom", xanchor: "left", showarrow: false, font: { size: 11, color: colours.soft } });
      }
    }
    for (const all of seriesOf(cells)) {
      const line = all.filter((c) => c.get(key).number);
      if (!line.length) continue;
      const { colour, dash, symbol } = style(line[0]);
      traces.push({ xaxis: x, yaxis: y, legendgroup: line[0].series, name: inPlot(line[0].name), mode: "lines+markers",
        x: line.map((c) => c.budget), y: line.map((c) => c.get(key).mean),
        error_y: { type: "data", array: line.map((c) => c.get(key).error ?? 0), color: faint(colour, 0.6), thickness: 1, width: 2 },
        line: { color: colour, dash, width: 2 }, marker: { symbol, color: colour, size: 7 }, hoverinfo: "text",
        text: line.map((c) => `${inPlot(c.name)}, ${whole(c.budget)} simulations<br>${plain(key.replace("_", " "))} ${describe(c, key)}<br>${several(c.done.length, "seed")}, ${whole(c.num_pairs)} test pairs`) });
      for (const c of line) rows.push([c.problem, c.budget, c.method.name, c.setting, c.done.length, c.num_pairs, key, c.get(key).mean, c.get(key).error]);
      spoken.push(...line.map((c) => `${key.replace("_", " ")} of ${c.name} with ${whole(c.budget)}: ${describe(c, key)}`));
    }
  });
  return { traces: legendary(traces), layout, alt: `${problem} by budget. ${few(spoken)}.`, rows, columns: ["problem", "budget", "method", "setting", "seeds", "test_pairs", "quantity", "mean", "standard_error"] };
}
