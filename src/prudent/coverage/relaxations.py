r"""Steps that gradients can cross.

Coverage is counted, and counts have no slope. A *straight-through* step keeps the exact count in
the forward pass and declares, for the backward pass only, that it followed a smooth *surrogate*:

.. math::
    s = \mathbb{1}[a < b], \qquad \mathrm{d}s := \mathrm{d}(\text{surrogate}).

Sorting needs no relaxation: it permutes its input, and its derivative is that permutation. The
soft sort of Blondel et al. (2020), which the paper uses, gives the same on values in [0, 1]: its
isotonic step merges two neighbors only if they differ by more than its weights do, which is 1.
"""

import math
from typing import Any

import torch
from torch import Tensor


class _StraightThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(hard: Tensor, surrogate: Tensor, clip: float) -> Tensor:
        return hard.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        ctx.clip = inputs[2]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None]:
        (gradient,) = gradients
        if math.isfinite(ctx.clip):
            gradient = gradient.clamp(-ctx.clip, ctx.clip)
        return None, gradient, None


def straight_through(hard: Tensor, surrogate: Tensor, clip: float = math.inf) -> Tensor:
    """The value of ``hard`` with the gradient of ``surrogate``, of the same shape.

    The value of the surrogate is never used, so it may be infinite. The incoming gradient is
    clipped to [-clip, clip] first. The authors' code does so with 1 and calls it a hard tanh; with
    its batch of 128 and weight of 5 it never acts.
    """
    value: Tensor = _StraightThrough.apply(hard, surrogate, clip)
    return value


def below(sample_log_prob: Tensor, log_prob: Tensor, indicator: str) -> Tensor:
    r"""The indicator, 1 or 0, of each draw being less dense than the nominal parameters.

    All three compare log-densities, so none under- or overflows; they differ in the surrogate:

    - ``"log"``: :math:`\log q_i - \log q_{ij}`. Shifting all log-densities, as a change of the
      units of theta does, changes nothing.
    - ``"density"``: :math:`q_i - q_{ij}`, with the incoming gradient clipped to [-1, 1]; the
      paper. Its push is proportional to the density, hence to the units of theta.
    - ``"hard"``: none; there is no gradient.
    """
    hard = (sample_log_prob < log_prob).to(sample_log_prob.dtype)
    if indicator == "hard":
        return hard
    if indicator == "log":
        return straight_through(hard, log_prob - sample_log_prob)
    # Past this exponent a density has no usable gradient in any case; the bound keeps it finite.
    largest = math.log(torch.finfo(log_prob.dtype).max) / 2
    density, sample_density = log_prob.clamp(max=largest), sample_log_prob.clamp(max=largest)
    return straight_through(hard, density.exp() - sample_density.exp(), clip=1.0)
