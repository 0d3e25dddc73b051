"""SLCP, one observation at a time, straight from the description of the benchmark."""

import math

import numpy


def covariance(theta, u):
    s1, s2 = float(theta[0]) ** 2, float(theta[1]) ** 2
    rho = math.tanh(u)
    return numpy.array([[s1**2, rho * s1 * s2], [rho * s1 * s2, s2**2]])


def simulate_one(theta, rng, latent="uniform"):
    while True:
        u = rng.uniform(-3, 3) if latent == "uniform" else rng.normal()
        try:
            factor = numpy.linalg.cholesky(covariance(theta, u))
            break
        except numpy.linalg.LinAlgError:
            continue
    draws = [numpy.array([0.7, -2.9]) + factor @ rng.standard_normal(2) for _ in range(4)]
    return numpy.concatenate(draws)


def log_likelihood(theta, x, points=20_001):
    """Log-density of x at theta: the mean over u of the product of four normal densities."""
    u = (numpy.arange(points) + 0.5) / points * 6 - 3
    s1, s2 = float(theta[0]) ** 2, float(theta[1]) ** 2
    rho = numpy.tanh(u)
    log_density = numpy.zeros_like(u)
    for a, b in numpy.asarray(x, dtype=float).reshape(4, 2):
        za, zb = (a - 0.7) / s1, (b + 2.9) / s2
        square = (za**2 - 2 * rho * za * zb + zb**2) / (1 - rho**2)
        log_density += -0.5 * square - numpy.log(2 * math.pi * s1 * s2 * numpy.sqrt(1 - rho**2))
    top = log_density.max()
    return top + math.log(numpy.exp(log_density - top).mean())
