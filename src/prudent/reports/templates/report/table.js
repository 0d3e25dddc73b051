// The table, and copies of it and of the figures.

// ---- Table ------------------------------------------------------------------------------------

const byRun = () => (state.rows || (cells.kind.length === runs.kind.length ? "run" : "cell")) === "run";
const isNumber = ([, , kind]) => kind === "number";
const columnsNow = () => (byRun() ? [...data.columns, ["run", "run", "run"]] : data.columns);
const signOf = (row) => data.signs[row.kind] ?? ["unsure", "–"];

const SHOWN = {
  problem: (row) => row.problem,
  budget: (row) => whole(row.budget),
  method: (row) => row.name,
  seeds: (row) => (byRun() ? `${row.seed ?? "?"}` : row.told),
  verdict: (row) => `${signOf(row)[1]} ${row.kind}`,
  pairs: (row) => whole(row.pairs),
  run: (row) => row.place,
};
const SORTED = {
  ...SHOWN,
  budget: (row) => row.budget,
  seeds: (row) => (byRun() ? row.seed : row.done.length),
  verdict: (row) => row.kind,
  pairs: (row) => row.pairs,
};
const tableCell = (row, key) => SHOWN[key]?.(row) ?? row.get(key).text;
const sortValue = (row, key) => (key in SORTED ? SORTED[key](row) : row.get(key).mean);

function tableRows() {
  const words = state.search.toLowerCase();
  const texts = (row) => [
    row.problem, row.name, row.method, row.kind, row.evidence, row.run, row.place, whole(row.budget),
  ];
  const kept = (byRun() ? runRows() : chosenRows()).filter((row) =>
    !words || texts(row).join(" ").toLowerCase().includes(words));
  const key = state.sort.replace(/^-/, ""), sign = state.sort.startsWith("-") ? -1 : 1;
  if (![...data.columns, ["run"]].some(([name]) => name === key)) return kept;
  return kept.map((row) => [sortValue(row, key), row]).sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "string" ? a.localeCompare(b, "en") : a - b);
  }).map(([, row]) => row);
}

const headingText = (key, title) => (key === "seeds" && byRun() ? "seed" : title);

function heading([key, title, kind]) {
  const now = state.sort === key ? "ascending" : state.sort === "-" + key ? "descending" : "none";
  const onclick = () => change({ sort: now === "ascending" ? "-" + key : key });
  const textContent = headingText(key, title);
  const button = element("button", { type: "button", textContent, onclick });
  const cell = element("th", { scope: "col", "aria-sort": now, className: kind }, button);
  cell.dataset.key = key;
  return cell;
}

function tableNode(row, [key, title, kind]) {
  const cell = tableContent(row, key, kind);
  cell.dataset.title = headingText(key, title);
  return cell;
}

function tableContent(row, key, kind) {
  const textContent = tableCell(row, key);
  if (key === "verdict") {
    const badge = element("span", { className: "kind " + signOf(row)[0], textContent });
    const words = element("span", { className: "words", textContent: row.evidence });
    return element("td", { className: kind, title: short(row.said) }, badge, words);
  }
  const cell = element("td", { className: kind, textContent }), note = key in SHOWN ? "" : row.get(key).note;
  if (note) cell.append(" ", element("span", { className: "few", textContent: note }));
  return cell;
}

function showTable() {
  const rows = tableRows(), columns = columnsNow();
  const focused = document.activeElement?.closest?.("#table th")?.dataset.key;
  $("table").tHead.replaceChildren(element("tr", {}, ...columns.map(heading)));
  if (focused) $("table").querySelector(`th[data-key="${focused}"] button`)?.focus();
  const lines = rows.map((row) => element("tr", {}, ...columns.map((column) => tableNode(row, column))));
  $("table").tBodies[0].replaceChildren(...lines);
  $("table-box").classList.toggle("many", rows.length > 12);
  $("table-count").textContent = several(rows.length, "row");
}

function tableAsColumns() {
  const metrics = Object.keys(runs.values), seed = byRun();
  const columns = [
    "problem", "budget", "method", "setting", seed ? "seed" : "seeds_done", "seeds", "verdict", "evidence",
    "test_pairs", "bound", ...metrics.flatMap((key) => [key, key + "_error"]), "run",
  ];
  const rows = tableRows().map((row) => [
    row.problem, row.budget, row.method, row.setting, seed ? row.seed : row.done.length, row.seeds, row.kind,
    row.evidence, row.pairs, row.bound, ...metrics.flatMap((key) => [row.get(key).mean, row.get(key).error]), row.place,
  ]);
  return { columns, rows };
}

// ---- Copies and files -------------------------------------------------------------------------

// A spreadsheet runs text that begins like a formula; a number is none.
function guarded(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const safe = /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

const toCsv = ({ columns, rows }) => [columns, ...rows].map((row) => row.map(guarded).join(",")).join("\n") + "\n";

function toMarkdown() {
  const clean = (text) => text.replace(/[\\|`<>*_]/g, "\\$&").replace(/[\r\n]+/g, " ");
  const lines = tableRows().map((row) => data.columns.map(([key]) => clean(tableCell(row, key))));
  const rule = data.columns.map((column) => (isNumber(column) ? "--:" : "---"));
  const table = [data.columns.map(([, title]) => title), rule, ...lines];
  return table.map((row) => `| ${row.join(" | ")} |`).join("\n") + "\n";
}

let silence;
function tell(text) {
  $("said").textContent = text;
  clearTimeout(silence);
  silence = setTimeout(() => { $("said").textContent = ""; }, 4000);
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = element("textarea", { value: text });
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  tell(`Copied the table as ${what}.`);
}

function save(name, address) {
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

async function download(plot, kind) {
  const name = `${plot.node.dataset.name.replace(/[^\w-]+/g, "_").slice(0, 80)}.${kind}`;
  if (kind === "csv") {
    const address = URL.createObjectURL(new Blob([toCsv(plot.made)], { type: "text/csv" }));
    save(name, address);
    URL.revokeObjectURL(address);
  } else {
    const { width, height } = plot.made.layout, scale = kind === "png" ? 2 : 1;
    save(name, await Plotly.toImage(plot.canvas, { format: kind, width, height, scale }));
  }
  tell(`Saved ${name}.`);
}
