r"""Weighted draws from a density that cannot draw, which learn where it is.

A ratio cannot draw, so its draws come from a proposal I and have weights :math:`q / I`
(self-normalized importance sampling). The prior is a poor proposal: with ten parameters hardly any
of its draws falls where the posterior is. So the proposal learns, in rounds (population Monte
Carlo; Cappé et al. 2008):

- The proposal is a mixture of Student distributions. Each round draws from it, weights the draws,
  and fits the mixture again. As long as too few draws carry the weight, the weights are flattened
  to a power: a bridge from where the proposal is to where the posterior is.
- One component is fitted to a high power of the density, so that it climbs to the highest peak;
  a narrow mode inside a broad one is found that way. The others share the mass among them.
- Fits are made in the coordinates of the fit before, in which ridges become round, so that few
  draws suffice. The first coordinates are unbounded: a box becomes the whole space, so that a
  posterior that ends at the prior's edge has tails, and no cliff.

Two proposals learn independently: one starts from the prior, the other around a point where the
density is known to matter, such as the truth of a test pair, at many scales. The answer comes from
fresh draws of both, and of where they started, weighted by the mixture of all (the balance
heuristic). The two must agree about the integral of the density, each with enough draws that carry
weight. Where they do not, both learn again from what both have found; where they still do not, the
result says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.distributions import IndependentTransform, Transform, biject_to

from prudent.contracts import LogRatio, Prior, Rows
from prudent.coverage.alpha import effective_size
from prudent.errors import InputError
from prudent.estimators._students import Students
from prudent.priors.checks import check_prior
from prudent.priors.density import log_density, support_of

# Draws per target and round: at least so many, and so many for each parameter.
LEAST_DRAWS, DRAWS_PER_PARAMETER = 510, 63
# Fresh draws of each of the two proposals, and of each start.
NUM_FRESH, NUM_START = 1023, 255
# Draws that must carry weight for a fit: at least so many, and so many for each parameter.
LEAST_FITTED, FITTED_PER_PARAMETER = 60, 6
# A power of the weights is halved at most so often until so many carry weight.
MAX_HALVINGS = 30
# The powers of the density to which the components are fitted at first; the last stays a climber.
POWERS = (1.0, 4.0, 32.0)
# A climb to the peak evaluates so many points in each of so many steps, ever shorter ones.
NUM_CLIMBERS, NUM_STEPS, STEP = 64, 10, 0.6
# Climbs to other peaks: so many of so many prior draws, for so many steps. The first step, in
# standard deviations of the prior, and what it is multiplied by when it leads up and when not.
NUM_CLIMBS, NUM_SCANNED, CLIMB_STEPS = 64, 640, 40
FIRST_STEP, LONGER, SHORTER = 0.1, 1.5, 0.9
# Widths of the start around a point, in standard deviations of the prior.
SCALES = (1.5, 0.5, 0.15, 0.05, 0.015, 0.005, 0.0015)
# Rounds at most. A proposal is good if this share of its draws carries the weight, and is given up
# if the share has not grown for some rounds.
MAX_ROUNDS, GOOD_SHARE, PATIENCE = 40, 0.3, 3
# How often two proposals that disagree learn again from what both have found.
MAX_REPEATS = 2
# A target is resolved if this many draws of each proposal carry its weight, and the logs of its
# integral differ by less than a tolerance plus so many standard errors.
FEW_DRAWS, TOLERANCE, NUM_ERRORS = 100, 0.05, 4.0
# Evaluations at a time: bounds memory, and activations of this many rows stay in cache.
CHUNK = 2**13
# Draws at a time, of all targets together.
MOST_DRAWS = 2**16

# The log-density of the targets with these numbers (n,) at (L, n, D), as (L, n).
Target = Callable[[Tensor, Tensor], Tensor]


class Ratio(LogRatio, Rows, Sized, Protocol):
    """A posterior that is drawn from by its ratio to the prior."""


@dataclass(frozen=True, eq=False, repr=False)
class SamplingReport:
    """How draws were made, and what they are worth.

    Attributes:
        method: ``"importance"``, ``"rejection"`` or ``"mcmc"``.
        num_samples: The number of draws per observation.
        effective_sample_size: The number of independent draws that they are worth, (N,); 1 where
            two independent looks at the posterior disagree.
        acceptance: The share of accepted proposals, for rejection and for a chain.
        num_steps: The number of steps of every walker after burn-in, for a chain.
        autocorrelation_time: The number of steps per independent draw, for a chain.
    """

    method: str
    num_samples: int
    effective_sample_size: Tensor
    acceptance: float | None = None
    num_steps: int | None = None
    autocorrelation_time: float | None = None

    def __repr__(self) -> str:
        size = self.effective_sample_size
        text = f"<SamplingReport {self.method}: {self.num_samples:,} draws, "
        if self.num_steps is None:
            text += f"{len(size):,} observations, "
        text += f"effective sample size {size.min():,.0f}"
        if self.acceptance is not None:
            text += f", acceptance {self.acceptance:.2f}"
        if self.num_steps is not None:
            text += f", {self.num_steps:,} steps per walker"
        return text + ">"


def joined(reports: Sequence[SamplingReport | None]) -> SamplingReport | None:
    """The report of draws that were made in pieces, None if they are exact by themselves."""
    known = [report for report in reports if report is not None]
    if not known:
        return None
    worth = torch.stack([report.effective_sample_size for report in known]).sum(dim=0)
    number = sum(report.num_samples for report in known)
    return replace(known[0], num_samples=number, effective_sample_size=worth)


def draws_per_round(dim: int) -> int:
    """The draws of each target in one round of learning about ``dim`` parameters."""
    return max(LEAST_DRAWS, DRAWS_PER_PARAMETER * dim)


def resample(
    posterior: Ratio, prior: Prior, number: int, like: Tensor | None
) -> tuple[Tensor, SamplingReport]:
    """Choose ``(number, N, D)`` of the weighted draws; arguments as of `sampling.draw`."""

    def log_prob(theta: Tensor, rows: Tensor) -> Tensor:
        value = log_density(prior, theta)
        inside = value > -torch.inf
        some = part if len(rows) == len(part) else part.rows(rows)
        ratio = log_ratio(some, theta, like, inside).to(value)
        return torch.where(inside, value + ratio, value)

    per_row = max(number, draws_per_round(prior.sample((1,)).shape[-1]))
    rows_at_once = max(1, MOST_DRAWS // per_row)
    parts, sizes = [], []
    for start in range(0, len(posterior), rows_at_once):
        part = posterior.rows(slice(start, start + rows_at_once))
        draws = weighted_draws(log_prob, prior, len(part), num_fresh=max(number, NUM_FRESH))
        theta, log_weight = draws.theta, draws.log_weight
        if bool((draws.log_prob == -torch.inf).all(dim=0).any()):
            raise InputError(zero_at_all(len(theta)))
        weight = log_weight.softmax(dim=0)
        parts.append(chosen_draws(theta, weight, number))
        # Draws of which two looks disagree are worth nothing that is known.
        sizes.append(effective_size(weight).where(draws.resolved, 1.0))
    return torch.cat(parts, dim=1), SamplingReport("importance", number, torch.cat(sizes))


def chosen_draws(theta: Tensor, weight: Tensor, number: int) -> Tensor:
    """Draws of equal weight (number, N, D) from weighted ones (L, N, D) with weights (L, N).

    Even steps through the draws in random order: one comes twice only if its weight is larger
    than that of one draw.
    """
    chosen = chosen_places(weight, number)
    return theta.gather(0, chosen.unsqueeze(-1).expand(-1, -1, theta.shape[-1]))


def chosen_places(weight: Tensor, number: int) -> Tensor:
    """The numbers (number, N) of the draws that :func:`chosen_draws` chooses."""
    order = torch.randperm(len(weight))
    steps = (torch.arange(number, dtype=weight.dtype) + torch.rand(1, dtype=weight.dtype)) / number
    ends = weight[order].cumsum(dim=0).T.contiguous()
    place = torch.searchsorted(ends, steps.expand(len(ends), -1).contiguous()).T
    return order[place.clamp(max=len(weight) - 1)]


def log_ratio(
    posterior: Ratio, theta: Tensor, like: Tensor | None, inside: Tensor | None = None
) -> Tensor:
    """The log ratio at theta, refused where it is not a number, inside the prior."""
    value = posterior.log_ratio(theta if like is None else theta.to(like))
    bad = value.isnan() | (value == torch.inf)
    if inside is not None:
        bad &= inside.to(bad.device)
    if bool(bad.any()):
        raise InputError(
            f"the log ratio is NaN or infinite at {int(bad.sum()):,} of {bad.numel():,} points; "
            "expected numbers. Training diverged, or the weights are damaged: look at the "
            "estimator's `history` and train again."
        )
    return value


def zero_at_all(number: int) -> str:
    """The message for a posterior without mass at so many draws."""
    return (
        f"a posterior is zero at all of {number:,} draws; expected a log ratio above minus "
        "infinity somewhere. Is the observation one that the prior allows?"
    )


class WeightedDraws(NamedTuple):
    """L draws for each of N targets.

    Args:
        theta: The draws, (L, N, D), float64.
        log_prob: The log-density of the target at the draws, (L, N).
        log_proposal: The log-density of the mixture that they come from, (L, N).
        resolved: Whether two independent proposals agree about the target, (N,).
        missed: Whether the proposal from the prior missed, without a sign of it, what the one
            around a point found, (N,).
    """

    theta: Tensor
    log_prob: Tensor
    log_proposal: Tensor
    resolved: Tensor
    missed: Tensor

    @property
    def log_weight(self) -> Tensor:
        """The log of the weight of each draw, (L, N)."""
        return _log_weight(self.log_prob, self.log_proposal)

    def rows(self, index: Tensor) -> Self:
        """The draws of some targets."""
        theta, *others = self
        return type(self)(theta[:, index], *(part[..., index] for part in others))

    def replace(self, index: Tensor, other: Self) -> Self:
        """These draws, with those of some targets from elsewhere."""
        axes = (1, 1, 1, 0, 0)
        parts = zip(self, axes, other, strict=True)
        return type(self)(*(mine.index_copy(axis, index, new) for mine, axis, new in parts))


def weighted_draws(
    target: Target,
    prior: Prior,
    num_rows: int,
    point: Tensor | None = None,
    num_fresh: int = NUM_FRESH,
) -> WeightedDraws:
    """Draw from mixtures that learn where the targets are.

    The random numbers come from torch's global generator.

    Args:
        target: The log-densities, each up to a constant.
        prior: The prior: where the first proposal starts, and the unit of lengths.
        num_rows: The number of targets, N.
        point: For each target a point where it matters, (N, D), around which the second proposal
            starts. Without it that one starts from the prior, too.
        num_fresh: The number of draws of each proposal.
    """
    start = _FromPrior.of(prior, num_rows)

    def unbounded_target(place: Tensor, rows: Tensor) -> Tensor:
        theta, log_volume = start.placed(place)
        parts = theta.split(max(1, CHUNK // len(rows)))
        return torch.cat([target(part, rows) for part in parts]) + log_volume

    around = None if point is None else start.inside.inv(point.double())
    found = _learned_draws(unbounded_target, start, around, num_fresh)
    theta, log_volume = start.placed(found.theta)
    log_prob, log_proposal = (part - log_volume for part in (found.log_prob, found.log_proposal))
    return found._replace(theta=theta, log_prob=log_prob, log_proposal=log_proposal)


def _learned_draws(
    target: Target, from_prior: _FromPrior, point: Tensor | None, num_fresh: int
) -> WeightedDraws:
    """The draws in unbounded coordinates."""
    rows = torch.arange(from_prior.num_rows)
    widths = torch.tensor(SCALES, dtype=torch.float64)[:, None] * from_prior.scale
    starts: list[_Proposal] = [from_prior, from_prior]
    if point is not None:
        starts[1] = Students.around(point, widths)
    proposals = [_adapt(target, rows, start, from_prior.students()) for start in starts]
    starts.append(Students.around(_peak(target, rows, proposals[0]), widths))
    found = _fresh_draws(target, rows, [*proposals, *starts], num_fresh)
    missed = found.missed
    for _ in range(MAX_REPEATS):
        left = rows[~found.resolved]
        if len(left) == 0:
            break
        known = found.rows(left)
        proposals = [p.replace(left, _adapt(target, left, known, p.rows(left))) for p in proposals]
        some = [proposal.rows(left) for proposal in (*proposals, *starts)]
        found = found.replace(left, _fresh_draws(target, left, some, num_fresh))
    return found._replace(missed=missed)


def _unbounded(prior: Prior) -> Transform:
    """The map from unbounded coordinates to the prior's support, on which posteriors may end."""
    inside = biject_to(support_of(prior, check_prior(prior)).constraint)
    return inside if inside.domain.event_dim else IndependentTransform(inside, 1)


