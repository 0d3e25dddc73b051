"""Posterior predictive check: would the posterior have simulated this observation?

Parameters drawn from the posterior are simulated, and statistics of the simulations are compared
with those of the observation. A statistic far in the tail says that the posterior, the simulator,
or both, do not explain that aspect of the data.

The observation is used twice, to find the posterior and to judge it: the tail probabilities of an
exact posterior gather around one half. So the check alarms without reason less often than its
level says, and a posterior that is too narrow is nearly invisible; use coverage for that.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from prudent._arrays import finite_rows, float32
from prudent._progress import Progress, Reporter
from prudent._randomness import generator, seeded
from prudent.contracts import Estimator, Prior
from prudent.diagnostics._bands import holm
from prudent.diagnostics.verdict import ERROR_RATE
from prudent.errors import DataError, InputError
from prudent.priors.density import log_density

Statistic = Callable[[Tensor], Tensor]

MOST_COMPONENTS = 32


class Simulates(Protocol):
    """A problem, as far as it matters here."""

    def simulate(self, theta: Tensor, generator: torch.Generator, /) -> Tensor:
        """One observation for each row of theta."""


@dataclass(frozen=True)
class PredictiveCheck:
    """Tail probabilities of K statistics for M observations.

    Args:
        names: The names of the statistics.
        observed: Their values at the observations, (K, M).
        tail: The share of simulations below the observed value, ties at one half, (K, M).
        p_values: The two-sided p-values, (K, M), float64.
        num_simulated: The number of simulations compared with each observation, (M,).
        num_outside: The number of draws outside the prior, which cannot be simulated, (M,).
        num_invalid: The number of simulations that were not finite, (M,).
    """

    names: tuple[str, ...]
    observed: Tensor
    tail: Tensor
    p_values: Tensor
    num_simulated: Tensor
    num_outside: Tensor
    num_invalid: Tensor

    @property
    def p_value(self) -> float:
        """The p-value of "every statistic of every observation is explained", by Holm."""
        return float(holm(self.p_values.flatten().numpy()).min())

    @property
    def verdict(self) -> str:
        """A line that names the statistic that is explained worst."""
        row, column = divmod(int(self.p_values.argmin()), self.p_values.shape[1])
        number, above = self.p_values.numel(), 100 * float(self.tail[row, column])
        explained, needed = self.p_value >= ERROR_RATE, int(2 * number / ERROR_RATE)
        scarce = explained and needed > int(self.num_simulated.min())
        outside, invalid = int(self.num_outside.sum()), int(self.num_invalid.sum())
        text = f"{'explained' if explained else 'not explained'}: {self.names[row]} of "
        text += f"observation {column} exceeds {above:.1f} % of simulations, "
        text += f"p = {self.p_value:.2g} over {number:,}"
        text += f"; {needed:,} simulations are needed to tell" if scarce else ""
        text += f"; {outside:,} draws outside the prior" if outside else ""
        return text + (f"; {invalid:,} simulations not finite" if invalid else "")

    def __repr__(self) -> str:
        return f"<PredictiveCheck: {self.verdict}>"


def summary_statistics(x_shape: tuple[int, ...]) -> dict[str, Statistic]:
    """Mean, spread and extremes of an observation, and its components if they are few.

    >>> list(summary_statistics((2,)))
    ['x[0]', 'x[1]', 'mean', 'std', 'min', 'max']
    """

    def of_rows(function: Any, **options: int) -> Statistic:
        return lambda x: function(x.flatten(1), dim=1, **options)

    number = torch.Size(x_shape).numel()
    few = range(number if number <= MOST_COMPONENTS else 0)
    found = {f"x[{index}]": of_rows(torch.select, index=index) for index in few}
    if number > 1:
        summaries = {"mean": torch.mean, "std": torch.std, "min": torch.amin, "max": torch.amax}
        found |= {name: of_rows(function) for name, function in summaries.items()}
    return found


@torch.no_grad()
def predictive_check(
    estimator: Estimator,
    problem: Simulates,
    x: Any,
    statistics: Mapping[str, Statistic] | None = None,
    *,
    num_samples: int = 1000,
    seed: int = 0,
    progress: Reporter = None,
) -> PredictiveCheck:
    """Compare observations with simulations from their own posterior.

    Args:
        estimator: Any estimator.
        problem: Anything with ``simulate(theta, generator)``.
        x: Some observations, (M, ...).
        statistics: Functions of observations (N, ...) with values (N,), by name. None stands for
            :func:`summary_statistics`.
        num_samples: Simulations for each observation.
        seed: The seed of draws and simulations.
        progress: None for a bar on terminals, True or False.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> estimator = prudent.fit(*problem.draw(256, 0), problem.prior, method="npe", epochs=2)
    >>> predictive_check(estimator, problem, [[9.0, 0.0]]).verdict[:32]
    'not explained: x[0] of observati'
    """
    data = float32("x", x)
    if data.ndim < 2 or len(data) == 0:
        raise DataError(
            f"expected `x` of shape (M, ...), got {tuple(data.shape)}. One observation? x[None]."
        )
    if bad := int((~finite_rows(data)).sum()):
        raise DataError(
            f"{bad:,} of {len(data):,} observations hold NaN or infinity; there is nothing to "
            "compare with. Leave them out."
        )
    chosen = dict(summary_statistics(tuple(data.shape[1:])) if statistics is None else statistics)
    columns = []
    with seeded(seed, "predictive"), Progress("simulating", len(data), progress, "x") as bar:
        for row, one in enumerate(data.split(1)):
            stream = generator(seed, "predictive", row)
            simulated, counts = _simulate(estimator, problem, one, num_samples, stream)
            columns.append((*_compare(one, simulated, chosen), counts))
            bar.advance({})
    parts = [torch.stack(part, dim=1) for part in zip(*columns, strict=True)]
    return PredictiveCheck(tuple(chosen), *parts[:3], *parts[3])


def _simulate(
    estimator: Estimator, problem: Simulates, x: Tensor, num_samples: int, stream: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The finite simulations; the numbers of these, of draws outside and of bad simulations."""
    with warnings.catch_warnings():  # how usual the observation is, the check itself tells
        warnings.filterwarnings("ignore", "the observation is unlike")
        theta = estimator(x).sample((num_samples,)).squeeze(1)
    finite = inside = finite_rows(theta)
    # A foreign model may come without its prior.
    prior: Prior | None = getattr(estimator, "prior", None)
    if prior is not None:
        inside = finite & (log_density(prior, theta.nan_to_num()) > -torch.inf)
    if not bool(inside.any()):
        raise InputError(
            f"none of {num_samples:,} draws can be simulated: {int((~finite).sum()):,} are not "
            "finite, the others lie outside the prior."
        )
    simulated = problem.simulate(theta[inside], stream)
    valid = finite_rows(simulated)
    if not bool(valid.any()):
        raise InputError(f"all {len(simulated):,} simulations hold NaN or infinity.")
    return simulated[valid], torch.stack([valid.sum(), (~inside).sum(), (~valid).sum()])


def _compare(
    x: Tensor, simulated: Tensor, statistics: Mapping[str, Statistic]
) -> tuple[Tensor, Tensor, Tensor]:
    """The observed values, the tails and the p-values of the statistics, (K,) each."""
    observed = torch.stack([function(x)[0] for function in statistics.values()])
    values = torch.stack([function(simulated) for function in statistics.values()])
    number = len(simulated)
    if values.shape != (len(statistics), number) or bool(values.isnan().any()):
        raise InputError("expected every statistic to map (N, ...) to (N,) without NaN.")
    below = (values < observed[:, None]).sum(dim=1)
    tied = (values == observed[:, None]).sum(dim=1)
    # The observation counts as one of the simulations, so that no p-value is zero.
    least = torch.minimum(below + tied, number - below).double()
    return observed, (below + tied / 2) / number, (2 * (least + 1) / (number + 1)).clamp(max=1)
