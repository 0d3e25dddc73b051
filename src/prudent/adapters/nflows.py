"""Flows of nflows, given by context."""

from typing import Any

from nflows.distributions import StandardNormal
from torch import Tensor, nn

from prudent.adapters.model import Model, rows_for


def model_of(
    flow: Any, embedding: nn.Module | None = None, name: str = "nflows", **facts: Any
) -> Model:
    """What a flow can do. Its own embedding is called once for each batch, not for each draw.

    Args:
        flow: The flow, given by context (N, F).
        embedding: A network before its own embedding, if there is one.
        name: The name of the model.
        **facts: Further arguments of :class:`Model`.
    """
    transform, base = flow._transform, flow._distribution

    def embed(x: Tensor) -> Tensor:
        features: Tensor = flow._embedding_net(x if embedding is None else embedding(x))
        return features

    def log_prob(theta: Tensor, features: Tensor) -> Tensor:
        context = rows_for(features, len(theta))
        noise, log_volume = transform(theta.flatten(0, 1), context=context)
        value: Tensor = base.log_prob(noise, context=context) + log_volume
        return value.reshape(theta.shape[:-1])

    def sample(number: int, features: Tensor) -> Tensor:
        noise = base.sample(number, context=features).transpose(0, 1)
        context = rows_for(features, number)
        theta: Tensor = transform.inverse(noise.flatten(0, 1), context=context)[0]
        return theta.reshape(noise.shape)

    def from_noise(noise: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        flat, context = noise.flatten(0, 1), rows_for(features, len(noise))
        theta, log_volume = transform.inverse(flat, context=context)
        log_prob = base.log_prob(flat, context=context) - log_volume
        return theta.reshape(noise.shape), log_prob.reshape(noise.shape[:-1])

    return Model(
        name,
        log_prob=log_prob,
        sample=sample,
        from_noise=from_noise if isinstance(base, StandardNormal) else None,
        embed=embed,
        networks=[network for network in (flow, embedding) if network is not None],
        **facts,
    )
