r"""Gravitational waves: the masses of two merging black holes from the strain in two detectors.

The parameters are the two masses, in any order: exchanging the black holes with their spins gives
the same signal, so the exact posterior is symmetric. Redrawn for each simulation are both spins,
distance, phase of coalescence, inclination, polarization, position in the sky, and the noise.

The spectrum of :mod:`~prudent.problems._phenom_b` at distance r reaches detector d as

.. math::
    \tilde s_d(f) = \frac{\tilde h(f)}{r}\, e^{2 i \varphi}
        \Bigl(F_+^d \frac{1 + \cos^2 \iota}{2} + i F_\times^d \cos \iota\Bigr)
        e^{-2 \pi i f (t_0 + \tau_d)},
    \qquad \tilde x_d(f) = \sqrt{2 f_s}\; \frac{\tilde s_d(f)}{\sqrt{S(f)}},

where F are the antenna patterns, :math:`\tau` is the delay of L1 after H1 and S the noise density
of the detector; everything below 20 Hz is zero. In these units the squares of the samples of a
signal sum to its squared signal-to-noise ratio, and the noise is white with standard deviation 1.

:math:`t_0` puts the peak of the envelope at 3.5 s. It is found on the sampled envelope, within
0.1 ms. Left alone, the model's own zero of time would move the peak by up to 1.5 s, as a function
of masses and spins, and give the masses away by the time of arrival.

Benchmark: same prior, nuisances, detectors, sampling and window. It differs in the waveform
(IMRPhenomB instead of IMRPhenomPv2), in the noise density (a closed-form fit of the same design,
known to the whitening instead of estimated from each strain), in having neither high-pass filter
nor taper at the start of the signal, and in the scale: noise of standard deviation 1, not 32.
``gravitational_waves_pycbc`` has all of these as in the benchmark.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from prudent.problems import _phenom_b
from prudent.problems.problem import Problem, box

SAMPLE_RATE = 2048
NUM_SAMPLES = 8192
SEGMENT = 2 * NUM_SAMPLES  # 8 s: the longest signal wraps round without entering the window
LOWEST_FREQUENCY = 20.0
MERGER_TIME = 3.5
MASS_RANGE = (10.0, 80.0 + 1e-5)  # solar masses
SPIN_BOUND = 0.9
DISTANCE_RANGE = (10.0, 1000.0)  # megaparsecs
NUM_NUISANCES = 8
# Rows simulated at once. It bounds the memory, about 2 MB a row; the result depends on it by the
# last bits only.
BLOCK = 16

LIGHT_SPEED = 299792458.0
# Earth-fixed, H1 then L1: places in meters, and the response tensors.
PLACES = ((-2161414.926, -3834695.179, 4600350.227), (-74276.045, -5496283.720, 3224257.017))
RESPONSES = (
    (
        (-0.392614, -0.077614, -0.247389),
        (-0.077614, 0.319524, 0.227998),
        (-0.247389, 0.227998, 0.073090),
    ),
    (
        (0.411281, 0.140210, 0.247295),
        (0.140210, -0.109006, -0.181616),
        (0.247295, -0.181616, -0.302275),
    ),
)


class Source(NamedTuple):
    """The nuisances, (N,) each, spins (N, 2); angles in radians, distance in megaparsecs."""

    spins: Tensor
    distance: Tensor
    phase: Tensor
    cos_inclination: Tensor
    polarization: Tensor
    longitude: Tensor
    sin_latitude: Tensor


def source(uniform: Tensor) -> Source:
    """Nuisance parameters from standard uniform numbers (N, 8).

    Orientation and direction are uniform on the sphere, the distance is uniform in volume.

    >>> source(torch.full((1, NUM_NUISANCES), 0.5)).cos_inclination
    tensor([0.])
    """
    near, far = (bound**3 for bound in DISTANCE_RANGE)
    return Source(
        spins=SPIN_BOUND * (2 * uniform[:, :2] - 1),
        distance=(near + (far - near) * uniform[:, 2]).pow(1 / 3),
        phase=2 * math.pi * uniform[:, 3],
        cos_inclination=2 * uniform[:, 4] - 1,
        polarization=2 * math.pi * uniform[:, 5],
        longitude=2 * math.pi * uniform[:, 6],
        sin_latitude=2 * uniform[:, 7] - 1,
    )


def frequencies() -> Tensor:
    """The frequencies of the segment (K,) in Hz: from 20 Hz up to the Nyquist one, without it."""
    grid = torch.arange(SEGMENT // 2, dtype=torch.float64) * (SAMPLE_RATE / SEGMENT)
    return grid[grid >= LOWEST_FREQUENCY]


def noise_density(frequency: Tensor) -> Tensor:
    """One-sided density of the noise in 1/Hz: a fit of the zero-detuning, high-power design."""
    # Ajith 2011, Phys. Rev. D 84, 084037.
    x = frequency / 245.4
    falling = 0.0152 * x.pow(-4) - 6.5080 * x.pow(3 / 4)
    rising = 0.2935 * x.pow(9 / 4) + 2.7951 * x.pow(3 / 2)
    return 1e-48 * (falling + rising + 17.7622)


def antenna(at: Source) -> tuple[Tensor, Tensor, Tensor]:
    r"""The patterns plus and cross of H1 and L1 (N, 2), and the delay of L1 in seconds (N,).

    The patterns are :math:`X^T D X - Y^T D Y` and :math:`2 X^T D Y`, for the axes X, Y of the
    polarization and the detector's response D. Position and polarization are uniform, so the
    rotation of the Earth drops out and they are taken in the Earth's frame.
    """
    sine, cosine = at.longitude.sin(), at.longitude.cos()
    up, flat = at.sin_latitude, (1 - at.sin_latitude.square()).clamp(min=0).sqrt()
    towards = torch.stack((flat * cosine, flat * sine, up), dim=-1)
    east = torch.stack((-sine, cosine, torch.zeros_like(sine)), dim=-1)
    north = torch.stack((-up * cosine, -up * sine, flat), dim=-1)
    turn_sine, turn_cosine = at.polarization.sin()[:, None], at.polarization.cos()[:, None]
    first = turn_cosine * east + turn_sine * north
    second = turn_cosine * north - turn_sine * east

    def project(left: Tensor, right: Tensor) -> Tensor:
        outer = left.unsqueeze(-1) * right.unsqueeze(-2)
        return (outer.unsqueeze(1) * towards.new_tensor(RESPONSES)).sum((-2, -1))

    plus = project(first, first) - project(second, second)
    places = towards.new_tensor(PLACES)
    delay = (towards * (places[0] - places[1])).sum(-1) / LIGHT_SPEED
    return plus, 2 * project(first, second), delay


def peak_time(spectrum: Tensor) -> Tensor:
    """The time in seconds (N,), from -4 to 4, at which the envelope of a signal is largest.

    The vertex of the parabola through the largest sample of the squared envelope and its
    neighbors. The complex spectrum (N, K) holds values at :func:`frequencies`.
    """
    padded = spectrum.new_zeros(len(spectrum), SEGMENT)
    padded[:, SEGMENT // 2 - spectrum.shape[1] : SEGMENT // 2] = spectrum
    envelope = torch.fft.ifft(padded)
    power = envelope.real.square() + envelope.imag.square()
    top = power.argmax(dim=1, keepdim=True)
    left, middle, right = (power.gather(1, (top + k) % SEGMENT)[:, 0] for k in (-1, 0, 1))
    position = top[:, 0] + (left - right) / (2 * (left - 2 * middle + right))
    time: Tensor = (position - SEGMENT * (position > SEGMENT // 2)) / SAMPLE_RATE
    return time


def signal(theta: Tensor, at: Source) -> Tensor:
    """The whitened signals (N, 2, 8192) without noise, of masses (N, 2) and N sources, float64."""
    frequency = frequencies()
    strain = _phenom_b.strain(frequency, theta, at.spins)
    start = MERGER_TIME - peak_time(strain)
    white = strain * (math.sqrt(2 * SAMPLE_RATE) / noise_density(frequency).sqrt())
    plus, cross, delay = antenna(at)
    real = plus * (0.5 + 0.5 * at.cos_inclination.square())[:, None]
    gain = torch.complex(real, cross * at.cos_inclination[:, None])
    gain = gain * torch.polar(1 / at.distance, 2 * at.phase)[:, None]
    spectra = white.new_zeros(len(theta), 2, SEGMENT // 2 + 1)
    for detector, arrival in enumerate((start, start + delay)):
        turn = -2 * math.pi * arrival[:, None] * frequency
        shifted = white * torch.complex(turn.cos(), turn.sin())
        spectra[:, detector, -1 - len(frequency) : -1] = gain[:, detector, None] * shifted
    samples: Tensor = torch.fft.irfft(spectra)[..., :NUM_SAMPLES]
    return samples


def simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
    """Observations (N, 2, 8192): H1 and L1, whitened.

    Row after row takes its nuisances and then its noise from the generator, so that a longer batch
    begins with the shorter one.
    """
    x = torch.empty(len(theta), 2, NUM_SAMPLES)
    uniform = torch.empty(len(theta), NUM_NUISANCES, dtype=torch.float64)
    for row in range(len(theta)):
        uniform[row].uniform_(generator=generator)
        x[row].normal_(generator=generator)
    for begin in range(0, len(theta), BLOCK):
        rows = slice(begin, begin + BLOCK)
        x[rows] += signal(theta[rows], source(uniform[rows]))
    return x


def problem() -> Problem:
    """The gravitational-wave benchmark, with a closed-form waveform."""
    embedding = {"kind": "dilated_cnn"}
    return Problem(
        name="gravitational_waves",
        prior=box([MASS_RANGE[0]] * 2, [MASS_RANGE[1]] * 2),
        simulator=simulate,
        x_shape=(2, NUM_SAMPLES),
        parameter_names=("mass_1", "mass_2"),
        units=("solar masses", "solar masses"),
        networks={
            "nre": {"embedding": embedding, "hidden": [128] * 3},
            "npe": {"embedding": embedding},
        },
    )
