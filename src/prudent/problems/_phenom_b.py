r"""IMRPhenomB in closed form: the strain of two merging black holes with aligned spins.

The model gives inspiral, merger and ringdown as one function of frequency, for units in which the
total mass :math:`M = m_1 + m_2` is a time and :math:`v = (\pi M f)^{1/3}`:

.. math::
    \tilde h(f) = A(f) \, e^{-i \psi(f)}, \qquad
    \psi(f) = \frac{3}{128\, \eta\, v^5} \Bigl(1 + \sum_{k \in \{2, 3, 4, 6, 7\}} \psi_k v^k\Bigr),

with :math:`\eta = m_1 m_2 / M^2` and :math:`\chi = (m_1 \chi_1 + m_2 \chi_2) / M`. The term k = 8
of the model is linear in f, a shift in time, and left out. A joins a post-Newtonian inspiral below
f1, a merger up to f2 and a Lorentzian ringdown of width :math:`\sigma` up to f3; above it is zero.
Every :math:`\psi_k` and :math:`\pi M (f_1, f_2, \sigma, f_3)` is a test-mass limit plus a
polynomial in :math:`(\eta, \eta\chi, \eta\chi^2, \eta^2, \eta^2\chi, \eta^3)`.

Only M, :math:`\eta` and :math:`\chi` enter, so exchanging the two black holes changes nothing.

Model: Ajith et al. 2011, Phys. Rev. Lett. 106, 241101. Its coefficients cancel heavily; the phase
ones below have five digits, one more than printed there.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

SOLAR_MASS = 4.92549e-6  # G / c^3 times the mass, in seconds
MEGAPARSEC = 1.029271e14  # divided by c, in seconds
SPIN_RANGE = (-0.85, 0.98)  # where the model was fitted

# One row per order k; the columns belong to (eta, eta chi, eta chi^2, eta^2, eta^2 chi, eta^3).
PHASE_TABLE = {
    2: (-920.91, 492.13, 135.03, 6741.9, -1053.4, -13397.0),
    3: (17022.0, -9565.9, -2182.1, -121370.0, 20752.0, 238590.0),
    4: (-125440.0, 75066.0, 13382.0, 873540.0, -165730.0, -1693600.0),
    6: (-889770.0, 631020.0, 50676.0, 5980800.0, -1414800.0, -11280000.0),
    7: (869600.0, -670980.0, -30082.0, -5837900.0, 1514500.0, 10891000.0),
}
# One row for each of f1, f2, sigma and f3.
CORNER_TABLE = (
    (0.6437, 0.827, -0.2706, -0.05822, -3.935, -7.092),
    (0.1469, -0.1228, -0.02609, -0.0249, 0.1701, 2.325),
    (-0.4098, -0.03523, 0.1008, 1.829, -0.02017, -2.87),
    (-0.1331, -0.08172, 0.1451, -0.2714, 0.1279, 4.922),
)


def reduced(masses: Tensor, spins: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Total mass in seconds, :math:`\eta`, and :math:`\chi` clipped to the fitted range.

    From solar masses (N, 2) and spins along the orbital axis (N, 2); each (N, 1), float64.

    >>> total, eta, chi = reduced(torch.tensor([[30.0, 10.0]]), torch.tensor([[0.5, -0.5]]))
    >>> round(eta.item(), 4), round(chi.item(), 4)
    (0.1875, 0.25)
    """
    first, second = masses.double().unsqueeze(-1).unbind(1)
    spin_first, spin_second = spins.double().unsqueeze(-1).unbind(1)
    total = first + second
    chi = (first * spin_first + second * spin_second) / total
    return total * SOLAR_MASS, first * second / total.square(), chi.clamp(*SPIN_RANGE)


def _polynomials(rows: Iterable[Sequence[float]], eta: Tensor, chi: Tensor) -> list[Tensor]:
    """One polynomial (N, 1) for each row of coefficients."""
    # Summed term by term: a matrix product may round a row differently in another batch.
    terms = (eta, eta * chi, eta * chi**2, eta**2, eta**2 * chi, eta**3)
    zero = torch.zeros_like(eta)
    return [sum((c * t for c, t in zip(row, terms, strict=True)), zero) for row in rows]


