// Figures of one run: its training, and the tests that it was put to.

function runName(i) {
  const { name } = seriesOf(runs, i), problem = data.problems[runs.problem[i]];
  return `${problem}, ${name}, ${whole(runs.budget[i])}, seed ${runs.seed[i]} (${runs.place[i]})`;
}

function oneRun() {
  const able = chosen(runs).filter((i) => data.history.runs[i] || data.ranks.runs[i]);
  const wanted = able.find((i) => runs.run[i] === state.run);
  return { able, run: wanted ?? able[0] };
}

const PARTS = [["training", "", "#0072B2", "solid"], ["validation", "validation_", "#D55E00", "dash"]];

function trainingPlot(width) {
  const { run } = oneRun(), members = data.history.runs[run];
  if (!members) return nothing("No training curves with these filters.");
  const quantities = Object.keys(data.panels).filter((name) =>
    members.some((member) => PARTS.some(([, prefix]) => member[prefix + name])));
  const titles = quantities.map((name) => data.panels[name]);
  const { layout, axes, set, rule } = arrange(titles, width, PARTS.map(([part]) => part), { ratio: 0.7 });
  const traces = [], rows = [], spoken = [];
  quantities.forEach((name, at) => {
    set(at, { title: "epoch" }, name === "learning_rate" ? { type: "log", dtick: 1, exponentformat: "power" } : {});
    members.forEach((member, number) => {
      const who = members.length > 1 ? `, member ${number + 1}` : "";
      for (const [part, prefix, color, dash] of PARTS) {
        const values = member[prefix + name];
        if (!values) continue;
        traces.push({
          ...axes(at), legendgroup: part, name: part, mode: values.length > 1 ? "lines" : "markers",
          x: member.epoch, y: values, line: { color, dash, width: 1.6 }, hoverinfo: "text",
          text: values.map((v, k) => `${part}${who}<br>epoch ${member.epoch[k]}: ${v ?? "not finite"}`),
        });
        values.forEach((v, k) => rows.push([runs.run[run], number, member.epoch[k], prefix + name, v]));
        if (number === 0) spoken.push(`${part} ${spaced(name)} ends at ${values.at(-1)}`);
      }
      if (name !== "loss" || !member.selected) return;
      rule(at, { yref: axes(at).yaxis + " domain", y0: 0, y1: 1, x0: member.selected, x1: member.selected }, "dot");
    });
  });
  const columns = ["run", "member", "epoch", "quantity", "value"];
  const alt = `Training of ${runName(run)}: ${spoken.join(", ")}.`;
  return { traces: legendary(traces), layout, alt, rows, columns };
}

const PALETTE = data.palette;
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];

function ranksPlot(width) {
  const { run } = oneRun(), lines = data.ranks.runs[run];
  if (!lines) return nothing("The chosen run was not thorough, so it was not tested. Choose another run above.");
  const tests = unique(lines.map((line) => line.test)), get = (line, name) => data.ranks.shared[line[name]];
  const told = tests.map((test) => data.tests[test] ?? [spaced(test), "level", "value", null]);
  const labels = unique(lines.map((line) => line.parameter));
  const titles = told.map(([title]) => title), shape = { most: 2, ratio: 0.75 };
  const { layout, axes, set, rule, colors } = arrange(titles, width, labels, shape);
  const traces = [], rows = [], spoken = [];
  tests.forEach((test, at) => {
    const own = lines.filter((line) => line.test === test), [, xTitle, yTitle, end] = told[at];
    set(at, { range: [0, 1], title: xTitle, always: true }, { title: yTitle });
    const bounds = ["level", "lower", "upper"].map((name) => get(own[0], name));
    traces.push({ ...axes(at), ...band(...bounds, colors.shade) });
    if (end !== null) rule(at, { x0: 0, x1: 1, y0: 0, y1: end });
    own.forEach((line, number) => {
      const alone = line.parameter === "all", name = alone ? test.toUpperCase() : line.parameter;
      const dash = DASHES[Math.floor(number / PALETTE.length) % DASHES.length];
      const level = get(line, "level"), color = alone ? colors.ink : PALETTE[number % PALETTE.length];
      traces.push({
        ...axes(at), legendgroup: `${test} ${number}`, name: inPlot(name), mode: "lines", x: level, y: line.value,
        line: { color, dash, width: 2 }, hoverinfo: "text",
        text: line.value.map((v, k) => `${inPlot(line.parameter)}<br>${level[k]}: ${v}<br>p ${line.p}`),
      });
      line.value.forEach((v, k) => rows.push([
        runs.run[run], test, line.parameter, level[k], v, get(line, "lower")[k], get(line, "upper")[k], line.p,
      ]));
      spoken.push(`${test.toUpperCase()} of ${line.parameter}: p ${line.p}`);
    });
  });
  const columns = ["run", "test", "parameter", "level", "value", "lower", "upper", "p_value"];
  return { traces: legendary(traces), layout, alt: `Rank tests of ${runName(run)}. ${few(spoken)}.`, rows, columns };
}
