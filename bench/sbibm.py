"""The public benchmark sbibm 1.1.0 as a study: how far our posteriors are from the exact ones.

`sbibm.py run` measures what is missing in sbibm.json; it can be killed at any time and goes on,
with a loss of one classifier. It is polite to others: one thread, at the lowest priority.
`sbibm.py table` puts the tables into docs/benchmark.md. Observations and reference draws are read
from the wheel of sbibm, which is downloaded and not installed; the simulators are those of
sbibm_tasks.py. Wheel and trained networks are in runs/sbibm: after a change of the code that
changes networks, delete them and the lines of sbibm.json.

The protocol is sbibm's: a classifier tells 10,000 draws from as many reference draws, and its
accuracy on draws that it was not trained on, C2ST, is 0.5 for exact posteriors. Beside it stand
two things that sbibm does not ask for: coverage on 1,000 new pairs, and the share of the reference
draws in our 90 % regions, which says of one observation what coverage says on average.

The recommended estimator, its pool without temperature and the first of its flows share a
training. That flow has four fifths of the simulations, the last fifth ends its training.
"""

import argparse
import json
import os
import shutil
import sys
import time
import traceback
import warnings
from collections import defaultdict
from pathlib import Path
from statistics import mean

from sbibm_protocol import FOLDER, c2st, stored
from sbibm_tasks import NAMES, task
from study import ROOT, Study, block, judged, marked, measured, signed
from threadpoolctl import threadpool_limits

import prudent
from prudent._randomness import threads
from prudent.datasets.simulate import draw, draw_pairs
from prudent.diagnostics.verdict import TRUSTED
from prudent.estimators import Ensemble

PAGE, BLOCK = ROOT / "docs" / "benchmark.md", block("sbibm")
PUBLISHED = Path(__file__).with_name("sbibm_published.json")
NUM_OBSERVATIONS, NUM_DRAWS, NUM_TEST, LEVEL = 10, 10_000, 1000, 0.9
# Each with the method that is trained for it, and how tables call it.
POOLED = {"prudent": "prudent", "flow": "prudent", "pool": "prudent"}
METHODS = POOLED | {"nre": "nre", "calnpe": "calnpe"}
LABELS = {"pool": "T = 1", "flow": "one flow"}
BUDGETS, LONG, LONG_TASKS = (1000, 10_000), 100_000, ("two_moons", "slcp")
STUDY = Study("sbibm", ("task", "budget", "estimator", "seed"))
RIVALS = ("NPE", "NRE", "NLE", "SNPE")
HEAD = ("task", "simulations", *(LABELS.get(name, name) for name in METHODS),
        *(f"published {name}" for name in RIVALS), "prudent − NPE")  # fmt: skip
COVERAGE_HEAD = ("task", "simulations", "estimator", "verdict", "AUC", "worst shortfall",
                 "log posterior", "reference inside", "least", "below 0.8")  # fmt: skip


def cells(seed):
    """All that is to be measured with a seed, the most important first."""
    later = [name for name in METHODS if name not in POOLED]
    rounds = [(budget, names) for names in (POOLED, later) for budget in BUDGETS]
    found = [(t, budget, n, seed) for budget, names in rounds for n in names for t in NAMES]
    return found + [(t, LONG, n, seed) for n in METHODS for t in LONG_TASKS]


def model(method, name, budget, seed):
    """The file of a training."""
    return FOLDER / f"{name}-{budget}-{seed}" / f"{method}.safetensors"


def trained(method, name, budget, seed):
    """The estimator of a method by its defaults, trained if there is no file of it."""
    path = model(method, name, budget, seed)
    if not path.exists():
        checkpoint, problem = path.with_suffix(".checkpoint"), task(name)
        pairs = draw_pairs(problem, budget, seed)
        how = {"method": method, "seed": seed, "checkpoint": checkpoint, "progress": False}
        estimator = prudent.fit(pairs, prior=problem.prior, **how)
        # The times of the epochs, which also count those before a kill, are not saved.
        estimator.info["seconds"] = sum(estimator.history.column("seconds"))
        estimator.save(path)
        shutil.rmtree(checkpoint, ignore_errors=True)
    return prudent.load(path)


def variant(name, estimator):
    """The recommended estimator without its temperature, or its first flow; others as they are."""
    if name == "pool":
        return Ensemble(list(estimator))
    return next(iter(estimator)) if name == "flow" else estimator


def coverage(estimator, name, seed):
    """The coverage on new pairs."""
    start = time.perf_counter()
    pairs = draw(task(name), NUM_TEST, seed, "test")[:2]
    found = prudent.diagnose(estimator, *pairs, seed=seed, progress=False)
    return {
        "verdict": found.verdict.kind,
        **measured(found.metrics(), found.coverage.curves()),
        "diagnose_seconds": time.perf_counter() - start,
    }


def near(estimator, name, number):
    """The C2ST of an observation, what the draws are worth, and the reference in our region."""
    posterior = estimator(stored(name, number, "observation.csv").reshape(1, -1))
    reference = stored(name, number, "reference_posterior_samples.csv.bz2")[:NUM_DRAWS]
    draws = posterior.sample(len(reference), seed=number)[:, 0].float()
    report = posterior.sampling
    worth = NUM_DRAWS if report is None else int(report.effective_sample_size.min())
    inside = posterior.region(LEVEL).contains(reference.unsqueeze(1))
    return {
        "c2st": round(c2st(reference, draws), 5),
        "worth": min(worth, len(draws)),
        "reference_inside": round(float(inside.double().mean()), 4),
    }


