r"""Posterior predictive check: would the posterior have simulated this observation?

Parameters drawn from the posterior are simulated, and summary statistics of the simulations are
compared with those of the observation. A statistic far in the tail says that the posterior, the
simulator, or both, do not explain that aspect of the data.

The observation is used twice, to find the posterior and to judge it. So the tail probabilities of
an exact posterior are not uniform but gather around one half: the check rarely alarms without
reason (less often than its level), and it misses what the statistics do not show. A posterior that
is too narrow is nearly invisible here; use coverage for that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from prudent._progress import Progress, Reporter
from prudent._randomness import generator, seeded
from prudent.contracts import Estimator, Prior
from prudent.diagnostics._bands import holm
from prudent.diagnostics.verdict import ERROR_RATE
from prudent.errors import DataError, InputError
from prudent.estimators.priors import log_prior

Statistic = Callable[[Tensor], Tensor]

NUM_SAMPLES = 1000
MOST_COMPONENTS = 32


class Simulates(Protocol):
    """A problem, as far as it matters here."""

    def simulate(self, theta: Tensor, generator: torch.Generator, /) -> Tensor:
        """One observation for each row of theta."""
        ...


@dataclass(frozen=True)
class PredictiveCheck:
    """Tail probabilities of K statistics for M observations.

    Args:
        names: The statistics.
        observed: Their values at the observations, (K, M).
        tail: The share of simulations below the observed value, ties at one half, (K, M).
        p_values: Two-sided, (K, M), float64.
        num_simulated: Simulations compared with each observation, (M,).
        num_outside: Draws outside the prior's support, which cannot be simulated, (M,).
        num_invalid: Simulations that were not finite, (M,).
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
        """For "every statistic of every observation is explained", corrected by Holm."""
        return float(holm(self.p_values.flatten().numpy()).min())

    @property
    def verdict(self) -> str:
        """A line that names the statistic that is explained worst."""
        row, column = divmod(int(self.p_values.argmin()), self.p_values.shape[1])
        number = self.p_values.numel()
        above = 100 * float(self.tail[row, column])
        evidence = (
            f"{self.names[row]} of observation {column} exceeds {above:.1f} % of simulations, "
            f"p = {self.p_value:.2g} over {number:,}"
        )
        text = "not explained" if self.p_value < ERROR_RATE else "explained"
        needed = int(2 * number / ERROR_RATE)
        scarce = text == "explained" and needed > int(self.num_simulated.min())
        outside, invalid = int(self.num_outside.sum()), int(self.num_invalid.sum())
        notes = f"; {needed:,} simulations are needed to tell" if scarce else ""
        notes += f"; {outside:,} draws outside the prior" if outside else ""
        notes += f"; {invalid:,} simulations not finite" if invalid else ""
        return f"{text}: {evidence}{notes}"

    def __repr__(self) -> str:
        return f"<PredictiveCheck: {self.verdict}>"


def summary_statistics(x_shape: tuple[int, ...]) -> dict[str, Statistic]:
    """Mean, spread and extremes of an observation, and its components if they are few.

    >>> list(summary_statistics((2,)))
    ['x[0]', 'x[1]', 'mean', 'std', 'min', 'max']
    """
    number = torch.Size(x_shape).numel()

    def component(index: int) -> Statistic:
        return lambda x: x.flatten(1)[:, index]

    few = range(number if number <= MOST_COMPONENTS else 0)
    components = {f"x[{index}]": component(index) for index in few}
    if number == 1:
        return components
    return {
        **components,
        "mean": lambda x: x.flatten(1).mean(dim=1),
        "std": lambda x: x.flatten(1).std(dim=1),
        "min": lambda x: x.flatten(1).amin(dim=1),
        "max": lambda x: x.flatten(1).amax(dim=1),
    }


@torch.no_grad()
def predictive_check(
    estimator: Estimator,
    problem: Simulates,
    x: Any,
    statistics: Mapping[str, Statistic] | None = None,
    *,
    num_samples: int = NUM_SAMPLES,
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
    data = torch.as_tensor(x).to(torch.float32)
    if data.ndim < 2 or len(data) == 0:
        raise DataError(
            f"expected `x` of shape (M, ...), got {tuple(data.shape)}. One observation? x[None]."
        )
    bad = int((~data.isfinite().flatten(1).all(dim=1)).sum())
    if bad:
        raise DataError(
            f"{bad:,} of {len(data):,} observations hold NaN or infinity; there is nothing to "
            "compare with. Leave them out."
        )
    chosen = dict(summary_statistics(tuple(data.shape[1:])) if statistics is None else statistics)
    columns = []
    with seeded(seed, "predictive"), Progress("simulating", len(data), progress, "x") as bar:
        for row in range(len(data)):
            stream = generator(seed, "predictive", row)
            columns.append(
                _check_one(estimator, problem, data[row : row + 1], chosen, num_samples, stream)
            )
            bar.advance({})
    parts = [torch.stack(part, dim=1) for part in zip(*columns, strict=True)]
    return PredictiveCheck(tuple(chosen), *parts[:3], *parts[3])


def _check_one(
    estimator: Estimator,
    problem: Simulates,
    x: Tensor,
    statistics: Mapping[str, Statistic],
    num_samples: int,
    stream: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Observed values, tails and p-values (K,), and how many were simulated, outside, invalid."""
    theta = estimator(x).sample((num_samples,)).squeeze(1)
    finite = theta.isfinite().all(dim=1)
    prior: Prior | None = getattr(estimator, "prior", None)
    inside = finite
    if prior is not None:
        inside = finite & (log_prior(prior, theta.nan_to_num()) > -torch.inf)
    if not bool(inside.any()):
        raise InputError(
            f"none of {num_samples:,} draws can be simulated: {int((~finite).sum()):,} are not "
            "finite, the others lie outside the prior."
        )
    simulated = problem.simulate(theta[inside], stream)
    valid = simulated.isfinite().flatten(1).all(dim=1)
    if not bool(valid.any()):
        raise InputError(f"all {len(simulated):,} simulations hold NaN or infinity.")
    simulated = simulated[valid]
    observed = torch.stack([function(x)[0] for function in statistics.values()])
    values = torch.stack([function(simulated) for function in statistics.values()])
    if values.shape != (len(statistics), len(simulated)) or bool(values.isnan().any()):
        raise InputError("expected every statistic to map (N, ...) to (N,) without NaN.")
    below = (values < observed[:, None]).sum(dim=1)
    tied = (values == observed[:, None]).sum(dim=1)
    number = len(simulated)
    # The observation counts as one of the simulations, so that no p-value is zero.
    least = torch.minimum(below + tied, number - below).double()
    p_values = (2 * (least + 1) / (number + 1)).clamp(max=1)
    counts = [number, int((~inside).sum()), int((~valid).sum())]
    return observed, (below + tied / 2) / number, p_values, torch.tensor(counts)
