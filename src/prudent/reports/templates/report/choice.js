// What is chosen, kept in the address, and the cells of what is chosen.

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
  if (quietly) { history.replaceState(null, "", address()); update(); } else location.hash = address();
}

function chosen() {
  return everyRun.filter((i) =>
    (!state.problem || data.problems[runs.problem[i]] === state.problem) &&
    (!state.budget || String(runs.budget[i]) === state.budget) &&
    (!state.seed || String(runs.seed[i]) === state.seed) &&
    !state.without.includes(data.methods[runs.method[i]].name));
}

// ---- Cells: runs that differ by their seed ----------------------------------------------------

const kinds = new Map(data.cells.map((cell) => [cell.slice(0, 4).join(), { kind: cell[4], words: cell[5] }]));
const isDone = (i) => runs.kind[i] !== null;
const margin = (pairs) => Math.sqrt(Math.log(2 / 0.05) / (2 * pairs));
const sum = (values) => values.reduce((a, b) => a + b, 0);
const ERRORS = { auc: "auc_error", log_posterior: "log_posterior_error", information_gain: "information_gain_error" };

function estimate(members, key) {
  const finite = members.filter((i) => runs[key][i] !== null);
  if (!finite.length) return { mean: null, error: null, number: 0 };
  const values = finite.map((i) => runs[key][i]);
  const mean = sum(values) / values.length;
  let error = null;
  if (key === "worst_shortfall") error = margin(sum(finite.map((i) => runs.num_pairs[i])));
  else if (values.length > 1) error = Math.sqrt(sum(values.map((v) => (v - mean) ** 2)) / (values.length - 1) / values.length);
  else if (ERRORS[key]) error = runs[ERRORS[key]][finite[0]];
  return { mean, error, number: values.length };
}

function makeCell(members) {
  const i = members[0], done = members.filter(isDone), known = {};
  const key = [runs.problem[i], runs.budget[i], runs.method[i], runs.setting[i]].join();
  const one = members.length === 1 && (state.seed || state.rows === "run");
  let judged = kinds.get(key) ?? { kind: "no finished run", words: "no finished run" };
  if (one) judged = isDone(i) ? { kind: runs.kind[i], words: runs.words[i] } : { kind: runs.state[i], words: runs.error[i] ?? runs.state[i] };
  const method = data.methods[runs.method[i]], setting = data.settings[runs.setting[i]];
  return {
    members, done, key, method, setting, ...judged,
    problem: data.problems[runs.problem[i]], budget: runs.budget[i],
    name: setting ? `${method.label} (${setting})` : method.label,
    series: `${runs.method[i]},${runs.setting[i]}`,
    short: done.filter((j) => runs.kind[j] === "over-confident").length,
    num_pairs: sum(done.map((j) => runs.num_pairs[j])),
    get: (metric) => (known[metric] ??= estimate(done, metric)),
    run: members.length === 1 ? runs.run[i] : "", place: members.length === 1 ? runs.place[i] : "", seed: runs.seed[i],
  };
}

// All figures of one view share their cells.
let shared = null;
const chosenCells = () => (shared ??= cellsOf(chosen()));

function cellsOf(members, by = (i) => [runs.problem[i], runs.budget[i], runs.method[i], runs.setting[i]].join()) {
  const groups = new Map();
  for (const i of members) {
    const key = by(i);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(i);
  }
  return [...groups.values()].map(makeCell);
}
