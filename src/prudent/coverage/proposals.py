"""The proposals that the draws of the coverage penalty come from."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from prudent._choices import MODELS
from prudent.contracts import Reparametrized, SampleAndLogProb
from prudent.errors import InputError, unknown_name


def draw(
    proposal: Any, posterior: Any, num_samples: int, theta: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Draws for each pair, (L, N, D), and their log-density under the proposal, (L, N).

    The log-density is None where the posterior itself made the draws.
    """
    log_proposal = None
    if proposal == "model-rsample":
        if not isinstance(posterior, Reparametrized):
            raise InputError(
                f'proposal="model-rsample" needs `rsample`, and {type(posterior).__name__} has '
                'none; use "model" or the prior.'
            )
        draws = posterior.rsample((num_samples,))
    else:
        with torch.no_grad():
            if proposal == "model":
                draws = posterior.sample((num_samples,))
            else:
                draws, log_proposal = _sample_and_log_prob(proposal, (num_samples, len(theta)))
    if draws.shape != (num_samples, *theta.shape):
        raise InputError(
            f"expected the proposal to draw {(num_samples, *theta.shape)} to match "
            f"`theta` {tuple(theta.shape)}, got {tuple(draws.shape)}. A distribution over D "
            "parameters needs event_shape (D,): wrap it in torch.distributions.Independent."
        )
    return draws.to(theta), log_proposal


def _sample_and_log_prob(proposal: Any, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    if isinstance(proposal, SampleAndLogProb):
        return proposal.sample_and_log_prob(tuple(shape))
    draws = proposal.sample(shape)
    return draws, proposal.log_prob(draws)


def check_proposal(proposal: Any) -> None:
    """Refuse what cannot serve as a proposal."""
    if isinstance(proposal, str):
        if proposal not in MODELS:
            raise unknown_name("proposal", proposal, MODELS, "Or pass a torch distribution.")
    elif isinstance(proposal, Distribution):
        if proposal.batch_shape or len(proposal.event_shape) != 1:
            raise InputError(
                "expected a proposal with event_shape (D,) and no batch_shape, got event_shape "
                f"{tuple(proposal.event_shape)} and batch_shape {tuple(proposal.batch_shape)}. "
                "Wrap it: torch.distributions.Independent(proposal, 1)."
            )
    elif not isinstance(proposal, SampleAndLogProb):
        missing = [name for name in ("sample", "log_prob") if not hasattr(proposal, name)]
        if missing:
            raise InputError(
                f"the proposal ({type(proposal).__name__}) has no `{'`, `'.join(missing)}`; "
                "pass a torch distribution, the prior for instance."
            )
