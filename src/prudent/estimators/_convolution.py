r"""Convolutions of small images as products of matrices, which is fastest on a CPU.

Images are kept with their pixels first, (H, W, N, C). A pixel is then a matrix with a row for each
image of the batch, and so is a run of neighboring pixels. A convolution is a sum of products of
such runs with the matrices ``weight[:, :, i, j]``, one for each of its taps. Taps in the margin of
zeros are left out: five of nine for 3 x 3 taps on 2 x 2 pixels.

Three taps on top of each other cost twelve products of rows for four rows of the output. Toom and
Cook need six: four outputs, with the six inputs d that they see through the taps g, are

.. math::
    y = V_4^T \left[(V_3\, g) \odot (V_6^{-T} d)\right],

where :math:`V_m` holds the powers 0 to m - 1 of five numbers, and of infinity in its last row.
"""

import functools
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm

# The rows of the output that are computed together, by six products for each of their columns.
GROUP = 4
# With these numbers the error is three times that of plain products in float32.
POINTS = (0.0, 1.0, -1.0, 0.5, -2.0)
NUM_PRODUCTS = len(POINTS) + 1


class Run(NamedTuple):
    """Rows of the output, and those of the input that they see through a tap.

    The tap in the middle comes first and overwrites the output (``beta`` is zero); others add.
    """

    tap: int
    output: slice
    input: slice
    beta: int


