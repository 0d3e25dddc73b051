"""What a coverage penalty adds on pairs that the loss does not see, kept in ablation.json.

`ablation.py run` makes the runs that are missing; it can be killed and goes on. `ablation.py
table` compares. The ways to let the penalty act on unseen pairs are not part of the package:

- *penalty apart*: a fifth of the training pairs is for the penalty alone, the rest for the loss.
- *feedback*: after each epoch the shortfall of coverage on the validation pairs is added to what
  the penalty asks of the training pairs, by an integral controller for each level. It forgets, is
  bounded, and stops while the penalty cannot follow.
- *automatic weight*: of a row of weights the smallest without shortfall on the validation pairs.
"""

import argparse
import warnings
from collections import defaultdict
from statistics import mean

import torch
from study import Study, chance, marked, signed

import prudent
from prudent.coverage import CoveragePenalty, Sometimes
from prudent.coverage.figures import evaluation
from prudent.datasets.simulate import draw, draw_pairs
from prudent.training import methods
from prudent.training.objectives import WeightedSum, make_term, nll

STUDY = Study("ablation", ("problem", "estimator", "seed"))
PROBLEMS, SEEDS, BUDGET, NUM_TEST = ("slcp", "weinberg", "two_moons"), (0, 1, 2), 1024, 1000
APART = 0.2  # the share of pairs that the penalty has for itself
GAIN, FORGET, BOUND = 0.1, 0.98, 0.5  # of the controller
FOLLOWS = 0.01  # the penalty above which it does not
WEIGHTS = (0.0, 1.0, 5.0, 25.0, 125.0)
FIVE = {"members": 5, "ensemble": "folds", "recalibrate": "conservative"}
HEAD = ("problem", "estimator", "seeds", "AUC", "worst shortfall", "claim too much",
        "log posterior")  # fmt: skip


class Apart(WeightedSum):
    """The loss on most pairs, the penalty on the others, always the same ones."""

    training = True

    def train(self, mode=True):  # noqa: FBT002 (as torch has it)
        self.training = mode
        super().train(mode)

    def evaluate(self, posterior, theta):
        if not self.training:
            return super().evaluate(posterior, theta)
        # A number in [0, 1) that belongs to the pair, whatever batch it comes in.
        alone = (theta.double().sum(dim=1) * 1e4).frac().abs() < APART
        own = (~alone).nonzero().squeeze(1), alone.nonzero().squeeze(1)
        if len(own[1]) == 0:
            own = own[0], own[0][:1]
        return {
            name: evaluation(term, posterior.rows(index), theta[index])
            for (name, term), index in zip(self.objectives.items(), own, strict=True)
        }


class Remembering(CoveragePenalty):
    """A penalty that completes few alphas by those of earlier steps.

    Each new one then weighs, in the gradient alone, as all that it stands for.
    """

    num_remembered = 64

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.memory, self.plain, self.penalty = torch.empty(0), self.penalty, self._penalty

    def _penalty(self, alphas):
        if self.training:
            factor = 1 + len(self.memory) / len(alphas)
            weighted = alphas.detach() + factor * (alphas - alphas.detach())
            alphas = torch.cat((weighted, self.memory))
        return self.plain(alphas)

    def forward(self, posterior, theta):
        value = super().forward(posterior, theta)
        if self.training:
            seen = torch.cat((self.memory, self.seen.alphas))
            self.memory = seen[-self.num_remembered :]
        return value


class Feedback(CoveragePenalty):
    """A penalty that asks for more where coverage on the validation pairs falls short."""

    levels = torch.linspace(0, 1, 21)

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.register_buffer("more", torch.zeros(21))
        self.last, self.penalty = 0.0, self._penalty

    def _penalty(self, alphas):
        grid = torch.arange(1, len(alphas) + 1) / len(alphas)
        place = grid * 20
        low = place.floor().long().clamp(max=19)
        more = self.more[low] + (place - low) * (self.more[low + 1] - self.more[low])
        excess = (grid + more).clamp(max=1) - alphas.sort(stable=True).values
        return excess.relu().square().mean()

    def forward(self, posterior, theta):
        value = super().forward(posterior, theta)
        if self.training:
            self.last = 0.95 * self.last + 0.05 * float(value.detach())
        else:
            short = self.levels - torch.quantile(self.seen.alphas, self.levels)
            short[[0, -1]] = 0.0
            if self.last < FOLLOWS:  # else it would wind up
                self.more = (FORGET * self.more + GAIN * short).clamp(0, BOUND)
        return value


