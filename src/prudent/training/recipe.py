"""From a row of the table of methods to its objective."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from prudent._randomness import seeded
from prudent.contracts import Objective, Prior, SampleAndLogProb
from prudent.coverage import CoveragePenalty
from prudent.errors import InputError
from prudent.estimators.priors import check_prior, log_prior, support_box
from prudent.training.methods import Method
from prudent.training.objectives import WeightedSum, balance, bce, nll, weighted_sum
from prudent.training.options import Options

__all__ = ["make_objective"]

# Prior draws that a proposal must be able to make.
NUM_CHECKED = 4096


def make_objective(
    method: Method, prior: Prior, options: Options, pool: Tensor | None = None
) -> WeightedSum:
    """The objective of a method.

    Args:
        method: A row of the table.
        prior: The usual proposal of the coverage penalty.
        options: Settings of the coverage penalty.
        pool: The theta of all simulations, where some were excluded.
    """
    coverage = CoveragePenalty(
        _proposal(method, prior, options.proposal),
        options.num_samples,
        options.target,
        indicator=options.indicator,
        computation=options.computation,
        levels=options.levels,
        distance=options.distance,
        fraction=options.fraction,
    )
    terms: dict[str, Objective] = {
        "nll": nll,
        "bce": bce,  # type: ignore[dict-item]
        "balance": balance,  # type: ignore[dict-item]
        "coverage": coverage,
    }
    weights = method.weights(options.weight)
    return weighted_sum(*((weight, terms[name]) for name, weight in weights.items()), pool=pool)


def _proposal(method: Method, prior: Prior, proposal: Any) -> Any:
    """The proposal that a setting stands for."""
    if proposal == "prior":
        return prior
    if proposal == "box":
        return support_box(prior)
    if isinstance(proposal, str):
        if method.family == "nre":
            raise InputError(
                f'proposal="{proposal}" needs a flow: a ratio cannot draw from itself. Use '
                '"prior", or a method such as calnpe.'
            )
        return proposal
    if not isinstance(proposal, SampleAndLogProb):
        _check_cover(proposal, prior)
    return proposal


def _check_cover(proposal: Any, prior: Prior) -> None:
    """Refuse a proposal that can never draw what the prior does."""
    dim, expected = check_prior(proposal, "proposal"), check_prior(prior)
    if dim != expected:
        raise InputError(f"the proposal draws {dim} parameters, the prior {expected}.")
    with seeded(0):
        theta = prior.sample((NUM_CHECKED,))
    missed = log_prior(proposal, theta).isneginf()
    if bool(missed.any()):
        example = theta[missed][0].tolist()
        raise InputError(
            f"the proposal has no density at {int(missed.sum()):,} of {NUM_CHECKED:,} draws from "
            f"the prior, such as {example}; it must cover the prior's support. Widen it, or use "
            '"prior".'
        )
