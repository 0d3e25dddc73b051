"""The study of `sweeps/price.toml`: what the cheap penalty costs in quality, kept in price.json.

`price.py run` makes the runs that are missing, one after the other; it can be killed and goes on.
`price.py collect` takes in what a sweep has made in runs/price. `price.py table` compares a share
of each batch with the whole batch, on the same pairs and seeds.
"""

import argparse
import json
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

from unseen import marked, row, signed

from prudent._files import write_atomic
from prudent.experiments.run import run_one
from prudent.experiments.store import load_runs
from prudent.experiments.sweep import read_sweep
from prudent.training.methods import look

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("price.json")
HEAD = ("problem", "simulations", "method", "pairs of runs", "AUC, share / whole",
        "difference", "log posterior, share / whole", "difference")  # fmt: skip
KEYS = ("problem", "budget", "method", "seed")


def read():
    return {one["run"]: one for one in json.loads(FILE.read_text())} if FILE.exists() else {}


def keep(runs):
    """Add results, in an order that does not depend on when they were made."""
    new = {
        run.config.identity: row(run) | {"fraction": run.config.training.fraction} for run in runs
    }
    known = (read() | new).values()
    ordered = sorted(known, key=lambda one: [str(one[k]).rjust(9) for k in (*KEYS, "fraction")])
    lines = ",\n".join(json.dumps(one) for one in ordered)
    write_atomic(FILE, f"[\n{lines}\n]\n".encode())


def difference(values):
    """The mean of paired differences and its standard error."""
    error = f" ± {stdev(values) / sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{signed(mean(values), 3)}{error}"


def table(results):
    """A row for each problem, budget and method that has pairs of runs."""
    known = {tuple(one[key] for key in (*KEYS, "fraction")): one for one in results}
    cells = sorted({key[:3] for key in known})
    rows = []
    for problem, budget, method in cells:
        seeds = sorted({key[3] for key in known if key[:3] == (problem, budget, method)})
        pairs = [
            [known.get((problem, budget, method, seed, f)) for f in (0.125, 1.0)] for seed in seeds
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
    given, runs = parser.parse_args(), ROOT / "runs" / "price"
    configs = read_sweep(ROOT / "sweeps" / "price.toml").configs
    if given.what == "run":
        # Small ones first, so that there are pairs early.
        for config in sorted(
            configs, key=lambda one: (one.budget, one.problem != "slcp", one.seed)
        ):
            if config.identity not in read():
                keep([run_one(config, runs / config.identity)])
    if given.what == "collect":
        keep(load_runs(runs))
    print(marked(HEAD, table(read().values())), end="")


if __name__ == "__main__":
    main()
