r"""SLCP: a simple likelihood with a complex posterior, two parameters.

Four draws of a bivariate normal with means (0.7, -2.9), standard deviations :math:`\theta_1^2` and
:math:`\theta_2^2`, and correlation :math:`\tanh u`, where u is uniform on [-3, 3] and redrawn for
each simulation. Only the squares of the parameters enter, so the exact posterior has four
mirror-image modes.

Benchmark: two parameters, the others fixed or integrated out, as in the paper; not the
five-parameter SLCP of other collections. There a covariance that is singular in float32 makes the
simulator draw another u. Here the draws are built from independent normals, which needs no
factorization and cannot fail, so nothing is redrawn.

Exact posterior: an observation enters through the root sums of squares :math:`A, B` of its two
kinds of deviations and their sample correlation k. With :math:`\alpha = A / \theta_1^2` and
:math:`\beta = B / \theta_2^2` the likelihood is proportional to

.. math::
    (\theta_1 \theta_2)^{-8} \int_{-3}^{3} \cosh^4 u\; e^{-(\alpha^2 + \beta^2)\, c / 2}\, du,
    \qquad c = \cosh^2 u - \frac{2 k \alpha \beta}{\alpha^2 + \beta^2} \sinh u \cosh u.

Its integral over the box is taken in polar coordinates :math:`\alpha = R \cos\phi`,
:math:`\beta = R \sin\phi`, which scale with the posterior however narrow it is. The box is
:math:`R \ge R_0 = \max(A / \cos\phi, B / \sin\phi) / 9`, the integral over R is an incomplete
gamma function, and a smooth integral over :math:`(\phi, u)` is left for quadrature:

.. math::
    (A B)^{-7/2} \int_0^{\pi/2} \!\! \int_{-3}^{3} (\cos\phi \sin\phi)^{5/2} \cosh^4 u\;
    \tfrac12 (2 / c)^{7/2}\, \Gamma(\tfrac72, R_0^2 c / 2)\, du\, d\phi.

Observations are stored in float32, and its rounding swamps the noise of a parameter below about
5e-4, once in 4,000 draws. The likelihood counts rounding as a normal error, :math:`\theta^4` plus
its variance in place of :math:`\theta^4`, without which those posteriors would be improper or
absurdly narrow; where that matters, the evidence is a plain quadrature over the parameters.
"""

import math

import torch
from torch import Tensor

from prudent.problems.problem import Problem, box, gauss_legendre

NUM_DRAWS = 4
MEAN = (0.7, -2.9)
BOUND = 3.0
# Standard deviation of the rounding error of one number near each mean: a unit in the last place
# over sqrt(12). Observations that spread less than NEGLIGIBLE times that need care.
ROUNDING = (2.0**-24 / math.sqrt(12), 2.0**-22 / math.sqrt(12))
NEGLIGIBLE = 100.0
# Outside the window over u below, a point has less than exp(-WINDOW) of the largest height, but
# for cosh^4, which can undo exp(-23) of it.
WINDOW = 60.0
NUM_NODES = 40
NUM_ANGLES = 32
NUM_PER_AXIS = 128
# Temporaries that fit the processor cache are several times as fast as large ones.
BLOCK, ROWS = 2**12, 256


def simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
    """Observations (N, 8): the four draws one after the other."""
    latent = BOUND * (2 * torch.rand(len(theta), 1, generator=generator) - 1)
    correlation = torch.tanh(latent)
    noise = torch.randn(2, len(theta), NUM_DRAWS, generator=generator)
    scale = theta.float().square().unsqueeze(-1)
    first = MEAN[0] + scale[:, 0] * noise[0]
    mixed = correlation * noise[0] + (1 - correlation.square()).sqrt() * noise[1]
    second = MEAN[1] + scale[:, 1] * mixed
    return torch.stack((first, second), dim=-1).flatten(1)


