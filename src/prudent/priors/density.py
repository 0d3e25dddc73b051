"""Where a prior has density, and how much, safe at any theta; torch alone.

There is one rule for the support, found once for each distribution, and all that draws, evaluates
or shows posteriors goes by it. The ends of each parameter's range follow from how a distribution
is made; what torch does not know is tried at and between draws. Where the density is positive
everywhere between these ends, a flow lives there; elsewhere what is outside is cut away.
"""

import contextlib
import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import (
    Independent,
    MixtureSameFamily,
    TransformedDistribution,
    Uniform,
    constraints,
)

from prudent.errors import InputError, one_line

# Draws of a distribution of unknown make; those tried, and those along which ends are searched.
NUM_DRAWS, NUM_TRIALS, NUM_LINES, MOST_HALVINGS = 2**15, 512, 4, 200
# Edges are approached from within: densities made of roundings may have none on the edge itself.
ROUNDING, SHARE = 4e-6, 1e-5
# The distributions whose word for their support is taken.
OURS = ("torch.distributions.", "prudent.")


class Region(NamedTuple):
    """Where a distribution of D numbers has density.

    Args:
        low: The lower ends (D,), of float64 and minus infinity where there is none.
        high: The upper ends.
        filled: Whether the density is positive everywhere between these ends.
        declared: What torch says of it, which may be less than is known here, or None.
        known: Whether that is known, not only what trial draws show.
    """

    low: Tensor
    high: Tensor
    filled: bool
    declared: Any
    known: bool = True

    @property
    def simplex(self) -> bool:
        """Whether the numbers are shares of a whole."""
        return self.declared is constraints.simplex

    @property
    def constraint(self) -> Any:
        """The region for torch: what is declared, if that has the same ends."""
        low, high, _ = _declared(self.declared, self.low.shape)
        if self.simplex or (torch.equal(low, self.low) and torch.equal(high, self.high)):
            return self.declared or constraints.real
        parts = [between(*ends) for ends in zip(self.low, self.high, strict=True)]
        return constraints.independent(constraints.cat(parts, -1, [1] * len(parts)), 1)


def between(low: Tensor, high: Tensor) -> Any:
    """The constraint of a number between two ends, which may be infinite."""
    if low.isfinite() and high.isfinite():
        return constraints.interval(low, high)
    if low.isfinite():
        return constraints.greater_than(low)
    return constraints.less_than(high) if high.isfinite() else constraints.real


def made_of(found: Any) -> tuple[Any, list[Any] | None]:
    """The prior in a wrapper and the factors of a product; what others name so may be anything."""
    if not type(found).__module__.startswith(("prudent.priors.", "sbi.utils.")):
        return None, None
    return getattr(found, "prior", None), getattr(found, "dists", getattr(found, "factors", None))


def is_independent(found: Any) -> bool:
    """Whether the density of a distribution is that of its base; a subclass may cut it."""
    return isinstance(found, Independent) and type(found).log_prob is Independent.log_prob


_known: weakref.WeakKeyDictionary[Any, Region] = weakref.WeakKeyDictionary()


def support_of(found: Any, dim: int) -> Region:
    """The region of a distribution of ``dim`` numbers, which is remembered.

    >>> from torch.distributions import Normal, TransformedDistribution
    >>> from torch.distributions.transforms import ExpTransform
    >>> base = Uniform(torch.zeros(2), torch.ones(2))
    >>> support_of(Independent(TransformedDistribution(base, [ExpTransform()]), 1), 2).high
    tensor([2.7183, 2.7183], dtype=torch.float64)
    """
    with contextlib.suppress(TypeError, KeyError):
        return _known[found]
    inner, declared = made_of(found)[0], stated(found)
    if inner is not None:
        region = support_of(inner, dim)
    elif declared is constraints.simplex:
        zero = torch.zeros(dim).double()
        region = Region(zero, zero + 1, filled=True, declared=declared)
    else:
        low, high, filled = _ends(found)
        low, high = (end.detach().double().expand(dim).clone() for end in (low, high))
        known = filled is not None or getattr(declared, "is_discrete", False)
        if not known:
            low, high, filled = _searched(found, low, high)
        region = Region(low, high, bool(filled), declared, known)
    with contextlib.suppress(TypeError):
        _known[found] = region
    return region


