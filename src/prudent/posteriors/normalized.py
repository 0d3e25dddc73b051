"""A density that is known up to a constant, divided by its integral and drawn from by rejection.

The integral is a mean of weights of draws, which are even and the same for every observation, so
that a density does not depend on what else is in the batch. Rounds of draws are added until its
error is small.
"""

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from prudent.estimators.importance import SamplingReport
from prudent.estimators.sampling import reject
from prudent.posteriors.density import Density

# Observations whose integral is found at a time, and draws that are made at a time.
ROWS, MOST_DRAWS = 256, 2**18


class Normalized(Density):
    """A density divided by its integral, which is found when it is needed.

    Args:
        inner: The density, with ``candidates``.
        divide: Whether to divide, and not only to draw.
    """

    def __init__(self, inner: Density, *, divide: bool = True) -> None:
        super().__init__(inner.prior, inner.dim, inner.like, inner.facts)
        self.inner, self.divide = inner, divide

    def rows(self, index: Tensor | slice) -> "Normalized":
        """The densities of some observations."""
        return Normalized(self.inner.rows(index), divide=self.divide)

    def undivided(self) -> Density:
        """The density without the search for its integral."""
        whole = self.inner.undivided()
        return Normalized(whole, divide=False) if whole is self.inner else whole

    @cached_property
    def log_norm(self) -> Tensor:
        """The log of the integral for each observation, (N,)."""
        starts = range(0, len(self), ROWS)
        return torch.cat([log_integral(self.inner.rows(slice(i, i + ROWS))) for i in starts])

    def log_prob(self, theta: Tensor) -> Tensor:
        """The log-density of theta (..., N, D), (..., N)."""
        return self._divided(self.inner.log_prob(theta))

    def _divided(self, log_prob: Tensor) -> Tensor:
        return log_prob - self.log_norm if self.divide else log_prob

    def rsample(self, shape: tuple[int, ...]) -> Tensor:
        """Draws of the density that was cut, as a function of weights."""
        return self.inner.undivided().rsample(shape)

    @torch.no_grad()
    def from_noise(self, noise: Tensor, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal noise (L, N, D) as draws, their log-density, and that of the draws."""
        theta, log_prob, log_proposal = self.inner.from_noise(noise, spread)
        return theta, self._divided(log_prob), log_proposal

    @torch.no_grad()
    def draw(self, shape: tuple[int, ...], **how: Any) -> tuple[Tensor, SamplingReport | None]:
        """Draws ``(*shape, N, D)``, of which those that were kept are exact, and their worth."""
        number = math.prod(shape)
        step = max(1, MOST_DRAWS // max(number, 1))
        starts = range(0, len(self), step)
        parts = [self._by_rejection(number, slice(i, i + step)) for i in starts]
        draws, worth, kept = (
            torch.cat(part, dim=-2 if part[0].ndim > 1 else 0) for part in zip(*parts, strict=True)
        )
        report = SamplingReport("rejection", number, worth, acceptance=float(kept.mean()))
        return draws.to(self.like.device).reshape(*shape, *draws.shape[1:]), report

    def _by_rejection(self, number: int, some: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Draws (number, R, D), what they are worth, and the share that was kept, (R,) each."""
        inner, device = self.inner.rows(some), self.like.device
        kept = inner.share_kept(lambda: self.log_norm[some])
        draws = torch.empty(number, len(inner), self.dim, dtype=self.like.dtype)
        left = reject(
            lambda rows, number: inner.rows(rows.to(device)).candidates(number), kept, draws
        )
        worth = torch.full((len(inner),), float(number))
        if len(left):
            found, size = inner.rows(left.to(device)).leftover(number)
            draws[:, left], worth[left] = found.cpu(), size.to(worth)
        return draws, worth, kept


@torch.no_grad()
def log_integral(density: Density) -> Tensor:
    """The log of the integral of a density for each observation, (N,)."""
    (least_rounds, most_rounds), rows = density.rounds, torch.arange(len(density))
    # The sums over draws or rounds of one, of weights and of their squares, in units of the first.
    sums = torch.zeros(3, len(density), dtype=torch.float64)
    unit, found = torch.zeros(len(density), dtype=torch.float64), sums[0]
    for index in range(most_rounds):
        log_weight = density.rows(rows.to(density.like.device)).log_weights(index)
        number = len(log_weight)
        log_mean = log_weight.double().logsumexp(dim=0).cpu() - math.log(number)
        if index == 0 and not density.shares:
            unit = log_mean.nan_to_num(neginf=0.0)
        value = (log_mean - unit[rows]).exp()
        # The square of a share is at most the share.
        square, counted = (value, number) if density.shares else (value.square(), 1)
        sums[:, rows] += counted * torch.stack((torch.ones_like(value), value, square))
        mean, square = sums[1:] / sums[0]
        error = ((square - mean.square()).clamp(min=0) / sums[0]).sqrt()
        # Half a draw where none has a weight, where one may be found yet.
        least = 0.5 * counted / (number * sums[0])
        found = unit + mean.maximum(least).to(log_weight.dtype).log()
        if index + 1 >= least_rounds:
            rows = ((error > density.tolerance * mean) | (mean == 0)).nonzero().squeeze(1)
        if len(rows) == 0:
            break
    return found.to(density.like)
