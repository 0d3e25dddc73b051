r"""A prior's support as the whole space, parameter by parameter.

A flow has density everywhere; parameters of a bounded prior are not. So a flow is trained on
coordinates in which the support has no edges, and its density there, divided by the volume that
the map gives to a unit of theta, is a density inside the support: nothing leaks and nothing is
rejected.

- An interval is mapped by the normal quantile, :math:`z = \Phi^{-1}((\theta - a) / (b - a))`. What
  is uniform on the interval is standard normal in z, which is what a flow begins from.
- A half-line is mapped by the logarithm of the distance from its end.
- A line stays as it is, and so does everything whose support is not a product of such parts: there
  a posterior is cut to the support.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import constraints

from prudent.contracts import Prior

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def axis_bounds(prior: Prior | None, dim: int) -> tuple[Tensor, Tensor]:
    """The ends (D,) of each parameter's range, infinite where it has none.

    >>> from torch.distributions import Gamma, Independent
    >>> axis_bounds(Independent(Gamma(torch.ones(2), torch.ones(2)), 1), 2)
    (tensor([0., 0.], dtype=torch.float64), tensor([inf, inf], dtype=torch.float64))
    """
    parts, ends = _parts(prior, dim), []
    for name, infinite in (("lower_bound", -torch.inf), ("upper_bound", torch.inf)):
        values = [
            torch.as_tensor(getattr(part, name, infinite)).reshape(-1).expand(length)
            for part, length in parts
        ]
        ends.append(torch.cat(values).double().clone())
    return ends[0], ends[1]


def leaks(prior: Prior, dim: int, *, bounded: bool = True) -> bool:
    """Whether a density on all coordinates has mass outside the prior's support.

    Args:
        prior: The prior.
        dim: The number of parameters.
        bounded: Whether the coordinates are those of :class:`Support`, not theta itself.

    >>> from torch.distributions import Dirichlet, Exponential, Independent
    >>> half_lines, triangle = Independent(Exponential(torch.ones(2)), 1), Dirichlet(torch.ones(3))
    >>> leaks(half_lines, 2), leaks(half_lines, 2, bounded=False), leaks(triangle, 3)
    (False, True, True)
    """
    ends = ("lower_bound", "upper_bound")
    return not all(
        part is constraints.real or (bounded and any(hasattr(part, end) for end in ends))
        for part, _ in _parts(prior, dim)
    )


def _parts(prior: Prior | None, dim: int) -> list[tuple[Any, int]]:
    """The supports of some parameters after others, and their numbers; None if not known."""
    try:
        support: Any = getattr(prior, "support", None)
    except NotImplementedError:
        support = None
    support = getattr(support, "base_constraint", support)
    several = isinstance(support, constraints.cat)
    parts = zip(support.cseq, support.lengths, strict=True) if several else [(support, dim)]
    return [(getattr(part, "base_constraint", part), length) for part, length in parts]


class Support(nn.Module):
    """The map from a prior's support to unbounded coordinates; it has no weights.

    Args:
        prior: The prior, or None for the whole space.
        dim: The number of parameters.
    """

    low: Tensor
    high: Tensor

    def __init__(self, prior: Prior | None, dim: int) -> None:
        super().__init__()
        for name, value in zip(("low", "high"), axis_bounds(prior, dim), strict=True):
            self.register_buffer(name, value, persistent=False)
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
        for index in self.kinds.values():
            low, high, some = self._own(index, theta)
            outside = outside | ((some < low) | (some > high)).any(dim=-1)
        values = self.coordinates(theta)
        return values, self.log_volume(values).masked_fill(outside, -torch.inf)

    def coordinates(self, theta: Tensor) -> Tensor:
        """Coordinates of ``theta`` (..., D), as if what is outside were on the edge."""
        values, number = theta, torch.finfo(theta.dtype)
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
        total = torch.zeros_like(values[..., 0])
        for kind, index in self.kinds.items():
            low, high, some = self._own(index, values)
            normal = 0.5 * some.square() + HALF_LOG_TWO_PI - (high - low).log()
            total = total + (normal if kind == "both" else -some).sum(dim=-1)
        return total

    def inverse(self, values: Tensor) -> Tensor:
        """The theta (..., D) of coordinates."""
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
