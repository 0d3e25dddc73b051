// The table, and copies of it and of the figures.

// ---- Table ------------------------------------------------------------------------------------

const SIGNS = { "over-confident": ["bad", "▼"], conservative: ["good", "▲"], calibrated: ["good", "●"], uninformative: ["unsure", "○"], "not enough test pairs": ["unsure", "?"] };
const TEXT = ["problem", "method", "verdict"];
const byRun = () => (state.rows || (data.cells.length === runs.run.length ? "run" : "cell")) === "run";

function tableCell(row, key) {
  if (key === "problem") return row.problem;
  if (key === "budget") return whole(row.budget);
  if (key === "method") return row.name;
  if (key === "seeds") return byRun() ? `${row.seed ?? "?"}` : row.done.length === row.members.length ? `${row.done.length}` : `${row.done.length} of ${row.members.length}`;
  if (key === "verdict") return `${(SIGNS[row.kind] ?? ["", "–"])[1]} ${row.kind}`;
  if (key === "num_pairs") return whole(row.num_pairs);
  if (!row.done.length) return byRun() ? row.kind : "none finished";
  return withError(row.get(key), key);
}

// "3 of 5 seeds" wherever a mean does not hold all of them.
function incomplete(row, key) {
  const number = FORMATS[key] && row.done.length ? row.get(key).number : row.members.length;
  return number && number < row.members.length ? `${number} of ${row.members.length} seeds` : "";
}

function sortValue(row, key) {
  if (key === "seeds") return byRun() ? row.seed : row.done.length;
  if (key === "method") return row.name;
  if (key === "verdict") return row.kind;
  if (key === "run") return row.place;
  if (["problem", "budget", "num_pairs"].includes(key)) return row[key];
  return row.get(key).mean;
}

function tableRows() {
  const rows = byRun() ? cellsOf(chosen(), (i) => i) : chosenCells();
  const words = state.search.toLowerCase();
  const kept = rows.filter((row) => !words || [row.problem, row.name, row.method.name, row.kind, row.words, row.run, row.place, whole(row.budget)].join(" ").toLowerCase().includes(words));
  const key = state.sort.replace(/^-/, ""), sign = state.sort.startsWith("-") ? -1 : 1;
  if (![...data.columns, ["run"]].some(([name]) => name === key)) return kept;
  return kept.map((row) => [sortValue(row, key), row]).sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "string" ? a.localeCompare(b, "en") : a - b);
  }).map(([, row]) => row);
}

function showTable() {
  const rows = tableRows(), titles = byRun() ? { seeds: "seed" } : {};
  const columns = byRun() ? [...data.columns, ["run", "run"]] : data.columns;
  const head = element("tr");
  for (const [key, title] of columns) {
    const now = state.sort === key ? "ascending" : state.sort === "-" + key ? "descending" : "none";
    const button = element("button", { type: "button", textContent: titles[key] ?? title, onclick: () => { change({ sort: now === "ascending" ? "-" + key : key }); } });
    const cell = element("th", { scope: "col", "aria-sort": now, className: isText(key) ? "" : "number" }, button);
    cell.dataset.key = key;
    head.append(cell);
  }
  const focused = document.activeElement?.closest?.("#table th")?.dataset.key;
  $("table").tHead.replaceChildren(head);
  if (focused) $("table").querySelector(`th[data-key="${focused}"] button`)?.focus();
  const body = document.createDocumentFragment();
  for (const row of rows) {
    const line = element("tr");
    for (const [key] of columns) {
      if (key === "verdict") {
        const words = row.members.length === 1 || !row.short ? row.words : `${row.words} (${row.short} of ${row.done.length} seeds over-confident)`;
        line.append(element("td", { title: short(words) }, element("span", { className: "kind " + (SIGNS[row.kind] ?? ["unsure"])[0], textContent: tableCell(row, key) }), element("span", { className: "words", textContent: words.startsWith(row.kind + ":") ? words.slice(row.kind.length + 2) : words })));
      } else {
        const cell = element("td", { className: ["seeds", "run"].includes(key) ? key : isText(key) ? "name" : "number", textContent: key === "run" ? row.place : tableCell(row, key) });
        const note = incomplete(row, key);
        if (note) cell.append(" ", element("span", { className: "few", textContent: note }));
        line.append(cell);
      }
    }
    body.append(line);
  }
  $("table").tBodies[0].replaceChildren(body);
  $("table-box").classList.toggle("many", rows.length > 12);
  $("table-count").textContent = several(rows.length, "row");
}

const isText = (key) => TEXT.includes(key) || key === "seeds" || key === "run";

function tableAsColumns() {
  const metrics = data.columns.map(([key]) => key).filter((key) => FORMATS[key]);
  const columns = ["problem", "budget", "method", "setting", byRun() ? "seed" : "seeds_done", "seeds", "verdict", "test_pairs", ...metrics.flatMap((key) => [key, key + "_error"]), "run"];
  const rows = tableRows().map((row) => [row.problem, row.budget, row.method.name, row.setting, byRun() ? row.seed : row.done.length, row.members.length, row.words, row.num_pairs, ...metrics.flatMap((key) => [row.get(key).mean, row.get(key).error]), row.place]);
  return { columns, rows };
}

// ---- Copies and files -------------------------------------------------------------------------

// A spreadsheet runs text that begins like a formula; a number is none.
function guarded(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(Number(value.toPrecision(6)));
  const safe = /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

const toCsv = ({ columns, rows }) => [columns, ...rows].map((row) => row.map(guarded).join(",")).join("\n") + "\n";

function toMarkdown() {
  const clean = (text) => text.replace(/[\\|`<>*_]/g, "\\$&").replace(/[\r\n]+/g, " ");
  const lines = tableRows().map((row) => data.columns.map(([key]) => clean(tableCell(row, key))));
  const head = [data.columns.map(([, title]) => title), data.columns.map(([key]) => (isText(key) ? "---" : "--:"))];
  return [...head, ...lines].map((row) => `| ${row.join(" | ")} |`).join("\n") + "\n";
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
    const { width, height } = plot.made.layout;
    save(name, await Plotly.toImage(plot.canvas, { format: kind, width, height, scale: kind === "png" ? 2 : 1 }));
  }
  tell(`Saved ${name}.`);
}
