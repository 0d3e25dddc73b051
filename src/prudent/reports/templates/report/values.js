// Data, words and numbers.

const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs;
const $ = (id) => document.getElementById(id);
const unique = (values) => [...new Set(values)];
const everyRun = runs.run.map((_, index) => index);

function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value; else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const LONGEST = 60;
const MARKUP = { "&": "&amp;", "<": "&lt;", ">": "&gt;", $: "&#36;" }; // a dollar would begin a formula
const plain = (text) => String(text).replace(/[&<>$]/g, (sign) => MARKUP[sign]);
const short = (text, most = LONGEST) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const inPlot = (text) => plain(short(String(text)));
const whole = (value) => (value === null ? "?" : value.toLocaleString("en-US"));
const several = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;
const FORMATS = {
  worst_shortfall: (v) => v.toFixed(3),
  auc: (v, isError) => (isError || v < 0 ? "" : "+") + v.toFixed(3),
  log_posterior: (v) => v.toFixed(2),
  information_gain: (v) => v.toFixed(2),
  region_volume: (v) => (100 * v).toFixed(2),
  train_seconds: duration,
};

function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const all = Math.round(seconds);
  if (all < 60) return `${all} s`;
  if (all < 3600) return `${Math.floor(all / 60)} min ${all % 60} s`;
  return `${Math.floor(all / 3600)} h ${Math.floor((all % 3600) / 60)} min`;
}

function withError(estimate, key) {
  if (estimate.number === 0) return "not finite";
  const mean = FORMATS[key](estimate.mean);
  if (estimate.error === null || key === "train_seconds") return mean;
  return `${mean} ± ${FORMATS[key](estimate.error, true)}`;
}
