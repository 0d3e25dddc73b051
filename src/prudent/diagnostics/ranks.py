r"""Where the truth ranks among posterior draws, for many pairs, in one pass.

If theta is drawn from the prior, x from the simulator and :math:`\theta_1, \dots, \theta_L` from
the exact posterior given x, then theta and the draws are exchangeable. So for any function f, the
number of draws with :math:`f(\theta_j, x) < f(\theta, x)` is uniform on 0, ..., L. Parameters, the
log-density (whose rank is L times alpha) and the distance to a reference point (TARP) are all
such functions: one pass of draws serves every test. Draws are made for some pairs at a time and
forgotten once they are ranked, so memory does not grow with the number of pairs.

Draws that equal the truth in f are placed below or above it at random.

Draws must be independent. A thorough diagnosis chooses 100 of the points that coverage is measured
with (:class:`PointRanks`), and :func:`posterior_ranks` those of a ratio from weighted draws
(:class:`prudent.diagnostics._points.Importance`), fewer than they are worth; pairs whose posterior
is not resolved are left out and counted. Draws made elsewhere by resampling may
repeat each other, and then ranks pile up at 0 and L as if the posterior were too narrow: the share
of duplicates is reported. ``thin`` is for draws from a Markov chain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from prudent._arrays import as_tensor
from prudent._progress import Progress, Reporter
from prudent._randomness import seeded
from prudent._settings import whole
from prudent.contracts import Estimator, Posterior, Prior
from prudent.datasets.pairs import Pairs, finite
from prudent.diagnostics._points import Importance, Points
from prudent.diagnostics.expected_coverage import Measurement
from prudent.errors import InputError, unknown_name
from prudent.estimators.importance import chosen_draws, chosen_places
from prudent.estimators.summaries import check_names
from prudent.posteriors.density import facts_of
from prudent.priors.checks import dtype_for
from prudent.priors.density import log_density

TestFunction = Callable[[Tensor, Tensor], Tensor]
Functions = Mapping[str, TestFunction | str]

NUM_DRAWS = 1000
# Weighted draws are worth at least as many, where a posterior is resolved.
NUM_RESAMPLED = 100
# Draws at a time: bounds memory, and activations of this many rows stay in cache.
CHUNK = 2**14
UNRESOLVED = "not resolved"
LOG_PROB, TARP_DISTANCE = NAMED = ("log_prob", "tarp")
REFERENCES = ("prior", "uniform")
# Draws that measure the spread and the box of a prior.
NUM_PRIOR_DRAWS = 4096


@dataclass(frozen=True)
class Ranks:
    """The number of posterior draws, of L, that lie below the truth, by function and pair.

    Args:
        names: The names of the K functions.
        ranks: Whole numbers from 0 to L for the valid pairs, (K, N).
        num_samples: The number of draws per pair, L.
        invalid: The number of pairs left out, by reason: ``x`` not finite, ``draws`` not finite,
            ``functions`` NaN, or a ratio ``not resolved``. If none is resolved, all are ranked.
        duplicates: The share of draws that repeat another draw of the same pair.
        leakage: The share of draws outside the prior's support; NaN if the prior is not known.
    """

    names: tuple[str, ...]
    ranks: Tensor
    num_samples: int
    invalid: Mapping[str, int]
    duplicates: float
    leakage: float

    @property
    def num_pairs(self) -> int:
        """The number of pairs that were ranked."""
        return self.ranks.shape[1]

    @property
    def num_unresolved(self) -> int:
        """The number of pairs whose posterior could not be drawn from."""
        return self.invalid.get(UNRESOLVED, 0)

    def select(self, names: Sequence[str]) -> Ranks:
        """The ranks of some of the functions."""
        if missing := [name for name in names if name not in self.names]:
            raise unknown_name("function", missing[0], self.names)
        rows = [self.names.index(name) for name in names]
        return replace(self, names=tuple(names), ranks=self.ranks[rows])

    @property
    def caveats(self) -> str:
        """What a reader of these ranks must know; empty if there is nothing."""
        notes = [
            f"{n:,} pairs left out: {name}{'' if name == UNRESOLVED else ' not finite'}"
            for name, n in self.invalid.items()
            if n
        ]
        if self.duplicates > 0.02:
            notes.append(
                f"{100 * self.duplicates:.0f} % of the draws are duplicates, which looks like a "
                "narrow posterior: use a smaller `num_samples`"
            )
        if self.leakage > 0.001:
            notes.append(f"{100 * self.leakage:.1f} % of the draws lie outside the prior")
        return "; ".join(notes)


def parameters(dim: int, names: Sequence[str] | None = None) -> dict[str, TestFunction]:
    """Each parameter as a test function, named theta_1, ..., theta_D by default.

    >>> list(parameters(2))
    ['theta_1', 'theta_2']
    """
    names = check_names(names, dim)

    def coordinate(index: int) -> TestFunction:
        return lambda theta, x: theta[..., index]

    return {name: coordinate(index) for index, name in enumerate(names)}


class ReferenceDistance:
    """The distance to a random point for each pair: a test function for ``posterior_ranks``.

    Args:
        prior: The prior, whose standard deviations scale the distances.
        references: ``prior`` draws the points from the prior, ``uniform`` from the box that holds
            some thousand prior draws; a function maps x (N, ...) to points (N, D). The points
            must not depend on theta.
        scale: Standard deviations (D,), if not those of the prior.
        seed: The seed of the draws that measure the prior.

    >>> from torch.distributions import Independent, Normal
    >>> prior = Independent(Normal(torch.zeros(2), torch.tensor([1.0, 100.0])), 1)
    >>> distance = ReferenceDistance(prior, lambda x: torch.zeros(len(x), 2), torch.tensor([1, 2]))
    >>> distance(torch.tensor([[[3.0, 8.0]]]), torch.zeros(1, 1))
    tensor([[5.]])
    """

    def __init__(
        self,
        prior: Prior | None,
        references: str | Callable[[Tensor], Tensor] = "prior",
        scale: Any = None,
        seed: int = 0,
    ) -> None:
        if prior is None:
            raise InputError(
                "TARP measures distances in units of the prior's spread, and the estimator has no "
                "prior; set its attribute `prior`, or pass a ReferenceDistance(prior)."
            )
        if isinstance(references, str) and references not in REFERENCES:
            raise unknown_name("kind of reference points", references, REFERENCES)
        self.prior, self.references = prior, references
        with seeded(seed, "tarp prior"):
            draws = prior.sample((NUM_PRIOR_DRAWS,))
        self.low, self.high = draws.amin(dim=0), draws.amax(dim=0)
        self.scale = draws.std(dim=0) if scale is None else as_tensor("scale", scale, draws.dtype)
        if not bool((self.scale.isfinite() & (self.scale > 0)).all()):
            raise InputError(f"`scale` is {self.scale.tolist()}; expected positive numbers.")

    def __call__(self, theta: Tensor, x: Tensor) -> Tensor:
        """The distance of each ``theta`` (..., N, D) from the point of its row, (..., N)."""
        if callable(self.references):
            reference = self.references(x)
        elif self.references == "prior":
            reference = self.prior.sample((len(x),))
        else:
            reference = self.low + (self.high - self.low) * torch.rand(len(x), len(self.low))
        if reference.shape != theta.shape[-2:]:
            raise InputError(
                f"expected reference points of shape {tuple(theta.shape[-2:])}, "
                f"got {tuple(reference.shape)}."
            )
        distance: Tensor = torch.linalg.vector_norm((theta - reference) / self.scale, dim=-1)
        return distance


@torch.no_grad()
def posterior_ranks(
    estimator: Estimator | Tensor | NDArray[Any],
    theta: Any,
    x: Any,
    functions: Functions | None = None,
    *,
    names: Sequence[str] | None = None,
    num_samples: int | None = None,
    thin: int = 1,
    seed: int = 0,
    progress: Reporter = None,
) -> Ranks:
    """Rank the truth of every pair among draws from its posterior.

    The ranks are what :func:`prudent.diagnostics.sbc` and :func:`prudent.diagnostics.tarp` judge.

    Args:
        estimator: Any estimator; or an array of draws (L, N, D), made elsewhere.
        theta: True parameters (N, D), drawn from the prior.
        x: The observations simulated from them (N, ...).
        functions: Functions of ``theta`` (L + 1, N, D) and ``x`` (N, ...) with values (L + 1, N),
            by name; the truth is the first of the L + 1. The text ``"log_prob"`` stands for the
            posterior's own log-density, ``"tarp"`` for a :class:`ReferenceDistance`. None stands
            for all :func:`parameters` and, where the posterior has a density that is not slow and
            the estimator a prior, for these two.
        names: The D names of the parameters, if ``functions`` is None.
        num_samples: The number of draws per pair, L; by default 1,000, and 100 for ratios.
        thin: Draw this many times as much and keep every ``thin``-th.
        seed: The seed of draws, ties and reference points.
        progress: None for a bar on terminals, True or False.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> estimator = prudent.fit(*problem.draw(256, 0), problem.prior, method="npe", epochs=2)
    >>> ranks = posterior_ranks(estimator, *problem.draw(50, 1), num_samples=9)
    >>> ranks.names, int(ranks.ranks.max()) <= 9
    (('theta_1', 'theta_2', 'log_prob', 'tarp'), True)
    """
    pairs = finite(theta, x, dtype_for(estimator))
    number, draw = _source(estimator, num_samples, thin)
    # A foreign model may come without its prior; then leakage is not known.
    prior: Prior | None = getattr(estimator, "prior", None)
    chosen: Functions = {}
    parts: list[Tensor] = []
    resolved_parts: list[Tensor] = []
    totals = torch.zeros(4, dtype=torch.float64)
    rows = max(1, CHUNK // (number * thin))
    with seeded(seed, "ranks"), Progress("ranking", len(pairs), progress, "pair") as bar:
        for batch in pairs.batches(rows):
            posterior, draws, resolved = draw(batch)
            facts = facts_of(posterior)
            if draws.shape != (expected := (number, *batch.theta.shape)):
                raise InputError(f"expected draws of shape {expected}, got {tuple(draws.shape)}.")
            if not chosen:
                quick = facts.density and not facts.slow
                usual = _usual(pairs.dim, names, prior, dense=quick)
                chosen = _chosen(usual if functions is None else functions, prior, seed)
            density = posterior.log_prob if posterior and facts.density else None
            ranks, valid, counts = _rank(density, batch, draws.to(batch.theta), chosen)
            parts.append(ranks)
            resolved_parts.append(resolved[valid])
            totals += torch.tensor([*counts, _num_duplicates(draws), _num_outside(prior, draws)])
            bar.advance({}, len(batch))
    bad_draws, bad_values, duplicates, leaked = totals.tolist()
    invalid = {"x": pairs.num_invalid, "draws": int(bad_draws), "functions": int(bad_values)}
    everything = torch.cat(parts, dim=1)
    if everything.shape[1] == 0:
        raise InputError(
            f"none of {len(pairs):,} pairs can be ranked: {int(bad_draws):,} with draws that are "
            f"not finite, {int(bad_values):,} with a function that is NaN. Check the estimator."
        )
    share = 1 / (number * len(pairs))
    resolved = torch.cat(resolved_parts)
    if num_unresolved := int((~resolved).sum()):
        invalid[UNRESOLVED] = num_unresolved
        everything = everything[:, resolved] if bool(resolved.any()) else everything
    return Ranks(tuple(chosen), everything, number, invalid, duplicates * share, leaked * share)


class PointRanks:
    """Ranks from the points that coverage is measured with, at the cost of choosing among them.

    A witness of :func:`prudent.diagnostics.measure`. Points of pairs that the first way did not
    resolve are shown to it once more, and the last ones count. Like coverage, ranks are those of
    the posterior cut to the prior's support. Densities are those of the points.

    Args:
        prior: The prior of the estimator.
        pairs: The pairs that are measured.
        names: The D names of the parameters, or None.
        seed: The seed of draws, ties and reference points.
    """

    def __init__(self, prior: Prior, pairs: Pairs, names: Sequence[str] | None, seed: int) -> None:
        self.prior, self.names, self.seed = prior, names, seed
        self.functions: Functions = {}
        self.numbers = pairs.row_numbers  # ascending
        self.ranks = torch.empty(0)
        self.duplicates, self.valid = torch.zeros(len(pairs)), torch.ones(len(pairs)).bool()

    def __call__(self, batch: Pairs, log_prob: Tensor, points: Points) -> None:
        """Rank the truths of a batch among draws chosen from its points."""
        if not self.functions:
            usual = _usual(batch.dim, self.names, self.prior, dense=points.score is None)
            self.functions = _chosen(usual, self.prior, self.seed)
            self.ranks = torch.zeros(len(self.functions), len(self.numbers), dtype=torch.long)
        rows = torch.searchsorted(self.numbers, batch.row_numbers)
        with seeded(self.seed, "ranks", int(rows[0])):
            places = chosen_places(points.weight.double(), NUM_RESAMPLED)
            draws = points.drawn(places).to(batch.theta)
            density = torch.cat((log_prob.unsqueeze(0), points.log_prob.gather(0, places)))
            ranks, valid, _ = _rank(lambda _: density, batch, draws, self.functions)
        self.ranks[:, rows[valid]], self.valid[rows] = ranks, valid
        self.duplicates[rows] = _duplicates(draws).to(self.duplicates)

    def judged(self, measured: Measurement) -> Ranks:
        """The ranks of the pairs that were measured and are resolved."""
        known, resolved = self.valid & measured.valid, measured.resolved
        invalid = {"x": 0, "draws": 0, "functions": int((~known).sum())}
        if num_unresolved := int((known & ~resolved).sum()):
            invalid[UNRESOLVED] = num_unresolved
            known = known & resolved if bool((known & resolved).any()) else known
        duplicates = float(self.duplicates.mean()) / NUM_RESAMPLED
        return Ranks(
            tuple(self.functions), self.ranks[:, known], NUM_RESAMPLED, invalid, duplicates, 0.0
        )


def _source(
    estimator: Estimator | Tensor | NDArray[Any], num_samples: int | None, thin: int
) -> tuple[int, Callable[[Pairs], tuple[Posterior | None, Tensor, Tensor]]]:
    """The number of draws per pair; the posterior, the draws and what is resolved of a batch."""
    thin = whole("thin", thin, 1)
    if not callable(estimator):
        kept = as_tensor("draws", estimator, torch.float64)[::thin]
        return len(kept), lambda batch: (None, kept[:, batch.row_numbers], _all(batch))
    ratio = not getattr(estimator, "normalized", True)
    default = NUM_RESAMPLED if ratio else NUM_DRAWS
    number = whole("num_samples", default if num_samples is None else num_samples, 1)

    def draw(batch: Pairs) -> tuple[Posterior | None, Tensor, Tensor]:
        posterior = estimator(batch.x)
        if not ratio:
            return posterior, posterior.sample((number * thin,))[::thin].cpu(), _all(batch)
        strategy = Importance(estimator)
        points = strategy(posterior, batch, posterior.log_prob(batch.theta).cpu())
        draws = chosen_draws(points.theta, points.weight, number)
        return posterior, draws, points.resolved

    return number, draw


def _all(batch: Pairs) -> Tensor:
    return torch.ones(len(batch), dtype=torch.bool)


def _rank(
    log_prob: Callable[[Tensor], Tensor] | None, batch: Pairs, draws: Tensor, functions: Functions
) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Ranks (K, valid rows), which rows these are, and how many have bad draws and bad values."""
    points = torch.cat((batch.theta.unsqueeze(0), draws))
    finite = points.isfinite().flatten(2).all(dim=2).all(dim=0)
    known = finite.clone()
    ranks = []
    for name, function in functions.items():
        if not isinstance(function, str):
            value = function(points, batch.x)
        elif log_prob is not None:
            value = log_prob(points).cpu()
        else:
            raise InputError("draws have no density to rank; leave `log_prob` out.")
        if not isinstance(value, Tensor) or value.shape != points.shape[:2]:
            came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"expected the function `{name}` to map theta {tuple(points.shape)} and x "
                f"{tuple(batch.x.shape)} to {tuple(points.shape[:2])}, got {came}."
            )
        known &= ~value.isnan().any(dim=0)
        below, tied = (value[1:] < value[0]).sum(dim=0), (value[1:] == value[0]).sum(dim=0)
        ranks.append(below + (torch.rand(len(batch)) * (tied + 1)).long().minimum(tied))
    counts = int((~finite).sum()), int((finite & ~known).sum())
    return torch.stack(ranks)[:, known], known, counts


