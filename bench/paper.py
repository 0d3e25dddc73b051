"""The paper's experiments, kept in paper.json: a line for each run, with its coverage curve.

`paper.py run` makes the runs of `sweeps/paper.toml`, `sensitivity.toml` and `overhead.toml` whose
results are not there yet; it can be killed and goes on, also on another machine. The runs
themselves are in runs/paper. `paper.py figure` draws the paper's figures and writes all numbers of
docs/paper-figures.md and docs/scaling.md; `paper.py table` writes the numbers alone.
"""

import argparse
from collections import Counter, defaultdict
from functools import cache, partial
from itertools import takewhile

import matplotlib as mpl
import numpy as np
import pandas
import paper_tables as tables
import torch
from paper_claims import CLAIMS, HEAD, STATUS, Cell, draws, excess, seconds_of, weights
from study import FIGURES, ROOT, SweepStudy, block, marked, sweep

from prudent import _plots as plots
from prudent.diagnostics.expected_coverage import Coverage
from prudent.errors import InputError
from prudent.experiments.results import Results
from prudent.reports.figures import draw, save

PAGES = (ROOT / "docs" / "paper-figures.md", ROOT / "docs" / "scaling.md")
IMAGES = ROOT / "docs" / "images" / "paper"
# Problems of which a step takes up to a second.
SLOW = ("spatial_sir", "gravitational_waves")
ALTS = {
    "coverage": "Expected coverage, a row for each method and a column for each problem",
    "log_posterior": "Log posterior of the truth against the number of simulations",
    "auc": "AUC of coverage against the number of simulations",
    "overhead": "Times as long as without the penalty against the number of draws",
    "sensitivity_weight": "Coverage, AUC and log posterior on Weinberg for several weights",
    "sensitivity_samples": "Coverage, AUC and log posterior on Weinberg for several L",
    "calibrated": "Expected coverage with the calibrated target",
}


@cache
def first_runs():
    """What all problems say that are quick; it comes before everything else."""
    quick = takewhile(lambda one: one.problem not in SLOW, sweep("paper").configs)
    return {one.identity for one in quick}


def turn(config):
    """The first runs first, then sensitivity, overhead and the rest; the largest budget last."""
    return config.identity not in first_runs(), config.budget > 100_000


STUDY = SweepStudy(
    "paper",
    ("problem", "budget", "method", "target", "members", "weight", "num_samples", "seed", "run"),
    turn,
    # Inside of their blocks all files go through everything before they take the next seed.
    ("sensitivity", "overhead", "paper"),
)


def cells_of(results):
    """The results by cell, also of cells without any; and how many each will have."""
    known, found, plan = {one["run"]: one for one in results}, {}, defaultdict(int)
    for name, config in STUDY.plan():
        training = config.training
        cell = Cell(name, config.problem, config.budget, config.method, training.target,
                    training.weight, training.num_samples, training.members)  # fmt: skip
        plan[cell] += 1
        lines = found.setdefault(cell, [])
        if config.identity in known:
            most = training.epochs * config.num_networks
            lines.append({"epochs": most, **known[config.identity], "config": config})
    return found, dict(plan)


def results_of(cells, chosen):
    """Some cells as the tables that the figures of the package take."""
    runs, curves = [], []
    for cell in chosen:
        for one in cells[cell]:
            shares = [inside / one["num_pairs"] for inside in one["inside"]]
            curve = torch.tensor([one["levels"], *3 * [shares]])
            run = {"run": one["run"], **one["config"].flat(), "method": cell.series}
            known = {name: one[name] for name in FIGURES}
            known["auc_error"] = Coverage(*curve, one["num_pairs"]).auc_error
            times = {"train_seconds": seconds_of(one) * one["epochs"]}
            runs.append({**run, "state": "done", **known, **times})
            for level, share in zip(one["levels"], shares, strict=True):
                ends = dict.fromkeys(("coverage", "lower", "upper"), share)
                curves.append({"run": one["run"], "level": level, **ends})
    return Results(runs=pandas.DataFrame(runs), curves=pandas.DataFrame(curves))


