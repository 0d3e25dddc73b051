r"""A prior's support as the whole space, parameter by parameter.

A flow has density everywhere; parameters of a bounded prior are not. So a flow is trained on
coordinates in which the support has no edges, and its density there, divided by the volume that
the map gives to a unit of theta, is a density inside the support: nothing leaks and nothing is
rejected.

- An interval is mapped by the normal quantile, :math:`z = \Phi^{-1}((\theta - a) / (b - a))`. What
  is uniform on the interval is standard normal in z, which is what a flow begins from.
- A half-line is mapped by the logarithm of the distance from its end.
- A line stays as it is.
- Shares of a whole are mapped to one number less, by the breaking of a stick.

Where the density is not known to be positive everywhere there, a posterior is cut to the support.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import StickBreakingTransform

from prudent.contracts import Prior
from prudent.priors.density import support_of

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def leaks(prior: Prior, dim: int, *, bounded: bool = True) -> bool:
    """Whether a density on all coordinates has mass outside the prior's support.

    Args:
        prior: The prior.
        dim: The number of parameters.
        bounded: Whether the coordinates are those of :class:`Support`, not theta itself.

    >>> from torch.distributions import Dirichlet, Exponential, Independent
    >>> half_lines, triangle = Independent(Exponential(torch.ones(2)), 1), Dirichlet(torch.ones(3))
    >>> leaks(half_lines, 2), leaks(half_lines, 2, bounded=False), leaks(triangle, 3)
    (False, True, False)
    """
    region = support_of(prior, dim)
    ends = torch.cat((region.low, region.high))
    return not (region.filled and region.known) or (not bounded and bool(ends.isfinite().any()))


class Support(nn.Module):
    """The map from a prior's support to unbounded coordinates; it has no weights.

    Args:
        prior: The prior, or None for the whole space.
        dim: The number of parameters.

    Attributes:
        low: The ends (D,) of the parameters' ranges, infinite where they have none.
        high: The other ends.
        size: The number of coordinates.
    """

    low: Tensor
    high: Tensor

    def __init__(self, prior: Prior | None, dim: int) -> None:
        super().__init__()
        region = None if prior is None else support_of(prior, dim)
        infinite = torch.full((dim,), torch.inf, dtype=torch.float64)
        ends = (-infinite, infinite) if region is None else (region.low, region.high)
        for name, value in zip(("low", "high"), ends, strict=True):
            self.register_buffer(name, value.clone(), persistent=False)
        self.stick: Any = StickBreakingTransform() if region and region.simplex else None
        self.size = dim if self.stick is None else dim - 1
        left, right = self.low.isfinite(), self.high.isfinite()
        kinds = {"both": left & right, "left": left & ~right, "right": right & ~left}
        # None stands for all parameters, which need not be picked out.
        self.kinds = {
            kind: None if bool(own.all()) else own.nonzero().squeeze(1)
            for kind, own in kinds.items()
            if bool(own.any())
        }

    def forward(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates of ``theta`` (..., D), and the log of their volume per unit of theta, (...).

        Outside the support that is minus infinity, and so is any density of theta.
        """
        outside = torch.zeros(theta.shape[:-1], dtype=torch.bool, device=theta.device)
        if self.stick is not None:
            outside = ~self.stick.codomain.check(theta)
        for index in self.kinds.values():
            low, high, some = self._own(index, theta)
            outside = outside | ((some < low) | (some > high)).any(dim=-1)
        values = self.coordinates(theta)
        return values, self.log_volume(values).masked_fill(outside, -torch.inf)

    def coordinates(self, theta: Tensor) -> Tensor:
        """Coordinates of ``theta`` (..., D), as if what is outside were on the edge."""
        values, number = theta, torch.finfo(theta.dtype)
        if self.stick is not None:
            # What is drawn ends at these shares, where rounding would be of more weight.
            places: Tensor = self.stick.inv(theta.clamp(min=number.eps))
            return places
        for kind, index in self.kinds.items():
            low, high, some = self._own(index, theta)
            if kind == "both":
                # A theta on the edge is a draw that was rounded there.
                share = ((some - low) / (high - low)).clamp(number.eps, 1 - number.eps)
                place = torch.special.ndtri(share)
            else:
                away = some - low if kind == "left" else high - some
                place = away.clamp(min=number.tiny).log()
            values = _put(values, index, place)
        return values

    def log_volume(self, values: Tensor) -> Tensor:
        """The log of the volume of coordinates (..., D) per unit of theta, (...)."""
        if self.stick is not None:
            volume: Tensor = self.stick.log_abs_det_jacobian(values, self.stick(values))
            return -volume
        total = torch.zeros_like(values[..., 0])
        for kind, index in self.kinds.items():
            low, high, some = self._own(index, values)
            normal = 0.5 * some.square() + HALF_LOG_TWO_PI - (high - low).log()
            total = total + (normal if kind == "both" else -some).sum(dim=-1)
        return total

    def inverse(self, values: Tensor) -> Tensor:
        """The theta (..., D) of coordinates."""
        if self.stick is not None:
            shares: Tensor = self.stick(values)
            return shares
        theta = values
        for kind, index in self.kinds.items():
            low, high, some = self._own(index, values)
            if kind == "both":
                # Rounding must not leave the support.
                found = torch.lerp(low, high, torch.special.ndtr(some)).clamp(low, high)
            else:
                found = low + some.exp() if kind == "left" else high - some.exp()
            theta = _put(theta, index, found)
        return theta

    def _own(self, index: Tensor | None, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The ends of some parameters, and their values."""
        low, high = self.low.to(values), self.high.to(values)
        if index is None:
            return low, high, values
        return low[index], high[index], values[..., index]


def _put(values: Tensor, index: Tensor | None, new: Tensor) -> Tensor:
    """Values (..., D) with new ones of some parameters."""
    return new if index is None else values.index_copy(-1, index.to(values.device), new)
