"""Lazy distributions of zuko, given by context: flows and mixtures."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from zuko.distributions import DiagNormal
from zuko.lazy import LazyDistribution

from prudent.adapters.model import Model


def model_of(
    flow: LazyDistribution,
    embedding: nn.Module | None = None,
    name: str = "zuko",
    **facts: Any,
) -> Model:
    """What a lazy distribution can do.

    Args:
        flow: The lazy distribution; called with features (N, F), it returns a distribution.
        embedding: The network that makes these features of observations, if there is one.
        name: The name of the model.
        **facts: Further arguments of :class:`Model`.
    """

    def log_prob(theta: Tensor, features: Tensor) -> Tensor:
        found: Tensor = flow(features).log_prob(theta)
        return found

    def sample(number: int, features: Tensor) -> Tensor:
        found: Tensor = flow(features).sample(torch.Size((number,)))
        return found

    networks = [network for network in (flow, embedding) if network is not None]
    return Model(
        name,
        log_prob=log_prob,
        sample=sample,
        from_noise=pushing(flow) if takes_noise(flow) else None,
        embed=embedding,
        networks=networks,
        **facts,
    )


def takes_noise(flow: LazyDistribution) -> bool:
    """Whether draws are made of normal noise that does not depend on the features."""
    base = getattr(flow, "base", None)
    if base is None or any(True for _ in base.parameters()):
        return False
    return isinstance(base(None), DiagNormal)


def pushing(flow: Any) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The function from standard normal noise and features to draws and their log-density."""

    def from_noise(noise: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        given = flow(features)
        scaled = given.base.mean + given.base.stddev * noise
        theta, log_volume = given.transform.inv.call_and_ladj(scaled)
        return theta, given.base.log_prob(scaled) - log_volume

    return from_noise