def _num_outside(prior: Prior | None, draws: Tensor) -> float:
    if prior is None:
        return math.nan
    return int((log_density(prior, draws.nan_to_num()) == -torch.inf).sum())


def _num_duplicates(draws: Tensor) -> int:
    return int(_duplicates(draws).sum())


def _duplicates(draws: Tensor) -> Tensor:
    """The number of draws of each pair that repeat another, (N,)."""
    # Equal draws have equal sums, and others almost never: one sort instead of one a parameter.
    key = (draws.double() * torch.arange(1, draws.shape[-1] + 1).sqrt()).sum(dim=-1)
    key = key.sort(dim=0).values
    return (key[1:] == key[:-1]).sum(dim=0)


def _usual(
    dim: int, names: Sequence[str] | None, prior: Prior | None, *, dense: bool
) -> dict[str, TestFunction | str]:
    """What is ranked if nothing is asked for."""
    known = {LOG_PROB: dense, TARP_DISTANCE: prior is not None}
    return {**parameters(dim, names), **{name: name for name, able in known.items() if able}}


def _chosen(functions: Functions, prior: Prior | None, seed: int) -> Functions:
    """The functions, with the distance of TARP made where its name stands."""
    if not functions:
        raise InputError("`functions` is empty; expected at least one, or None for the usual.")
    for function in functions.values():
        if isinstance(function, str) and function not in NAMED:
            raise unknown_name("test function", function, NAMED)
    return {
        name: ReferenceDistance(prior, seed=seed) if function == TARP_DISTANCE else function
        for name, function in functions.items()
    }
