"""The study of `sweeps/unseen.toml`: coverage on pairs that nobody has seen, kept in unseen.json.

`unseen.py run` makes the runs whose results are not there yet, one after the other; it can be
killed and goes on, also on another machine. `unseen.py collect` takes in what a sweep has made.
`unseen.py table` compares. The runs themselves are in runs/unseen.
"""

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

from prudent._files import write_atomic
from prudent.diagnostics.verdict import margin
from prudent.experiments.run import run_one
from prudent.experiments.store import load_runs
from prudent.experiments.sweep import read_sweep
from prudent.training.methods import look

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("unseen.json")
FIGURES = ("auc", "worst_shortfall", "log_posterior", "num_pairs", "num_unresolved")
HEAD = ("problem", "simulations", "estimator", "seeds", "safe", "AUC", "worst shortfall",
        "log posterior")  # fmt: skip


def row(run):
    """What is kept of a run."""
    config, training = run.config, run.config.training
    return {
        "run": config.identity,
        "problem": config.problem,
        "budget": config.budget,
        "method": config.method,
        "members": training.members,
        "recalibrate": training.recalibrate,
        "seed": config.seed,
        "verdict": run.verdict.kind,
        **{name: run.metrics[name] for name in FIGURES},
        "seconds": run.timing["seconds"]["train"],
    }


def read():
    return {one["run"]: one for one in json.loads(FILE.read_text())} if FILE.exists() else {}


def keep(runs):
    """Add results, in an order that does not depend on when they were made."""
    known = read() | {run.config.identity: row(run) for run in runs}
    names = ("problem", "budget", "method", "members", "recalibrate", "seed")
    ordered = sorted(known.values(), key=lambda one: [str(one[name]).rjust(9) for name in names])
    lines = ",\n".join(json.dumps(one) for one in ordered)
    write_atomic(FILE, f"[\n{lines}\n]\n".encode())


def name(one):
    """A method with what makes it differ from the method's own settings."""
    parts = [look(one["method"]).label]
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
        sharp = [one["log_posterior"] for one in found]
        # Minus infinity is stored as None.
        sharp = [-math.inf if value is None else value for value in sharp]
        spread = f" ± {stdev(sharp):.2f}" if len(sharp) > 1 and min(sharp) > -math.inf else ""
        safe = sum(
            one["auc"] >= 0 and one["worst_shortfall"] <= margin(one["num_pairs"]) for one in found
        )
        order = (problem, budget, safe < 0.95 * len(found), -mean(sharp))
        figures = (
            f"{mean(one['auc'] for one in found):+.3f}",
            f"{max(0.0, *(one['worst_shortfall'] for one in found), 0.0):.3f}",
            f"{mean(sharp):.2f}{spread}",
        )
        of = f"{safe} of {len(found)}"
        rows.append((order, (problem, f"{budget:,}", label, str(len(found)), of, *figures)))
    return [cells for _, cells in sorted(rows)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "collect", "table"))
    given, runs = parser.parse_args(), ROOT / "runs" / "unseen"
    if given.what == "run":
        for config in read_sweep(ROOT / "sweeps" / "unseen.toml").configs:
            if config.identity not in read():
                keep([run_one(config, runs / config.identity)])
    if given.what == "collect":
        keep(load_runs(runs))
    for cells in (HEAD, ("---",) * len(HEAD), *table(read().values())):
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
