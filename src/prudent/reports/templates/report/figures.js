// Figures of all runs: coverage, trade-off, budgets.

const facts = (row) => [row.problem, row.budget, row.method, row.setting, row.done.length, row.pairs];
const FACTS = ["problem", "budget", "method", "setting", "seeds", "test_pairs"];
const bySize = (values) => unique(values).sort((a, b) => a - b);

// ---- Coverage ---------------------------------------------------------------------------------

function panelsOf(rows) {
  const found = new Map();
  for (const row of rows) {
    const title = `${row.problem}, ${whole(row.budget)} simulations`;
    if (!found.has(title)) found.set(title, { title, problem: row.problem, rows: [] });
    found.get(title).rows.push(row);
  }
  const all = [...found.values()];
  if (all.length <= data.most_panels) return { all, shown: all };
  const smallest = unique(all.map((p) => p.problem)).map((problem) => all.find((p) => p.problem === problem));
  return { all, shown: smallest.slice(0, data.most_panels) };
}

function showNote(rows, shown, all) {
  const notes = [], missing = rows.filter((row) => row.done.length < row.seeds);
  if (shown < all) {
    notes.push(`Shown: ${shown} of ${all} combinations, the smallest budget of each problem, where honesty is ` +
      "hardest. Choose a problem or a budget above for the others.");
  }
  if (missing.length) {
    const told = missing.slice(0, 4).map((row) =>
      `${row.name} on ${row.problem} with ${whole(row.budget)}, ${row.told} seeds`);
    if (missing.length > 4) told.push(`and ${missing.length - 4} more`);
    notes.push(`Not complete: ${told.join("; ")}. The reasons are below.`);
  }
  $("coverage-note").textContent = notes.join(" ");
  $("coverage-note").hidden = !notes.length;
}

function coverageTraces(row, on) {
  const { levels, curve } = data.coverage, { color, done } = row;
  const group = { legendgroup: String(row.series), ...on };
  const seeds = done.length === 1 ? `seed ${runs.seed[done[0]]}` : `mean of ${done.length} seeds`;
  const thin = {
    ...group, x: done.flatMap(() => [...levels, null]), y: done.flatMap((j) => [...curve[j], null]), mode: "lines",
    line: { color: faint(color, 0.35), width: 1 }, hoverinfo: "skip", showlegend: false,
  };
  const text = row.curve.map((value, k) => `${inPlot(row.name)}, ${seeds}<br>level ${levels[k]}, ` +
    `inside ${value}<br>${whole(row.pairs)} test pairs`);
  return [...(done.length > 1 ? [thin] : []), {
    ...group, x: levels, y: row.curve, name: inPlot(row.name), mode: "lines+markers", hoverinfo: "text", text,
    line: { color, dash: row.dash, width: 2 }, marker: { symbol: row.symbol, size: 6, color },
  }];
}

// The band of the verdict around the diagonal.
function verdictBand(pairs, fillcolor) {
  const { levels, bands } = data.coverage, [low, high] = bands[pairs];
  return band([0, ...levels, 1], [0, ...low, 1], [0, ...high, 1], fillcolor);
}

function coveragePlot(width) {
  const found = chosenRows(), { all, shown } = panelsOf(found.filter((row) => row.done.length));
  showNote(found, shown.length, all.length);
  if (!shown.length) return nothing("No finished run with these filters.");
  const labels = names(shown.flatMap((panel) => panel.rows)), { levels } = data.coverage;
  const titles = shown.map((panel) => panel.title);
  const { layout, axes, set, say, draw, rule, colors } = arrange(titles, width, labels, { ratio: 1 });
  const traces = [], rows = [];
  const spoken = shown.map((panel, at) => {
    draw(at, { type: "path", path: "M0,0 L1,1 L1,0 Z", fillcolor: colors.shade });
    rule(at, { x0: 0, y0: 0, x1: 1, y1: 1 });
    say(at, "cautious", 0.04, 0.97);
    say(at, "over-confident", 0.97, 0.03);
    set(at, { range: [0, 1], title: "credibility level" },
      { range: [0, 1], title: "share of truths inside the region" });
    for (const pairs of unique(panel.rows.map((row) => row.pairs))) {
      traces.push({ ...axes(at), ...verdictBand(pairs, colors.band) });
    }
    for (const row of panel.rows) {
      traces.push(...coverageTraces(row, axes(at)));
      row.curve.forEach((value, k) => rows.push([...facts(row), levels[k], value]));
    }
    const said = panel.rows.map((row) => `${row.name} ${row.at90}`);
    return `${panel.title}: 90 % regions contain the truth: ${said.join(", ")}`;
  });
  const columns = [...FACTS, "level", "coverage"];
  return { traces: legendary(traces), layout, alt: `Coverage. ${spoken.join(". ")}.`, rows, columns };
}