def _ends(found: Any) -> tuple[Tensor, Tensor, bool | None]:
    """The ends of the numbers of a distribution, and whether it fills them, None if unknown."""
    if parts := made_of(found)[1]:
        ends = list(zip(*map(_ends, parts), strict=True))
        low, high = (torch.cat([one.double().reshape(-1) for one in side]) for side in ends[:2])
        return low, high, False if False in ends[2] else None if None in ends[2] else True
    if is_independent(found):
        return _ends(found.base_dist)
    moves = found.transforms if type(found) is TransformedDistribution else []
    if moves and all(m.bijective and m.domain.event_dim == 0 for m in moves):
        low, high, filled = _ends(found.base_dist)
        for move in moves:
            low, high = move(low), move(high)
        return torch.minimum(low, high), torch.maximum(low, high), filled
    if type(found) is MixtureSameFamily:
        low, high, filled = _ends(found.component_distribution)
        axis = -1 - len(found.event_shape)
        least, most = low.amin(dim=axis, keepdim=True), high.amax(dim=axis, keepdim=True)
        same = bool((low == least).all() and (high == most).all())
        return least.squeeze(axis), most.squeeze(axis), filled and same
    shape = getattr(found, "batch_shape", ()) + getattr(found, "event_shape", ())
    low, high, filled = _declared(stated(found), shape)
    if type(found).__module__.startswith(OURS):
        return low, high, filled or None
    try:
        quantiles = found.icdf(torch.zeros(shape)), found.icdf(torch.ones(shape))
        low, high = torch.maximum(low, quantiles[0]), torch.minimum(high, quantiles[1])
    except Exception:  # noqa: S110 - a method of others may not be there, or raise anything
        pass
    return low, high, None


def _declared(support: Any, shape: Sequence[int]) -> tuple[Tensor, Tensor, bool]:
    """The ends that a constraint has, and whether it is nothing else."""
    support, only = _plain(support), True
    several = isinstance(support, constraints.cat)
    parts = [(support, shape)]
    if several:
        parts = [(_plain(p), (n,)) for p, n in zip(support.cseq, support.lengths, strict=True)]
    ends: tuple[list[Tensor], ...] = ([], [])
    for part, size in parts:
        own = [getattr(part, name, None) for name in ("lower_bound", "upper_bound")]
        only = only and (part is constraints.real or own != [None, None])
        only = only and not part.is_discrete
        for side, end, infinite in zip(ends, own, (-torch.inf, torch.inf), strict=True):
            if not isinstance(end, Tensor):  # others keep their type, in which draws are rounded
                end = torch.tensor(infinite if end is None else end, dtype=torch.float64)
            side.append(end.expand(size))
    low, high = (torch.cat(side) if several else side[0] for side in ends)
    return low, high, only


