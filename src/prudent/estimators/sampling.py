r"""Draws from the prior times a ratio, and what they are worth.

A batch of observations is served by importance resampling
(:mod:`prudent.estimators.importance`). One observation deserves more where that is not enough: a
chain (:mod:`prudent.estimators.mcmc`).

The effective sample size says how many independent draws the answer is worth. Importance weights
:math:`w` that sum to one are worth :math:`1 / \sum w^2`; a chain is worth its length over its
integrated autocorrelation time :math:`\tau`.
"""

import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

from prudent._arrays import as_shape
from prudent.contracts import Prior, Shape
from prudent.errors import InputError, unknown_name
from prudent.estimators import mcmc
from prudent.estimators.importance import Ratio, SamplingReport, resample

METHODS = ("auto", "importance", "mcmc")
# Rejection is given up after so many rounds, each of at least so many draws, and not tried if less
# than this share is kept.
MOST_TRIES, LEAST_TRIED, LEAST_KEPT = 100, 64, 0.02
# Importance resampling warns below as many effective draws as were asked for, within these.
FEW, ENOUGH = 10, 100


def draw(
    posterior: Ratio,
    prior: Prior,
    sample_shape: Shape | int = (),
    method: str = "auto",
    like: Tensor | None = None,
) -> tuple[Tensor, SamplingReport]:
    """Draw from the prior times the ratio of a posterior, without a gradient.

    The random numbers come from torch's global generator.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> estimator = prudent.estimators.RatioEstimator(problem.prior, 2, (2,), hidden=(8,))
    >>> draws, report = draw(estimator(torch.zeros(3, 2)), problem.prior, (100,))
    >>> draws.shape, report.method, report.effective_sample_size.shape
    (torch.Size([100, 3, 2]), 'importance', torch.Size([3]))

    Args:
        posterior: Anything with ``log_ratio``, ``rows`` and a length N.
        prior: The prior that the ratio refers to.
        sample_shape: The shape of the draws per observation.
        method: ``"importance"``; ``"mcmc"``, for one observation; or ``"auto"``: for one
            observation a chain, if importance resampling is worth less than the draws asked for
            and emcee is installed.
        like: A tensor whose type and device the network expects of theta, if not the prior's.

    Returns:
        The draws ``(*sample_shape, N, D)`` and how they were made.
    """
    draws, report = weighted(posterior, prior, as_shape(sample_shape), method, like)
    if told := complaint(report):
        warnings.warn(told, stacklevel=2)
    return draws, report


def weighted(
    posterior: Ratio,
    prior: Prior,
    shape: tuple[int, ...],
    method: str = "auto",
    like: Tensor | None = None,
) -> tuple[Tensor, SamplingReport]:
    """Do the work of :func:`draw` for a caller that tells what the report says."""
    if method not in METHODS:
        raise unknown_name("sampling method", method, METHODS)
    if len(posterior) == 0:
        raise InputError("the posterior holds no observation; expected at least one.")
    number = torch.Size(shape).numel()
    with torch.no_grad():
        if method != "mcmc":
            draws, report = resample(posterior, prior, number, like)
            chain_helps = len(posterior) == 1 and find_spec("emcee") is not None
            # A chain takes seconds: worth it where the draws would repeat each other.
            if method == "auto" and chain_helps and report.effective_sample_size.min() < number:
                method = "mcmc"
        if method == "mcmc":
            draws, report = mcmc.chain(posterior, prior, number, like)
    draws = draws if like is None else draws.to(like)
    return draws.reshape(*shape, *draws.shape[1:]), report


def reject(
    candidates: Callable[[Tensor, int], tuple[Tensor, Tensor]], kept: Tensor, draws: Tensor
) -> Tensor:
    """Draw by rejection for each of N observations.

    Args:
        candidates: A function of the indices (R,) of observations and of a number L that returns
            draws (L, R, D), and for each the log of the probability with which to keep it, (L, R).
        kept: The share of draws that each observation is expected to keep, (N,).
        draws: The tensor (number, N, D) to fill.

    Returns:
        The observations that did not get their draws: too few are kept.
    """
    few, number = kept < LEAST_KEPT, len(draws)
    count = torch.where(few, number, 0)
    for _ in range(MOST_TRIES):
        rows = (count < number).nonzero().squeeze(1)
        if len(rows) == 0:
            break
        # As many as a typical observation lacks: those that keep fewer get them in later rounds.
        needed = int(((number - count[rows]) / kept[rows]).median()) + LEAST_TRIED
        needed = min(needed, max(number, LEAST_TRIED))  # which bounds memory
        theta, log_share = (part.cpu() for part in candidates(rows, needed))
        keep = torch.rand_like(log_share).log() < log_share
        place = keep.cumsum(dim=0) - 1 + count[rows]
        keep &= place < number
        draws[place[keep], rows.expand(len(theta), -1)[keep]] = theta[keep]
        count[rows] += keep.sum(dim=0)
    return (few | (count < number)).nonzero().squeeze(1)


def complaint(report: SamplingReport | None) -> str | None:
    """What the user should know about draws that are worth too little, None if nothing."""
    if report is None:
        return None
    size, number = report.effective_sample_size, report.num_samples
    if report.num_steps is not None and report.autocorrelation_time is not None:
        times = report.num_steps / report.autocorrelation_time
        if times >= mcmc.LONG_ENOUGH:
            return None
        return (
            f"the chain stopped at {mcmc.MAX_STEPS:,} steps. After burn-in it lasts {times:.0f} "
            f"autocorrelation times where {mcmc.LONG_ENOUGH} are expected, and {number:,} draws "
            f"are worth about {size.min():,.0f}. Modes of the posterior may have wrong weights: "
            "compare with another seed."
        )
    # Rejection leaves exact draws, of which a few are not too few.
    exact = report.method == "rejection"
    wanted = min(number if exact else max(number, FEW), ENOUGH)
    few = int((size < wanted).sum())
    if few == 0:
        return None
    told = (
        f"{number:,} draws are worth {size.min():,.1f} independent ones for observation "
        f"{int(size.argmin())}, and fewer than {wanted} for {few:,} of {len(size):,}: too few of "
        "the weighted draws fall where the posterior is"
    )
    if exact:
        return f"{told}."
    return (
        f"{told}, or two looks at it disagree. Take these one by one with "
        'posterior.rows(slice(i, i + 1)).sample(..., method="mcmc").'
    )
