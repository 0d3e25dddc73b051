// Drawing what is in view, and no more.

const plots = new Map();
// Named one by one, because Plotly's own list has a button that sends the figure to a server.
const BUTTONS = ["zoomIn2d", "zoomOut2d", "resetScale2d", "zoom2d", "pan2d"];
const CONFIG = {
  displaylogo: false, responsive: false, modeBarButtons: [BUTTONS], plotlyServerURL: "", typesetMath: false,
};
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const plot = plots.get(target);
    if (!plot) continue;
    plot.visible = isIntersecting;
    if (isIntersecting && plot.stale) paint(plot);
  }
}, { rootMargin: "300px" });

function addPlot(node, build) {
  const canvas = element("div", { className: "canvas", role: "figure" });
  const bar = element("p", { className: "downloads" });
  const plot = { node, canvas, bar, build, stale: true, visible: false };
  for (const kind of ["SVG", "PNG", "CSV"]) {
    const title = `Download the ${kind === "CSV" ? "data" : "figure"} as ${kind}`;
    const onclick = () => download(plot, kind.toLowerCase());
    bar.append(element("button", { type: "button", textContent: kind, title, onclick }));
  }
  node.append(canvas);
  node.after(bar);
  plots.set(node, plot);
  watcher.observe(node);
  return plot;
}

function paint(plot) {
  const width = printing ? PRINT_WIDTH : plot.node.clientWidth;
  const made = plot.build(width);
  plot.stale = false;
  plot.made = made;
  plot.node.classList.toggle("empty", Boolean(made.empty));
  plot.bar.hidden = Boolean(made.empty);
  if (made.empty) {
    Plotly.purge(plot.canvas);
    plot.canvas.textContent = made.empty;
    plot.canvas.setAttribute("aria-label", made.empty);
    return;
  }
  if (!plot.canvas.classList.contains("js-plotly-plot")) plot.canvas.textContent = "";
  plot.canvas.setAttribute("aria-label", made.alt);
  Plotly.react(plot.canvas, made.traces, made.layout, CONFIG).then(() => {
    if (!performance.getEntriesByName("first-plot").length) performance.mark("first-plot");
  });
}

function repaint({ all = false } = {}) {
  for (const plot of plots.values()) {
    plot.stale = true;
    if (all || plot.visible) paint(plot);
  }
}

function showProblems() {
  const box = $("problems");
  const rows = chosenRows().filter((row) => row.done.length);
  // One budget asks no question about more of them, and one point has nothing to be traded against.
  const several = (found, key) => unique(found.map((row) => row.problem)).filter((problem) =>
    unique(found.filter((row) => row.problem === problem).map(key)).length > 1);
  const wanted = several(rows, (row) => row.budget);
  $("problems-section").hidden = !wanted.length;
  $("tradeoff-section").hidden = !several(traded(), (row) => row).length;
  const present = [...box.children].map((part) => part.dataset.problem);
  if (wanted.join("\n") === present.join("\n")) return;
  for (const [node] of plots) if (box.contains(node)) { watcher.unobserve(node); plots.delete(node); }
  box.replaceChildren();
  for (const problem of wanted) {
    const node = element("div", { className: "plot" });
    node.dataset.name = `budgets-${problem}`;
    const part = element("div", {}, element("h3", { textContent: problem }), node);
    part.dataset.problem = problem;
    box.append(part);
    addPlot(node, (width) => trendsPlot(problem, width));
  }
}
