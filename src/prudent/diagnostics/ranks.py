r"""Where the truth ranks among posterior draws, for many pairs, in one pass.

If theta is drawn from the prior, x from the simulator and :math:`\theta_1, \dots, \theta_L` from
the exact posterior given x, then theta and the draws are exchangeable. So for any function f, the
number of draws with :math:`f(\theta_j, x) < f(\theta, x)` is uniform on 0, ..., L. Parameters, the
log-density (whose rank is L times alpha) and the distance to a reference point (TARP) are all
such functions: one pass of draws serves every test. Draws are made for some pairs at a time and
forgotten once they are ranked, so memory does not grow with the number of pairs.

Draws that equal the truth in f are placed below or above it at random.

Draws must be independent. The posterior of a ratio estimator draws by resampling a fixed number
of prior draws: where few of them carry weight, the same one comes many times. Then L draws are
worth fewer, and ranks pile up at 0 and L as if the posterior were too narrow. The share of
duplicates is reported, and ratio estimators get fewer draws by default. For draws from a Markov
chain, ``thin`` keeps one in so many; it does not help against resampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prudent._progress import Progress, Reporter
from prudent._randomness import seeded
from prudent._settings import whole
from prudent.contracts import Estimator, Posterior, Prior
from prudent.datasets import Pairs
from prudent.errors import DataError, InputError, unknown_name
from prudent.estimators.priors import log_prior

__all__ = ["Ranks", "TestFunction", "finite_pairs", "parameters", "posterior_ranks"]

TestFunction = Callable[[Tensor, Tensor], Tensor]

NUM_DRAWS = 1000
# Ratio estimators choose among some thousand prior draws, few of them with weight.
NUM_RESAMPLED = 100
# Draws at a time: bounds memory, and activations of this many rows stay in cache.
CHUNK = 2**14
NAMED = ("log_prob",)


@dataclass(frozen=True)
class Ranks:
    """How many of L posterior draws lie below the truth, by function and pair.

    Args:
        names: The K functions.
        ranks: Whole numbers from 0 to L for the valid pairs, (K, N).
        num_samples: Draws per pair, L.
        invalid: The number of pairs left out, by reason: ``x`` not finite, ``draws`` not finite,
            ``functions`` NaN.
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
        """Pairs that were ranked."""
        return self.ranks.shape[1]

    @property
    def num_invalid(self) -> int:
        """Pairs that were not."""
        return sum(self.invalid.values())

    def select(self, names: Sequence[str]) -> Ranks:
        """The same for some of the functions."""
        if missing := [name for name in names if name not in self.names]:
            raise unknown_name("function", missing[0], self.names)
        rows = self.ranks[[self.names.index(name) for name in names]]
        return Ranks(
            tuple(names), rows, self.num_samples, self.invalid, self.duplicates, self.leakage
        )

    @property
    def caveats(self) -> str:
        """What a reader of these ranks must know, or nothing."""
        notes = [
            f"{n:,} pairs left out: {name} not finite" for name, n in self.invalid.items() if n
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
    names = [f"theta_{index + 1}" for index in range(dim)] if names is None else names
    if len(names) != dim:
        raise InputError(f"expected {dim} parameter names, got {len(names)}.")

    def coordinate(index: int) -> TestFunction:
        return lambda theta, x: theta[..., index]

    return {name: coordinate(index) for index, name in enumerate(names)}


def finite_pairs(theta: Any, x: Any) -> tuple[Pairs, int]:
    """The pairs whose x is finite, and the number of the others.

    >>> finite_pairs([[0.0], [1.0]], [[0.5], [float("nan")]])
    (<Pairs: 1 of theta (1,), x (1,)>, 1)
    """
    data, truth = torch.as_tensor(x), torch.as_tensor(theta)
    if data.ndim < 2 or truth.ndim != 2 or len(data) != len(truth):
        return Pairs.of(theta, x), 0  # which says what is wrong
    # In float32, the type of all pairs, large numbers can turn infinite.
    valid = data.to(torch.float32).isfinite().flatten(1).all(dim=1)
    if len(valid) and not bool(valid.any()):
        raise DataError(f"all {len(data):,} observations hold NaN or infinity; nothing is left.")
    return Pairs.of(truth[valid], data[valid]), int((~valid).sum())


@torch.no_grad()
def posterior_ranks(
    estimator: Estimator,
    theta: Any,
    x: Any,
    functions: Mapping[str, TestFunction | str] | None = None,
    *,
    num_samples: int | None = None,
    thin: int = 1,
    seed: int = 0,
    progress: Reporter = None,
) -> Ranks:
    """Rank the truth of every pair among draws from its posterior.

    Args:
        estimator: Any estimator.
        theta: True parameters (N, D), drawn from the prior.
        x: The observations simulated from them (N, ...).
        functions: Functions of ``theta`` (L + 1, N, D) and ``x`` (N, ...) with values (L + 1, N),
            by name; the truth is the first of the L + 1. The text ``"log_prob"`` stands for the
            posterior's own log-density. None stands for the parameters.
        num_samples: Draws per pair, L; by default 1,000, and 100 for ratio estimators.
        thin: Draw this many times as much and keep every ``thin``-th.
        seed: Of draws and ties.
        progress: See :class:`prudent._progress.Progress`.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> estimator = prudent.fit(*problem.draw(256, 0), problem.prior, method="npe", epochs=2)
    >>> ranks = posterior_ranks(estimator, *problem.draw(50, 1), num_samples=9)
    >>> ranks.ranks.shape, int(ranks.ranks.max()) <= 9
    (torch.Size([2, 50]), True)
    """
    pairs, num_bad_x = finite_pairs(theta, x)
    number = _num_samples(estimator, num_samples, thin)
    chosen = parameters(pairs.theta.shape[1]) if functions is None else dict(functions)
    _check_functions(chosen)
    parts: list[Tensor] = []
    totals = torch.zeros(4, dtype=torch.float64)
    rows = max(1, CHUNK // (number * thin))
    with seeded(seed, "ranks"), Progress("ranking", len(pairs), progress, "pair") as bar:
        for batch in pairs.batches(rows):
            posterior = estimator(batch.x)
            draws = posterior.sample((number * thin,))[::thin].to(batch.theta)
            _check_draws(draws, (number, *batch.theta.shape))
            ranks, counts = _rank(posterior, batch, draws, chosen)
            parts.append(ranks)
            totals += torch.tensor(
                [*counts, _num_duplicates(draws), _num_outside(estimator, draws)]
            )
            bar.advance({}, len(batch))
    bad_draws, bad_values, duplicates, leaked = totals.tolist()
    invalid = {"x": num_bad_x, "draws": int(bad_draws), "functions": int(bad_values)}
    everything = torch.cat(parts, dim=1)
    if everything.shape[1] == 0:
        raise InputError(
            f"none of {len(pairs):,} pairs can be ranked: {int(bad_draws):,} with draws that are "
            f"not finite, {int(bad_values):,} with a function that is NaN. Check the estimator."
        )
    share = 1 / (number * len(pairs))
    return Ranks(tuple(chosen), everything, number, invalid, duplicates * share, leaked * share)


def _rank(
    posterior: Posterior,
    batch: Pairs,
    draws: Tensor,
    functions: Mapping[str, TestFunction | str],
) -> tuple[Tensor, tuple[int, int]]:
    """Ranks (K, valid rows), and the number of rows with bad draws and with bad values."""
    points = torch.cat((batch.theta.unsqueeze(0), draws))
    finite = points.isfinite().flatten(2).all(dim=2).all(dim=0)
    known = finite.clone()
    ranks = []
    for name, function in functions.items():
        value = (
            posterior.log_prob(points) if isinstance(function, str) else function(points, batch.x)
        )
        if not isinstance(value, Tensor) or value.shape != points.shape[:2]:
            came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"expected the function `{name}` to map theta {tuple(points.shape)} and x "
                f"{tuple(batch.x.shape)} to {tuple(points.shape[:2])}, got {came}."
            )
        known &= ~value.isnan().any(dim=0)
        below, tied = (value[1:] < value[0]).sum(dim=0), (value[1:] == value[0]).sum(dim=0)
        ranks.append(below + (torch.rand(len(batch)) * (tied + 1)).long().minimum(tied))
    return torch.stack(ranks)[:, known], (int((~finite).sum()), int((finite & ~known).sum()))


def _num_outside(estimator: Estimator, draws: Tensor) -> float:
    # A foreign model may come without its prior; then leakage is not known.
    prior: Prior | None = getattr(estimator, "prior", None)
    if prior is None:
        return math.nan
    return int((log_prior(prior, draws.nan_to_num()) == -torch.inf).sum())


def _num_duplicates(draws: Tensor) -> int:
    # Equal draws have equal sums, and others almost never: one sort instead of one a parameter.
    key = (draws.double() * torch.arange(1, draws.shape[-1] + 1).sqrt()).sum(dim=-1)
    key = key.sort(dim=0).values
    return int((key[1:] == key[:-1]).sum())


def _num_samples(estimator: Estimator, num_samples: int | None, thin: int) -> int:
    default = NUM_DRAWS if getattr(estimator, "normalized", True) else NUM_RESAMPLED
    number = default if num_samples is None else num_samples
    whole("thin", thin, 1)
    return whole("num_samples", number, 1)


def _check_functions(functions: Mapping[str, TestFunction | str]) -> None:
    if not functions:
        raise InputError(
            "`functions` is empty; expected at least one, or None for the parameters."
        )
    for function in functions.values():
        if isinstance(function, str) and function not in NAMED:
            raise unknown_name("test function", function, NAMED)


def _check_draws(draws: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(draws.shape) != shape:
        raise InputError(f"expected draws of shape {shape}, got {tuple(draws.shape)}.")
