"""The PyCBC variant, and the closed-form waveform and detectors against PyCBC and LALSuite."""

import sys

import numpy as np
import pytest
import torch
from references import gravitational_waves as plain

from prudent.errors import InputError
from prudent.problems import _phenom_b, gravitational_waves, gravitational_waves_pycbc

# PyCBC and what it imports warn about their own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore")

STEP = 1 / 16
LENGTH = 1024 * 16 + 1

# Masses, spins, and the match of IMRPhenomB with IMRPhenomPv2 as measured with LALSimulation.
MATCHES = [
    ((10, 10, 0, 0), 0.824),
    ((30, 25, 0, 0), 0.972),
    ((60, 20, 0, 0), 0.988),
    ((80, 80, 0, 0), 0.996),
    ((80, 10, 0, 0), 0.816),
    ((30, 25, 0.6, -0.2), 0.939),
    ((70, 65, -0.7, -0.5), 0.991),
]


@pytest.fixture
def pycbc():
    return pytest.importorskip("pycbc")


def source(seed, **fields):
    generator = torch.Generator().manual_seed(seed)
    drawn = gravitational_waves.source(torch.rand(1, 8, dtype=torch.float64, generator=generator))
    return drawn._replace(**{k: torch.tensor([v], dtype=torch.float64) for k, v in fields.items()})


def ours(binary):
    """The closed-form strain as a PyCBC series."""
    from pycbc.types import FrequencySeries

    frequency = torch.arange(LENGTH, dtype=torch.float64) * STEP
    strain = torch.zeros(LENGTH, dtype=torch.complex128)
    above = frequency >= 20
    first, second = torch.tensor([binary], dtype=torch.float64).split(2, dim=1)
    strain[above] = _phenom_b.strain(frequency[above], first, second)[0]
    return FrequencySeries(strain.numpy(), delta_f=STEP)


def theirs(approximant, binary):
    from pycbc.waveform import get_fd_waveform

    names = ("mass1", "mass2", "spin1z", "spin2z")
    plus, _ = get_fd_waveform(
        approximant=approximant,
        delta_f=STEP,
        f_lower=20,
        distance=1,
        **dict(zip(names, map(float, binary), strict=True)),
    )
    plus.resize(LENGTH)
    return plus


def matched(first, second):
    """The match, largest over time and phase, from 20 Hz to 1 kHz in the design noise."""
    from pycbc.filter import match
    from pycbc.psd import aLIGOZeroDetHighPower

    psd = aLIGOZeroDetHighPower(LENGTH, STEP, 10)
    limits = {"low_frequency_cutoff": 20, "high_frequency_cutoff": 1000}
    return match(first, second, psd=psd, **limits)[0]


def test_without_pycbc_the_prior_works_and_simulating_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycbc", None)
    for name in [name for name in sys.modules if name.startswith("pycbc.")]:
        monkeypatch.delitem(sys.modules, name)
    problem = gravitational_waves_pycbc.problem()
    theta = problem.prior.sample((1,))
    with pytest.raises(InputError, match="needs PyCBC and LALSuite. In the directory") as caught:
        problem.simulate(theta, torch.Generator())
    assert str(caught.value) == (
        "the problem gravitational_waves_pycbc needs PyCBC and LALSuite. In the directory of "
        'prudent\'s pyproject.toml: pip install -c constraints.txt -e ".[gw]"'
    )


@pytest.mark.usefixtures("pycbc")
@pytest.mark.parametrize(("binary", "expected"), MATCHES)
def test_matches_with_the_waveform_of_the_benchmark(binary, expected):
    got = matched(ours(binary), theirs("IMRPhenomPv2", binary))
    assert got == pytest.approx(expected, abs=0.02)


@pytest.mark.usefixtures("pycbc")
@pytest.mark.parametrize("binary", [binary for binary, _ in MATCHES])
def test_the_closed_form_is_that_of_lalsimulation(binary):
    """Same model: match above 0.99, amplitude within 0.5 %."""
    mine, other = ours(binary), theirs("IMRPhenomB", binary)
    assert matched(mine, other) > 0.99
    both = (abs(mine.numpy()) > 0) & (abs(other.numpy()) > 0)
    ratio = abs(mine.numpy()[both]) / abs(other.numpy()[both])
    assert np.abs(ratio - 1).max() < 5e-3


