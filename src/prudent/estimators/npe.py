r"""Neural posterior estimation: a conditional normalizing flow over theta.

The flow is zuko's neural spline flow on standardized coordinates of theta; densities are in the
original units. The coordinates are those of the prior's support, in which it has no edges, so that
the flow lives inside the prior and is normalized there. The paper's flow does without them, and
some supports have no such coordinates: then the flow is trained on the whole space, and what it
hands out afterwards is cut to the support, with densities divided by the mass that is left.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import zuko
from torch import Tensor, nn

from prudent._settings import whole
from prudent.estimators import _splines
from prudent.estimators.base import NeuralEstimator
from prudent.posteriors.density import Density, Facts, wider
from prudent.priors.support import Support, leaks

NUM_TRANSFORMS = 2
# A flow is made of many small operations, whose number does not grow with that of the rows.
OVERHEAD = 800
# Draws of each observation by which the inverse of our splines is compared with their density.
NUM_COMPARED = 2
# The flow of the paper.
PAPER = {"transforms": 3, "bins": 10, "coupling": True, "bounded": False, "linear": False}


class FlowDensity(Density):
    """A flow on the whole space, conditioned on N observations.

    Args:
        network: The estimator.
        features: The features of the observations, (N, F).
    """

    def __init__(self, network: "FlowEstimator", features: Tensor) -> None:
        facts = Facts(noise=True, inside=not network.leaks, overhead=OVERHEAD)
        like = features.new_empty(len(features), 0, dtype=network.dtype)
        super().__init__(network.prior, network.dim, like, facts)
        self.network, self.features = network, features

    def rows(self, index: Tensor | slice) -> "FlowDensity":
        """The densities of some observations; nothing is embedded again."""
        return FlowDensity(self.network, self.features[index])

    def flow(self) -> zuko.distributions.NormalizingFlow:
        """The flow over standardized values."""
        flow: zuko.distributions.NormalizingFlow = self.network.head(self.features)
        return flow

    def log_prob(self, theta: Tensor) -> Tensor:
        """The log-density of theta (..., N, D), (..., N)."""
        standard, log_volume = self.network.standard(theta, self.features)
        return self._standard_log_prob(standard).to(theta.dtype) + log_volume

    def _standard_log_prob(self, standard: Tensor) -> Tensor:
        """The log-density of standardized values (..., N, D), as (..., N)."""
        if self.network.known_splines:
            return _splines.log_prob(self.network.head, self.features, standard)
        log_prob: Tensor = self.flow().log_prob(standard)
        return log_prob

    def widened(self, theta: Tensor, spread: float) -> tuple[Tensor, Tensor]:
        """The log-densities of theta, and those of the draws that noise times a spread makes."""
        standard, log_volume = self.network.standard(theta, self.features)
        flow = self.flow()
        if self.network.known_splines:
            noise, log_slope = _splines.forward(self.network.head, self.features, standard)
        else:
            noise, log_slope = flow.transform.call_and_ladj(standard)
        both = [flow.base.log_prob(noise), flow.base.log_prob(noise / spread)]
        both[1] = both[1] - noise.shape[-1] * math.log(spread)
        one, wide = ((value + log_slope).to(theta.dtype) + log_volume for value in both)
        return one, wide

    def rsample(self, shape: tuple[int, ...]) -> Tensor:
        """Draws ``(*shape, N, D)`` as a function of the weights."""
        draws = self.flow().rsample(torch.Size(shape))
        theta: Tensor = self.network.original(draws, self.features)[0]
        return theta

    def sample(self, shape: tuple[int, ...]) -> Tensor:
        """Draws ``(*shape, N, D)``."""
        return self.sample_and_log_prob(shape)[0]

    @torch.no_grad()
    def sample_and_log_prob(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Draws ``(*shape, N, D)``, and their log-density."""
        flow, number = self.flow(), math.prod(shape)
        noise = flow.base.sample((max(number, 1),))  # torch has no density of no draws
        both = self._unscaled(*self._inverse(flow, noise))
        theta, log_prob = (part[:number].reshape(*shape, *part.shape[1:]) for part in both)
        return theta, log_prob

    @torch.no_grad()
    def from_noise(self, noise: Tensor, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal noise (L, N, D), times a spread, as draws.

        Returns:
            The draws (L, N, D), their log-density, and that of what drew them, (L, N) each. It is
            the same for a spread of one; a larger one draws from a wider distribution.
        """
        noise = noise[..., : self.network.support.size]  # shares have one number less
        noise = noise.to(self.features)
        theta, log_prob = self._unscaled(*self._inverse(self.flow(), spread * noise))
        return theta, log_prob, wider(log_prob, noise, spread)

    def _inverse(self, flow: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Standardized draws from noise of the base, and their log-density."""
        log_base, head = flow.base.log_prob(noise), self.network.head
        if _splines.has_steps(head):
            draws, log_slope = _splines.inverse(head, self.features, noise)
            log_prob, some = log_base + log_slope, self._standard_log_prob(draws[:NUM_COMPARED])
            if torch.allclose(some, log_prob[:NUM_COMPARED], rtol=1e-3, atol=1e-2):
                return draws, log_prob
        draws, log_volume = flow.transform.inv.call_and_ladj(noise)
        return draws, log_base - log_volume

    def _unscaled(self, draws: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        """Standardized draws and their log-density, in the units of theta."""
        theta, log_volume = self.network.original(draws, self.features)
        return theta, log_prob.to(self.network.dtype) + log_volume


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
        self.leaks = leaks(self.prior, self.dim, bounded=bounded)

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
            features=self.support.size,
            context=num_features,
            bins=self.bins,
            transforms=self.transforms,
            hidden_features=self.hidden,
            passes=2 if self.coupling and self.support.size > 1 else None,
        )
        return flow

    @cached_property
    def known_splines(self) -> bool:
        """Whether densities need not be left to zuko."""
        return _splines.agrees(self.head, self.num_features, self.support.size)

    def plain(self, x: Tensor) -> FlowDensity:
        """The flows themselves, on the whole space."""
        return FlowDensity(self, self.embed(x))
