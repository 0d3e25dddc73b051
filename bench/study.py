"""Studies whose results are kept as they come, so that they go on where they were stopped.

A study is a file of JSON beside its script, with a line for each result. Several processes may add
to it, and it continues on any machine that has the file.
"""

import json
import math
import re
from functools import cache
from pathlib import Path
from statistics import mean, median, stdev

from filelock import FileLock

from prudent._files import write_atomic
from prudent.diagnostics.verdict import ERROR_RATE, judge
from prudent.experiments.run import run_one
from prudent.experiments.store import load_runs
from prudent.experiments.sweep import read_sweep

ROOT = Path(__file__).parents[1]
FIGURES = ("auc", "worst_shortfall", "log_posterior", "log_posterior_error", "log_prior",
           "information_gain", "information_gain_error", "num_pairs", "num_unresolved",
           "computed_by")  # fmt: skip
SETTINGS = ("members", "recalibrate", "fraction", "target", "weight", "num_samples")


class Study:
    """The results of a study.

    Args:
        name: The name of its file.
        key: The columns by which results are told apart, and in whose order they are kept.
    """

    def __init__(self, name, key):
        self.path, self.key = Path(__file__).with_name(f"{name}.json"), key

    def read(self):
        """All results."""
        return json.loads(self.path.read_text()) if self.path.exists() else []

    def cell(self, result):
        """The values of a result's key."""
        return tuple(result[name] for name in self.key)

    def keep(self, results):
        """Add results to those that are there."""
        with FileLock(f"{self.path}.lock"):
            known = {self.cell(one): one for one in [*self.read(), *map(plain, results)]}
            # An order that does not depend on when they were made.
            ordered = sorted(
                known.values(), key=lambda one: [str(v).rjust(9) for v in self.cell(one)]
            )
            lines = ",\n".join(json.dumps(one) for one in ordered)
            write_atomic(self.path, f"[\n{lines}\n]\n".encode())

    def measure(self, cells, function):
        """Call a function for each cell that has no result yet; it returns the other columns."""
        for cell in cells:
            if cell in map(self.cell, self.read()):
                continue
            result = {**dict(zip(self.key, cell, strict=True)), **function(*cell)}
            self.keep([result])
            print(plain(result), flush=True)


class SweepStudy(Study):
    """The runs of files of the folder sweeps; they themselves are in runs.

    Args:
        name: The name of the study.
        key: See :class:`Study`.
        order: A function of a configuration by which runs are sorted.
        sweeps: The names of the files, if not one of the name of the study.
    """

    def __init__(self, name, key, order=None, sweeps=()):
        super().__init__(name, key)
        self.sweeps, self.order, self.runs = sweeps or (name,), order, ROOT / "runs" / name

    def plan(self):
        """All runs in the order in which they are made: the name of a file, a configuration."""
        found = [(name, one) for name in self.sweeps for one in sweep(name).configs]
        return sorted(found, key=lambda pair: (self.order or (lambda _: 0))(pair[1]))

    def run(self):
        """Make the runs that are missing, one after the other."""
        for _, config in self.plan():
            # Runs of earlier versions were kept without the curve, by which they can be judged.
            if config.identity not in {one["run"] for one in self.read() if "inside" in one}:
                self.keep([row(run_one(config, self.runs / config.identity))])

    def collect(self):
        """Take in the runs that a sweep has made."""
        self.keep(map(row, load_runs(self.runs)))


@cache
def sweep(name):
    """The sweep of a file of the folder sweeps."""
    return read_sweep(ROOT / "sweeps" / f"{name}.toml")


def row(run):
    """What is kept of a run."""
    config, training = run.config, run.config.training
    return {
        "run": config.identity,
        "problem": config.problem,
        "budget": config.budget,
        "method": config.method,
        **{name: getattr(training, name) for name in SETTINGS},
        "seed": config.seed,
        "verdict": run.verdict.kind,
        **measured(run.metrics, run.coverage),
        "seconds": run.timing["seconds"]["train"],
        # What other work on the machine disturbs less.
        "median_epoch": median(run.timing["epoch_seconds"]),
        "fastest_epoch": min(run.timing["epoch_seconds"]),
        "epochs": len(run.timing["epoch_seconds"]),
        "diagnose_seconds": run.timing["seconds"]["diagnose"],
    }


def measured(metrics, coverage):
    """What is kept of a diagnosis, by which a stricter rule can judge it again."""
    return {
        **{name: metrics[name] for name in FIGURES},
        # At each level, how many of the test pairs lie in their regions.
        "levels": coverage["levels"],
        "inside": [round(share * metrics["num_pairs"]) for share in coverage["curve"]],
    }


def judged(one):
    """Today's verdict on a result, None if it was kept without its coverage curve."""
    if "inside" not in one:
        return None
    number = one["num_pairs"]
    curve = [inside / number for inside in one["inside"]]
    return judge(one["levels"], curve, curve, curve, num_pairs=number, metrics=one)


def too_much(one):
    """Whether coverage falls short by more than chance explains.

    Of results without a curve only the worst shortfall is known, and a weaker rule holds.
    """
    if (found := judged(one)) is not None:
        return found.kind == "over-confident"
    return one["worst_shortfall"] > chance(one["num_pairs"])


def chance(number):
    """The shortfall that no level exceeds in 95 %, whichever it is (Massart's constant)."""
    return math.sqrt(math.log(1 / ERROR_RATE) / (2 * number))


def how_many(one_of, found):
    """How many results are something, at least or at most if some have no curve."""
    known = all("inside" in one for one in found)
    sign = "" if known else {too_much: "≥ "}.get(one_of, "≤ ")
    return f"{sign}{sum(map(one_of, found))} of {len(found)}"


def safe(one):
    """Whether the posterior can be trusted, as far as is known."""
    found = judged(one)
    return one["auc"] >= 0 and not too_much(one) if found is None else found.trusted


def plain(result):
    """To five digits; infinity, which JSON does not have, becomes null."""
    numbers = {key: value for key, value in result.items() if isinstance(value, float)}
    return result | {k: round(v, 5) if math.isfinite(v) else None for k, v in numbers.items()}


def block(name):
    """What a study writes between two marks of a page."""
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)


def marked(head, rows):
    """A table in Markdown."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ("---",) * len(head), *rows))


def signed(value, digits=2):
    """A number with its sign; what is rounded to zero has none of its own."""
    return f"{value:+z.{digits}f}"


def spread(values, digits=2, sign=""):
    """The mean of several seeds, with their standard deviation."""
    error = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):{sign}z.{digits}f}{error}"
