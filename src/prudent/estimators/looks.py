r"""Weighted draws by two looks that must agree, for targets that one look does not show.

Two proposals learn independently: one starts from the prior, the other around a point where the
density is known to matter, such as the truth of a test pair, at many scales. They are mixtures of
Student distributions, which are fitted in rounds to draws of the round before, as in
:mod:`prudent.estimators.learning`, but with one component that is fitted to a high power of the
density: it climbs to the highest peak, so that a narrow mode inside a broad one is found.

The answer comes from fresh draws of both, and of where they started, weighted by the mixture of
all (the balance heuristic). The two must agree about the integral of the density, each with enough
draws that carry weight. Where they do not, both learn again from what both have found; where they
still do not, the result says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from prudent._students import Students
from prudent.contracts import Prior
from prudent.estimators.learning import (
    NUM_ERRORS,
    TOLERANCE,
    Space,
    Target,
    WeightedDraws,
    at_least,
    flattening,
    gathered,
    size_of,
    weights,
)

# Each number is at least the first, and the second for each parameter: draws of a round, and those
# that must carry weight for a fit.
DRAWN, FITTED = (510, 63), (60, 6)
# Fresh draws of each of the two proposals, and of each start.
NUM_FRESH, NUM_START = 1023, 255
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
# A target is resolved if this many draws of each proposal carry its weight.
FEW_DRAWS = 100

# What targets are drawn from.
_Proposal = Space | Students


def two_looks(
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
    space = Space.of(prior, num_rows)

    def unbounded_target(place: Tensor, rows: Tensor) -> Tensor:
        return space.density(target, place, rows)[1]

    around = None if point is None else space.inside.inv(point.double())
    found = _learned_draws(unbounded_target, space, around, num_fresh)
    theta, log_volume = space.placed(found.theta)
    log_prob, log_share = (part - log_volume for part in (found.log_prob, found.log_share))
    return found._replace(theta=theta, log_prob=log_prob, log_share=log_share)


def _learned_draws(
    target: Target, space: Space, point: Tensor | None, num_fresh: int
) -> WeightedDraws:
    """The draws in unbounded coordinates."""
    rows, wide = torch.arange(space.num_rows), _spread(space)
    widths = torch.tensor(SCALES, dtype=torch.float64)[:, None] * space.scale
    starts: list[_Proposal] = [space, space]
    if point is not None:
        starts[1] = Students.around(point, widths)
    proposals = [_adapt(target, rows, start, wide) for start in starts]
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
    shares = [log_prob[own] - density[own] for density, own in sets]
    # Nothing seen is no small integral: it agrees with none.
    seen = torch.stack([share.isfinite().any(dim=0) for share in shares])
    log_weights = [weights(share) for share in shares]
    sizes = torch.stack([size_of(log_weight) for log_weight in log_weights])
    integrals = torch.stack([w.logsumexp(dim=0) - math.log(len(w)) for w in log_weights])
    # A NaN compares as false: not resolved.
    enough = (sizes >= FEW_DRAWS) & seen

    def less(one: int, other: int) -> Tensor:
        error = (1 / sizes[one] + 1 / sizes[other]).sqrt()
        return integrals[other] - integrals[one] > TOLERANCE + NUM_ERRORS * error

    agree = ~(less(0, 1) | less(1, 0) | less(0, 2) | less(2, 0) | less(1, 2) | less(2, 1))
    resolved = enough[:3].all(dim=0) & agree
    log_share = everything[0] + math.log(len(theta))
    return WeightedDraws(theta, log_prob, log_share, resolved, enough[3] & less(3, 0))


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
    number, enough = (at_least(count, fit.mean.shape[-1]) for count in (DRAWN, FITTED))
    if isinstance(start, WeightedDraws):
        theta, log_prob, log_proposal = start[:3]
    else:
        theta = start.sample(number)
        log_prob, log_proposal = target(theta, rows), start.log_prob(theta)
    best, active = fit, torch.arange(len(rows))
    best_share = torch.zeros(len(rows), dtype=torch.float64)
    ready, waited = torch.zeros(2, len(rows), dtype=torch.long)
    for _ in range(MAX_ROUNDS):
        standard, log_weight = fit.standardized(theta), weights(log_prob - log_proposal)
        log_weights, scale = _part_weights(
            log_weight, log_prob, fit.log_probs(standard), ready > 0, enough
        )
        ready += size_of(log_weight) >= enough
        fit = fit.fitted(standard, log_weights, scale)
        theta = fit.sample(number)
        log_prob, log_proposal = target(theta, rows[active]), fit.log_prob(theta)
        share = size_of(weights(log_prob - log_proposal)) / len(theta)
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
        theta = gathered(theta, place)
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
    space, rows = Space.of(prior, num_rows), torch.arange(num_rows)

    def height(place: Tensor) -> Tensor:
        return space.density(target, place, rows)[0].nan_to_num(-torch.inf)

    if hints is None:
        place = space.sample(NUM_SCANNED)
        log_weight = weights(height(place))
        power = flattening(log_weight, NUM_CLIMBS)
        share = (power * log_weight).softmax(dim=0)
        chosen = torch.multinomial(share.T, NUM_CLIMBS, replacement=True).T
        place = gathered(place, chosen)
    else:
        place = space.inside.inv(hints.double()).expand(-1, num_rows, -1)
    highest, step = height(place), (FIRST_STEP * space.scale).expand_as(place)
    for _ in range(CLIMB_STEPS):
        trial = place + step * torch.randn_like(place)
        value = height(trial)
        higher = (value > highest).unsqueeze(-1)
        place, highest = torch.where(higher, trial, place), highest.maximum(value)
        step = step * torch.where(higher, LONGER, SHORTER)
    value, best = highest.max(dim=0)
    return space.placed(place[best, rows])[0], value


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
    few = size_of(shared) < enough
    shared = torch.where(few.unsqueeze(1), log_weight, shared)
    raised[:-1] = torch.where(ready, shared, raised[:-1])
    scale[:-1].masked_fill_(ready, 1.0)
    return raised, scale


def _spread(space: Space) -> Students:
    """Mixtures with the spread of the prior."""
    return Students.around(
        space.mean.expand(space.num_rows, -1), space.scale.expand(len(POWERS), -1)
    )
