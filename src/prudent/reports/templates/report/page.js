// Everything together.

function showControls() {
  const form = $("filters");
  for (const field of ["problem", "budget", "seed"]) form.elements[field].value = state[field];
  for (const box of form.querySelectorAll("[name=method]")) box.checked = !state.without.includes(box.value);
  $("rows").value = byRun() ? "run" : "cell";
  if (document.activeElement !== $("search")) $("search").value = state.search;
  $("about-all").hidden = !(state.problem || state.budget || state.seed || state.without.length);
  const found = chosen(runs), done = found.filter(isDone).length;
  const all = found.length < runs.run.length ? ` (of ${whole(runs.run.length)})` : "";
  $("shown").textContent = `${whole(done)} of ${several(found.length, "run")}${all}`;
  const { able, run } = oneRun();
  const option = (i) => element("option", { value: runs.run[i], textContent: short(runName(i)), selected: i === run });
  $("run").replaceChildren(...able.map(option));
  $("run-words").textContent = run === undefined ? "" : rowOf(runs, run).said;
  $("ranks-section").hidden = !able.some((i) => data.ranks.runs[i]);
}

function update() {
  shared = null;
  showControls();
  showProblems();
  repaint();
  showTable();
}

function listen() {
  const form = $("filters");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    change({ without: [], ...Object.fromEntries(FIELDS.map((field) => [field, ""])) });
  });
  form.addEventListener("change", ({ target }) => {
    if (target.name === "method") {
      change({ without: [...form.querySelectorAll("[name=method]:not(:checked)")].map((box) => box.value) });
    } else change({ [target.name]: target.value });
  });
  $("rows").addEventListener("change", ({ target }) => change({ rows: target.value }));
  $("run").addEventListener("change", ({ target }) => change({ run: target.value }));
  $("search").addEventListener("input", ({ target }) => change({ search: target.value }, { quietly: true }));
  $("copy-csv").addEventListener("click", () => copy(toCsv(tableAsColumns()), "CSV"));
  $("copy-markdown").addEventListener("click", () => copy(toMarkdown(), "Markdown"));
  addEventListener("hashchange", () => { readState(); update(); });
  darkMode.addEventListener("change", () => repaint());
  let width = innerWidth, pause;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(pause);
    pause = setTimeout(() => repaint(), 150);
  });
  addEventListener("beforeprint", () => { printing = true; repaint({ all: true }); });
  addEventListener("afterprint", () => { printing = false; repaint(); });
}

document.documentElement.classList.remove("plain");
readState();
addPlot($("coverage"), coveragePlot);
addPlot($("tradeoff"), tradeoffPlot);
addPlot($("training"), trainingPlot);
addPlot($("ranks"), ranksPlot);
listen();
plots.get($("coverage")).visible = true; // what is asked first is drawn first
update();