def _fresh_draws(
    target: Target, rows: Tensor, proposals: Sequence[_Proposal], number: int
) -> WeightedDraws:
    """Draws of two proposals and of some starts, and whether the two proposals agree with all."""
    numbers = (number, number, *(NUM_START for _ in proposals[2:]))
    parts = [proposal.sample(n) for proposal, n in zip(proposals, numbers, strict=True)]
    theta = torch.cat(parts)
    log_prob = target(theta, rows)
    densities = torch.stack([proposal.log_prob(theta) for proposal in proposals])
    counts = torch.tensor([len(part) for part in parts])
    source = torch.arange(len(parts)).repeat_interleave(counts)

    def mixture(*some: int) -> tuple[Tensor, Tensor]:
        """The log-density of some sources together, (L, N), and whose draws these are, (L,)."""
        shares = (counts / counts[list(some)].sum()).log().to(theta)[list(some)]
        density = (densities[list(some)] + shares[:, None, None]).logsumexp(dim=0)
        return density, torch.isin(source, torch.tensor(some))

    # Everything, the one proposal, the other, and what is known without a point.
    everything = mixture(*range(len(parts)))
    sets = everything, mixture(0), mixture(1), mixture(0, 2, 4)
    log_weights = [_log_weight(log_prob[own], density[own]) for density, own in sets]
    sizes = torch.stack([_size(log_weight) for log_weight in log_weights])
    integrals = torch.stack([w.logsumexp(dim=0) - math.log(len(w)) for w in log_weights])
    # A NaN compares as false: not resolved.
    enough = (sizes >= FEW_DRAWS) & (log_prob > -torch.inf).any(dim=0)

    def less(one: int, other: int) -> Tensor:
        error = (1 / sizes[one] + 1 / sizes[other]).sqrt()
        return integrals[other] - integrals[one] > TOLERANCE + NUM_ERRORS * error

    agree = ~(less(0, 1) | less(1, 0) | less(0, 2) | less(2, 0) | less(1, 2) | less(2, 1))
    resolved = enough[:3].all(dim=0) & agree
    return WeightedDraws(theta, log_prob, everything[0], resolved, enough[3] & less(3, 0))


