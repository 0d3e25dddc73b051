r"""Flow matching: a posterior that draws by following a velocity, from noise to theta.

A network is trained to tell the mean velocity of points on straight lines from noise to theta,

.. math:: z_t = (1 - t)\, z_0 + t\, z_1, \qquad z_0 \sim \mathcal{N}(0, I), \qquad
    \min_v E\, \lVert v(t, z_t, x) - (z_1 - z_0) \rVert^2 ,

which takes no density and no differential equation. Then :math:`\dot z = v(t, z, x)` carries noise
to draws of the posterior (Lipman et al. 2023; Wildberger et al. 2023). The coordinates are those
of :class:`~prudent.estimators.FlowEstimator`, so that draws lie inside the prior.

Draws are what such a model is good at. Its density takes the divergence of the velocity along the
way, with zuko's solver: exact up to the tolerance, and some hundred evaluations of the network. It
is there for checks, and for one truth for each observation. It is no term to train with: the slope
of SELU jumps at zero, and the gradient of a divergence leaves out what these jumps add.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import zuko
from torch import Tensor, nn

from prudent._arrays import as_shape
from prudent.contracts import Shape
from prudent.errors import InputError
from prudent.estimators._support import Support, leaks
from prudent.estimators.base import NeuralEstimator
from prudent.estimators.networks import MLP
from prudent.estimators.npe import FlowPosterior

# Times at which the velocity of each pair is looked at in one step, spread evenly.
NUM_TIMES = 8
# Waves of the time that the network sees.
NUM_WAVES = 4
# Steps of draws with a gradient, of two evaluations each.
NUM_STEPS = 8
# What one step of the solver may be wrong by, in units of the standardized theta, and a hundred
# times that in nats; for draws, and for densities.
TOLERANCE, LOW_TOLERANCE = 1e-3, 1e-4


class FlowMatchingPosterior(FlowPosterior):
    """What a velocity makes of noise, given N observations; normalized."""

    slow_density = True

    def _theta(self, theta: Any) -> Tensor:
        """Parameters with a row for each observation, as the solver needs them."""
        value = super()._theta(theta)
        return value.expand(torch.broadcast_shapes(value.shape, (len(self), self.estimator.dim)))

    def velocity(self, time: Tensor, place: Tensor) -> Tensor:
        """The velocity at a time () or (..., N, 1) and at standardized places (..., N, D)."""
        angle = math.pi * torch.arange(1, NUM_WAVES + 1).to(place) * time
        waves = torch.cat((angle.cos(), angle.sin()), dim=-1)
        waves = waves.expand(*place.shape[:-1], 2 * NUM_WAVES)
        found: Tensor = self.estimator.head(torch.cat((place, waves), dim=-1), self.features)
        return found

    def matching_error(self, theta: Tensor) -> Tensor:
        """The squared error of the velocity toward ``theta`` (N, D) for new noise, as (N,)."""
        end = self.estimator.place(theta, self.features)
        first = torch.arange(NUM_TIMES).reshape(-1, 1, 1)
        time = ((first + torch.rand(NUM_TIMES, len(end), 1)) / NUM_TIMES).to(end)
        start = torch.randn(NUM_TIMES, *end.shape).to(end)
        found = self.velocity(time, torch.lerp(start, end.expand_as(start), time))
        error: Tensor = (found - (end - start)).square().sum(dim=-1).mean(dim=0)
        return error

    def rsample(self, sample_shape: Shape | int = ()) -> Tensor:
        """Draw ``(*sample_shape, N, D)`` with a gradient, in a few steps of fixed size."""
        shape = (*as_shape(sample_shape), len(self), self.estimator.dim)
        place, size = torch.randn(shape).to(self.features), 1 / NUM_STEPS
        for step in range(NUM_STEPS):
            time = place.new_tensor(step * size)
            middle = place + size / 2 * self.velocity(time, place)
            place = place + size * self.velocity(time + size / 2, middle)
        theta: Tensor = self.estimator.original(place, self.features)[0]
        return theta

    @torch.no_grad()
    def _whole(self, shape: tuple[int, ...]) -> Tensor:
        """Draws ``(*shape, N, D)``, in as many steps as the tolerance takes."""
        draws = self._flow(TOLERANCE).rsample(torch.Size(shape))
        theta: Tensor = self.estimator.original(draws, self.features)[0]
        return theta

    def _flow(self, tolerance: float = LOW_TOLERANCE) -> zuko.distributions.NormalizingFlow:
        def velocity(time: Tensor, place: Tensor) -> Tensor:
            found = self.velocity(time, place)
            if not bool(found.isfinite().all()):  # the solver would look for a step for ever
                raise InputError(
                    "the velocity is not finite: theta is not, or the estimator is broken. Train "
                    "it again with a lower learning rate."
                )
            return found

        weights = (*self.estimator.head.parameters(), self.features)
        transform = zuko.transforms.FreeFormJacobianTransform(
            velocity, 1.0, 0.0, weights, atol=tolerance, rtol=tolerance
        )
        zeros = self.features.new_zeros(len(self), self.estimator.dim)
        base = zuko.distributions.DiagNormal(zeros, torch.ones_like(zeros))
        return zuko.distributions.NormalizingFlow(transform, base)

    def _inverse(self, flow: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        draws, log_volume = flow.transform.inv.call_and_ladj(noise)
        return draws, flow.base.log_prob(noise) - log_volume


class FlowMatchingEstimator(NeuralEstimator):
    """A velocity as a network of time, standardized theta and embedded x, with SELU.

    It takes the arguments of :class:`NeuralEstimator`, where ``hidden`` holds the widths of the
    hidden layers.
    """

    kind = "fmpe"
    normalized = True
    default_hidden = (128,) * 4

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.leaks = leaks(self.prior, self.dim)

    @classmethod
    def paper(cls, x_shape: Sequence[int]) -> dict[str, Any]:
        """Nothing: the paper has no such network."""
        return {}

    def make_support(self) -> Support:
        """The prior's support."""
        return Support(self.prior, self.dim)

    def make_head(self, num_features: int) -> nn.Module:
        """Layers on theta, waves of the time, and features; at first nothing moves."""
        head = MLP(self.dim + 2 * NUM_WAVES + num_features, self.dim, self.hidden)
        for parameter in head.layers[-1].parameters():
            nn.init.zeros_(parameter)
        return head

    def forward(self, x: Any) -> FlowMatchingPosterior:
        """The posteriors given ``x`` ``(N, *x_shape)``."""
        return FlowMatchingPosterior(self, self.embed(x))
