r"""Alpha: the mass of a posterior that is less dense than the truth.

For a pair :math:`(\theta_i, x_i)` and an approximate posterior q, the paper's Eq. 4 is

.. math::
    \alpha_i = \int q(\theta \mid x_i)\, \mathbb{1}[q(\theta \mid x_i) < q(\theta_i \mid x_i)]
    \,\mathrm{d}\theta ,

the mass outside the smallest highest-density region that contains :math:`\theta_i`. A region of
credibility :math:`1 - \alpha` contains the truth exactly when :math:`\alpha_i \ge \alpha`. So a
calibrated posterior has uniform alphas, an over-confident one too many near 0.

With draws :math:`\theta_{ij}` of a proposal I, self-normalized importance sampling (Eq. 11) gives

.. math::
    \hat\alpha_i = \sum_j w_{ij}\, \mathbb{1}[q_{ij} < q_i], \qquad
    w_{ij} = \operatorname{softmax}_j \big(\log q_{ij} - \log I(\theta_{ij})\big),

where the softmax never exponentiates a raw density. Draws from q itself have equal weights.
"""

import torch
from torch import Tensor

from prudent._choices import INDICATORS
from prudent.coverage.relaxations import below
from prudent.errors import InputError, unknown_name


def alpha(
    log_prob: Tensor,
    sample_log_prob: Tensor,
    log_weight: Tensor | None = None,
    *,
    indicator: str = "log",
    midpoint: bool = False,
) -> Tensor:
    r"""The posterior mass of lower density than the nominal parameters (Eqs. 4 and 11).

    Args:
        log_prob: Log-density of the nominal parameters, (N,). A constant per observation may be
            missing, if it is missing from ``sample_log_prob`` as well.
        sample_log_prob: Log-density of L draws for each observation, (L, N).
        log_weight: Log importance weights of the draws, (L, N), up to a constant per observation:
            log-density of the posterior minus that of the proposal. ``None`` stands for equal
            weights, right for draws from the posterior. Where all weights of an observation are
            zero, they count as equal.
        indicator: The surrogate of the comparison: ``"log"``, ``"density"`` (the paper) or
            ``"hard"`` (no gradient at all).
        midpoint: Count draws of exactly equal density at half their weight instead of not at all.

    Returns:
        alpha (N,) in [0, 1]; NaN where a log-density is NaN.

    >>> log_prob = torch.tensor([0.0, -3.0])
    >>> draws = torch.tensor([[-1.0, -1.0], [1.0, -2.0], [-2.0, -4.0], [-0.5, -1.0]])
    >>> alpha(log_prob, draws)
    tensor([0.7500, 0.2500])
    """
    _check(log_prob, sample_log_prob, log_weight, indicator)
    with torch.set_grad_enabled(torch.is_grad_enabled() and indicator != "hard"):
        lower = below(sample_log_prob, log_prob, indicator)
        if midpoint:
            lower = lower + 0.5 * (sample_log_prob == log_prob)
        if log_weight is None:
            value = lower.mean(dim=0)
        else:
            nowhere = (log_weight == -torch.inf).all(dim=0)
            weight = torch.softmax(log_weight.masked_fill(nowhere, 0.0), dim=0)
            value = (weight * lower).sum(dim=0)
        # Rounding can leave the unit interval by an ulp; a clamp would stop the gradient there.
        value = value + (value.clamp(0.0, 1.0) - value).detach()
        missing = log_prob.isnan() | sample_log_prob.isnan().any(dim=0)
        return value.masked_fill(missing, torch.nan)


def effective_size(weight: Tensor, dim: int = 0) -> Tensor:
    r"""The effective sample size (N,) of L weighted draws, :math:`1 / \sum_j w_j^2`.

    The weights (L, N) sum to one over the draws, which are the dimension ``dim``, so that it lies
    between 1 and L.

    >>> effective_size(torch.tensor([[0.5], [0.5], [0.0]]))
    tensor([2.])
    """
    return 1 / weight.square().sum(dim=dim)


def _check(
    log_prob: Tensor, sample_log_prob: Tensor, log_weight: Tensor | None, indicator: str
) -> None:
    if indicator not in INDICATORS:
        raise unknown_name("indicator", indicator, INDICATORS)
    named = {"log_prob": log_prob, "sample_log_prob": sample_log_prob}
    if log_weight is not None:
        named["log_weight"] = log_weight
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise InputError(f"expected `{name}` to be a tensor, got {type(value).__name__}.")
        if not value.is_floating_point() or value.dtype != log_prob.dtype:
            raise InputError(
                f"expected `{name}` in one floating-point type with `log_prob` "
                f"({log_prob.dtype}), got {value.dtype}. Convert with .to(torch.float32)."
            )
    if log_prob.ndim != 1 or log_prob.shape[0] == 0:
        raise InputError(
            f"expected `log_prob` of shape (N,) with N >= 1, got {tuple(log_prob.shape)}."
        )
    num_pairs = log_prob.shape[0]
    shape = tuple(sample_log_prob.shape)
    if len(shape) != 2 or shape[0] == 0 or shape[1] != num_pairs:
        transposed = len(shape) == 2 and shape[0] == num_pairs
        hint = " Transposed? Draws come first." if transposed else ""
        raise InputError(
            f"expected `sample_log_prob` of shape (L, {num_pairs}) with L >= 1 to match "
            f"`log_prob` ({num_pairs},), got {shape}.{hint}"
        )
    if log_weight is not None and log_weight.shape != sample_log_prob.shape:
        raise InputError(
            f"expected `log_weight` of shape {shape} to match `sample_log_prob`, "
            f"got {tuple(log_weight.shape)}."
        )