class Tried(methods.Method):
    """CalNPE with one of the objectives above."""

    def objective(self, prior, options, pool=None):
        options = self.resolve(options)
        weight = 5.0 if options.weight is None else options.weight
        term = make_term("coverage", self.family, prior, options)
        kind = {"apart": Remembering, "feedback": Feedback}[self.description]
        fraction = 1.0 if kind is Remembering else options.fraction
        inner = kind(term.term.proposal, options.num_samples)
        inner.__name__ = "coverage"
        term = Sometimes(inner, fraction)
        whole = Apart if kind is Remembering else WeightedSum
        return whole((1.0, nll), (weight, term), pool=pool)


def register():
    row = methods.METHODS["calnpe"]
    for name in ("apart", "feedback"):
        values = {key: getattr(row, key) for key in ("family", "loss", "regularizer", "weight")}
        methods.METHODS[name] = Tried(**values, description=name, own={"proposal": "model"})


ESTIMATORS = {
    "NPE": {"method": "npe"},
    "NPE, temperature": {"method": "npe", "recalibrate": "conservative"},
    "CalNPE, even draws": {"method": "calnpe", "proposal": "even"},
    "CalNPE, nominal draws": {"method": "calnpe", "proposal": "nominal"},
    "CalNPE, model draws": {"method": "calnpe", "proposal": "model"},
    "CalNPE, model draws, temperature": {
        "method": "calnpe", "proposal": "model", "recalibrate": "conservative",
    },
    "penalty apart": {"method": "apart"},
    "feedback": {"method": "feedback"},
    "feedback, weight 20": {"method": "feedback", "weight": 20.0},
    "automatic weight": {"method": "calnpe", "proposal": "model"},
    "five NPE (recommended)": {"method": "npe", **FIVE},
    "five CalNPE, model draws": {"method": "calnpe", "proposal": "model", **FIVE},
    "five with feedback": {"method": "feedback", **FIVE},
    "five with penalty apart": {"method": "apart", **FIVE},
}  # fmt: skip


def trained(name, pairs, prior, seed):
    """An estimator, and the weight of its penalty if that was chosen."""
    options = {**ESTIMATORS[name], "seed": seed, "progress": False}
    if name != "automatic weight":
        return prudent.fit(pairs, prior=prior, **options), None
    for weight in WEIGHTS:
        estimator = prudent.fit(pairs, prior=prior, weight=weight, **options)
        best = min(estimator.history, key=lambda row: row["validation_loss"])
        # What chance explains with so many validation pairs would hide most shortfalls.
        if best["validation_shortfall"] <= chance(len(pairs) // 5) / 2:
            break
    return estimator, weight


def measured(problem_name, name, seed):
    problem = prudent.problems.get(problem_name)
    pairs = draw_pairs(problem, BUDGET, seed)
    estimator, weight = trained(name, pairs, problem.prior, seed)
    test = draw(problem, NUM_TEST, seed, "test")[:2]
    diagnosis = prudent.diagnose(estimator, *test, seed=seed, progress=False)
    figures = ("auc", "worst_shortfall", "log_posterior")
    return {**{key: float(getattr(diagnosis, key)) for key in figures}, "weight": weight}


def table(results):
    """A row for each problem and estimator."""
    groups = defaultdict(list)
    for one in results:
        groups[PROBLEMS.index(one["problem"]), list(ESTIMATORS).index(one["estimator"])].append(
            one
        )
    rows = []
    for _, found in sorted(groups.items()):
        many = sum(one["worst_shortfall"] > chance(NUM_TEST) for one in found)
        means = {
            key: mean(one[key] for one in found)
            for key in ("auc", "worst_shortfall", "log_posterior")
        }
        rows.append(
            (found[0]["problem"], found[0]["estimator"], str(len(found)), signed(means["auc"], 3),
             f"{means['worst_shortfall']:.3f}", f"{many} of {len(found)}",
             f"{means['log_posterior']:.2f}")
        )  # fmt: skip
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "table"))
    torch.set_num_threads(1)
    if parser.parse_args().what == "run":
        warnings.simplefilter("ignore")
        register()
        cells = [(p, name, seed) for seed in SEEDS for p in PROBLEMS for name in ESTIMATORS]
        STUDY.measure(cells, measured)
    print(marked(HEAD, table(STUDY.read())), end="")


if __name__ == "__main__":
    main()
