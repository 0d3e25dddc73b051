// What is chosen, kept in the address, and the rows of what is chosen.

const FIELDS = ["problem", "budget", "seed", "rows", "sort", "search", "run"];
let state = {};

function readState() {
  const found = new URLSearchParams(location.hash.slice(1));
  const names = data.methods.map((method) => method.name);
  const hidden = found.getAll("without").filter((name) => names.includes(name));
  state = { without: hidden };
  for (const field of FIELDS) state[field] = found.get(field) ?? "";
  if (!data.problems.includes(state.problem)) state.problem = "";
  if (!runs.budget.map(String).includes(state.budget)) state.budget = "";
  if (!runs.seed.map(String).includes(state.seed)) state.seed = "";
  if (!["cell", "run"].includes(state.rows)) state.rows = "";
}

function address() {
  const made = new URLSearchParams();
  for (const field of FIELDS) if (state[field]) made.set(field, state[field]);
  for (const name of state.without) made.append("without", name);
  return "#" + made.toString();
}

// Typing in the search box would fill the history; all other choices can be undone by "back".
function change(changes, { quietly = false } = {}) {
  Object.assign(state, changes);
  if (!quietly) { location.hash = address(); return; }
  history.replaceState(null, "", address());
  update();
}

// ---- Rows: cells, all seeds together, or single runs --------------------------------------------

const isDone = (i) => runs.done[i] > 0;
const seriesOf = (table, i) => data.series[table.series[i]];

const chosen = (table) => places(table).filter((i) =>
  (!state.problem || data.problems[table.problem[i]] === state.problem) &&
  (!state.budget || String(table.budget[i]) === state.budget) &&
  (!state.seed || table !== runs || String(runs.seed[i]) === state.seed) &&
  !state.without.includes(seriesOf(table, i).method));

function rowOf(table, i) {
  const one = table === runs;
  const done = table.members[i].filter(isDone);
  return {
    ...seriesOf(table, i), done, series: table.series[i], told: table.seeds[i],
    problem: data.problems[table.problem[i]], budget: table.budget[i], pairs: table.pairs[i],
    said: table.kind[i] + table.between[i] + table.evidence[i], bound: table.bound[i], at90: table.at90[i],
    get color() { return visible(seriesOf(table, i).color); },
    kind: table.kind[i], evidence: table.evidence[i], seeds: table.members[i].length,
    curve: (one ? null : data.coverage.mean[i]) ?? data.coverage.curve[done[0]],
    seed: one ? runs.seed[i] : null, run: one ? runs.run[i] : "", place: one ? runs.place[i] : "",
    get: (key) => {
      const { mean, error, text, note } = table.values[key];
      return { mean: mean[i], error: error[i], text: text[i], note: note[i] ?? "" };
    },
  };
}

const runRows = () => chosen(runs).map((i) => rowOf(runs, i));

// All figures of one view share their rows. A seed that is chosen leaves one run of each cell.
let shared = null;
const chosenRows = () => (shared ??= state.seed ? runRows() : chosen(cells).map((i) => rowOf(cells, i)));
