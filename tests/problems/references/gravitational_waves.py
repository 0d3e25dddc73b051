"""One gravitational-wave simulation at a time, in numpy and float64, written to be read.

A transcription of the formulae in their printed form: no batches, no shared code, no shortcuts.
Slow on purpose; the batched simulator is tested against it.
"""

import numpy as np

SAMPLE_RATE = 2048
SEGMENT = 8 * SAMPLE_RATE
WINDOW = 8192
LOWEST = 20.0
MERGER_TIME = 3.5
SUN = 4.92549e-6
MPC = 1.029271e14
LIGHT = 299792458.0

H1_PLACE = np.array([-2161414.926, -3834695.179, 4600350.227])
L1_PLACE = np.array([-74276.045, -5496283.720, 3224257.017])
H1_RESPONSE = np.array(
    [
        [-0.392614, -0.077614, -0.247389],
        [-0.077614, 0.319524, 0.227998],
        [-0.247389, 0.227998, 0.073090],
    ]
)
L1_RESPONSE = np.array(
    [
        [0.411281, 0.140210, 0.247295],
        [0.140210, -0.109006, -0.181616],
        [0.247295, -0.181616, -0.302275],
    ]
)


def polynomial(eta, chi, a, b, c, d, e, g):
    return a * eta + b * eta * chi + c * eta * chi**2 + d * eta**2 + e * eta**2 * chi + g * eta**3


def waveform(f, m1, m2, chi1, chi2):
    """Strain at the frequencies f > 0 (in Hz), at 1 Mpc, face on, t0 = phi0 = 0."""
    mass = (m1 + m2) * SUN
    eta = m1 * m2 / (m1 + m2) ** 2
    chi = min(max((m1 * chi1 + m2 * chi2) / (m1 + m2), -0.85), 0.98)
    p = polynomial

    psi2 = 3715 / 756 + p(eta, chi, -920.91, 492.13, 135.03, 6741.9, -1053.4, -13397)
    psi3 = (
        -16 * np.pi + 113 * chi / 3 + p(eta, chi, 17022, -9565.9, -2182.1, -121370, 20752, 238590)
    )
    psi4 = (
        15293365 / 508032
        - 405 * chi**2 / 8
        + p(eta, chi, -125440, 75066, 13382, 873540, -165730, -1693600)
    )
    psi6 = p(eta, chi, -889770, 631020, 50676, 5980800, -1414800, -11280000)
    psi7 = p(eta, chi, 869600, -670980, -30082, -5837900, 1514500, 10891000)
    v = (np.pi * mass * f) ** (1 / 3)
    series = 1 + psi2 * v**2 + psi3 * v**3 + psi4 * v**4 + psi6 * v**6 + psi7 * v**7
    psi = 3 / (128 * eta * v**5) * series

    mu1 = 1 - 4.455 * (1 - chi) ** 0.217 + 3.521 * (1 - chi) ** 0.26
    mu2 = (1 - 0.63 * (1 - chi) ** 0.3) / 2
    mu_sigma = (1 - 0.63 * (1 - chi) ** 0.3) * (1 - chi) ** 0.45 / 4
    mu3 = 0.3236 + 0.04894 * chi + 0.01346 * chi**2
    f1 = (mu1 + p(eta, chi, 0.6437, 0.827, -0.2706, -0.05822, -3.935, -7.092)) / (np.pi * mass)
    f2 = (mu2 + p(eta, chi, 0.1469, -0.1228, -0.02609, -0.0249, 0.1701, 2.325)) / (np.pi * mass)
    sigma = (mu_sigma + p(eta, chi, -0.4098, -0.03523, 0.1008, 1.829, -0.02017, -2.87)) / (
        np.pi * mass
    )
    f3 = (mu3 + p(eta, chi, -0.1331, -0.08172, 0.1451, -0.2714, 0.1279, 4.922)) / (np.pi * mass)

    alpha2 = -323 / 224 + 451 * eta / 168
    alpha3 = (27 / 8 - 11 * eta / 6) * chi
    epsilon1 = 1.4547 * chi - 1.8897
    epsilon2 = -1.8153 * chi + 1.6557

    def inspiral(f):
        v = (np.pi * mass * f) ** (1 / 3)
        return (f / f1) ** (-7 / 6) * (1 + alpha2 * v**2 + alpha3 * v**3)

    def merger(f):
        v = (np.pi * mass * f) ** (1 / 3)
        return (f / f1) ** (-2 / 3) * (1 + epsilon1 * v + epsilon2 * v**2)

    def lorentzian(f):
        return sigma / (2 * np.pi) / ((f - f2) ** 2 + sigma**2 / 4)

    w_m = inspiral(f1) / merger(f1)
    w_r = w_m * merger(f2) / lorentzian(f2)
    amplitude = np.zeros_like(f)
    part = f < f1
    amplitude[part] = inspiral(f[part])
    part = (f1 <= f) & (f < f2)
    amplitude[part] = w_m * merger(f[part])
    part = (f2 <= f) & (f < f3)
    amplitude[part] = w_r * lorentzian(f[part])
    amplitude *= mass ** (5 / 6) * np.pi ** (-2 / 3) * np.sqrt(5 * eta / 24) / MPC * f1 ** (-7 / 6)
    return amplitude * np.exp(-1j * psi)


