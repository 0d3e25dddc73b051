r"""Two moons: a crescent, shifted by the parameters and folded, two parameters.

For :math:`\theta` uniform on [-1, 1]^2, an angle a uniform on :math:`(-\pi/2, \pi/2)` and a radius
r from :math:`N(0.1, 0.01^2)`,

.. math::
    x = q + (1/4, 0) + (-|\theta_1 + \theta_2|, \theta_2 - \theta_1) / \sqrt 2,
    \qquad q = r\, (\cos a, \sin a).

Because of the absolute value the posterior is two crescents that mirror each other in the line
:math:`\theta_1 + \theta_2 = 0`. This is the common two-moons problem and not one of the paper's
six; nothing in it deviates from the usual definition.

In the orthonormal coordinates :math:`s = (\theta_1 + \theta_2) / \sqrt 2` and
:math:`t = (\theta_2 - \theta_1) / \sqrt 2` an observation fixes q up to the sign of s,
:math:`q = (x_1 - 1/4 + |s|, x_2 - t)`, and the density of q is that of radius and angle,

.. math:: p(q) = \frac{N(r; 0.1, 0.01^2)}{\pi r}, \qquad r = |q|, \quad q_1 > 0.

Negative radii, of probability 8e-24, are neglected. The prior box, :math:`|s| + |t| \le \sqrt 2`,
is symmetric in s, so the posterior is :math:`p(q) / (2 M)`, where M is the probability that the
:math:`\theta` of a random q lies in the box. In polar coordinates the box cuts out of each ray
one interval of radii, whose probability is a difference of two normal distribution functions; the
integral over the angle is done numerically.
"""

import math

import torch
from torch import Tensor

from prudent.problems.problem import Problem, box, gauss_legendre

RADIUS, SPREAD = 0.1, 0.01
CENTER = 0.25
ROOT = math.sqrt(2)
# x is stored in float32, so a q on the rim of the half-disc can come out this far outside.
ROUNDING = 1e-6
NUM_ANGLES = 256
BLOCK = 512


def simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
    """Observations (N, 2)."""
    theta = theta.float()
    angle = math.pi * (torch.rand(len(theta), generator=generator) - 0.5)
    radius = RADIUS + SPREAD * torch.randn(len(theta), generator=generator)
    first = radius * angle.cos() + CENTER - theta.sum(1).abs() / ROOT
    second = radius * angle.sin() + (theta[:, 1] - theta[:, 0]) / ROOT
    return torch.stack((first, second), dim=1)


def log_mass(x: Tensor, num_angles: int = NUM_ANGLES) -> Tensor:
    """Log of the probability M, as (N,), that q leads from ``x`` (N, 2) to a theta in the box."""
    # Near a corner of the box the integrand can jump next to multiples of 45 degrees, where the
    # nodes of these intervals are dense.
    ends = math.pi / 4 * torch.arange(-2, 3, dtype=x.dtype)
    angle, weight = (p.view(-1, 1) for p in gauss_legendre(ends[:-1], ends[1:], num_angles))
    edge, height = x[:, 0] - CENTER, x[:, 1]
    # |s| >= 0 bounds the radius from below; each of |s| + t, |s| - t <= sqrt(2) bounds it from
    # above or below, according to which way the ray runs.
    lower = (edge / angle.cos()).clamp_min(0)
    upper = torch.full_like(lower, math.inf)
    for side in (1, -1):
        slope = angle.cos() + side * angle.sin()
        bound = (ROOT + edge + side * height) / slope
        lower = torch.where(slope < 0, torch.maximum(lower, bound), lower)
        upper = torch.where(slope > 0, torch.minimum(upper, bound), upper)
    # Complementary error functions keep their precision in the tail beyond the crescent.
    unit = SPREAD * ROOT
    between = torch.erfc((lower - RADIUS) / unit) - torch.erfc((upper - RADIUS) / unit)
    return (weight * between.clamp_min(0)).sum(0).log() - math.log(2 * math.pi)


def log_posterior(theta: Tensor, x: Tensor) -> Tensor:
    """The exact log-density (..., N) of ``theta`` (..., N, 2) given ``x`` (N, 2)."""
    point, data = theta.double(), x.double()
    mass = torch.cat([log_mass(rows) for rows in data.split(BLOCK)])
    first = data[:, 0] - CENTER + point.sum(-1).abs() / ROOT
    second = data[:, 1] - (point[..., 1] - point[..., 0]) / ROOT
    radius = torch.hypot(first, second).clamp_min(1e-12)
    log_density = (
        -((radius - RADIUS) / SPREAD).square() / 2
        - math.log(SPREAD * math.sqrt(2 * math.pi))
        - (2 * math.pi * radius).log()
        - mass
    )
    inside = (first > -ROUNDING) & (point.abs() <= 1).all(-1)
    return torch.where(inside, log_density, -math.inf).to(theta.dtype)


def problem() -> Problem:
    """The two-moons problem."""
    return Problem(
        name="two_moons",
        prior=box([-1.0, -1.0], [1.0, 1.0]),
        simulator=simulate,
        x_shape=(2,),
        parameter_names=("theta_1", "theta_2"),
        log_posterior=log_posterior,
    )
