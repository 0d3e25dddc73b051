r"""The densities and draws of a spline flow, without waste.

A step of training evaluates a flow for a few hundred rows, and most of its time goes into many
small operations. zuko makes all knots of a spline, in six parts, of which a value needs those of
its own bin; joins the context to every draw, although the first layer could see it once for all
draws; and multiplies weights by masks of another type. Here the same weights give the same
numbers, to rounding, in less than half of the time, and gradients cross them as they do zuko's.

A transform maps some parameters by splines that depend on the context alone, then others by
splines that depend on these as well, and so on: two steps in a coupling, one for each parameter
otherwise. To invert it, zuko evaluates the conditioner for all parameters once for each step, and
once more for the density. :func:`inverse` evaluates in each step what its own parameters need, and
in the first one, which is the same for all draws of an observation, once per observation.

The formulas are those of zuko 1.6, for autoregressive flows and couplings of more than one
parameter. :func:`agrees` compares some densities with zuko's own, and
:class:`~prudent.estimators.npe.FlowDensity` those of some draws each time.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

# As in zuko.transforms.MonotonicRQSTransform, with the log of the least slope.
BOUND, SCALE = 5.0, abs(math.log(1e-3))
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
# Rows by which our splines are compared with zuko's.
NUM_COMPARED = 8


def log_prob(flow: Any, context: Tensor, values: Tensor) -> Tensor:
    """The log-density (..., N) of values (..., N, D) under ``zuko.flows.NSF`` given (N, C)."""
    noise, log_slope = forward(flow, context, values)
    return log_slope - (0.5 * noise.square() + HALF_LOG_TWO_PI).sum(-1)


def forward(flow: Any, context: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The noise (..., N, D) of the base that values come from, and the log-slope (..., N)."""
    shape = torch.broadcast_shapes(values.shape[:-1], context.shape[:-1])
    values, total = values.expand(*shape, -1), values.new_zeros(())
    for transform in flow.transform.transforms:
        parameters = _conditioner(transform, context, values)
        values, log_slope = _spline(values, parameters, transform)
        total = total + log_slope
    return values, total.sum(-1)