def summarize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Root sums of squares (N, 2) of the deviations in ``x`` (N, 8), and correlation (N,)."""
    # The simulator adds the means in float32, so they are 0.7 and -2.9 to that precision.
    deviation = x.double().unflatten(1, (NUM_DRAWS, 2)) - torch.tensor(MEAN).double()
    # Rounding can leave no deviation at all; the floor avoids 0 / 0 and has no other effect.
    root = deviation.square().sum(1).sqrt().clamp_min(1e-12)
    return root, deviation.prod(-1).sum(1) / root.prod(-1)


def log_latent_integral(alpha: Tensor, beta: Tensor, k: Tensor, num_nodes: int) -> Tensor:
    """Log of the integral over u, on the window of [-3, 3] that holds its mass.

    The exponent is -K cosh(2 (u - u0)) plus a constant, of any width 1 / sqrt(K): the window
    follows it.
    """
    product, scale = 2 * alpha * beta, alpha.square() + beta.square()
    difference = (alpha - beta).square()
    # scale - 2 k alpha beta and scale + 2 k alpha beta, without cancellation
    minus = difference + product * (1 - k)
    plus = difference + product * (1 + k)
    tiny = 1e-12 * scale
    minus, plus = torch.maximum(minus, tiny), torch.maximum(plus, tiny)
    center = (plus / minus).log() / 4
    curvature = minus.sqrt() * plus.sqrt() / 4
    nearest = torch.cosh(2 * (center - center.clamp(-BOUND, BOUND)))
    # The floor keeps the window open in float64, far out where only finiteness matters.
    reach = torch.acosh(nearest + torch.maximum(WINDOW / curvature, 1e-12 * nearest)) / 2
    lower, upper = (center + sign * reach for sign in (-1, 1))
    u, weight = gauss_legendre(lower.clamp_min(-BOUND), upper.clamp_max(BOUND), num_nodes)
    growth = (2 * u).exp()
    exponent = -(minus * growth + plus / growth) / 8
    top = exponent.amax(0)
    height = (growth + 1 / growth + 2).square() / 16
    return (weight * height * (exponent - top).exp()).sum(0).log() + top - scale / 4


def log_likelihood(theta: Tensor, x: Tensor, num_nodes: int = NUM_NODES) -> Tensor:
    """Log-density (..., N) of ``x`` (N, 8) at ``theta`` (..., N, 2), up to a constant."""
    root, k = summarize(x)
    scale = torch.hypot(theta.double().square(), torch.tensor(ROUNDING, dtype=torch.float64))
    ratio = root / scale
    alpha, beta, k = torch.broadcast_tensors(ratio[..., 0], ratio[..., 1], k)
    parts = zip(*(part.flatten().split(BLOCK) for part in (alpha, beta, k)), strict=True)
    integral = torch.cat([log_latent_integral(a, b, c, num_nodes) for a, b, c in parts])
    return integral.view(alpha.shape) - NUM_DRAWS * scale.log().sum(-1)


def log_evidence(x: Tensor, num_angles: int = NUM_ANGLES, num_nodes: int = NUM_NODES) -> Tensor:
    """Log of the integral of the likelihood over [-3, 3]^2, as (N,), by the module's formula."""
    root, k = summarize(x)
    first, second = root.unbind(-1)
    # The lower limit of R has a kink at this angle, and near-perfect correlation a ridge at 45
    # degrees: both are put at the ends of intervals.
    kink, diagonal = torch.atan2(second, first), torch.full_like(first, math.pi / 4)
    inner = torch.stack((kink, diagonal)).sort(0).values
    ends = torch.cat((torch.zeros_like(inner[:1]), inner, torch.full_like(inner[:1], math.pi / 2)))
    angle, weight = (p.flatten(0, 1) for p in gauss_legendre(ends[:-1], ends[1:], num_angles))
    cosine, sine = angle.cos(), angle.sin()
    half_limit = (torch.maximum(first / cosine, second / sine) / BOUND**2).square() / 2
    weight = weight * (cosine * sine) ** 2.5
    mix = 2 * k * cosine * sine
    total = torch.zeros_like(first)
    bound = torch.tensor(BOUND)
    for u, du in zip(*gauss_legendre(-bound, bound, num_nodes), strict=True):
        rate = u.cosh().square() - mix * u.sinh() * u.cosh()
        radial = upper_gamma(half_limit * rate) / (rate.square() * rate * rate.sqrt())
        total += du * u.cosh() ** 4 * (weight * radial).sum(0)
    return total.log() + 2.5 * math.log(2) - 3.5 * root.log().sum(-1)


def upper_gamma(z: Tensor) -> Tensor:
    """The incomplete gamma function of 7/2 from ``z`` to infinity."""
    root = z.sqrt()
    tail = (-z).exp() * root * (z * (z + 2.5) + 3.75)
    return tail + 15 / 8 * math.sqrt(math.pi) * torch.erfc(root)


def log_evidence_rounded(x: Tensor, num_per_axis: int = NUM_PER_AXIS) -> Tensor:
    """The log evidence where rounding matters: a quadrature over theta, dense towards 0."""
    root, rounding = summarize(x)[0], torch.tensor(ROUNDING, dtype=torch.float64)
    # The likelihood is nil above alpha = 9 and falls like theta^-8 beyond theta^2 = root.
    bottom = ((root / 9).square() - rounding.square()).clamp_min(0) ** 0.25
    top = (10 * torch.hypot(root, 2 * rounding).sqrt()).clamp(max=BOUND)
    node, weight = gauss_legendre(bottom**0.25, top**0.25, num_per_axis)
    theta, weight = node**4, 4 * node**3 * weight
    first, second = torch.broadcast_tensors(theta[:, None, :, 0], theta[None, :, :, 1])
    log_weight = (weight[:, None, :, 0] * weight[None, :, :, 1]).log()
    terms = log_likelihood(torch.stack((first, second), dim=-1), x) + log_weight
    return math.log(4) + terms.flatten(0, 1).logsumexp(0)


def log_posterior(theta: Tensor, x: Tensor) -> Tensor:
    """The exact log-density (..., N) of ``theta`` (..., N, 2) given ``x`` (N, 8)."""
    evidence = torch.cat([log_evidence(rows) for rows in x.split(ROWS)])
    spread = summarize(x)[0] / torch.tensor(ROUNDING)
    for row in (spread < NEGLIGIBLE).any(-1).nonzero():
        evidence[row] = log_evidence_rounded(x[row])
    inside = (theta.abs() <= BOUND).all(-1)
    log_density = log_likelihood(theta, x) - evidence
    return torch.where(inside, log_density, -math.inf).to(theta.dtype)


def problem() -> Problem:
    """The two-parameter SLCP benchmark."""
    return Problem(
        name="slcp",
        prior=box([-BOUND, -BOUND], [BOUND, BOUND]),
        simulator=simulate,
        x_shape=(2 * NUM_DRAWS,),
        parameter_names=("theta_1", "theta_2"),
        log_posterior=log_posterior,
    )