@pytest.mark.usefixtures("pycbc")
def test_detectors_are_those_of_pycbc():
    """Patterns to 1e-5 and delays to 10 ns, in a frame that turns with the Earth."""
    from pycbc.detector import Detector

    first, second = Detector("H1"), Detector("L1")
    turned = first.gmst_estimate(100)
    for seed in range(20):
        at = source(seed)
        # PyCBC's axes are ours in a mirror: the polarization turns the other way from the other
        # end, and the cross pattern changes sign. Inclinations are symmetric, so neither matters.
        mirrored = at._replace(polarization=np.pi - at.polarization)
        plus, cross, delay = gravitational_waves.antenna(mirrored)
        sky = at.longitude.item() + turned, np.arcsin(at.sin_latitude.item())
        for detector, p, c in zip((first, second), plus[0], cross[0], strict=True):
            expected = detector.antenna_pattern(*sky, at.polarization.item(), 100)
            assert (p.item(), -c.item()) == pytest.approx(expected, abs=1e-5)
        expected = second.time_delay_from_detector(first, *sky, 100)
        assert delay.item() == pytest.approx(expected, abs=1e-8)


@pytest.mark.usefixtures("pycbc")
def test_the_noise_density_is_near_the_design():
    from pycbc.psd import aLIGOZeroDetHighPower

    frequency = np.array([30.0, 50.0, 100.0, 300.0, 1000.0])
    design = aLIGOZeroDetHighPower(8193, 1 / 8, 19).numpy()[(frequency * 8).astype(int)]
    ours = gravitational_waves.noise_density(torch.tensor(frequency)).numpy()
    assert np.abs(ours / design - 1).max() < 0.11
    assert np.allclose(ours, plain.spectral_density(frequency))


@pytest.mark.usefixtures("pycbc")
def test_signal_of_the_variant():
    """The merger after 16 s, the travel time between the detectors, nothing much afterwards."""
    at = source(1, cos_inclination=1.0, distance=100.0)
    strain = gravitational_waves_pycbc.signal(torch.tensor([30.0, 25.0]), at)
    assert strain.shape == (2, 32 * 2048)
    peaks = strain.abs().argmax(dim=1) / 2048
    assert peaks.tolist() == pytest.approx([16, 16], abs=0.03)
    spectra = torch.fft.rfft(strain, n=2 * strain.shape[1])
    lag = torch.fft.irfft(spectra[1] * spectra[0].conj())
    lag = int(lag.abs().argmax())
    lag = (lag if lag < 32 * 2048 else lag - 64 * 2048) / 2048
    assert abs(lag) < 10.02e-3 + 2e-3
    assert strain[:, 17 * 2048 :].abs().max() < 1e-2 * strain.abs().max()


@pytest.mark.usefixtures("pycbc")
def test_noise_of_the_variant():
    """Standard deviation near the square root of 1024, flat over the window: 3 %, 5 % by part."""
    at = source(2, distance=1e9)
    theta = torch.tensor([30.0, 30.0])
    x = torch.stack(
        [
            gravitational_waves_pycbc.simulate_one(theta, at, (2 * i + 1, 2 * i + 2))
            for i in range(6)
        ]
    )
    assert x.std().item() == pytest.approx(32, rel=0.03)
    for part in x.chunk(8, dim=-1):
        assert part.std().item() == pytest.approx(32, rel=0.05)


@pytest.mark.usefixtures("pycbc")
def test_the_generator_decides_everything():
    problem = gravitational_waves_pycbc.problem()
    theta = torch.tensor([[20.0, 15.0], [60.0, 70.0]])
    first = problem.simulate(theta, torch.Generator().manual_seed(0))
    np.random.seed(5)
    assert first.shape == (2, 2, 8192)
    assert first.dtype == torch.float32
    assert torch.equal(first, problem.simulate(theta, torch.Generator().manual_seed(0)))
    assert torch.equal(first[:1], problem.simulate(theta[:1], torch.Generator().manual_seed(0)))
    assert not torch.equal(first, problem.simulate(theta, torch.Generator().manual_seed(1)))
