r"""A grid that is fine where it matters.

A box is cut into cells and the density evaluated at their centres. Between the centres the
log-density is interpolated by parabolas, which are exact for a normal distribution: a neural
posterior is smooth, so a few hundred evaluations then say as much as thousands of cells. The cells
that hold most of the mass, and in which the density changes most, are cut again and evaluated
again. Where that is not enough, because of modes or ridges narrower than the cells, more of them
are cut, for those observations only.

Parabolas through a cliff overshoot. Where neighbours differ by more than :data:`CLIFF`, or the
density is zero, each centre stands for its cell as it is.

A mode narrower than the cells can hide between their centres. So the grid is checked against the
density itself: at the truth, along a climb from the densest part to the peak, and at random points
that are drawn from the grid as from a distribution. Where the density is much higher than the grid
says, cells are cut around that point, and it is looked again. The first pairs are looked at in
many points, and if that finds something in hardly any, the others in few. A posterior is not
resolved if something is found to the end, if the mass at the random points is not what the grid
says, or if modes were hit so rarely in others that they may be missed in this one.

One look by weighted draws (:mod:`prudent.estimators.learning`) takes as long for two parameters
(1.0 times, SLCP and a Gaussian), but 3.2 to 4.1 times as long for one (a Gaussian, Weinberg), and
its alphas are off by 0.011 to 0.016 where those of the grid are off by 0.006 to 0.011.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.distributions import Independent, Uniform

from prudent.contracts import Estimator, Posterior
from prudent.datasets import Pairs
from prudent.diagnostics._points import Points, rows_of
from prudent.errors import InputError
from prudent.priors.checks import dtype_for
from prudent.priors.density import log_density, support_bounds

# By number of parameters: cells a side of the first grid, cells that are cut again in one go, and
# parts a side into which interpolation divides every cell.
SIZES = {1: (64, 24, 6), 2: (16, 34, 3)}
MAX_DIM = max(SIZES)
# A cell is cut into so many a side.
SPLIT = 3
# Nats between the lowest and the highest of three neighbours on each axis.
CLIFF = 20.0
# Cells are cut again while neighbours differ by more nats than this for each parameter, on average
# over the mass, or while one part holds more of the mass than that; at most so many times.
ROUGH = 1.0
LARGEST_SHARE = 0.01
# The most, in units of the mass, that cells without density may hide beside others.
MOST_HIDDEN = 0.05
MAX_CUTS = 7
# Nats by which the density may exceed what the grid says at a point.
SURPRISE = 1.0
# Steps of the climb to the peak, each to a third of the width.
NUM_STEPS = 5
# The first pairs are looked at in so many random points, by number of parameters; the others in
# few, unless that found something.
NUM_FIRST, MANY_POINTS, FEW_POINTS = 8, {1: 512, 2: 4096}, 32
# Looks at most, and the tolerance of the mass that they find.
NUM_LOOKS, TOLERANCE = 3, 0.1
# What random points find matters if it holds this share of the mass. If fewer points than that hit
# it, as many other pairs may have such a thing unseen.
LEAST_FOUND, FEW_HITS = 0.02, 5
# What is found in no larger share of the first pairs is left to the truths to give away.
RARE = 0.15
# The truth gives away what was missed if that makes the mass larger by this much.
MUCH = 0.1


class Grid:
    """Cells of a bounded prior's box, coarse, then fine where it matters.

    Args:
        estimator: An estimator with a prior on a box.
        pairs: The pairs to be measured, of which the first are looked at thoroughly.
    """

    name = "grid"
    most_unresolved = 1.0

    def __init__(self, estimator: Estimator, pairs: Pairs) -> None:
        dim = pairs.theta.shape[1]
        bounds = support_bounds(estimator.prior, dim)
        if bounds is None or dim not in SIZES:
            raise InputError(
                "the grid needs a prior on a box, such as a uniform prior on a box, with at most "
                f'{MAX_DIM} parameters; use method="samples" or method="importance".'
            )
        self.estimator, self.prior, self.dim = estimator, estimator.prior, dim
        self.low, high = (bound.to(dtype_for(estimator)) for bound in bounds)
        self.size = high - self.low
        side, self.num_cut, self.factor = SIZES[dim]
        self.first, self.again = _Block(side, self.factor, dim), _Block(SPLIT, self.factor, dim)
        self.at_once = max(side**dim, self.num_cut * SPLIT**dim)
        self.num_points = MANY_POINTS[dim]
        hits = torch.zeros(min(NUM_FIRST, len(pairs)))
        for place, pair in enumerate(pairs[:NUM_FIRST].batches(1)):
            posterior = estimator(pair.x)
            hits[place] = self._look(self._cells(posterior, pair.x)[0], posterior)[2]
        found, sparse = hits > 0, (hits > 0) & (hits < FEW_HITS)
        if found.double().mean() <= RARE:
            self.num_points = FEW_POINTS
        self.sparse = bool(sparse.double().mean() > RARE)

    def __call__(self, posterior: Posterior, pairs: Pairs, log_prob: Tensor) -> Points:
        """Parts of cells; those that were cut again are replaced by what they were cut into.

        Args:
            posterior: The posteriors of the pairs.
            pairs: The pairs, whose truths are places to look.
            log_prob: The log-density at the truths, (N,).
        """
        cells, rough = self._cells(posterior, pairs.x)
        resolved = torch.full((len(pairs),), not self.sparse)
        for look in range(NUM_LOOKS):
            theta, density, hits, right = self._look(cells, posterior)
            if look == 0:
                resolved |= hits >= FEW_HITS
            if not bool((hits > 0).any()):
                break
            cells = self._cut_around(cells, posterior, pairs.x, theta, density)
            cells, rough = self._refine(cells, posterior, pairs.x)
        resolved = (resolved & right & (hits == 0)).index_fill(0, rough, value=False)
        before = cells.log_mass.logsumexp(dim=0)
        if bool((self._surprise(cells, pairs.theta, log_prob) > SURPRISE).any()):
            cells = self._cut_around(cells, posterior, pairs.x, pairs.theta, log_prob)
            cells, rough = self._refine(cells, posterior, pairs.x)
        missed = resolved & (cells.log_mass.logsumexp(dim=0) - before > MUCH)
        return self._points(cells, resolved.index_fill(0, rough, value=False), missed)

    def _cells(self, posterior: Posterior, x: Tensor) -> tuple[_Cells, Tensor]:
        """Cells that are fine at the peak and where they are rough, and the rows still rough."""
        num_rows = len(x)
        corner, scale = self.low.expand(1, num_rows, -1), self.low.new_ones(1, num_rows)
        cells = self.first(posterior, corner, scale, self.size)
        cells = self._cut(cells, posterior, x, torch.arange(num_rows), 0)
        cells = self._cut_around(cells, posterior, x, *self._peak(cells, posterior))
        return self._refine(cells, posterior, x)

    def _refine(self, cells: _Cells, posterior: Posterior, x: Tensor) -> tuple[_Cells, Tensor]:
        """The cells once nothing is rough, and the rows in which something still is."""
        active = torch.arange(len(x))
        for cut in range(1, MAX_CUTS + 1):
            log_mass = cells.log_mass[:, active]
            share = log_mass.softmax(dim=0)
            largest = (share * cells.peak[:, active]).amax(dim=0)
            average = (share * cells.change[:, active]).sum(dim=0)
            log_hidden = cells.log_hidden[:, active].logsumexp(dim=0)
            hidden = (log_hidden - log_mass.logsumexp(dim=0)).exp()
            # A NaN is neither: nothing is gained by looking closer.
            rough = (average > ROUGH * self.dim) | (largest > LARGEST_SHARE)
            active = active[rough | (hidden > MOST_HIDDEN)]
            if len(active) == 0 or cut == MAX_CUTS:
                break
            cells = self._cut(cells, posterior, x, active, cut)
        return cells, active

    def _cut(
        self, cells: _Cells, posterior: Posterior, x: Tensor, active: Tensor, cut: int
    ) -> _Cells:
        """Cut the cells of some rows that matter most."""
        log_mass, change = cells.log_mass[:, active], cells.change[:, active]
        # In what is still rough, a density may hide that is higher by as much as it changes
        # nearby, in long ridges: more cells are cut each time, and cliffs first.
        value = log_mass + (change.log1p() if cut == 0 else change)
        value = value.maximum(cells.log_hidden[:, active])
        chosen = value.topk(self.num_cut * 2 ** min(cut, 3), dim=0).indices
        return self._divide(cells, posterior, x, active, chosen)

    def _divide(
        self, cells: _Cells, posterior: Posterior, x: Tensor, active: Tensor, chosen: Tensor
    ) -> _Cells:
        """Replace the chosen cells (B, n) of the active rows (n,) by their parts."""
        some = rows_of(self.estimator, posterior, x, active)
        corner, scale = cells.corner[chosen, active], cells.scale[chosen, active]
        for gone in (cells.log_mass, cells.log_hidden):
            gone[chosen, active] = -torch.inf
        cells.live[chosen, active] = False
        parts = self.again(some, corner, scale, self.size)
        return cells.join(parts.among(active, len(x)))

    def _cut_around(
        self, cells: _Cells, posterior: Posterior, x: Tensor, theta: Tensor, log_prob: Tensor
    ) -> _Cells:
        """Cut the cells next to points (N, D) until they show the density that is there, (N,)."""
        for _ in range(MAX_CUTS):
            active = (self._surprise(cells, theta, log_prob) > SURPRISE).nonzero().squeeze(1)
            if len(active) == 0:
                break
            near = self._distance(cells, theta)[:, active]
            # With its neighbours, as a mode need not end where a cell does.
            chosen = near.topk(3**self.dim, dim=0, largest=False).indices
            cells = self._divide(cells, posterior, x, active, chosen)
        return cells

    def _distance(self, cells: _Cells, theta: Tensor) -> Tensor:
        """How far points (N, D) lie from the middle of live cells, in sides of these, (C, N)."""
        side = cells.scale.unsqueeze(-1) * self.size
        away = ((theta - cells.corner) / side - 0.5).abs().amax(dim=-1)
        return away.masked_fill(~cells.live, torch.inf)

    def _surprise(self, cells: _Cells, theta: Tensor, log_prob: Tensor) -> Tensor:
        """The nats by which a density at points (N, D) exceeds what the grid says there, (N,)."""
        cell, row = self._distance(cells, theta).argmin(dim=0), torch.arange(len(theta))
        side = cells.scale[cell, row].unsqueeze(-1) * self.size
        place = ((theta - cells.corner[cell, row]) / side * self.factor).long()
        place = place.clamp(0, self.factor - 1)
        part = place[:, 0]
        for axis in range(1, self.dim):
            part = part * self.factor + place[:, axis]
        return log_prob - cells.log_prob[cell, part, row]

    def _peak(self, cells: _Cells, posterior: Posterior) -> tuple[Tensor, Tensor]:
        """The highest point of a climb from the densest cell, (N, D), and the density there."""
        live = cells.log_prob.amax(dim=1).masked_fill(~cells.live, -torch.inf)
        best, row = live.argmax(dim=0), torch.arange(live.shape[1])
        side = cells.scale[best, row].unsqueeze(-1) * self.size
        point, highest = cells.corner[best, row] + side / 2, live[best, row]
        steps = (_centres(SPLIT, self.dim) / SPLIT - 0.5)[:, None]
        for _ in range(NUM_STEPS):
            around = (point + side * steps).clamp(self.low, self.low + self.size)
            value, place = posterior.log_prob(around).cpu().nan_to_num(-torch.inf).max(dim=0)
            point, highest, side = around[place, row], value, side / SPLIT
        return point, highest

    def _look(self, cells: _Cells, posterior: Posterior) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compare the density with the grid at random points that are drawn from the grid.

        Returns:
            The most surprising point of each row (N, D), the log-density there, the number of
            surprising points, if they matter, and whether the mass of all is what the grid says,
            (N,) each.
        """
        row = torch.arange(cells.log_mass.shape[1])
        share = cells.log_mass.softmax(dim=0).T.nan_to_num(1.0)
        cell = torch.multinomial(share, self.num_points, replacement=True).T
        parts = cells.log_prob.movedim(1, 2)[cell, row]
        within = parts.softmax(dim=-1).nan_to_num(1.0).flatten(0, 1)
        part = torch.multinomial(within, 1).view(cell.shape)
        place = (_centres(self.factor, self.dim) - 0.5)[part] + torch.rand(*part.shape, self.dim)
        side = cells.scale[cell, row].unsqueeze(-1) * self.size / self.factor
        theta = cells.corner[cell, row] + place.to(side) * side
        log_prob = posterior.log_prob(theta).cpu()
        expected = parts.gather(-1, part.unsqueeze(-1)).squeeze(-1)
        surprise = (log_prob - expected).nan_to_num(0.0)
        ratio, highest = surprise.exp(), surprise.argmax(dim=0)
        error = ratio.std(dim=0) / self.num_points**0.5
        right = (ratio.mean(dim=0) - 1).abs() <= TOLERANCE + 4 * error
        surprising = surprise > SURPRISE
        heavy = (ratio * surprising).sum(dim=0) > LEAST_FOUND * ratio.sum(dim=0)
        hits = surprising.sum(dim=0).where(heavy, 0)
        return theta[highest, row], log_prob[highest, row], hits, right

    def _points(self, cells: _Cells, resolved: Tensor, missed: Tensor) -> Points:
        offset = (_centres(self.factor, self.dim) / self.factor)[:, None]
        theta = cells.corner[:, None] + cells.scale[:, None, :, None] * self.size * offset
        log_volume = self.dim * cells.scale.log() + float(self.size.log().sum())
        log_volume = log_volume - math.log(len(offset))
        log_volume = log_volume.masked_fill(cells.log_mass == -torch.inf, -torch.inf)[:, None]
        log_volume = log_volume.expand_as(cells.log_prob).flatten(0, 1)
        theta, log_prob = theta.flatten(0, 1), cells.log_prob.flatten(0, 1)
        if isinstance(self.prior, Independent) and isinstance(self.prior.base_dist, Uniform):
            log_prior_mass = log_volume - float(self.size.log().sum())
        else:
            log_prior_mass = log_density(self.prior, theta) + log_volume

        def scatter(chosen: Tensor) -> Tensor:
            scale = cells.scale.gather(0, chosen // len(offset)).unsqueeze(-1)
            side = scale * self.size / self.factor
            middle = theta.gather(0, chosen.unsqueeze(-1).expand(-1, -1, self.dim))
            return middle + side * (torch.rand_like(middle) - 0.5)

        return Points(
            theta, log_prob, log_prob + log_volume, log_prior_mass, resolved, missed,
            scatter=scatter,
        )  # fmt: skip


@dataclass(frozen=True)
class _Cells:
    """C cells of N posteriors, each of F parts.

    Args:
        corner: The lower corners of the cells, (C, N, D).
        scale: The sides of the cells, in units of the box, (C, N).
        log_prob: The log-density of the parts of the cells, (C, F, N).
        log_mass: The log of the mass of a cell, minus infinity if it was cut again, (C, N).
        log_hidden: The log of the mass that a cell may hide if its density is zero at the centre
            and not at its neighbours', minus infinity otherwise, (C, N).
        live: Whether a cell was not cut again, (C, N).
        peak: The share of a cell's mass in its densest part, (C, N).
        change: The nats by which neighbours differ, at most :data:`CLIFF`, (C, N).
    """

    corner: Tensor
    scale: Tensor
    log_prob: Tensor
    log_mass: Tensor
    log_hidden: Tensor
    live: Tensor
    peak: Tensor
    change: Tensor

    def join(self, other: _Cells) -> _Cells:
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return _Cells(*(torch.cat(pair) for pair in pairs))

    def among(self, active: Tensor, num_rows: int) -> _Cells:
        """These cells at some of ``num_rows`` rows; the other rows have cells without mass."""
        if len(active) == num_rows:
            return self
        nothing = dict.fromkeys(("log_prob", "log_mass", "log_hidden"), -torch.inf)
        empty = {"scale": 1.0, **nothing}
        columns = []
        for field in fields(self):
            value: Tensor = getattr(self, field.name)
            axis = 2 if field.name == "log_prob" else 1
            shape = list(value.shape)
            shape[axis] = num_rows
            full = value.new_full(shape, empty.get(field.name, 0.0))
            columns.append(full.index_copy(axis, active, value))
        return _Cells(*columns)


class _Block:
    """A box of side^dim cells, each of factor^dim parts."""

    def __init__(self, side: int, factor: int, dim: int) -> None:
        self.side, self.factor, self.dim = side, factor, dim
        self.centres = _centres(side, dim) / side
        # The first of the three cells through which the parabola of each cell goes.
        self.start = (torch.arange(side) - 1).clamp(0, side - 3)
        self.matrix = self._parabolas()

    def _parabolas(self) -> Tensor:
        """The weight of each cell in each part along one axis, (side x factor, side)."""
        matrix = torch.zeros(self.side * self.factor, self.side)
        for part in range(self.side * self.factor):
            first = int(self.start[part // self.factor])
            t = (part + 0.5) / self.factor - 0.5 - first
            weights = ((t - 1) * (t - 2) / 2, t * (2 - t), t * (t - 1) / 2)
            matrix[part, first : first + 3] = torch.tensor(weights)
        return matrix

    def __call__(
        self, posterior: Posterior, corner: Tensor, scale: Tensor, size: Tensor
    ) -> _Cells:
        """The cells of B blocks with lower corners (B, N, D) and sides (B, N) times ``size``."""
        extent = (scale.unsqueeze(-1) * size).unsqueeze(1)
        theta = corner.unsqueeze(1) + extent * self.centres[:, None]
        values = posterior.log_prob(theta.flatten(0, 1)).cpu().unflatten(0, (len(corner), -1))
        log_prob, change, log_hidden = self.interpolate(values)
        scale = (scale / self.side).repeat_interleave(len(self.centres), dim=0)
        log_sum = log_prob.logsumexp(dim=1)
        return _Cells(
            corner=(theta - extent * (0.5 / self.side)).flatten(0, 1),
            scale=scale,
            log_prob=log_prob,
            log_mass=log_sum + self.dim * scale.log(),
            log_hidden=log_hidden + self.dim * scale.log(),
            live=torch.ones_like(scale, dtype=torch.bool),
            peak=(log_prob.amax(dim=1) - log_sum).exp().where(log_sum > -torch.inf, 0.0),
            change=change,
        )

    def interpolate(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From cells (B, S, N) to their parts (B S, F, N).

        Also the change around them, and the log of what they may hide, (B S, N) each.
        """
        box = (self.side,) * self.dim
        highest = lowest = values.unflatten(1, box)
        for axis in range(1, self.dim + 1):
            highest = self._of_three(torch.maximum, highest, axis)
            lowest = self._of_three(torch.minimum, lowest, axis)
        change = (highest - lowest).flatten(0, self.dim)
        fine = values.nan_to_num(0.0, 0.0, 0.0).unflatten(1, box)
        for _ in range(self.dim):  # each turn moves an axis to the end: (B, N, parts)
            fine = torch.tensordot(fine, self.matrix.to(fine), dims=([1], [1]))
        for axis in range(2, 2 * self.dim + 1, 2):
            fine = fine.unflatten(axis, (self.side, self.factor))
        cells, parts = range(2, 2 * self.dim + 2, 2), range(3, 2 * self.dim + 2, 2)
        fine = fine.permute(0, *cells, *parts, 1).flatten(self.dim + 1, 2 * self.dim)
        # Rounding would break the ties of a constant density: it is left as it is.
        smooth = ((change > 0) & (change <= CLIFF)).unsqueeze(1)
        log_prob = torch.where(smooth, fine.flatten(0, self.dim), values.flatten(0, 1)[:, None])
        zero = (values == -torch.inf).flatten(0, 1)
        hidden = highest.flatten(0, self.dim).masked_fill(~zero, -torch.inf)
        hidden = hidden + math.log(log_prob.shape[1])
        return log_prob, change.nan_to_num(CLIFF).clamp(max=CLIFF), hidden

    def _of_three(
        self, combine: Callable[[Tensor, Tensor], Tensor], values: Tensor, axis: int
    ) -> Tensor:
        """The highest, or lowest, of the three cells of each parabola along an axis."""
        first, second, third = (values.narrow(axis, i, self.side - 2) for i in range(3))
        return combine(combine(first, second), third).index_select(axis, self.start)


def _centres(side: int, dim: int) -> Tensor:
    """Centres of side^dim cells of unit size, (cells, D)."""
    axis = torch.arange(side) + 0.5
    return torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