def _columns(width: int, shift: int, stride: int) -> list[list[int]]:
    """The columns of the output that see a column through a tap, those in a row together."""
    seen = [c for c in range((width - 1) // stride + 1) if 0 <= c * stride + shift < width]
    # With a stride, neighbors of the output do not see neighbors.
    return [seen] if seen and stride == 1 else [[column] for column in seen]


def _rows(output: int, seen: int, length: int, number: int) -> tuple[slice, slice]:
    """The rows of ``length`` pixels of ``number`` images, from two pixels on."""
    one, other = (slice(s * number, (s + length) * number) for s in (output, seen))
    return one, other


@functools.lru_cache
def plain_runs(number: int, height: int, width: int, kernel: int, stride: int) -> tuple[Run, ...]:
    """The runs of a convolution of ``number`` images, with a margin of ``kernel // 2`` zeros.

    They are ordered by rows of the output, which stay in the cache.

    >>> [(run.tap, run.input.start, run.input.stop) for run in plain_runs(1, 1, 3, 3, 1)]
    [(4, 0, 3), (3, 0, 2), (5, 1, 3)]
    """
    margin, outputs, found = kernel // 2, (width - 1) // stride + 1, []
    taps = sorted(product(range(kernel), repeat=2), key=lambda tap: tap != (margin, margin))
    for top, (i, j) in product(range(0, height, stride), taps):
        row, shift = top + i - margin, j - margin
        beta = int((i, j) != (margin, margin))
        for part in _columns(width, shift, stride) if 0 <= row < height else []:
            output = top // stride * outputs + part[0]
            seen = row * width + part[0] * stride + shift
            places = _rows(output, seen, len(part), number)
            found.append(Run(i * kernel + j, *places, beta))
    return tuple(found)


@functools.lru_cache
def grouped_runs(number: int, height: int, width: int) -> tuple[Run, ...]:
    """The runs of products of rows, each with three taps of its own that follow each other."""
    found = []
    for row, j in product(range(height), (1, 0, 2)):
        for part in _columns(width, j - 1, stride=1):
            start = row * width + part[0]
            places = _rows(start, start + j - 1, len(part), number)
            found.append(Run(row % NUM_PRODUCTS * 3 + j, *places, beta=int(j != 1)))
    return tuple(found)


def _powers(number: int) -> Tensor:
    """The powers 0 to ``number`` - 1 of the points, and of infinity, (NUM_PRODUCTS, number)."""
    finite = torch.tensor(POINTS, dtype=torch.float64)[:, None] ** torch.arange(number)
    return torch.cat((finite, torch.eye(number, dtype=torch.float64)[-1:]))


@functools.lru_cache
def groups(height: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices from rows of an image to products, from products to its rows, and from taps.

    The margin of zeros above and below, and rows beyond the last, are left out of them.
    """
    number = -(-height // GROUP)
    # Kept for later calls, which may be on another device or want gradients.
    with torch.inference_mode(mode=False), torch.device("cpu"):
        before = torch.zeros(number * NUM_PRODUCTS, number * GROUP + 2, dtype=torch.float64)
        inverse = torch.linalg.inv(_powers(NUM_PRODUCTS)).T
        for i in range(number):
            here = slice(i * GROUP, i * GROUP + NUM_PRODUCTS)
            before[i * NUM_PRODUCTS : (i + 1) * NUM_PRODUCTS, here] = inverse
        after = torch.block_diag(*[_powers(GROUP).T] * number)
        found = (before[:, 1 : height + 1], after[:height], _powers(3))
        return tuple(matrix.to(dtype).contiguous() for matrix in found)  # type: ignore[return-value]


class _Products(torch.autograd.Function):
    """Sums of products of ``rows`` (.., inputs) with ``taps`` (T, outputs, inputs) by runs."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, taps: Tensor, runs: tuple[Run, ...], num_outputs: int
    ) -> Tensor:
        ctx.save_for_backward(rows, taps)
        ctx.runs = runs
        result = rows.new_empty(num_outputs, taps.shape[1])
        matrices = taps.transpose(1, 2).unbind()
        for run in runs:
            part = result[run.output]
            part.addmm_(rows[run.input], matrices[run.tap], beta=run.beta)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (rows, taps), gradient = ctx.saved_tensors, gradient.contiguous()
        of_rows, of_taps = torch.zeros_like(rows), torch.zeros_like(taps)
        matrices, of_matrices = taps.unbind(), of_taps.unbind()
        for run in ctx.runs:  # both at once, while the part is in the cache
            part = gradient[run.output]
            of_rows[run.input].addmm_(part, matrices[run.tap])
            of_matrices[run.tap].addmm_(part.T, rows[run.input])
        return of_rows, of_taps, None, None


class _Normalization(torch.autograd.Function):
    """See :func:`normalize`."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean = images.mean(dim=(0, 2, 3))
        variance = (images - mean[:, None, None]).square_().mean(dim=(0, 2, 3))
        ctx.save_for_backward(images, weight, mean, (variance + epsilon).rsqrt())
        ctx.mark_non_differentiable(mean, variance)
        output = batch_norm(images, mean, variance, weight, bias, eps=epsilon)
        return output, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        images, weight, mean, inverse = ctx.saved_tensors
        averages, epsilon = (None, None), 0.0  # not used, as this is of a batch's own statistics
        found = torch.ops.aten.native_batch_norm_backward(
            *(gradient, images, weight, *averages, mean, inverse),
            train=True,
            eps=epsilon,
            output_mask=[True] * 3,
        )
        return (*found, None)


def normalize(images: Tensor, layer: nn.BatchNorm2d) -> Tensor:
    """Normalize a batch (H, C, W, N) as the layer does, with sums that keep their digits.

    In the order of memory that :func:`convolve` needs, torch sums in single precision one pixel
    after the other, which costs a digit of all that follows.
    """
    if not layer.training:
        output: Tensor = layer(images)
        return output
    output, mean, variance = _Normalization.apply(images, layer.weight, layer.bias, layer.eps)
    size = images.numel() / len(mean)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    assert layer.num_batches_tracked is not None
    assert layer.momentum is not None
    layer.running_mean.lerp_(mean, layer.momentum)
    layer.running_var.lerp_(variance * (size / (size - 1)), layer.momentum)
    layer.num_batches_tracked += 1
    return output


def convolve(images: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """Convolve with square taps of odd size, with a margin of zeros and without bias.

    Args:
        images: (H, inputs, W, N), best lying in memory as (H, W, N, inputs). Layers that treat all
            pixels alike take such a tensor for H images, in the order that is fastest for them.
        weight: (outputs, inputs, kernel, kernel), as in ``torch.nn.Conv2d``.
        stride: The distance of the pixels at which there is an output.

    Returns:
        (H / stride, outputs, W / stride, N), sides rounded up, in the same order.
    """
    height, inputs, width, number = images.shape
    kernel = weight.shape[-1]
    rows = images.permute(0, 2, 3, 1).reshape(-1, inputs)
    taps = weight.permute(2, 3, 0, 1)
    sides = [(side - 1) // stride + 1 for side in (height, width)]
    if stride == 1 and kernel == 3 and height > 2:
        before, after, of_taps = groups(height, rows.dtype)
        taps = (of_taps @ taps.flatten(1)).unflatten(1, taps.shape[1:])
        rows = (before @ rows.view(height, -1)).view(-1, inputs)
        runs = grouped_runs(number, len(before), width)
        found = _Products.apply(rows, taps.flatten(0, 1), runs, len(rows))
        found = after @ found.view(len(before), -1)
    else:
        runs = plain_runs(number, height, width, kernel, stride)
        taps = taps.contiguous().flatten(0, 1)
        found = _Products.apply(rows, taps, runs, sides[0] * sides[1] * number)
    images = found.view(*sides, number, len(weight))
    return images.permute(0, 3, 1, 2)