def _adapt(
    target: Target, rows: Tensor, start: _Proposal | WeightedDraws, fit: Students
) -> Students:
    """The mixture that has learned from a start, or from draws that exist, where the targets are.

    Args:
        target: The log-densities.
        rows: The numbers of n targets.
        start: Where to draw from at first.
        fit: The mixture in whose coordinates the first fit is made.
    """
    number = draws_per_round(fit.mean.shape[-1])
    enough = max(LEAST_FITTED, FITTED_PER_PARAMETER * fit.mean.shape[-1])
    if isinstance(start, WeightedDraws):
        theta, log_prob, log_proposal = start[:3]
    else:
        theta = start.sample(number)
        log_prob, log_proposal = target(theta, rows), start.log_prob(theta)
    best, active = fit, torch.arange(len(rows))
    best_share = torch.zeros(len(rows), dtype=torch.float64)
    ready, waited = torch.zeros(2, len(rows), dtype=torch.long)
    for _ in range(MAX_ROUNDS):
        standard, log_weight = fit.standardized(theta), _log_weight(log_prob, log_proposal)
        log_weights, scale = _part_weights(
            log_weight, log_prob, fit.log_probs(standard), ready > 0, enough
        )
        ready += _size(log_weight) >= enough
        fit = fit.fitted(standard, log_weights, scale)
        theta = fit.sample(number)
        log_prob, log_proposal = target(theta, rows[active]), fit.log_prob(theta)
        share = _size(_log_weight(log_prob, log_proposal)) / len(theta)
        better = (ready <= 1) | (share > 1.05 * best_share)
        best = best.replace(active[better], fit.rows(better))
        best_share, waited = share.where(better, best_share), (waited + 1).masked_fill(better, 0)
        going = ~((ready > 0) & ((best_share > GOOD_SHARE) | (waited >= PATIENCE)))
        if not bool(going.any()):
            break
        if not bool(going.all()):
            active, best_share, ready, waited = (
                part[going] for part in (active, best_share, ready, waited)
            )
            fit = fit.rows(going)
            theta, log_prob, log_proposal = (
                part[:, going] for part in (theta, log_prob, log_proposal)
            )
    return best


