"""The study of `sweeps/price.toml`: what the cheap penalty costs in quality, kept in price.json.

`price.py run` makes the runs that are missing, one after the other; it can be killed and goes on.
`price.py collect` takes in what a sweep has made in runs/price. `price.py table` compares a share
of the steps with all of them, on the same pairs and seeds.
"""

import argparse
from math import sqrt
from statistics import mean, stdev

from study import SweepStudy, marked, signed

from prudent.training import Options
from prudent.training.methods import get, look

HEAD = ("problem", "simulations", "method", "pairs of runs", "AUC, share / all",
        "difference", "log posterior, share / all", "difference")  # fmt: skip
KEYS = ("problem", "budget", "method", "seed")
SHARE = get("calnre").resolve(Options()).fraction
STUDY = SweepStudy(
    "price",
    (*KEYS, "fraction"),
    # Small ones first, so that there are pairs early.
    lambda one: (one.budget, one.problem != "slcp", one.seed),
)


def difference(values):
    """The mean of paired differences and its standard error."""
    error = f" ± {stdev(values) / sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{signed(mean(values), 3)}{error}"


def table(results):
    """A row for each problem, budget and method that has pairs of runs."""
    known = {STUDY.cell(one): one for one in results}
    cells = sorted({key[:3] for key in known})
    rows = []
    for problem, budget, method in cells:
        seeds = sorted({key[3] for key in known if key[:3] == (problem, budget, method)})
        pairs = [
            [known.get((problem, budget, method, seed, f)) for f in (SHARE, 1.0)] for seed in seeds
        ]
        pairs = [pair for pair in pairs if None not in pair]
        if not pairs:
            continue
        figures = []
        for name in ("auc", "log_posterior"):
            share, whole = ([pair[i][name] for pair in pairs] for i in range(2))
            figures.append(f"{signed(mean(share), 3)} / {signed(mean(whole), 3)}")
            figures.append(difference([a - b for a, b in zip(share, whole, strict=True)]))
        rows.append((problem, f"{budget:,}", look(method).label, str(len(pairs)), *figures))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "collect", "table"))
    what = parser.parse_args().what
    if what in ("run", "collect"):
        getattr(STUDY, what)()
    print(marked(HEAD, table(STUDY.read())), end="")


if __name__ == "__main__":
    main()
