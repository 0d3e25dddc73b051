r"""A conjugate Gaussian: the problem whose posterior is known in closed form, in any dimension.

:math:`\theta \sim N(0, I)` and :math:`x \mid \theta \sim N(\theta, \sigma^2 I)`, so that
:math:`\theta \mid x \sim N(x / (1 + \sigma^2), \sigma^2 / (1 + \sigma^2) I)`.
"""

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from prudent._settings import whole
from prudent.problems.problem import Problem

NOISE = 0.5


def exact_posterior(x: Tensor, widen: float = 1.0) -> Distribution:
    """The exact posterior given ``x`` (N, D), with its standard deviation times ``widen``."""
    shrink = 1 / (1 + NOISE**2)
    scale = widen * NOISE * shrink**0.5
    return Independent(Normal(shrink * x, torch.full_like(x, scale)), 1)


def problem(dim: int = 2) -> Problem:
    """The conjugate Gaussian in ``dim`` dimensions."""
    whole("dim", dim, 1)

    def simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
        return theta + NOISE * torch.randn(theta.shape, generator=generator)

    return Problem(
        name="gaussian",
        prior=Independent(Normal(torch.zeros(dim), torch.ones(dim)), 1),
        simulator=simulate,
        x_shape=(dim,),
        parameter_names=tuple(f"theta_{i + 1}" for i in range(dim)),
        log_posterior=lambda theta, x: exact_posterior(x).log_prob(theta),
    )