def _peak(target: Target, rows: Tensor, fit: Students) -> Tensor:
    """The highest points (N, D) of a climb from the center of the last component."""
    best = point = fit.mean[-1]
    highest = torch.full((len(rows),), -torch.inf, dtype=point.dtype)
    for step in range(NUM_STEPS):
        noise = torch.randn(NUM_CLIMBERS, *point.shape, dtype=point.dtype)
        theta = point + STEP**step * torch.einsum("nde,lne->lnd", fit.factor[-1], noise)
        value, place = target(theta, rows).nan_to_num(-torch.inf).topk(NUM_CLIMBERS // 4, dim=0)
        theta = theta.gather(0, place.unsqueeze(-1).expand(-1, -1, theta.shape[-1]))
        best = torch.where((value[0] > highest).unsqueeze(-1), theta[0], best)
        highest, point = highest.maximum(value[0]), theta.mean(dim=0)
    return best


def climbed(
    target: Target, prior: Prior, num_rows: int, hints: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The highest points of many climbs, (N, D), and the log-density there, (N,).

    A climb takes random steps that lead up, longer ones after success and shorter ones after
    failure: so it stays in the basin of a mode that is far narrower than the basin.

    Args:
        target: The log-densities, each up to a constant.
        prior: The prior, and the unit of lengths.
        num_rows: The number of targets, N.
        hints: Places (M, N or 1, D) where the climbs start. Without them they start at draws of
            the prior, chosen by densities so flat that many are chosen.
    """
    start, rows = _FromPrior.of(prior, num_rows), torch.arange(num_rows)

    def height(place: Tensor) -> Tensor:
        parts = start.placed(place)[0].split(max(1, CHUNK // num_rows))
        return torch.cat([target(part, rows) for part in parts]).nan_to_num(-torch.inf)

    if hints is None:
        place = start.sample(NUM_SCANNED)
        log_weight = _log_weight(height(place), torch.zeros(()))
        power = flattening(log_weight.unsqueeze(0), NUM_CLIMBS)[0]
        share = (power * log_weight).softmax(dim=0)
        chosen = torch.multinomial(share.T, NUM_CLIMBS, replacement=True).T
        place = place.gather(0, chosen.unsqueeze(-1).expand(-1, -1, place.shape[-1]))
    else:
        place = start.inside.inv(hints.double()).expand(-1, num_rows, -1)
    highest, step = height(place), (FIRST_STEP * start.scale).expand_as(place)
    for _ in range(CLIMB_STEPS):
        trial = place + step * torch.randn_like(place)
        value = height(trial)
        higher = (value > highest).unsqueeze(-1)
        place, highest = torch.where(higher, trial, place), highest.maximum(value)
        step = step * torch.where(higher, LONGER, SHORTER)
    value, best = highest.max(dim=0)
    return start.placed(place[best, rows])[0], value


def _part_weights(
    log_weight: Tensor, log_prob: Tensor, log_probs: Tensor, ready: Tensor, enough: float
) -> tuple[Tensor, Tensor]:
    """The weights of draws to which each component is fitted, and factors of its variance.

    The variance of a power of a density is that of the density divided by the power.

    Args:
        log_weight: The log weights of the draws, (L, n).
        log_prob: The log-density of the targets, (L, n).
        log_probs: The log-density of each component, (K, L, n).
        ready: Whether enough draws carry weight, (n,).
        enough: The number of draws that are enough.
    """
    powers = torch.tensor(POWERS, dtype=log_prob.dtype)[:, None]
    raised = log_weight + (powers[..., None] - 1) * log_prob
    raised = raised.nan_to_num(-torch.inf, -torch.inf, -torch.inf)
    power = flattening(raised, enough)
    raised, scale = power.unsqueeze(1) * raised, 1 + power * (powers - 1)
    # Once the bridge is crossed, the parts but the climber share the mass (an EM step).
    shared = log_weight + log_probs[:-1].log_softmax(dim=0)
    few = _size(shared, dim=1) < enough
    shared = torch.where(few.unsqueeze(1), log_weight, shared)
    raised[:-1] = torch.where(ready, shared, raised[:-1])
    scale[:-1].masked_fill_(ready, 1.0)
    return raised, scale


def flattening(log_weight: Tensor, enough: float) -> Tensor:
    """A power, at most 1, at which enough draws carry weight; of (K, L, n) as (K, n)."""
    power = torch.ones_like(log_weight[:, 0])
    for _ in range(MAX_HALVINGS):
        few = _size(power.unsqueeze(1) * log_weight, dim=1) < enough
        if not bool(few.any()):
            break
        power = torch.where(few, power / 2, power)
    # The halving may have gone too far by nearly two.
    larger = (1.5 * power).clamp(max=1.0)
    held = _size(larger.unsqueeze(1) * log_weight, dim=1) >= enough
    return torch.where(held, larger, power)


def _size(log_weight: Tensor, dim: int = 0) -> Tensor:
    """The number of draws that carry the weight."""
    return effective_size(log_weight.softmax(dim=dim), dim)


def _log_weight(log_prob: Tensor, log_proposal: Tensor) -> Tensor:
    """Log weights (L, N), none where a density is not a number; equal where none is left."""
    value = (log_prob - log_proposal).nan_to_num(-torch.inf, -torch.inf, -torch.inf)
    return value.masked_fill((value == -torch.inf).all(dim=0), 0.0)


class _Proposal(Protocol):
    """What targets are drawn from."""

    def sample(self, number: int) -> Tensor:
        """Draws (number or a few more, N, D)."""

    def log_prob(self, theta: Tensor) -> Tensor:
        """The log-density at (L, N, D), as (L, N)."""

    def rows(self, index: Tensor) -> Self:
        """The proposals of some targets."""


class _FromPrior(NamedTuple):
    """The prior in unbounded coordinates, the same for each of N targets."""

    prior: Prior
    inside: Transform
    num_rows: int
    mean: Tensor  # (D,)
    scale: Tensor  # (D,)

    @classmethod
    def of(cls, prior: Prior, num_rows: int) -> Self:
        inside = _unbounded(prior)
        draws = inside.inv(prior.sample((LEAST_DRAWS,)).double())
        spread = draws.std(dim=0).clamp(min=1e-100)
        return cls(prior, inside, num_rows, draws.mean(dim=0), spread)

    def sample(self, number: int) -> Tensor:
        draws: Tensor = self.inside.inv(self.prior.sample((number, self.num_rows)).double())
        return draws

    def placed(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """The parameters (L, N, D) at places, and the log of the volume of a place, (L, N)."""
        theta = self.inside(place)
        return theta, self.inside.log_abs_det_jacobian(place, theta)

    def log_prob(self, place: Tensor) -> Tensor:
        theta, log_volume = self.placed(place)
        return log_density(self.prior, theta).double() + log_volume

    def rows(self, index: Tensor) -> Self:
        return self._replace(num_rows=len(index))

    def students(self) -> Students:
        """The mixture with the spread of the prior."""
        return Students.around(
            self.mean.expand(self.num_rows, -1), self.scale.expand(len(POWERS), -1)
        )