def _plain(support: Any) -> Any:
    """A constraint on each number."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def stated(found: Any) -> Any:
    """The constraint on the draws of a distribution, None where it does not say.

    For a mixture, torch asks of draws that every component has them.
    """
    if isinstance(found, MixtureSameFamily):
        return None
    try:
        return getattr(found, "support", None)
    except NotImplementedError:
        return None


def _searched(found: Any, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, bool]:
    """The ends of a distribution of unknown make by its density, and whether it fills them.

    It does if it is positive at numbers between those of any two draws, and from there to the
    ends. Where it stops before an end, it has one there, if that is the same along several lines.
    """
    if not callable(getattr(found, "sample", None)):
        return low, high, False
    with _aside():
        draws = found.sample((NUM_DRAWS,))
        first, second = draws[: 2 * NUM_TRIALS].chunk(2)
        tried = torch.cat((first, second, torch.lerp(first, second, torch.rand_like(first))))
    ends = torch.stack((low, high)).to(draws)
    extremes = torch.stack((draws.amin(dim=0), draws.amax(dim=0)))
    spans = (extremes[1] - extremes[0]) * torch.tensor([[-1.0], [1.0]]).to(draws)
    beyond = torch.where(ends.isfinite(), ends + 1e-3 * (extremes - ends), extremes + spans)
    dim, lines = draws.shape[1], draws[:NUM_LINES]
    axes = torch.eye(dim, dtype=torch.bool)[:, None]

    def positive(places: Tensor) -> Tensor:
        """Whether there is density along the lines (2, D, K) through some draws."""
        return _positive(found, torch.where(axes, places[..., None], lines))

    inner, outer = (one[..., None].expand(-1, -1, len(lines)) for one in (extremes, beyond))
    if not bool(_positive(found, tried).all() and positive(inner).all()):
        return low, high, False
    stops = ~positive(outer).all(dim=-1)
    if bool(stops.any()):
        for _ in range(MOST_HALVINGS):
            middle = (inner + outer) / 2
            if bool(((middle == inner) | (middle == outer)).all()):
                break
            inside = positive(middle)
            inner, outer = torch.where(inside, middle, inner), torch.where(inside, outer, middle)
        if bool((inner.amax(dim=-1) - inner.amin(dim=-1) > SHARE * spans.abs())[stops].any()):
            return low, high, False
    known, last = torch.stack((low, high)), (inner[0].amin(dim=-1), inner[1].amax(dim=-1))
    return *torch.where(stops, torch.stack(last).double(), known), True


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    """Draw from streams that start anew; those of the user, of torch and numpy, do not move."""
    with contextlib.ExitStack() as kept:
        kept.enter_context(torch.random.fork_rng(devices=()))
        if numpy := sys.modules.get("numpy"):
            kept.callback(numpy.random.set_state, numpy.random.get_state())
        torch.default_generator.manual_seed(0)  # not those of other devices, which are not kept
        yield


def _positive(found: Any, theta: Tensor) -> Tensor:
    """Whether there is density at theta (..., D); where it cannot be computed there is none."""
    rows = theta.reshape(-1, theta.shape[-1])
    try:
        inside: Tensor = found.log_prob(rows) > -torch.inf
        return inside.reshape(theta.shape[:-1])
    except Exception:
        if len(rows) == 1:
            return torch.zeros(theta.shape[:-1], dtype=torch.bool)
    return torch.cat([_positive(found, row[None]) for row in rows]).reshape(theta.shape[:-1])


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
    if theta.numel() == 0:
        return theta.new_zeros(theta.shape[:-1])
    region = support_of(found, theta.shape[-1])
    low, high = region.low.to(theta), region.high.to(theta)
    inside = ((theta >= low) & (theta <= high)).all(dim=-1)
    if region.declared is not None:
        inside &= region.declared.check(theta)
    if not bool(inside.any()):
        return torch.full_like(theta[..., 0], -torch.inf)
    if not bool(inside.all()):
        anywhere = theta[inside][0].detach()
        theta = torch.where(inside.unsqueeze(-1), theta, anywhere)
    if region.filled and not region.simplex:
        theta = _within(theta, low, high)
    value: Tensor = found.log_prob(theta)
    return value.masked_fill(~inside, -torch.inf).to(theta.dtype)


def _within(theta: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Theta, moved by a rounding where it lies on an end of an interval."""
    room = (SHARE * (high - low)).nan_to_num(posinf=0.0)
    first = torch.maximum(low.nextafter(high), low + torch.minimum(room, ROUNDING * low.abs()))
    last = torch.minimum(high.nextafter(low), high - torch.minimum(room, ROUNDING * high.abs()))
    return theta.clamp(low.where(low.isinf(), first), high.where(high.isinf(), last))


def _log_density_of_box(box: Uniform, theta: Tensor) -> Tensor:
    """The same in a fifth of the time, for the prior that most people have."""
    low, high = box.low, box.high
    inside = ((theta >= low) & (theta <= high)).all(dim=-1)
    height = -(high - low).log().sum(dim=-1).to(theta)
    return torch.where(inside, height, -torch.inf)


def support_bounds(found: Any, dim: int) -> tuple[Tensor, Tensor] | None:
    """The corners (D,) of the box that a distribution lives on, or None if it has no bounds."""
    region = support_of(found, dim)
    if region.simplex or not bool((region.low.isfinite() & region.high.isfinite()).all()):
        return None
    dtype = trial_draws(found, "prior").dtype
    return region.low.to(dtype), region.high.to(dtype)


def trial_draws(found: Any, role: str) -> Tensor:
    """Two draws (2, D) of what is to serve as a prior or proposal, refused if it cannot."""
    missing = [name for name in ("sample", "log_prob") if not callable(getattr(found, name, None))]
    if missing:
        raise InputError(
            f"the {role} ({type(found).__name__}) has no `{'`, `'.join(missing)}`; "
            "expected a torch distribution over theta, such as "
            "torch.distributions.Independent(torch.distributions.Uniform(low, high), 1)."
        )
    with _aside():
        draws = found.sample((2,))
    shape = None
    try:
        if isinstance(draws, Tensor) and draws.ndim == 2:
            shape = found.log_prob(draws).shape
    except ValueError as error:
        raise InputError(
            f"the {role} ({type(found).__name__}) refuses its own draws: {one_line(error, 200)}. "
            "If its density there is right, pass it validate_args=False."
        ) from error
    if shape != (2,):
        came = tuple(draws.shape) if isinstance(draws, Tensor) else type(draws).__name__
        raise InputError(
            f"expected a {role} over D parameters: sample((2,)) of shape (2, D) and log_prob of "
            f"shape (2,); sample((2,)) gave {came}. If its batch_shape holds the parameters, wrap "
            f"it: torch.distributions.Independent({role}, 1)."
        )
    return torch.as_tensor(draws)
