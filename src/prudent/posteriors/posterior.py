"""The posteriors of N observations: a density of any make, and all that can be asked of it.

This is the one place that converts and checks theta. Densities below it take what it hands them.
"""

from functools import cached_property
from typing import Any, Protocol, final

import torch
from torch import Tensor

from prudent._arrays import as_shape, as_tensor, placed
from prudent.contracts import Shape
from prudent.errors import DataError, InputError
from prudent.estimators.importance import SamplingReport
from prudent.estimators.novelty import Observed
from prudent.estimators.summaries import Summaries
from prudent.posteriors.density import Density, Facts
from prudent.priors.density import log_density


class Levels(Protocol):
    """Levels of regions other than those of the density."""

    def least_alpha(self, level: float, x: Tensor) -> Tensor:
        """The alpha from which on a theta is inside the region of a level, given x (N, ...)."""

    def cloud(self, posterior: Any) -> tuple[Tensor, Tensor]:
        """Log-densities of the draws that measure alpha, and the logs of their weights, (L, N)."""


@final
class Posterior(Summaries):
    """The posteriors of N observations.

    Args:
        estimator: The estimator, which knows the prior and has a record, ``info``.
        density: Their densities.
        x: The observations, (N, ...), as the estimator takes them.
        observed: The observations and the test of whether they are like the simulations, or None.
        levels: Levels of regions other than those of the density, or None.
    """

    def __init__(
        self,
        estimator: Any,
        density: Density,
        x: Tensor,
        observed: Observed | None = None,
        levels: Levels | None = None,
        place: Tensor | None = None,
    ) -> None:
        self.estimator, self.density = estimator, density
        self._x, self._place = x, place
        self.observed, self.levels = observed, levels

    def __len__(self) -> int:
        return len(self.density)

    @cached_property
    def x(self) -> Tensor:
        """The observations, (N, ...)."""
        return self._x if self._place is None else self._x[self._place]

    @property
    def facts(self) -> Facts:
        """What the density is and can do."""
        return self.density.facts

    @property
    def overhead(self) -> float:
        """The draws whose evaluation takes as long as a call of the network."""
        return self.facts.overhead

    def _need_density(self, what: str) -> None:
        if self.facts.lacks:
            raise InputError(self.facts.lacks.format(what))

    def _theta(self, theta: Any) -> Tensor:
        """Parameters (..., N, D) as a tensor of the prior's type."""
        self._need_density("density")
        like, number, dim = self.density.like, len(self), self.density.dim
        value = placed("theta", as_tensor("theta", theta, like.dtype), like.device)
        rows = value.shape[-2] if value.ndim > 1 else 1
        if value.ndim == 0 or value.shape[-1] != dim or not (rows in (1, number) or number == 1):
            raise DataError(
                f"expected `theta` of shape (..., {number}, {dim}): {dim} parameters for each of "
                f"{number} observations; got {tuple(value.shape)}."
            )
        return value

    def log_prob(self, theta: Any) -> Tensor:
        """The log-density at ``theta`` (..., N, D), as (..., N); of ratios up to a constant."""
        theta = self._theta(theta)
        if self.facts.ratio:
            return log_density(self.density.prior, theta) + self.density.log_ratio(theta)
        return self.density.log_prob(theta)

    def log_ratio(self, theta: Any) -> Tensor:
        """The log of posterior over prior at ``theta`` (..., N, D), (..., N)."""
        return self.density.log_ratio(self._theta(theta))

    def log_prob_and_ratio(self, theta: Any) -> tuple[Tensor, Tensor]:
        """What :meth:`log_prob` and :meth:`log_ratio` return, by one evaluation."""
        theta = self._theta(theta)
        known = log_density(self.density.prior, theta)
        if self.facts.ratio:
            log_ratio = self.density.log_ratio(theta)
            return known + log_ratio, log_ratio
        log_prob = self.density.log_prob(theta)
        return log_prob, (log_prob - known).masked_fill(known == -torch.inf, 0.0)

    @torch.no_grad()
    def _draw(self, shape: tuple[int, ...], **how: Any) -> tuple[Tensor, SamplingReport | None]:
        return self.density.draw(shape, **how)

    def rsample(self, sample_shape: Shape | int = ()) -> Tensor:
        """Draw ``(*sample_shape, N, D)`` of a flow, as a function of the weights; never cut."""
        return self.density.rsample(as_shape(sample_shape))

    @torch.no_grad()
    def sample_and_log_prob(self, sample_shape: Shape | int = ()) -> tuple[Tensor, Tensor]:
        """Draws and their log-density, of a flow itself at the cost of the draws alone."""
        self._need_density("density")
        if self.facts.ratio:
            theta = self.sample(sample_shape)
            return theta, self.log_prob(theta)
        return self.density.sample_and_log_prob(as_shape(sample_shape))

    @torch.no_grad()
    def from_noise(self, noise: Tensor, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal noise (L, N, D), times a spread, as draws.

        Returns:
            The draws (L, N, D), their log-density, and that of what drew them, (L, N) each.
        """
        if not self.facts.noise:
            raise InputError("this posterior takes no noise: see `facts`. Use `sample`.")
        return self.density.from_noise(noise, spread)

    def rows(self, index: Tensor | slice) -> "Posterior":
        """The posteriors of some observations; nothing is embedded again."""
        observed = self.observed and self.observed.rows(index)
        place = torch.arange(len(self)) if self._place is None else self._place
        place = place[index.cpu() if isinstance(index, Tensor) else index]
        return Posterior(
            self.estimator, self.density.rows(index), self._x, observed, self.levels, place
        )

    def unnormalized(self) -> "Posterior":
        """The same posteriors without a search for what their densities must be divided by."""
        density = self.density.undivided()
        return Posterior(self.estimator, density, self._x, self.observed, self.levels, self._place)

    @cached_property
    def _cloud(self) -> tuple[Tensor, Tensor]:
        return super()._cloud if self.levels is None else self.levels.cloud(self)

    def map(self) -> Tensor:
        """The parameters of highest density inside the prior, (N, D)."""
        self._need_density("place of highest density")
        return super().map()

    def _least_alpha(self, level: float) -> Tensor:
        self._need_density(f"region of level {level:g}")
        if self.levels is None:
            return super()._least_alpha(level)
        return self.levels.least_alpha(level, self.x)
