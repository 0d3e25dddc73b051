r"""A grid that is fine where it matters.

A box is cut into cells and the density evaluated at their centres. Between the centres the
log-density is interpolated by parabolas, which are exact for a normal distribution: a neural
posterior is smooth, so a few hundred evaluations then say as much as thousands of cells. The cells
that hold most of the mass, and in which the density changes most, are cut again and evaluated
again. Where that is not enough, because of modes or ridges narrower than the cells, more of them
are cut, for those observations only.

Parabolas through a cliff overshoot. Where neighbours differ by more than :data:`CLIFF`, or the
density is zero, each centre stands for its cell as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.distributions import Independent, Uniform

from prudent.contracts import Estimator, Posterior, Rows
from prudent.diagnostics._points import Points
from prudent.errors import InputError
from prudent.estimators.priors import dtype_for, log_prior, support_bounds

# By number of parameters: cells a side of the first grid, cells that are cut again in one go, and
# parts a side into which interpolation divides every cell.
SIZES = {1: (64, 24, 6), 2: (18, 40, 3), 3: (16, 200, 2)}
MAX_DIM = max(SIZES)
# A cell is cut into so many a side.
SPLIT = 3
# Nats between the lowest and the highest of three neighbours on each axis.
CLIFF = 20.0
# Cells are cut again while neighbours differ by more nats than this for each parameter, on average
# over the mass, or while one part holds more of the mass than that; at most so many times.
ROUGH = 1.0
LARGEST_SHARE = 0.01
MAX_CUTS = 7


class Grid:
    """Cells of a bounded prior's box, coarse, then fine where it matters.

    Args:
        estimator: An estimator with a prior on a box.
        dim: The number of parameters, at most :data:`MAX_DIM`.
    """

    def __init__(self, estimator: Estimator, dim: int) -> None:
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

    def __call__(self, posterior: Posterior, x: Tensor) -> Points:
        """Parts of cells; those that were cut again are replaced by what they were cut into."""
        num_rows = len(x)
        corner, scale = self.low.expand(1, num_rows, -1), self.low.new_ones(1, num_rows)
        cells = self.first(posterior, corner, scale, self.size)
        active = torch.arange(num_rows)
        for cut in range(MAX_CUTS + 1):
            log_share = cells.log_mass[:, active].log_softmax(dim=0)
            change = cells.change[:, active]
            if cut > 0:
                share = log_share.exp()
                largest = (share * cells.peak[:, active]).amax(dim=0)
                average = (share * change).sum(dim=0)
                # A NaN is neither: nothing is gained by looking closer.
                rough = (average > ROUGH * self.dim) | (largest > LARGEST_SHARE)
                active, log_share, change = active[rough], log_share[:, rough], change[:, rough]
            if len(active) == 0 or cut == MAX_CUTS:
                break
            # In what is still rough, a density may hide that is higher by as much as it changes
            # nearby, in long ridges: more cells are cut each time, and cliffs first.
            value = log_share + (change.log1p() if cut == 0 else change)
            chosen = value.topk(self.num_cut * 2 ** min(cut, 3), dim=0).indices
            some = posterior
            if len(active) < num_rows:
                some = self._rows(posterior, x, active)
            corner, scale = cells.corner[chosen, active], cells.scale[chosen, active]
            cells.log_mass[chosen, active] = -torch.inf
            parts = self.again(some, corner, scale, self.size)
            cells = cells.join(parts.among(active, num_rows))
        resolved = torch.ones(num_rows, dtype=torch.bool).index_fill(0, active, value=False)
        return self._points(cells, resolved)

    def _rows(self, posterior: Posterior, x: Tensor, index: Tensor) -> Posterior:
        """The posteriors of some rows; a foreign one that cannot choose is conditioned again."""
        return posterior.rows(index) if isinstance(posterior, Rows) else self.estimator(x[index])

    def _points(self, cells: _Cells, resolved: Tensor) -> Points:
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
            log_prior_mass = log_prior(self.prior, theta) + log_volume
        return Points(theta, log_prob, log_prob + log_volume, log_prior_mass, resolved)


@dataclass(frozen=True)
class _Cells:
    """C cells of N posteriors, each of F parts.

    Args:
        corner: The lower corners of the cells, (C, N, D).
        scale: The sides of the cells, in units of the box, (C, N).
        log_prob: The log-density of the parts of the cells, (C, F, N).
        log_mass: The log of the mass of a cell, minus infinity if it was cut again, (C, N).
        peak: The share of a cell's mass in its densest part, (C, N).
        change: The nats by which neighbours differ, at most :data:`CLIFF`, (C, N).
    """

    corner: Tensor
    scale: Tensor
    log_prob: Tensor
    log_mass: Tensor
    peak: Tensor
    change: Tensor

    def join(self, other: _Cells) -> _Cells:
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return _Cells(*(torch.cat(pair) for pair in pairs))

    def among(self, active: Tensor, num_rows: int) -> _Cells:
        """These cells at some of ``num_rows`` rows; the other rows have cells without mass."""
        if len(active) == num_rows:
            return self
        empty = {"log_prob": -torch.inf, "log_mass": -torch.inf, "scale": 1.0}
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
        values = posterior.log_prob(theta.flatten(0, 1)).unflatten(0, (len(corner), -1))
        log_prob, change = self.interpolate(values)
        scale = (scale / self.side).repeat_interleave(len(self.centres), dim=0)
        log_sum = log_prob.logsumexp(dim=1)
        return _Cells(
            corner=(theta - extent * (0.5 / self.side)).flatten(0, 1),
            scale=scale,
            log_prob=log_prob,
            log_mass=log_sum + self.dim * scale.log(),
            peak=(log_prob.amax(dim=1) - log_sum).exp(),
            change=change,
        )

    def interpolate(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """From cells (B, S, N) to their parts (B S, F, N) and the change around them (B S, N)."""
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
        return log_prob, change.nan_to_num(CLIFF).clamp(max=CLIFF)

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