@torch.no_grad()
def inverse(flow: Any, context: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draws (L, N, D) from noise of the base (L, N, D), and the log-slope (L, N) there.

    For a flow that :func:`has_steps` and context (N, C); no gradient.
    """
    values, total = noise, torch.zeros_like(noise[..., 0])
    for transform in reversed(flow.transform.transforms):
        outputs, values, layers = values, torch.empty_like(values), _masked(transform)
        slopes = torch.zeros_like(total)
        for step in range(transform.passes):
            own = (transform.order == step).nonzero().squeeze(1)
            known = (transform.order < step).nonzero().squeeze(1)
            (weight, bias), *others = _needed(layers, own, transform.total)
            hidden = linear(context, weight[:, values.shape[-1] :], bias)
            if step:
                hidden = hidden + linear(values[..., known], weight[:, known])
            for weight, bias in others:
                hidden = linear(hidden.relu_(), weight, bias)
            values[..., own], log_slope = _inverse(outputs[..., own], hidden, transform)
            slopes = slopes + log_slope.sum(-1)
        total = total + slopes
    return values, total


def has_steps(flow: Any) -> bool:
    """Whether all transforms of a flow have several steps, and hidden layers."""
    return all(
        getattr(one, "passes", 0) > 1 and len(getattr(one, "hyper", ())) > 1
        for one in flow.transform.transforms
    )


@torch.no_grad()
def agrees(flow: Any, num_features: int, dim: int) -> bool:
    """Whether a flow is one of those of this module, by its layers and by some densities."""
    for transform in flow.transform.transforms:
        layers, masked = getattr(transform, "hyper", ()), _masked(transform)
        others = sum(type(one) is nn.ReLU for one in layers)
        if not masked or len(masked) + others != len(layers) or len(transform.shapes) != 3:
            return False
    like = next(flow.parameters())
    values = torch.linspace(-1.2 * BOUND, 1.2 * BOUND, NUM_COMPARED * dim).to(like)
    context = torch.linspace(-1, 1, NUM_COMPARED * num_features).to(like)
    values, context = values.view(NUM_COMPARED, dim), context.view(NUM_COMPARED, num_features)
    known = flow(context).log_prob(values)
    return torch.allclose(log_prob(flow, context, values), known, rtol=1e-3, atol=1e-3)


def _masked(transform: Any) -> list[Any]:
    """The layers of a transform's network; none if it has no network."""
    return [layer for layer in getattr(transform, "hyper", ()) if hasattr(layer, "mask")]


def _conditioner(transform: Any, context: Tensor, values: Tensor) -> Tensor:
    """The output of masked layers on values (..., N, D) and the context (N, C) behind them."""
    (first, bias), *others = [
        (layer.weight.masked_fill(~layer.mask, 0.0), layer.bias) for layer in _masked(transform)
    ]
    dim = values.shape[-1]
    hidden = linear(values, first[:, :dim], bias) + linear(context, first[:, dim:])
    shape = hidden.shape[:-1]
    hidden = hidden.reshape(-1, hidden.shape[-1]) + 0.0  # views cannot be changed in place
    for weight, bias in others:
        hidden = linear(hidden.relu_(), weight, bias)
    found: Tensor = hidden.unflatten(0, shape)
    return found


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


def _knots(parameters: Tensor, transform: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sizes of bins (..., D, 2, B), their ends, their unit, and raw slopes (..., D, B + 1)."""
    bins = transform.shapes[0][0]
    parameters = parameters.unflatten(-1, (-1, transform.total))
    sizes, slopes = parameters.split((2 * bins, bins - 1), dim=-1)
    sizes = sizes.unflatten(-1, (2, bins))
    # What softmax would give, but for the unit; these are never large, and bins are few.
    shares = (sizes / (1 + (2 / SCALE) * sizes.abs())).exp_()
    ends = shares.cumsum(-1)
    return shares, ends, 2 * BOUND / ends[..., -1:], pad(slopes, (1, 1))


def _slopes(raw: Tensor) -> Tensor:
    """The slopes at knots."""
    return (raw / (1 + raw.abs() / SCALE)).exp()


def _spline(x: Tensor, parameters: Tensor, transform: Any) -> tuple[Tensor, Tensor]:
    """Rational-quadratic splines of x (..., D), and their log-slopes; zuko's formulas."""
    shares, ends, unit, slopes = _knots(parameters, transform)
    with torch.no_grad():
        inside = (x > -BOUND) & (x <= BOUND)
        place = (x + BOUND) / unit[..., 0, 0]
        index = (ends[..., 0, :-1] < place.unsqueeze(-1)).sum(-1, keepdim=True)
    both = index.unsqueeze(-2).expand(*index.shape[:-1], 2, 1)
    width, height = (shares.gather(-1, both) * unit).squeeze(-1).unbind(-1)
    right, top = ((ends.gather(-1, both) * unit).squeeze(-1) - BOUND).unbind(-1)
    before, after = _slopes(slopes.gather(-1, torch.cat((index, index + 1), dim=-1))).unbind(-1)
    # Outside the spline is the identity; any place inside keeps its formulas finite there.
    z = torch.where(inside, (x - (right - width)) / width, 0.5)
    slope, mixed = height / width, z * (1 - z)
    below = slope + (before + after - 2 * slope) * mixed
    y = top - height + height * (slope * z.square() + before * mixed) / below
    steep = 2 * slope * mixed + before * (1 - z).square() + after * z.square()
    log_slope = 2 * (slope / below).log() + steep.log()
    return torch.where(inside, y, x), torch.where(inside, log_slope, 0.0)


def _inverse(y: Tensor, parameters: Tensor, transform: Any) -> tuple[Tensor, Tensor]:
    """The x that rational-quadratic splines map to y (..., D), and the log-slope at x."""
    _, ends, unit, slopes = _knots(parameters, transform)
    knots = pad(ends * unit - BOUND, (1, 0), value=-BOUND)
    inside = (y > -BOUND) & (y <= knots[..., 1, -1])
    index = (knots[..., 1, 1:-1] < y.unsqueeze(-1)).sum(-1, keepdim=True)
    sides = torch.cat((index, index + 1), dim=-1)
    corners = knots.expand(*y.shape, 2, -1).gather(-1, sides.unsqueeze(-2).expand(*y.shape, 2, 2))
    (x0, x1), (y0, y1) = (corner.unbind(-1) for corner in corners.unbind(-2))
    d0, d1 = _slopes(slopes.expand(*y.shape, -1).gather(-1, sides)).unbind(-1)
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