// ---- Trade-off and budgets --------------------------------------------------------------------

const linesOf = (rows) => bySize(rows.map((row) => row.series)).map((series) =>
  rows.filter((row) => row.series === series).sort((a, b) => a.budget - b.budget));

function describe(row, key, unit = "") {
  const { text, note } = row.get(key);
  return `${text}${unit}${note ? ` (${note})` : ""}`;
}

const bars = (line, key, color) => ({
  type: "data", array: line.map((row) => row.get(key).error ?? 0), color: faint(color, 0.6), thickness: 1, width: 2,
});

const traded = () => chosenRows().filter((row) =>
  row.get("information_gain").mean !== null && row.get("worst_shortfall").mean !== null);

function tradeoffPlot(width) {
  const found = traded();
  if (!found.length) return nothing("No finished run with an information gain with these filters.");
  const panels = unique(found.map((row) => row.problem)).slice(0, data.most_panels);
  const { layout, axes, set, say, draw, colors } = arrange(panels, width, names(found));
  const traces = [], rows = [], spoken = [], budgets = bySize(found.map((row) => row.budget));
  const size = (row) => 7 + (7 * budgets.indexOf(row.budget)) / Math.max(1, budgets.length - 1);
  panels.forEach((problem, at) => {
    const own = found.filter((row) => row.problem === problem), { xaxis } = axes(at);
    const above = (row) => Math.max(0, row.bound - row.get("worst_shortfall").mean);
    const top = 1.25 * Math.max(1.5 * data.most_missed, ...own.map((row) => row.get("worst_shortfall").mean + above(row)));
    draw(at, { type: "rect", y0: data.most_missed, y1: 1, x0: 0, x1: 1, xref: xaxis + " domain", fillcolor: colors.shade });
    set(at, { title: "information gain, nats (right is sharper)" },
      { range: [-0.05 * top, top], title: "worst shortfall (down is safer)" });
    say(at, "over-confident", 0.97, 0.98);
    for (const line of linesOf(own)) {
      const { color, dash, symbol, series, name } = line[0];
      traces.push({
        ...axes(at), legendgroup: String(series), name: inPlot(name), mode: "lines+markers", hoverinfo: "text",
        x: line.map((row) => row.get("information_gain").mean),
        y: line.map((row) => row.get("worst_shortfall").mean),
        error_x: bars(line, "information_gain", color),
        error_y: {
          ...bars(line, "worst_shortfall", color), symmetric: false, array: line.map(above),
          arrayminus: line.map(() => 0),
        },
        line: { color: faint(color, 0.6), dash, width: 1.2 },
        marker: { symbol, color, opacity: 1, size: line.map(size) },
        text: line.map((row) => `${inPlot(row.name)}, ${whole(row.budget)} simulations<br>` +
          `worst shortfall ${describe(row, "worst_shortfall")}<br>` +
          `information gain ${describe(row, "information_gain", " nats")}<br>` +
          `${inPlot(row.kind)}, ${several(row.done.length, "seed")}`),
      });
      for (const row of line) {
        const gain = row.get("information_gain"), lack = row.get("worst_shortfall");
        rows.push([...facts(row), lack.mean, row.bound, gain.mean, gain.error]);
        spoken.push(`${row.name} on ${problem} with ${whole(row.budget)}: shortfall ${lack.text}, gain ${gain.text}`);
      }
    }
  });
  const columns = [...FACTS, "worst_shortfall", "worst_shortfall_bound", "information_gain", "information_gain_error"];
  const alt = `Worst shortfall and information gain. ${few(spoken)}.`;
  return { traces: legendary(traces), layout, alt, rows, columns };
}

