"""Neural posterior estimation: a conditional normalizing flow over theta.

The flow is zuko's neural spline flow in coupling form, on standardized theta; densities are in
the original units. Its support is the whole space: it can leak outside a bounded prior.
"""

import math
from typing import Any

import torch
import zuko
from torch import Tensor, nn

from prudent._arrays import as_shape
from prudent._settings import whole
from prudent.contracts import Shape
from prudent.estimators import _couplings
from prudent.estimators.base import NeuralEstimator, NeuralPosterior
from prudent.estimators.priors import log_prior

NUM_TRANSFORMS = 3
NUM_BINS = 10
NUM_CONTEXT = 10
# Draws of each observation by which our splines are compared with zuko's.
NUM_COMPARED = 2


class FlowPosterior(NeuralPosterior):
    """A flow conditioned on N observations; normalized over the whole space."""

    def _flow(self) -> zuko.distributions.NormalizingFlow:
        flow: zuko.distributions.NormalizingFlow = self.estimator.head(self.features)
        return flow

    def log_prob(self, theta: Any) -> Tensor:
        """Log-density at ``theta`` (..., N, D), as (..., N)."""
        scale, theta = self.estimator.theta_scale, self._theta(theta)
        found = self._flow().log_prob(scale(theta).to(self.features))
        value: Tensor = found.to(theta.dtype) - scale.log_scale()
        return value

    def log_ratio(self, theta: Any) -> Tensor:
        """Log of posterior over prior at ``theta`` (..., N, D), as (..., N)."""
        theta = self._theta(theta)
        return self.log_prob(theta) - log_prior(self.estimator.prior, theta)

    def rsample(self, sample_shape: Shape | int = ()) -> Tensor:
        """Draw ``(*sample_shape, N, D)`` as a differentiable function of the weights."""
        draws = self._flow().rsample(torch.Size(as_shape(sample_shape)))
        theta: Tensor = self.estimator.theta_scale.inverse(draws)
        return theta

    @torch.no_grad()
    def sample(self, sample_shape: Shape | int = ()) -> Tensor:
        """Draw ``(*sample_shape, N, D)``."""
        return self.rsample(sample_shape)

    @torch.no_grad()
    def sample_and_log_prob(self, sample_shape: Shape | int = ()) -> tuple[Tensor, Tensor]:
        """Draws and their log-density, at the cost of the draws alone."""
        shape = torch.Size(as_shape(sample_shape))
        return self._unscaled(*self._flow().rsample_and_log_prob(shape))

    @torch.no_grad()
    def from_noise(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Standard normal noise (L, N, D) as draws, with their log-density (L, N)."""
        flow, noise = self._flow(), noise.to(self.features)
        if self.estimator.dim > 1 and self.estimator.hidden:
            draws, log_prob = _couplings.from_noise(self.estimator.head, self.features, noise)
            some = flow.log_prob(draws[:NUM_COMPARED])
            if torch.allclose(some, log_prob[:NUM_COMPARED], rtol=1e-3, atol=1e-2):
                return self._unscaled(draws, log_prob)
        draws, log_volume = flow.transform.inv.call_and_ladj(noise)
        return self._unscaled(draws, flow.base.log_prob(noise) - log_volume)

    def _unscaled(self, draws: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        """Standardized draws and their log-density, in the units of theta."""
        scale = self.estimator.theta_scale
        return scale.inverse(draws), log_prob.to(self.estimator.dtype) - scale.log_scale()


class FlowEstimator(NeuralEstimator):
    """A spline flow of coupling transforms, conditioned on embedded x.

    It takes the arguments of :class:`NeuralEstimator`, where ``hidden`` holds the widths of the
    hidden layers of each transform's network, and the number of ``transforms``: the paper has
    three, and one for a single parameter.
    """

    kind = "npe"
    normalized = True
    default_hidden = (64, 64)
    extra_names = ("transforms",)

    def __init__(self, *arguments: Any, transforms: int = NUM_TRANSFORMS, **keywords: Any) -> None:
        self.transforms = whole("transforms", transforms, 1)  # before the head is made
        super().__init__(*arguments, **keywords)

    def default_embedding(self) -> dict[str, Any]:
        """Three hidden layers of 64 down to ten numbers, as in the paper."""
        return {"kind": "flatten_mlp", "inputs": math.prod(self.x_shape), "outputs": NUM_CONTEXT}

    def make_head(self, num_features: int) -> nn.Module:
        """The flow."""
        flow: nn.Module = zuko.flows.NSF(
            features=self.dim,
            context=num_features,
            bins=NUM_BINS,
            transforms=self.transforms,
            hidden_features=self.hidden,
            passes=2 if self.dim > 1 else None,
        )
        return flow

    def forward(self, x: Any) -> FlowPosterior:
        """The posteriors given ``x`` ``(N, *x_shape)``."""
        return FlowPosterior(self, self.embed(x))
