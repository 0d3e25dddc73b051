"""The study of `sweeps/unseen.toml`: coverage on pairs that nobody has seen, kept in unseen.json.

`unseen.py run` makes the runs whose results are not there yet, one after the other; it can be
killed and goes on, also on another machine. `unseen.py collect` takes in what a sweep has made.
`unseen.py table` compares; `unseen.py figure -o docs/images/unseen.png` draws the runs with 1,024
simulations and puts their table into README.md. The runs themselves are in runs/unseen. Single
flows, trained on the same pairs, come from peers.json.
"""

import argparse
import math
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

from study import (
    ROOT,
    Study,
    SweepStudy,
    block,
    how_many,
    marked,
    safe,
    signed,
    spread,
    too_much,
)

from prudent.training.methods import look

README = ROOT / "README.md"
# What stands between these lines of README.md is the table of `unseen.py figure`.
BLOCK = block("unseen")
# The problems and the budget of the figure, and the estimator with which others are compared.
PROBLEMS, BUDGET = ("slcp", "two_moons", "mg1", "weinberg"), 1024
RECOMMENDED = "prudent"
STUDY = SweepStudy(
    "unseen",
    ("problem", "budget", "method", "members", "recalibrate", "seed"),
    # The recommended estimator first, then small budgets.
    lambda one: (one.method != RECOMMENDED, one.budget, one.seed),
)
SHORT_HEAD = ("estimator", "runs", "claim too much", "worst shortfall", "mean AUC",
              "log posterior")  # fmt: skip
HEAD = ("problem", "simulations", "estimator", "safe runs", "AUC", "worst shortfall",
        "log posterior", "minus that of prudent")  # fmt: skip


def single_flows():
    """The results of one flow on the pairs of the study, by our defaults and by those of sbi."""
    return [
        {**one, "method": "npe", "members": 1, "recalibrate": "no", "num_pairs": one["num_test"]}
        for one in Study("peers", ()).read()
        if one["family"] == "npe" and one["problem"] in PROBLEMS
    ]


def everything():
    return [*STUDY.read(), *single_flows()]


def name(one):
    """A method with what makes it differ from the method's own settings."""
    parts = [look(one["method"]).label]
    parts += [f"{one['peer']} {one['version']}"] if one.get("peer", "prudent") != "prudent" else []
    if one["method"] != "prudent":
        parts += ["temperature"] if one["recalibrate"] not in (None, "no") else []
        parts += [f"{one['members']} seeds"] if one["members"] not in (None, 1) else []
    return ", ".join(parts)


def table(results):
    """A row for each problem, budget and estimator; the sharpest safe one first."""
    groups = defaultdict(list)
    for one in results:
        groups[one["problem"], one["budget"], name(one)].append(one)
    rows = []
    for (problem, budget, label), found in groups.items():
        sharp = [sharpness(one) for one in found]
        error = f" ± {stdev(sharp):.2f}" if len(sharp) > 1 and min(sharp) > -math.inf else ""
        gains = differences(found, groups.get((problem, budget, RECOMMENDED), []))[problem]
        known = gains and label != RECOMMENDED and min(gains) > -math.inf
        # Estimators with other seeds are compared on those that both have.
        order = (problem, budget, sum(map(safe, found)) < 0.95 * len(found), -mean(gains or sharp))
        figures = (
            signed(mean(one["auc"] for one in found), 3),
            f"{max(0.0, *(one['worst_shortfall'] for one in found), 0.0):.3f}",
            f"{mean(sharp):.2f}{error}",
            spread(gains, sign="+") if known else "–",
        )
        rows.append((order, (problem, f"{budget:,}", label, how_many(safe, found), *figures)))
    return [cells for _, cells in sorted(rows)]


def sharpness(one):
    """The log posterior, of which minus infinity is stored as None."""
    return -math.inf if one["log_posterior"] is None else one["log_posterior"]