@plots.themed
def coverage(cells, chosen):
    """The paper's figure: a row for each method, a column for each problem, colors for budgets."""
    methods = tables.columns_of(chosen)
    problems = [name for name in tables.PROBLEMS if name in {one.problem for one in chosen}]
    budgets = sorted({one.budget for one in chosen if cells[one]})
    if not budgets:
        raise InputError("none of its runs is done.")
    shades = mpl.colormaps["viridis"](np.linspace(0, 0.85, len(budgets)))
    colors = dict(zip(budgets, shades, strict=True))
    canvas, axes = plots.canvas(len(methods), len(problems), panel=(1.15, 1.1))
    places = [(method, problem) for method in methods for problem in problems]
    for axis, place in zip(axes.flat, places, strict=True):
        plots.coverage_panel(axis, {}, words=place == places[0])
        own = [one for one in chosen if (one.label, one.problem) == place and cells[one]]
        for cell in sorted(own, key=lambda one: one.budget):
            levels, above = excess(cells[cell])
            axis.plot(levels, levels + above, color=colors[cell.budget])
        if not own:
            style = {"ha": "center", "backgroundcolor": "white", "fontsize": plots.SMALL}
            axis.text(0.5, 0.45, "no run yet", **style)
        axis.set(xlabel="level", ylabel=place[0])
        axis.label_outer()
    for axis, problem in zip(axes[0], problems, strict=True):
        axis.set_title(plots.plain_name(problem).replace("_", "\n"))
    handles = [
        axes[0, 0].plot([], color=color, label=f"{budget:,} simulations")[0]
        for budget, color in colors.items()
    ]
    note = "Share of truths inside regions against their credibility level, mean of all seeds"
    return plots.dress(canvas, "Expected coverage", [note], handles)


def drawings(cells):
    """The functions that draw the figures, by name."""
    first, appendix = tables.shown(cells), tables.shown(cells, "calibrated")
    single = [one for one in cells if one.sweep == "sensitivity" and one.members == 1]
    timed = [one for one in cells if one.sweep == "overhead"]
    ours = {"log_posterior": first, "auc": first, "overhead": timed}
    ours |= dict.fromkeys(("sensitivity_weight", "sensitivity_samples"), single)
    return {
        "coverage": lambda: coverage(cells, first),
        "calibrated": lambda: coverage(cells, appendix),
        **{name: partial(draw_some, name, cells, chosen) for name, chosen in ours.items()},
    }


def draw_some(name, cells, chosen):
    """A figure of the package, of some cells."""
    if not any(cells[one] for one in chosen):
        raise InputError("none of its runs is done.")
    return draw(name, results_of(cells, chosen))


def figure(cells, folder=IMAGES):
    """Draw what can be drawn, and remove what cannot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, function in drawings(cells).items():
        path = folder / f"{name}.png"
        try:
            save(function(), path, dpi=150)
        except InputError as error:
            path.unlink(missing_ok=True)
            print(f"{name} is not drawn: {error}")


def claims(cells):
    """All claims as a table, and how many there are of each kind."""
    rows = [one.row(cells) for one in CLAIMS]
    kinds = Counter(row[HEAD.index("here")] for row in rows)
    told = "; ".join(f"{kind}: {kinds[kind]}" for kind in STATUS)
    return f"{marked(HEAD, rows)}\n{len(rows)} claims; {told}.\n"


def parts(cells, plan):
    """What stands between the marks of the pages."""
    wide = partial(tables.by_problem, cells, plan)
    pictures = {
        f"paper-{name}": f"![{alt}](images/paper/{name}.png)\n"
        if (IMAGES / f"{name}.png").is_file()
        else "*Not run yet.*\n"
        for name, alt in ALTS.items()
    }
    return pictures | {
        "paper-progress": tables.progress(cells, plan),
        "paper-claims": claims(cells),
        "paper-auc-table": wide(tables.auc, "auc"),
        "paper-log-posterior-table": wide(tables.log_posterior, "log_posterior"),
        "paper-claiming-table": wide(tables.claiming),
        "paper-overhead-table": tables.overhead(cells),
        "paper-weight-table": tables.by_value("weight", weights, cells),
        "paper-samples-table": tables.by_value("L", draws, cells),
        "paper-calibrated-auc-table": wide(tables.auc, target="calibrated"),
        "paper-calibrated-log-posterior-table": wide(tables.log_posterior, target="calibrated"),
        "paper-cost": tables.predicted(cells),
    }


def filled(text, found):
    """A page with what was found between its marks."""
    for name, part in found.items():
        text = block(name).sub(lambda _, part=part: f"\n{part}\n", text)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "collect", "table", "figure"))
    what = parser.parse_args().what
    if what in ("run", "collect"):
        getattr(STUDY, what)()
        return
    cells, plan = cells_of(STUDY.read())
    if what == "figure":
        figure(cells)
    for page in PAGES:
        page.write_text(filled(page.read_text(), parts(cells, plan)))
    print(tables.progress(cells, plan), end="")


if __name__ == "__main__":
    main()