def measure(name, budget, which, seed):
    """Fill a cell; what is there of it is kept if it is of the network that is there."""
    cell = (name, budget, which, seed)
    known = {STUDY.cell(one): one for one in STUDY.read()}
    if len(known.get(cell, {}).get("c2st", ())) == NUM_OBSERVATIONS:
        return
    begun = known.get(cell) if model(METHODS[which], name, budget, seed).exists() else None
    whole = trained(METHODS[which], name, budget, seed)
    estimator = variant(which, whole)
    line = begun or {
        **dict(zip(STUDY.key, cell, strict=True)),
        "version": prudent.__version__,
        **coverage(estimator, name, seed),
        "seconds": whole.info["seconds"],
        "temperature": getattr(estimator, "temperature", 1.0),
        **{column: [] for column in ("c2st", "worth", "reference_inside")},
    }
    STUDY.keep([line])
    for number in range(len(line["c2st"]) + 1, NUM_OBSERVATIONS + 1):
        found = near(estimator, name, number)
        line |= {column: [*line[column], value] for column, value in found.items()}
        STUDY.keep([line])
        print(*cell, number, found, flush=True)


def run(seed):
    """Measure what is missing; a cell that fails does not keep the others from being measured."""
    os.nice(19)
    FOLDER.mkdir(parents=True, exist_ok=True)
    failed = []
    with threads(1), threadpool_limits(1):
        for cell in cells(seed):
            try:
                measure(*cell)
            except Exception as error:
                failed.append(cell)
                print(*cell, f"failed: {type(error).__name__}: {error}", flush=True)
                traceback.print_exc()
    if failed:
        sys.exit(f"{len(failed)} cells failed; the same command tries them again.")


def finished(results):
    """The mean C2ST of all observations and seeds, by task, budget and estimator."""
    groups = defaultdict(list)
    for one in results:
        if len(one["c2st"]) == NUM_OBSERVATIONS:
            groups[STUDY.cell(one)[:3]].append(mean(one["c2st"]))
    return {cell: mean(values) for cell, values in groups.items()}


def published(name, rival, budget):
    """The C2ST of another method as its authors published it."""
    return json.loads(PUBLISHED.read_text())[name][rival][(*BUDGETS, LONG).index(budget)]


def table(results):
    """A row for each task and budget; what is not measured is a dash."""
    found, rows = finished(results), []
    for name, budget in sorted({cell[:2] for cell in cells(0)}, key=place):
        own = [found.get((name, budget, which)) for which in METHODS]
        other = [published(name, rival, budget) for rival in RIVALS]
        numbers = ["–" if value is None else f"{value:.3f}" for value in (*own, *other)]
        gap = "–" if own[0] is None else signed(own[0] - other[0], 3)
        rows.append((name, f"{budget:,}", *numbers, gap))
    return rows


def place(cell):
    """The order of tasks and budgets in tables."""
    return NAMES.index(cell[0]), cell[1]


def coverage_table(results):
    """A row for each result, judged by today's rule."""
    order = list(METHODS)
    rows = []
    for one in sorted(results, key=lambda r: (*place(STUDY.cell(r)), order.index(r["estimator"]))):
        label = LABELS.get(one["estimator"], one["estimator"])
        inside, sharp = one["reference_inside"], one["log_posterior"]
        short = [f"{mean(inside):.2f}", f"{min(inside):.2f}"] if inside else ["–", "–"]
        few = f"{sum(value < 0.8 for value in inside)} of {len(inside)}"
        numbers = (signed(one["auc"], 3), f"{max(0.0, one['worst_shortfall']):.3f}",
                   "−∞" if sharp is None else f"{sharp:.2f}")  # fmt: skip
        rows.append(
            (one["task"], f"{one['budget']:,}", label, judged(one).kind, *numbers, *short, few)
        )
    return rows


def summary(results):
    """How the recommended estimator compares with published NPE, and is judged, in words."""
    found, told = finished(results), []
    for budget in (*BUDGETS, LONG):
        planned = {name for name, size, *_ in cells(0) if size == budget}
        own = {cell[0]: value for cell, value in found.items() if cell[1:] == (budget, "prudent")}
        good = [name for name, value in own.items() if value <= published(name, "NPE", budget)]
        kinds = [judged(one).kind for one in results
                 if (one["budget"], one["estimator"]) == (budget, "prudent")]  # fmt: skip
        safe = sum(kind in TRUSTED for kind in kinds)
        told.append(
            f"- {budget:,} simulations: measured on {len(own)} of {len(planned)} tasks, and on "
            f"{len(good)} of them no farther off than published NPE. Of {len(kinds)} runs, {safe} "
            f"are known to be safe and {kinds.count('over-confident')} are over-confident.\n"
        )
    return "".join(told)


def page(results):
    """What stands in the docs."""
    parts = (marked(HEAD, table(results)), summary(results),
             marked(COVERAGE_HEAD, coverage_table(results)))  # fmt: skip
    return "\n".join(("", *parts, ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--seed", type=int, default=0, help="of simulations and networks")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.what == "run":
        run(given.seed)
    else:
        PAGE.write_text(BLOCK.sub(lambda _: page(STUDY.read()), PAGE.read_text()))
        print(page(STUDY.read()), end="")


if __name__ == "__main__":
    main()