def differences(found, reference):
    """By problem, the log posteriors minus those of the same problem and seed."""
    known = {(one["problem"], one["seed"]): sharpness(one) for one in reference}
    gains = defaultdict(list)
    for one in found:
        if (key := (one["problem"], one["seed"])) in known:
            gains[one["problem"]].append(sharpness(one) - known[key])
    return gains


def by_estimator(results):
    """The runs of the figure by estimator: the recommended one first, then by who is honest."""
    groups = defaultdict(list)
    for one in results:
        if one["budget"] == BUDGET:
            groups[name(one)].append(one)

    def order(label):
        found = groups[label]
        return label != RECOMMENDED, sum(map(too_much, found)) / len(found), label

    return {label: groups[label] for label in sorted(groups, key=order)}


def gain(found, reference):
    """The mean over problems of the mean differences, and the least and the most of them."""
    each = [mean(values) for values in differences(found, reference).values()]
    if not each:
        return "–"
    return f"{signed(mean(each))} ({signed(min(each))} to {signed(max(each))})"


def short_table(results):
    """A row for each estimator, all problems together."""
    groups = by_estimator(results)
    rows = []
    for label, found in groups.items():
        own = "0" if label == RECOMMENDED else gain(found, groups.get(RECOMMENDED, []))
        worst = max(0.0, *(one["worst_shortfall"] for one in found), 0.0)
        sizes = [len({one[key] for one in found}) for key in ("problem", "seed")]
        runs = f"{len(found)} ({sizes[0]} problems, {sizes[1]} seed{'s' * (sizes[1] > 1)})"
        many = how_many(too_much, found)
        auc = signed(mean(one["auc"] for one in found), 3)
        rows.append((label, runs, many, f"{worst:.3f}", auc, own))
    return rows


def figure(results, path):
    """Every run with 1,024 simulations as a dot: what it claims too much, and what it knows."""
    from prudent import _plots as plots

    groups = by_estimator(results)
    titles = {"worst_shortfall": "worst shortfall", "log_posterior": "log posterior (nats)"}
    most = max(one["worst_shortfall"] for found in groups.values() for one in found)
    with plots.rc_context(plots.SETTINGS):
        size = (1.45, 0.45 + 0.17 * len(groups))
        canvas, axes = plots.canvas(2, len(PROBLEMS), panel=size, sharey=True)
        for axis, (figure_name, problem) in zip(
            axes.flat, ((f, p) for f in titles for p in PROBLEMS), strict=True
        ):
            for place, found in enumerate(groups.values()):
                for one in found:
                    if one["problem"] == problem and one[figure_name] is not None:
                        color = plots.RED if too_much(one) else plots.BLUE
                        axis.plot(one[figure_name], -place, "o", color=color, alpha=0.6)
            if figure_name == "worst_shortfall":
                axis.set(title=problem, xlim=(-0.01, 1.1 * most))
            axis.set(xlabel=titles[figure_name], ylim=(0.6 - len(groups), 0.4))
            axis.set_yticks([-place for place in range(len(groups))], list(groups))
            axis.locator_params(axis="x", nbins=3)
        handles = [
            axes[0, 0].plot([], [], "o", color=color, label=text)[0]
            for color, text in (
                (plots.BLUE, "not short of any level by more than chance"),
                (plots.RED, "claims too much"),
            )
        ]
        title = f"Posteriors from {BUDGET:,} simulations, a dot for each seed"
        plots.dress(canvas, title, (), handles).savefig(path, dpi=200)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "collect", "table", "figure"))
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs/images/unseen.png")
    given = parser.parse_args()
    if given.what in ("run", "collect"):
        getattr(STUDY, given.what)()
    if given.what == "figure":
        figure(everything(), given.output)
        short = marked(SHORT_HEAD, short_table(everything()))
        README.write_text(BLOCK.sub(short, README.read_text()))
    print(marked(HEAD, table(everything())), end="")


if __name__ == "__main__":
    main()
