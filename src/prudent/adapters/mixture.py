"""The mixture of several foreign models, as an ensemble of another library hands it out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from prudent.adapters.estimator import Adapted
from prudent.adapters.model import Model
from prudent.contracts import Prior
from prudent.errors import InputError

# The relative error of the mass of a member inside the prior's support: that of its weight.
TOLERANCE = 0.05


class _Members:
    """The posteriors of all members for the observations of a batch.

    Features are the observations and, beside them, the mass of each member inside the prior's
    support, so that it is found once for each observation.
    """

    def __init__(self, models: Sequence[Model], prior: Prior) -> None:
        self.estimators = [Adapted(model, prior) for model in models]
        for one in self.estimators:
            one.tolerance = TOLERANCE
        self.x_shape = models[0].x_shape

    def embed(self, x: Tensor) -> Tensor:
        """The features of observations."""
        parts = [getattr(one(x), "log_mass", x.new_zeros(len(x))) for one in self.estimators]
        return torch.cat((x.flatten(1), torch.stack(parts, dim=1).to(x)), dim=1)

    def given(self, features: Tensor) -> list[Any]:
        """The posteriors of each member."""
        number = len(self.estimators)
        x, masses = features[:, :-number], features[:, -number:]
        posteriors = [one(x.reshape(len(x), *(self.x_shape or (-1,)))) for one in self.estimators]
        for posterior, log_mass in zip(posteriors, masses.unbind(1), strict=True):
            posterior.log_mass = log_mass
        return posteriors


def mixture(models: Sequence[Model], weights: Tensor, prior: Prior, name: str) -> Model:
    """The weighted average of posteriors, each cut to the prior's support, or of ratios.

    Args:
        models: The members, all with a density that draws or all with a ratio.
        weights: Their weights (K,), which add up to one.
        prior: The prior that they share.
        name: The name of the mixture.
    """
    kinds = {(model.log_ratio is not None, model.log_prob is not None) for model in models}
    if len(kinds) != 1 or kinds == {(False, False)}:
        raise InputError(
            "expected an ensemble of flows or one of ratios; this one is mixed or has no density."
        )
    members, log_weights = _Members(models, prior), weights.log()
    facts: dict[str, Any] = {
        "embed": members.embed,
        "networks": [network for model in models for network in model.networks],
        "prior": prior,
        "x_shape": models[0].x_shape,
    }

    def averaged(function: str) -> Any:
        def value(theta: Tensor, features: Tensor) -> Tensor:
            parts = [getattr(one, function)(theta) for one in members.given(features)]
            return (torch.stack(parts) + log_weights.reshape(-1, 1, 1)).logsumexp(dim=0)

        return value

    def sample(number: int, features: Tensor) -> Tensor:
        chosen = torch.multinomial(weights, number, replacement=True)
        counts = torch.bincount(chosen, minlength=len(models)).tolist()
        several = zip(members.given(features), counts, strict=True)
        draws = torch.cat([posterior.sample((count,)) for posterior, count in several if count])
        return draws[torch.randperm(number)]

    if models[0].log_ratio is not None:
        return Model(name, log_ratio=averaged("log_ratio"), **facts)
    return Model(name, averaged("log_prob"), sample=sample, inside=True, **facts)