const TRENDS = [
  ["log_posterior", "log posterior, nats"],
  ["auc", "AUC of coverage"],
  ["train_seconds", "time to train one run"],
];

// Round times, as many as fit on an axis.
const TIMES = [
  0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 604800,
];
const clock = (s) => (s < 60 ? `${s} s` : s < 3600 ? `${s / 60} min` : s < 86400 ? `${s / 3600} h` : `${s / 86400} d`);

function timeAxis(rows) {
  const values = rows.map((row) => row.get("train_seconds").mean).filter((v) => v > 0);
  const low = Math.min(...values) / 1.3, high = Math.max(...values) * 1.3;
  const inside = TIMES.filter((t) => low <= t && t <= high), step = Math.ceil(inside.length / 6);
  const shown = inside.filter((_, k) => k % step === 0);
  return { type: "log", range: [Math.log10(low), Math.log10(high)], tickvals: shown, ticktext: shown.map(clock) };
}

function trendsPlot(problem, width) {
  const found = chosenRows().filter((row) => row.problem === problem && row.done.length);
  const { layout, axes, set, say, rule } =
    arrange(TRENDS.map(([, title]) => title), width, names(found), { least: 230, ratio: 0.85 });
  const traces = [], rows = [], spoken = [], budgets = bySize(found.map((row) => row.budget));
  const range = [Math.log10(budgets[0]) - 0.12, Math.log10(budgets.at(-1)) + 0.12];
  const shown = budgets.filter((_, k) => k % Math.ceil(budgets.length / 4) === 0);
  const ticks = { tickvals: shown, ticktext: shown.map(whole), title: "simulations", always: true };
  TRENDS.forEach(([key], at) => {
    const { xaxis, yaxis } = axes(at), across = { xref: xaxis + " domain", x0: 0, x1: 1 };
    set(at, { type: "log", range, ...ticks }, key === "train_seconds" ? timeAxis(found) : {});
    if (key === "auc") {
      rule(at, { ...across, y0: 0, y1: 0 });
      say(at, "+ cautious", 0.97, 0.97);
      say(at, "− over-confident", 0.97, 0.03);
    }
    const prior = key === "log_posterior" ? data.priors[data.problems.indexOf(problem)] : null;
    if (prior !== null) {
      rule(at, { ...across, y0: prior, y1: prior }, "dot");
      say(at, "prior", 0.02, prior, { yref: yaxis, yanchor: "bottom" });
    }
    for (const all of linesOf(found)) {
      const line = all.filter((row) => row.get(key).mean !== null);
      if (!line.length) continue;
      const { color, dash, symbol, series, name } = line[0];
      traces.push({
        xaxis, yaxis, legendgroup: String(series), name: inPlot(name), mode: "lines+markers", hoverinfo: "text",
        x: line.map((row) => row.budget), y: line.map((row) => row.get(key).mean),
        error_y: bars(line, key, color), line: { color, dash, width: 2 }, marker: { symbol, color, size: 7 },
        text: line.map((row) => `${inPlot(row.name)}, ${whole(row.budget)} simulations<br>` +
          `${plain(spaced(key))} ${describe(row, key)}<br>` +
          `${several(row.done.length, "seed")}, ${whole(row.pairs)} test pairs`),
      });
      for (const row of line) {
        rows.push([...facts(row), key, row.get(key).mean, row.get(key).error]);
        spoken.push(`${spaced(key)} of ${row.name} with ${whole(row.budget)}: ${describe(row, key)}`);
      }
    }
  });
  const columns = [...FACTS, "quantity", "mean", "standard_error"];
  return { traces: legendary(traces), layout, alt: `${problem} by budget. ${few(spoken)}.`, rows, columns };
}