def spectral_density(f):
    """One-sided noise power spectral density in 1/Hz."""
    x = f / 245.4
    return 1e-48 * (
        0.0152 * x**-4.0
        + 0.2935 * x ** (9 / 4)
        + 2.7951 * x ** (3 / 2)
        - 6.5080 * x ** (3 / 4)
        + 17.7622
    )


def peak_time(spectrum, frequencies):
    """When the envelope of a signal with these positive frequencies is largest, in seconds."""
    padded = np.zeros(SEGMENT, dtype=complex)
    padded[np.rint(frequencies * SEGMENT / SAMPLE_RATE).astype(int)] = spectrum
    power = np.abs(np.fft.ifft(padded)) ** 2
    top = int(np.argmax(power))
    left, middle, right = power[top - 1], power[top], power[(top + 1) % SEGMENT]
    position = top + (left - right) / (2 * (left - 2 * middle + right))
    if position > SEGMENT / 2:
        position -= SEGMENT
    return position / SAMPLE_RATE


def antenna(response, sky, polarization):
    """F_plus and F_cross for a source in the direction (longitude, latitude)."""
    longitude, latitude = sky
    east = np.array([-np.sin(longitude), np.cos(longitude), 0.0])
    north = np.array(
        [
            -np.sin(latitude) * np.cos(longitude),
            -np.sin(latitude) * np.sin(longitude),
            np.cos(latitude),
        ]
    )
    x = np.cos(polarization) * east + np.sin(polarization) * north
    y = -np.sin(polarization) * east + np.cos(polarization) * north
    return x @ response @ x - y @ response @ y, x @ response @ y + y @ response @ x


def delay(sky):
    """Arrival at L1 minus arrival at H1, in seconds."""
    longitude, latitude = sky
    towards = np.array(
        [
            np.cos(latitude) * np.cos(longitude),
            np.cos(latitude) * np.sin(longitude),
            np.sin(latitude),
        ]
    )
    return towards @ (H1_PLACE - L1_PLACE) / LIGHT


def draw_source(rng):
    """The eight nuisance parameters."""
    return {
        "chi1": rng.uniform(-0.9, 0.9),
        "chi2": rng.uniform(-0.9, 0.9),
        "distance": rng.uniform(10.0**3, 1000.0**3) ** (1 / 3),
        "phase": rng.uniform(0, 2 * np.pi),
        "cos_inclination": rng.uniform(-1, 1),
        "polarization": rng.uniform(0, 2 * np.pi),
        "sky": (rng.uniform(0, 2 * np.pi), np.arcsin(rng.uniform(-1, 1))),
    }


def spectra(theta, source):
    """Frequencies, and the unwhitened spectra at H1 and L1 with the merger at 3.5 s."""
    frequencies = np.arange(SEGMENT // 2) * SAMPLE_RATE / SEGMENT
    frequencies = frequencies[frequencies >= LOWEST]
    h = waveform(frequencies, *theta, source["chi1"], source["chi2"])
    start = MERGER_TIME - peak_time(h, frequencies)
    h = h / source["distance"] * np.exp(2j * source["phase"])
    plus = h * (1 + source["cos_inclination"] ** 2) / 2
    cross = 1j * h * source["cos_inclination"]
    both = []
    for response, late in ((H1_RESPONSE, 0.0), (L1_RESPONSE, delay(source["sky"]))):
        f_plus, f_cross = antenna(response, source["sky"], source["polarization"])
        shift = np.exp(-2j * np.pi * frequencies * (start + late))
        both.append((f_plus * plus + f_cross * cross) * shift)
    return frequencies, np.array(both)


def signal(theta, source):
    """What the detectors would see without noise, whitened: (2, 8192)."""
    frequencies, both = spectra(theta, source)
    white = both / np.sqrt(spectral_density(frequencies)) * np.sqrt(2 / SAMPLE_RATE) * SAMPLE_RATE
    padded = np.zeros((2, SEGMENT // 2 + 1), dtype=complex)
    padded[:, np.rint(frequencies * SEGMENT / SAMPLE_RATE).astype(int)] = white
    return np.fft.irfft(padded, axis=1)[:, :WINDOW]


def simulate_one(theta, rng):
    """One observation (2, 8192)."""
    return signal(theta, draw_source(rng)) + rng.standard_normal((2, WINDOW))
