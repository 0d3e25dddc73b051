r"""Neural posterior estimation: a conditional normalizing flow over theta.

The flow is zuko's neural spline flow on standardized coordinates of theta; densities are in the
original units. The coordinates are those of the prior's support, in which it has no edges, so that
the flow lives inside the prior and is normalized there. The paper's flow does without them: its
support is the whole space, and it leaks outside a bounded prior.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import zuko
from torch import Tensor, nn

from prudent._arrays import as_shape
from prudent._settings import whole
from prudent.contracts import Shape
from prudent.estimators import _couplings
from prudent.estimators._support import Support
from prudent.estimators.base import NeuralEstimator, NeuralPosterior
from prudent.estimators.priors import log_prior

NUM_TRANSFORMS = 2
# Draws of each observation by which our splines are compared with zuko's.
NUM_COMPARED = 2
# The flow of the paper and of version 0.1.0.
PAPER = {"transforms": 3, "bins": 10, "coupling": True, "bounded": False, "linear": False}


class FlowPosterior(NeuralPosterior):
    """A flow conditioned on N observations, normalized."""

    def _flow(self) -> zuko.distributions.NormalizingFlow:
        flow: zuko.distributions.NormalizingFlow = self.estimator.head(self.features)
        return flow

    def log_prob(self, theta: Any) -> Tensor:
        """Log-density at ``theta`` (..., N, D), as (..., N)."""
        theta = self._theta(theta)
        standard, log_volume = self.estimator.standard(theta, self.features)
        value: Tensor = self._flow().log_prob(standard).to(theta.dtype) + log_volume
        return value

    def log_prob_and_wide(self, theta: Tensor, spread: float) -> tuple[Tensor, Tensor]:
        """Log-densities at ``theta``, and those of the draws that noise times a spread makes."""
        standard, log_volume = self.estimator.standard(theta, self.features)
        flow = self._flow()
        noise, log_slope = flow.transform.call_and_ladj(standard)
        both = [flow.base.log_prob(noise), flow.base.log_prob(noise / spread)]
        both[1] = both[1] - noise.shape[-1] * math.log(spread)
        one, wide = ((value + log_slope).to(theta.dtype) + log_volume for value in both)
        return one, wide

    def log_ratio(self, theta: Any) -> Tensor:
        """Log of posterior over prior at ``theta`` (..., N, D), as (..., N)."""
        theta = self._theta(theta)
        return self.log_prob(theta) - log_prior(self.estimator.prior, theta)

    def rsample(self, sample_shape: Shape | int = ()) -> Tensor:
        """Draw ``(*sample_shape, N, D)`` as a differentiable function of the weights."""
        draws = self._flow().rsample(torch.Size(as_shape(sample_shape)))
        theta: Tensor = self.estimator.original(draws, self.features)[0]
        return theta

    @torch.no_grad()
    def _draw(self, shape: tuple[int, ...]) -> tuple[Tensor, None]:
        return self.rsample(shape), None

    @torch.no_grad()
    def sample_and_log_prob(self, sample_shape: Shape | int = ()) -> tuple[Tensor, Tensor]:
        """Draws and their log-density, at the cost of the draws alone."""
        shape = torch.Size(as_shape(sample_shape))
        return self._unscaled(*self._flow().rsample_and_log_prob(shape))

    @torch.no_grad()
    def from_noise(self, noise: Tensor, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal noise (L, N, D), times a spread, as draws.

        Returns:
            The draws (L, N, D), their log-density, and that of what drew them, (L, N) each. It is
            the same for a spread of one; a larger one draws from a wider distribution.
        """
        wide = spread * noise.to(self.features)
        theta, log_prob = self._unscaled(*self._inverse(self._flow(), wide))
        size = (wide.square() - noise.to(wide).square()).sum(dim=-1) / 2
        log_proposal = log_prob + size.to(log_prob) - noise.shape[-1] * math.log(spread)
        return theta, log_prob, log_proposal

    def _inverse(self, flow: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Standardized draws from noise of the base, and their log-density."""
        log_base, head = flow.base.log_prob(noise), self.estimator.head
        if _couplings.fits(head):
            draws, log_slope = _couplings.inverse(head, self.features, noise)
            some, log_prob = flow.log_prob(draws[:NUM_COMPARED]), log_base + log_slope
            if torch.allclose(some, log_prob[:NUM_COMPARED], rtol=1e-3, atol=1e-2):
                return draws, log_prob
        draws, log_volume = flow.transform.inv.call_and_ladj(noise)
        return draws, log_base - log_volume

    def _unscaled(self, draws: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        """Standardized draws and their log-density, in the units of theta."""
        theta, log_volume = self.estimator.original(draws, self.features)
        return theta, log_prob.to(self.estimator.dtype) + log_volume


class FlowEstimator(NeuralEstimator):
    """A spline flow, conditioned on embedded x.

    It takes the arguments of :class:`NeuralEstimator`, where ``hidden`` holds the widths of the
    hidden layers of each transform's network.

    Args:
        *arguments: See :class:`NeuralEstimator`.
        transforms: The number of transforms, each a spline of every parameter.
        bins: The number of pieces of a spline.
        coupling: Whether a transform lets half of the parameters depend on the other half, and
            not each on all before it; the same for two parameters, faster to draw from for many.
        bounded: Whether the flow lives inside the prior's support.
        **keywords: See :class:`NeuralEstimator`.
    """

    kind = "npe"
    normalized = True
    default_hidden = (128,) * 4
    extra_names = ("transforms", "bins", "coupling", "bounded")
    before = PAPER

    def __init__(
        self,
        *arguments: Any,
        transforms: int = NUM_TRANSFORMS,
        bins: int = 8,
        coupling: bool = False,
        bounded: bool = True,
        **keywords: Any,
    ) -> None:
        self.transforms = whole("transforms", transforms, 1)  # before the head is made
        self.bins, self.coupling, self.bounded = whole("bins", bins, 2), coupling, bounded
        super().__init__(*arguments, **keywords)

    @classmethod
    def paper(cls, x_shape: Sequence[int]) -> dict[str, Any]:
        """The paper's flow: three couplings; x goes through three layers down to ten numbers."""
        embedding = {"kind": "flatten_mlp", "inputs": math.prod(x_shape), "outputs": 10}
        return {**PAPER, "hidden": [64, 64], "embedding": embedding}

    def make_support(self) -> Support:
        """The prior's support, or the whole space."""
        return Support(self.prior if self.bounded else None, self.dim)

    def make_head(self, num_features: int) -> nn.Module:
        """The flow."""
        flow: nn.Module = zuko.flows.NSF(
            features=self.dim,
            context=num_features,
            bins=self.bins,
            transforms=self.transforms,
            hidden_features=self.hidden,
            passes=2 if self.coupling and self.dim > 1 else None,
        )
        return flow

    def forward(self, x: Any) -> FlowPosterior:
        """The posteriors given ``x`` ``(N, *x_shape)``."""
        return FlowPosterior(self, self.embed(x))
