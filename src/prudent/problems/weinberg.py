r"""Weinberg: a Fermi-constant factor from the angles of 20 scattered muons, one parameter.

With the asymmetry :math:`a = 2 \tanh(10 (2E - M) / M)\, \theta`, beam energy E = 40 and boson mass
M = 90, the cosine c of an angle has the shape

.. math:: f(c) = \frac{1 + c^2 + a c}{8 / 3}, \qquad m = \max_{[-1, 1]} f = f(-1).

A cosine is proposed uniformly on [-1, 1] and kept with probability :math:`f(c) / m^2`, cut to
[0, 1]; an observation is the first 20 that are kept.

Benchmark: two oddities belong to it and are kept on purpose. f is divided by its maximum twice, so
that for :math:`\theta < 0.4144`, where m < 1, every cosine near -1 is kept and the density is flat
there. And f is negative near c = 1 for :math:`\theta > 1.2431`, where nothing is kept. The
benchmark takes m from 10,000 equispaced points; as a < 0 it is attained at the first of them,
c = -1, and is written down here.

The likelihood is therefore known, and so is the posterior, up to one integral over theta:

.. math::
    p(\theta \mid x) \propto \prod_{i=1}^{20} \frac{g(c_i)}{\int_{-1}^{1} g},
    \qquad g = \min(\max(f / m^2, 0), 1).
"""

import math

import torch
from torch import Tensor

from prudent.problems.problem import Problem, box, gauss_legendre

NUM_EVENTS = 20
LOW, HIGH = 0.25, 2.0
BEAM_ENERGY, BOSON_MASS = 40.0, 90.0
ASYMMETRY = 2 * math.tanh(10 * (2 * BEAM_ENERGY - BOSON_MASS) / BOSON_MASS)
AREA = 8 / 3
# Below the first, acceptance saturates near c = -1; above the second, f is negative near c = 1.
SATURATED_BELOW = (2 - AREA) / ASYMMETRY
NEGATIVE_ABOVE = -2 / ASYMMETRY

NUM_PROPOSALS = 64
BLOCK = 1024
NUM_NODES = 64


def acceptance(cosine: Tensor, theta: Tensor) -> Tensor:
    """The probability that ``cosine`` is kept, where below 0 means never and above 1 always."""
    asymmetry = ASYMMETRY * theta
    peak = (2 - asymmetry) / AREA
    return (1 + cosine * (cosine + asymmetry)) / (AREA * peak.square())


def simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
    """Observations (N, 20): cosines in the order in which they were kept."""
    return torch.cat([_simulate(rows, generator) for rows in theta.float().split(BLOCK)])


def _simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
    x = torch.empty(len(theta), NUM_EVENTS)
    count = torch.zeros(len(theta), dtype=torch.long)
    while len(rows := (count < NUM_EVENTS).nonzero().squeeze(1)):
        proposal, height = torch.rand(2, len(rows), NUM_PROPOSALS, generator=generator)
        cosine = 2 * proposal - 1
        kept = acceptance(cosine, theta[rows]) >= height
        slot = count[rows].unsqueeze(1) + kept.cumsum(1) - 1
        kept &= slot < NUM_EVENTS
        row, column = kept.nonzero(as_tuple=True)
        x[rows[row], slot[row, column]] = cosine[row, column]
        count[rows] += kept.sum(1)
    return x


def acceptance_area(theta: Tensor) -> Tensor:
    """The integral of the acceptance probability over [-1, 1], in closed form."""
    asymmetry = ASYMMETRY * theta
    peak = (2 - asymmetry) / AREA
    # Roots of f = m^2 (below it everything is kept) and of f = 0 (above it nothing is).
    full = -(asymmetry + (asymmetry.square() - 4 + 4 * AREA * peak.square()).sqrt()) / 2
    full = torch.where(theta < SATURATED_BELOW, full, -1.0)
    none = -(asymmetry + (asymmetry.square() - 4).clamp_min(0).sqrt()) / 2
    none = torch.where(theta > NEGATIVE_ABOVE, none, 1.0)

    def primitive(c: Tensor) -> Tensor:
        return c * (1 + c * (asymmetry / 2 + c / 3)) / AREA

    return full + 1 + (primitive(none) - primitive(full)) / peak.square()


def log_likelihood(theta: Tensor, x: Tensor) -> Tensor:
    """Log-density (..., N) of the cosines ``x`` (N, 20) at ``theta`` (..., N)."""
    # One event at a time: the memory is that of theta, not 20 times as much. The product of 20
    # probabilities is far from underflow in float64.
    product = torch.ones_like(theta)
    for cosine in x.unbind(-1):
        product = product * acceptance(cosine, theta).clamp(0, 1)
    return product.log() - NUM_EVENTS * acceptance_area(theta).log()


def log_evidence(x: Tensor, num_nodes: int = NUM_NODES) -> Tensor:
    """Log of the integral over [0.25, 2] of the likelihood of ``x`` (N, 20), as (N,).

    Each interval is one on which the integrand is smooth, but for small kinks in the first. The
    last ends where the largest cosine, if positive, becomes impossible.
    """
    largest = x.amax(-1).clamp_min(1e-6)
    end = (-(1 + largest.square()) / (ASYMMETRY * largest)).clamp(max=HIGH)
    lower = torch.stack([torch.full_like(end, b) for b in (LOW, SATURATED_BELOW, NEGATIVE_ABOVE)])
    node, weight = gauss_legendre(lower, torch.cat((lower[1:], end.unsqueeze(0))), num_nodes)
    terms = weight.clamp_min(0).log() + log_likelihood(node, x)
    return terms.flatten(0, 1).logsumexp(0)


def log_posterior(theta: Tensor, x: Tensor) -> Tensor:
    """The exact log-density (..., N) of ``theta`` (..., N, 1) given ``x`` (N, 20)."""
    value, data = theta.squeeze(-1).double(), x.double()
    evidence = torch.cat([log_evidence(rows) for rows in data.split(BLOCK)])
    inside = (value >= LOW) & (value <= HIGH)
    # Outside the prior the formulas need not be finite; any point inside stands in.
    log_density = log_likelihood(torch.where(inside, value, 1.0), data) - evidence
    return torch.where(inside, log_density, -math.inf).to(theta.dtype)


def problem() -> Problem:
    """The Weinberg benchmark with 20 events."""
    return Problem(
        name="weinberg",
        prior=box([LOW], [HIGH]),
        simulator=simulate,
        x_shape=(NUM_EVENTS,),
        parameter_names=("fermi_constant",),
        networks={"npe": {"transforms": 1}},
        log_posterior=log_posterior,
    )
