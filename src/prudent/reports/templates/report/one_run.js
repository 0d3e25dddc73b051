// Figures of one run: training curves, SBC and TARP.

const runName = (i) => `${data.problems[runs.problem[i]]}, ${data.methods[runs.method[i]].label}${data.settings[runs.setting[i]] ? ` (${data.settings[runs.setting[i]]})` : ""}, ${whole(runs.budget[i])}, seed ${runs.seed[i]} (${runs.place[i]})`;

function oneRun() {
  const able = chosen().filter((i) => data.history.runs[i] || data.ranks.runs[i]);
  const wanted = able.find((i) => runs.run[i] === state.run);
  return { able, run: wanted ?? able[0] };
}

function trainingPlot(width) {
  const { run } = oneRun(), history = data.history.runs[run];
  if (!history) return nothing("No training curves with these filters.");
  const quantities = Object.entries(data.panels).filter(([name]) => history.members.some((m) => m[name] || m["validation_" + name]));
  const { layout, axes, set, draw, colours } = arrange(quantities.map(([, title]) => title), width, ["training", "validation"], { ratio: 0.7 });
  const traces = [], rows = [], spoken = [];
  quantities.forEach(([name], at) => {
    const { x, y } = axes(at);
    set(at, { title: "epoch" }, name === "learning_rate" ? { type: "log", dtick: 1, exponentformat: "power", title: "" } : { title: "" });
    history.members.forEach((member, number) => {
      for (const [part, key, colour, dash] of [["training", name, "#0072B2", "solid"], ["validation", "validation_" + name, "#D55E00", "dash"]]) {
        const values = member[key];
        if (!values) continue;
        traces.push({ xaxis: x, yaxis: y, legendgroup: part, name: part, mode: values.length > 1 ? "lines" : "markers", x: member.epoch, y: values, line: { color: colour, dash, width: 1.6 }, hoverinfo: "text",
          text: values.map((v, k) => `${part}${history.members.length > 1 ? `, member ${number + 1}` : ""}<br>epoch ${member.epoch[k]}: ${v === null ? "not finite" : v}`) });
        values.forEach((v, k) => rows.push([runs.run[run], number, member.epoch[k], key, v]));
        if (number === 0) spoken.push(`${part} ${plain(name.replaceAll("_", " "))} ends at ${values.at(-1)}`);
      }
      if (name === "loss" && member.selected) draw(at, { type: "line", yref: y + " domain", y0: 0, y1: 1, x0: member.selected, x1: member.selected, line: { color: colours.soft, width: 1, dash: "dot" } });
    });
  });
  return { traces: legendary(traces), layout, alt: `Training of ${runName(run)}: ${spoken.join(", ")}.`, rows, columns: ["run", "member", "epoch", "quantity", "value"] };
}

function ranksPlot(width) {
  const { run } = oneRun(), lines = data.ranks.runs[run];
  if (!lines) return nothing("The chosen run was not thorough, so its ranks were not tested. Choose another run above.");
  const tests = unique(lines.map((line) => line.test));
  const titles = { sbc: "SBC: ranks less uniform", tarp: "TARP: coverage" };
  const { layout, axes, set, draw, colours } = arrange(tests.map((t) => titles[t] ?? t), width, unique(lines.map((l) => l.parameter)), { most: 2, ratio: 0.75 });
  const traces = [], rows = [], spoken = [], palette = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
  tests.forEach((test, at) => {
    const { x, y } = axes(at), own = lines.filter((line) => line.test === test), get = (name) => data.ranks.shared[own[0][name]];
    const level = get("level");
    set(at, { range: [0, 1], title: test === "sbc" ? "normalised rank" : "claimed credibility", always: true }, { title: test === "sbc" ? "difference" : "share inside", always: true });
    traces.push({ xaxis: x, yaxis: y, x: [...level, ...[...level].reverse()], y: [...get("lower"), ...[...get("upper")].reverse()], fill: "toself", fillcolor: colours.shade, line: { width: 0 }, mode: "lines", hoverinfo: "skip", showlegend: false });
    draw(at, { type: "line", x0: 0, x1: 1, y0: 0, y1: test === "sbc" ? 0 : 1, line: { color: colours.soft, width: 1 } });
    own.forEach((line, number) => {
      const colour = palette[number % palette.length], levels = data.ranks.shared[line.level];
      traces.push({ xaxis: x, yaxis: y, legendgroup: `${test} ${number}`, name: test === "tarp" ? "TARP" : inPlot(line.parameter), mode: "lines", x: levels, y: line.value, line: { color: test === "tarp" ? colours.ink : colour, dash: DASHES[Math.floor(number / palette.length) % DASHES.length], width: 2 }, hoverinfo: "text",
        text: line.value.map((v, k) => `${inPlot(line.parameter)}<br>${levels[k]}: ${v}<br>p ${line.p}`) });
      line.value.forEach((v, k) => rows.push([runs.run[run], test, line.parameter, levels[k], v, data.ranks.shared[line.lower][k], data.ranks.shared[line.upper][k], line.p]));
      spoken.push(`${test.toUpperCase()} of ${line.parameter}: p ${line.p}`);
    });
  });
  return { traces: legendary(traces), layout, alt: `Rank tests of ${runName(run)}. ${few(spoken)}.`, rows, columns: ["run", "test", "parameter", "level", "value", "lower", "upper", "p_value"] };
}
