r"""Draws from a spline flow, without waste.

A transform maps some parameters by splines that depend on the context alone, then others by
splines that depend on these as well, and so on: two steps in a coupling, one for each parameter
otherwise. To invert it, zuko evaluates the conditioner for all parameters once for each step, and
once more for the density. Here each step evaluates what its own parameters need, and the first
one, which is the same for all draws of an observation, does so once per observation. The same
weights give the same draws, to rounding, in less than half of the time.

The formulas are those of zuko 1.6; :class:`FlowPosterior` compares some densities with those of
the other direction each time, and leaves the work to zuko if they differ.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# As in zuko.transforms.MonotonicRQSTransform.
BOUND, SLOPE = 5.0, 1e-3


def fits(flow: Any) -> bool:
    """Whether all transforms of a flow have several steps, and hidden layers."""
    return all(
        getattr(one, "passes", 0) > 1 and len(getattr(one, "hyper", ())) > 1
        for one in flow.transform.transforms
    )


@torch.no_grad()
def inverse(flow: Any, context: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draws (L, N, D) from noise of the base (L, N, D), and the log-slope (L, N) there.

    For ``flow = zuko.flows.NSF(features > 1, ...)`` and context (N, C); no gradient.
    """
    values, total = noise, torch.zeros_like(noise[..., 0])
    for transform in reversed(flow.transform.transforms):
        values, log_slope = _inputs(transform, context, values)
        total = total + log_slope
    return values, total


def _inputs(transform: Any, context: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs (L, N, D) of one transform, and its log-slope (L, N) there."""
    inputs, total = torch.empty_like(values), torch.zeros_like(values[..., 0])
    layers = [layer for layer in transform.hyper if hasattr(layer, "mask")]
    for step in range(transform.passes):
        own, known = (
            which.nonzero().squeeze(1)
            for which in (transform.order == step, transform.order < step)
        )
        (weight, bias), *others = _needed(layers, own, transform.total)
        hidden = functional.linear(context, weight[:, values.shape[-1] :], bias)
        if step:
            hidden = hidden + functional.linear(inputs[..., known], weight[:, known])
        for weight, bias in others:
            hidden = functional.linear(hidden.relu_(), weight, bias)
        splines = _knots(hidden.unflatten(-1, (-1, transform.total)), transform.shapes[0][0])
        inputs[..., own], log_slope = _inverse(values[..., own], *splines)
        total = total + log_slope.sum(-1)
    return inputs, total


def _needed(layers: Any, own: Tensor, total: int) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of the part of masked layers on which some parameters' splines depend."""
    places = torch.arange(total, device=own.device)
    kept = [(own[:, None] * total + places).flatten()]
    for layer in reversed(layers[1:]):
        kept.insert(0, layer.mask[kept[0]].any(dim=0).nonzero().squeeze(1))
    sides = zip(kept, (slice(None), *kept), strict=False)
    return [
        ((layer.mask * layer.weight)[rows][:, columns], layer.bias[rows])
        for layer, (rows, columns) in zip(layers, sides, strict=True)
    ]


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
