"""The density and the edges of what draws theta, safe at any theta; torch alone."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Uniform

from prudent.errors import InputError


def log_density(found: Any, theta: Tensor) -> Tensor:
    """The log-density of a prior or proposal at theta (..., D), in the type of theta.

    Outside the support it is minus infinity instead of an error. The edge of a box belongs to the
    box: draws of U(1000, 1001) are rounded to it, where torch has no density.
    """
    if theta.device.type != "cpu":  # check_prior makes sure that the prior is there
        return log_density(found, theta.cpu()).to(theta.device)
    shape = torch.Size(getattr(found, "event_shape", ()))
    if len(shape) == 1 and shape != theta.shape[-1:]:
        raise InputError(f"expected `theta` of shape (..., {shape[0]}), got {tuple(theta.shape)}.")
    if type(found) is Independent and type(found.base_dist) is Uniform and len(shape) == 1:
        return _log_density_of_box(found.base_dist, theta)
    support = _support(found)
    if support is None or not isinstance(found, Distribution):
        value: Tensor = found.log_prob(theta)
        return value.to(theta.dtype)
    inside = support.check(theta)
    if not bool(inside.any()):
        return torch.full_like(theta[..., 0], -torch.inf)
    if not bool(inside.all()):
        anywhere = theta[inside][0].detach()
        theta = torch.where(inside.unsqueeze(-1), theta, anywhere)
    value = found.log_prob(theta)
    if not bool(value.isfinite().all()) and (bounds := support_bounds(found, theta.shape[-1])):
        low, high = (bound.to(theta) for bound in bounds)
        within = theta.clamp(low.nextafter(high), high.nextafter(low))
        value = torch.where(value.isfinite(), value, found.log_prob(within))
    return value.masked_fill(~inside, -torch.inf).to(theta.dtype)


def _log_density_of_box(box: Uniform, theta: Tensor) -> Tensor:
    """The same in a fifth of the time, for the prior that most people have."""
    low, high = box.low, box.high
    inside = ((theta >= low) & (theta <= high)).all(dim=-1)
    height = -(high - low).log().sum(dim=-1).to(theta)
    return torch.where(inside, height, -torch.inf)


def _support(found: Any) -> Any:
    """The constraint on the draws of a distribution, None where it does not say."""
    try:
        return getattr(found, "support", None)
    except NotImplementedError:
        return None


def support_bounds(found: Any, dim: int) -> tuple[Tensor, Tensor] | None:
    """The corners (D,) of the box that a distribution lives on, or None if it has no bounds."""
    constraint = _support(found)
    constraint = getattr(constraint, "base_constraint", constraint)
    low, high = (getattr(constraint, name, None) for name in ("lower_bound", "upper_bound"))
    if low is None or high is None:
        return None
    return torch.zeros(dim) + low, torch.zeros(dim) + high


def trial_draws(found: Any, role: str) -> Tensor:
    """Two draws (2, D) of what is to serve as a prior or proposal, refused if it cannot."""
    missing = [name for name in ("sample", "log_prob") if not callable(getattr(found, name, None))]
    if missing:
        raise InputError(
            f"the {role} ({type(found).__name__}) has no `{'`, `'.join(missing)}`; "
            "expected a torch distribution over theta, such as "
            "torch.distributions.Independent(torch.distributions.Uniform(low, high), 1)."
        )
    with torch.random.fork_rng(devices=()):
        draws = found.sample((2,))
    if not isinstance(draws, Tensor) or draws.ndim != 2 or found.log_prob(draws).shape != (2,):
        came = tuple(draws.shape) if isinstance(draws, Tensor) else type(draws).__name__
        raise InputError(
            f"expected a {role} over D parameters: sample((2,)) of shape (2, D) and log_prob of "
            f"shape (2,); sample((2,)) gave {came}. If its batch_shape holds the parameters, wrap "
            f"it: torch.distributions.Independent({role}, 1)."
        )
    return draws
