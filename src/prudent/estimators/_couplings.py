r"""Draws from a coupling flow of splines, without waste.

In a coupling (zuko's ``passes=2``) the first half of theta is transformed by splines that depend
on the context alone, the second half by splines that depend on the first half as well. zuko
evaluates the conditioner for all of theta three times for each draw and its density. Here the
splines of the first half are made once per observation, and the conditioner runs once per draw,
for the second half only. The same weights give the same draws, to rounding, in less than half of
the time.

The formulas are those of zuko 1.6; :meth:`FlowPosterior.from_noise` compares some densities with
those of the other direction each time, and leaves the work to zuko if they differ.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# As in zuko.transforms.MonotonicRQSTransform.
BOUND, SLOPE = 5.0, 1e-3


def fits(flow: Any) -> bool:
    """Whether all transforms of a flow are couplings with hidden layers."""
    return all(
        getattr(one, "passes", 0) == 2 and len(getattr(one, "hyper", ())) > 1
        for one in flow.transform.transforms
    )


@torch.no_grad()
def inverse(flow: Any, context: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draws (L, N, D) from noise of the base (L, N, D), and the log-slope (L, N) there.

    For ``flow = zuko.flows.NSF(features > 1, ..., passes=2)`` and context (N, C); no gradient.
    """
    values, log_slope = noise, torch.zeros_like(noise[..., 0])
    for transform in reversed(flow.transform.transforms):
        values, more = _coupling(transform, context, values)
        log_slope = log_slope + more
    return values, log_slope


def _coupling(transform: Any, context: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs (L, N, D) of one transform, and its log-slope (L, N) there."""
    dim, total, bins = len(transform.order), transform.total, transform.shapes[0][0]
    first, second = ((transform.order == half).nonzero().squeeze(1) for half in (0, 1))
    joined = torch.empty_like(values)

    zeros = context.new_zeros(len(context), dim)
    parameters = transform.hyper(torch.cat((zeros, context), -1)).unflatten(-1, (dim, total))
    splines = _knots(parameters[:, first], bins)
    joined[..., first], log_slope = _inverse(values[..., first], *splines)

    # The conditioner again, for the second half alone: its last layer needs only those rows.
    layers = [(m.mask * m.weight, m.bias) for m in transform.hyper if hasattr(m, "mask")]
    (weight, bias), *middle, (last_weight, last_bias) = layers
    places = torch.arange(total, device=second.device)
    rows = (second[:, None] * total + places).flatten()
    hidden = functional.linear(context, weight[:, dim:], bias)
    hidden = hidden + functional.linear(joined[..., first], weight[:, first])
    for weight, bias in (*middle, (last_weight[rows], last_bias[rows])):
        hidden = functional.linear(hidden.relu_(), weight, bias)
    splines = _knots(hidden.unflatten(-1, (-1, total)), bins)
    joined[..., second], more = _inverse(values[..., second], *splines)
    return joined, log_slope.sum(-1) + more.sum(-1)


def _knots(parameters: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Horizontal and vertical knots and slopes, (..., bins + 1) each; zuko's formulas."""
    widths, heights, slopes = parameters.split((bins, bins, bins - 1), dim=-1)
    scale = abs(math.log(SLOPE))
    both = torch.stack((widths, heights))
    # What softmax would give; these are never large, and bins are few.
    ends = (both / (1 + (2 / scale * both).abs())).exp_().cumsum(-1)
    both = functional.pad(ends * (2 * BOUND / ends[..., -1:]) - BOUND, (1, 0), value=-BOUND)
    slopes = (slopes / (1 + (slopes / scale).abs())).exp()
    return both[0], both[1], functional.pad(slopes, (1, 1), value=1.0)


def _inverse(
    y: Tensor, horizontal: Tensor, vertical: Tensor, slopes: Tensor
) -> tuple[Tensor, Tensor]:
    """The x that rational-quadratic splines map to ``y``, and the log-slope at x."""
    place = (vertical[..., 1:-1] < y.unsqueeze(-1)).sum(-1, keepdim=True)
    inside = (y > vertical[..., 0]) & (y <= vertical[..., -1])
    x0, x1, y0, y1, d0, d1 = (
        knots[..., end : knots.shape[-1] - 1 + end]
        .expand(*place.shape[:-1], -1)
        .gather(-1, place)
        .squeeze(-1)
        for knots in (horizontal, vertical, slopes)
        for end in (0, 1)
    )
    slope = (y1 - y0) / (x1 - x0)
    excess = d0 + d1 - 2 * slope
    above = (y - y0).clamp(min=0)
    a = (y1 - y0) * (slope - d0) + above * excess
    b = (y1 - y0) * d0 - above * excess
    c = -slope * above
    z = (2 * c / (-b - (b * b - 4 * a * c).clamp(min=0).sqrt())).clamp(0, 1)
    mixed = z * (1 - z)
    steep = slope.square() * (2 * slope * mixed + d0 * (1 - z).square() + d1 * z.square())
    log_slope = (steep / (slope + excess * mixed).square()).log()
    return torch.where(inside, x0 + z * (x1 - x0), y), torch.where(inside, log_slope, 0.0)
