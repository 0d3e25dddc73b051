"""Neural posterior estimation: a conditional normalising flow over theta.

The flow is zuko's neural spline flow in coupling form, on standardised theta; densities are in
the original units. Its support is the whole space: it can leak outside a bounded prior.
"""

from __future__ import annotations

from typing import Any

import torch
import zuko
from torch import Tensor, nn
from torch.distributions import Distribution

from prudent.contracts import Shape
from prudent.estimators.base import NeuralEstimator
from prudent.estimators.priors import log_prior

__all__ = ["FlowEstimator", "FlowPosterior"]

NUM_TRANSFORMS = 3
NUM_BINS = 10
NUM_CONTEXT = 10


class FlowEstimator(NeuralEstimator):
    """A spline flow of three coupling transforms, conditioned on embedded x."""

    kind = "npe"
    normalized = True
    default_hidden = (64, 64)

    def default_embedding(self) -> dict[str, Any]:
        """Three hidden layers of 64 down to ten numbers, as in the paper."""
        return {"kind": "flatten_mlp", "inputs": self.num_inputs, "outputs": NUM_CONTEXT}

    def make_head(self, num_features: int) -> nn.Module:
        """The flow."""
        flow: nn.Module = zuko.flows.NSF(
            features=self.dim,
            context=num_features,
            bins=NUM_BINS,
            transforms=NUM_TRANSFORMS,
            hidden_features=self.hidden,
            passes=2 if self.dim > 1 else None,
        )
        return flow

    def forward(self, x: Tensor) -> FlowPosterior:
        """The posteriors given ``x`` ``(N, *x_shape)``."""
        return FlowPosterior(self, self.embed(x))


class FlowPosterior:
    """A flow conditioned on N observations; normalised over the whole space."""

    def __init__(self, estimator: FlowEstimator, features: Tensor) -> None:
        self.estimator = estimator
        self.features = features

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        return f"<FlowPosterior of {len(self)} observations, {self.estimator.dim} parameters>"

    def _flow(self) -> Distribution:
        flow: Distribution = self.estimator.head(self.features)
        return flow

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log-density at ``theta`` (..., N, D), as (..., N)."""
        scale = self.estimator.theta_scale
        return self._flow().log_prob(scale(theta)) - scale.log_scale()

    def log_ratio(self, theta: Tensor) -> Tensor:
        """Log of posterior over prior at ``theta`` (..., N, D), as (..., N)."""
        return self.log_prob(theta) - log_prior(self.estimator.prior, theta)

    @torch.no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw ``(*sample_shape, N, D)``."""
        return self.estimator.theta_scale.inverse(self._flow().sample(torch.Size(sample_shape)))

    def rows(self, index: Tensor | slice) -> FlowPosterior:
        """The posteriors of some observations; nothing is embedded again."""
        return FlowPosterior(self.estimator, self.features[index])