def phase(frequency: Tensor, total: Tensor, eta: Tensor, chi: Tensor) -> Tensor:
    r"""The phase :math:`\psi` (N, K) in radians, at frequencies (K,) in Hz.

    It exceeds a thousand radians and its terms cancel: float32 would leave an error of about 1e-3.
    In float64 the order of summation matters for 1e-11.
    """
    limits = {
        2: torch.full_like(chi, 3715 / 756),
        3: -16 * math.pi + 113 * chi / 3,
        4: 15293365 / 508032 - 405 * chi.square() / 8,
    }
    coefficients = _polynomials(PHASE_TABLE.values(), eta, chi)
    scale = math.pi * total
    psi = scale.pow(-5 / 3) * frequency.pow(-5 / 3)
    for order, coefficient in zip(PHASE_TABLE, coefficients, strict=True):
        power = (order - 5) / 3
        factor = scale.pow(power) * (coefficient + limits.get(order, 0.0))
        psi.addcmul_(factor, frequency.pow(power))
    return psi.mul_(3 / (128 * eta))


def corners(total: Tensor, eta: Tensor, chi: Tensor) -> list[Tensor]:
    r"""The frequencies f1 and f2, the width :math:`\sigma`, and f3, (N, 1) each in Hz."""
    rest = 1 - chi
    ring = 1 - 0.63 * rest.pow(0.3)
    limits = (
        1 - 4.455 * rest.pow(0.217) + 3.521 * rest.pow(0.26),
        ring / 2,
        ring * rest.pow(0.45) / 4,
        0.3236 + 0.04894 * chi + 0.01346 * chi.square(),
    )
    corrections = _polynomials(CORNER_TABLE, eta, chi)
    scale = math.pi * total
    return [(a + b) / scale for a, b in zip(limits, corrections, strict=True)]


def amplitude(frequency: Tensor, total: Tensor, eta: Tensor, chi: Tensor) -> Tensor:
    """The amplitude A (N, K) in 1/Hz at one megaparsec, seen face on."""
    merger_start, ringdown_start, width, cutoff = corners(total, eta, chi)
    scale = (math.pi * total).pow(1 / 3)
    second = -323 / 224 + 451 * eta / 168
    third = (27 / 8 - 11 * eta / 6) * chi
    linear = 1.4547 * chi - 1.8897
    quadratic = -1.8153 * chi + 1.6557

    def inspiral(f: Tensor) -> Tensor:
        v = scale * f.pow(1 / 3)
        return f.pow(-7 / 6) * (1 + v.square() * (second + third * v))

    def merger(f: Tensor) -> Tensor:
        v = scale * f.pow(1 / 3)
        return f.pow(-2 / 3) * (1 + v * (linear + quadratic * v))

    joined = inspiral(merger_start) / merger(merger_start)
    height = joined * merger(ringdown_start)
    square = width.square() / 4
    ringing = height * square / ((frequency - ringdown_start).square() + square)
    shape = torch.where(frequency < ringdown_start, joined * merger(frequency), ringing)
    shape = torch.where(frequency < merger_start, inspiral(frequency), shape)
    size = total.pow(5 / 6) * math.pi ** (-2 / 3) * (5 * eta / 24).sqrt() / MEGAPARSEC
    return shape * torch.where(frequency < cutoff, size, 0.0)


def strain(frequency: Tensor, masses: Tensor, spins: Tensor) -> Tensor:
    """The strain at one megaparsec, face on, with phase and time of coalescence left at zero.

    At positive frequencies in Hz (K,), float64; from solar masses (N, 2) and spins along the
    orbital axis (N, 2); complex (N, K), in 1/Hz.
    """
    parameters = reduced(masses, spins)
    psi = phase(frequency, *parameters)
    size = amplitude(frequency, *parameters)
    return torch.complex(size * psi.cos(), -size * psi.sin())
