"""The tables of the study of `paper.py`, beside the paper's own numbers.

These, in paper_published.json, were read off pictures; `~` marks what is partly hidden there.
"""

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, median

from paper_claims import NOMINAL, extra, main, sharpness
from study import marked, signed, spread, too_much

from prudent._plots import plain_name
from prudent.experiments.cost import START_SECONDS, seconds
from prudent.training.methods import METHODS, position

# In the order of the paper's columns.
PROBLEMS = ("slcp", "weinberg", "spatial_sir", "mg1", "lotka_volterra", "gravitational_waves")
PUBLISHED = json.loads(Path(__file__).with_name("paper_published.json").read_text())
MISSING = "–"


def auc(lines):
    """The mean AUC of some seeds."""
    return signed(mean(one["auc"] for one in lines), 3)


def log_posterior(lines, digits=2):
    """The median log posterior of some seeds."""
    return f"{median(map(sharpness, lines)):.{digits}f}"


def claiming(lines):
    """How many seeds claim too much."""
    return f"{sum(map(too_much, lines))}"


def shown(cells, target="conservative"):
    """The cells of the main figures; with the paper's own target also the cure and its parts."""
    if target != "conservative":
        return main(cells, "calnre", "calnpe", target=target)
    pools = [one for one in cells if one.sweep == "paper" and one.members > 1]
    return main(cells, *METHODS) + pools


def columns_of(cells):
    """The methods of some cells, in order."""
    ordered = sorted(cells, key=lambda one: (position(one.method), one.members))
    return list(dict.fromkeys(one.label for one in ordered))


def by_problem(cells, plan, figure, name="", target="conservative"):
    """A row for each problem and budget, a column for each method.

    A cell has our number, of how many seeds, and after a slash the paper's.
    """
    chosen = {(one.problem, one.budget, one.label): one for one in shown(cells, target)}
    columns = columns_of(chosen.values())
    places = sorted({(PROBLEMS.index(problem), budget) for problem, budget, _ in chosen})
    rows = []
    for problem, budget in ((PROBLEMS[place], budget) for place, budget in places):
        row = [chosen.get((problem, budget, label)) for label in columns]
        words = [one and _entry(cells[one], plan[one], figure, one, name) or "" for one in row]
        rows.append((plain_name(problem), f"{budget:,}", *words))
    return marked(("problem", "simulations", *columns), rows)


def _entry(lines, number, figure, cell, name):
    seeds = f"{number}" if len(lines) == number else f"{len(lines)} of {number}"
    own = f"{figure(lines) if lines else MISSING} ({seeds})"
    theirs = PUBLISHED.get(name, {}).get(cell.problem, {}).get(cell.method, {})
    other = theirs.get(f"{cell.budget}") if cell.members == 1 else None
    return f"{own} / {other}" if other else own


def by_value(head, scanned, cells):
    """A row for each value of a setting: single networks, and the average of five."""
    (found, whole), (pools, _) = scanned(cells), scanned(cells, 5)
    rows = [
        (f"{value:g}", f"{len(lines)}", spread([one["auc"] for one in lines], 3, "+"),
         log_posterior(lines, 3), claiming(lines),
         auc(pools[value]) if value in pools else MISSING)
        for value, lines in found.items()
    ]  # fmt: skip
    head = (
        head,
        "seeds",
        "AUC",
        "log posterior",
        "seeds that claim too much",
        "AUC, average of 5",
    )
    return marked(head, rows) + ("" if whole else "\nSome values have no run yet.\n")


def overhead(cells):
    """Times as long as without the penalty, by L, beside the paper's."""
    scans = (("overhead", "calnre", {}), ("overhead", "calnpe", {}),
             ("sensitivity", "calnre", {"weight": NOMINAL}))  # fmt: skip
    found = [
        {
            value: f"{times:.2f} ({len(lines)}), in {share:.1%} of the steps"
            for value, lines, times, share in extra(cells, sweep, method, **fixed)
        }
        for sweep, method, fixed in scans
    ]
    theirs = PUBLISHED["overhead"]
    rows = [
        (f"{value}", *(one.get(value, MISSING) for one in found), theirs.get(f"{value}", MISSING))
        for value in sorted({*map(int, theirs)}.union(*found))
    ]
    return marked(("L", "CalNRE / NRE, SLCP", "CalNPE / NPE, SLCP", "CalNRE / NRE, Weinberg",
                   "the paper, CalNRE / NRE, SLCP, CPU"), rows)  # fmt: skip


def predicted(cells):
    """The seconds that runs took over those that `--dry-run` expects, by problem and method.

    The second number is for epochs that are all as fast as the fastest, where that is known.
    """
    whole, quiet = defaultdict(list), defaultdict(list)
    for cell, lines in cells.items():
        for one in lines:
            key, rest = (cell.problem, cell.label), START_SECONDS + one["diagnose_seconds"]
            expected = seconds(one["config"])
            whole[key].append((rest + one["seconds"]) / expected)
            if fastest := one.get("fastest_epoch"):
                quiet[key].append((rest + fastest * one["epochs"]) / expected)
    columns = columns_of(cell for cell in cells if cells[cell])

    def entry(key):
        if key not in whole:
            return MISSING
        second = f" / {median(quiet[key]):.2f}" if key in quiet else ""
        return f"{median(whole[key]):.2f}{second} ({len(whole[key])})"

    rows = [(plain_name(p), *(entry((p, label)) for label in columns)) for p in PROBLEMS]
    near = [sum(0.5 <= median(one) <= 2 for one in found.values()) for found in (whole, quiet)]
    told = "\nWithin a factor of two: {} of {}, and {} of {} by the fastest epoch.\n"
    told = told.format(near[0], len(whole), near[1], len(quiet))
    return marked(("problem", *columns), rows) + told


def progress(cells, plan):
    """How far the study is."""
    done, some = sum(map(len, cells.values())), [one for one in cells if cells[one]]
    whole = sum(len(cells[one]) == plan[one] for one in some)
    return (
        f"{done} of {sum(plan.values())} runs are done. Of {len(cells)} cells {whole} have all of "
        f"their seeds, {len(some) - whole} some, and {len(cells) - len(some)} none yet.\n"
    )
