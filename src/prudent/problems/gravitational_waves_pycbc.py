r"""Gravitational waves with the waveform, noise and whitening of the benchmark, by PyCBC.

Parameters, nuisances and window are those of :mod:`~prudent.problems.gravitational_waves`; results
of the two problems are not to be mixed. For each simulation, one at a time:

1. IMRPhenomPv2 in the time domain, from 20 Hz on, with aligned spins, zero-padded to 128 s.
2. Its projection on H1 and L1, with L1 delayed against H1.
3. 32 s of Gaussian noise for each detector, colored with aLIGOZeroDetHighPower above 20 Hz, with
   the merger in the middle.
4. Whitening by the spectral density estimated from that very strain in segments of 4 s, with
   filters of at most 4 s, then a finite-response high-pass at 20 Hz. Their edge effects end far
   from the window.
5. The window: 3.5 s before and 0.5 s after the merger, 8192 samples for each detector.

The whitening leaves noise of standard deviation near :math:`\sqrt{f_s / 2} = 32`, as in the
benchmark, where no further scaling follows.

PyCBC and LALSuite are imported by the first simulation; the prior and the shapes need neither. All
randomness comes from the given generator: eight uniform numbers and two seeds for each row.
"""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from prudent._extras import require
from prudent.problems import gravitational_waves as gw
from prudent.problems.gravitational_waves import SAMPLE_RATE, Source
from prudent.problems.problem import Problem

APPROXIMANT = "IMRPhenomPv2"
GPS_TIME = 100
SIGNAL_LENGTH = 128 * SAMPLE_RATE
NOISE_LENGTH = 32 * SAMPLE_RATE
MIDDLE = NOISE_LENGTH // 2
START = MIDDLE - int(gw.MERGER_TIME * SAMPLE_RATE)
WHITENING_SECONDS = 4
FILTER_ORDER = 512


def _pycbc(part: str) -> Any:
    """Import a module of PyCBC, or say how to get it."""
    return require(f"pycbc.{part}", "gw", "the problem gravitational_waves_pycbc")


@cache
def _detectors() -> list[Any]:
    return [_pycbc("detector").Detector(name) for name in ("H1", "L1")]


@cache
def _noise_density() -> Any:
    length, step = NOISE_LENGTH // 2 + 1, SAMPLE_RATE / NOISE_LENGTH
    return _pycbc("psd").aLIGOZeroDetHighPower(length, step, gw.LOWEST_FREQUENCY)


def signal(theta: Tensor, at: Source) -> Tensor:
    """The strain (2, 65536) of masses (2,) and a single source, neither noisy nor whitened.

    It lasts 32 s, with the merger after 16 s in H1.
    """
    plus, cross = _pycbc("waveform").get_td_waveform(
        approximant=APPROXIMANT,
        mass1=float(theta[0]),
        mass2=float(theta[1]),
        spin1z=float(at.spins[0, 0]),
        spin2z=float(at.spins[0, 1]),
        distance=float(at.distance),
        coa_phase=float(at.phase),
        inclination=math.acos(float(at.cos_inclination)),
        f_lower=gw.LOWEST_FREQUENCY,
        delta_t=1 / SAMPLE_RATE,
    )
    sky = (float(at.longitude), math.asin(float(at.sin_latitude)))
    detectors = _detectors()
    strains = []
    for detector in detectors:
        pattern = detector.antenna_pattern(*sky, float(at.polarization), GPS_TIME)
        delay = detector.time_delay_from_detector(detectors[0], *sky, GPS_TIME)
        strain = torch.from_numpy((pattern[0] * plus + pattern[1] * cross).numpy())
        # PyCBC puts the merger at time zero, so the first sample has a negative time.
        shift = MIDDLE / SAMPLE_RATE + delay + float(plus.start_time)
        strains.append(_delayed(strain, shift)[:NOISE_LENGTH])
    return torch.stack(strains)


def _delayed(strain: Tensor, seconds: float) -> Tensor:
    """The zero-padded strain, later by a time that need not be a number of samples."""
    spectrum = torch.fft.rfft(strain, n=SIGNAL_LENGTH)
    frequency = torch.arange(len(spectrum), dtype=torch.float64) * (SAMPLE_RATE / SIGNAL_LENGTH)
    turn = -2 * math.pi * frequency * seconds
    late: Tensor = torch.fft.irfft(spectrum * torch.complex(turn.cos(), turn.sin()))
    return late


def simulate_one(theta: Tensor, at: Source, seeds: tuple[int, int]) -> Tensor:
    """One observation (2, 8192): signal plus noise of these seeds, whitened and filtered."""
    make_noise, series = _pycbc("noise").noise_from_psd, _pycbc("types").TimeSeries
    observed = []
    for strain, seed in zip(signal(theta, at), seeds, strict=True):
        noise = make_noise(NOISE_LENGTH, 1 / SAMPLE_RATE, _noise_density(), seed=seed)
        total = noise + series(strain.numpy(), delta_t=1 / SAMPLE_RATE)
        white = total.whiten(WHITENING_SECONDS, WHITENING_SECONDS, remove_corrupted=False)
        passed = white.highpass_fir(gw.LOWEST_FREQUENCY, FILTER_ORDER, remove_corrupted=False)
        observed.append(torch.from_numpy(passed.numpy()[START : START + gw.NUM_SAMPLES]))
    return torch.stack(observed)


def simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
    """Observations (N, 2, 8192): H1 and L1, whitened; some tenths of a second for each row."""
    x = torch.empty(len(theta), 2, gw.NUM_SAMPLES)
    for row in range(len(theta)):
        uniform = torch.rand(1, gw.NUM_NUISANCES, dtype=torch.float64, generator=generator)
        first, second = torch.randint(1, 2**31, (2,), generator=generator).tolist()
        x[row] = simulate_one(theta[row], gw.source(uniform), (first, second))
    return x


def problem() -> Problem:
    """The gravitational-wave benchmark as published; simulating needs PyCBC and LALSuite."""
    return replace(gw.problem(), name="gravitational_waves_pycbc", simulator=simulate)
