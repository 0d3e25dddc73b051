"""Weinberg, one proposal at a time, straight from the description of the benchmark."""

import functools
import math

import numpy

ENERGY, MASS, EVENTS = 40.0, 90.0, 20


def shape(c, theta):
    sqrt_s = 2 * ENERGY
    a = 2 * math.tanh(10 * (sqrt_s - MASS) / MASS) * theta
    return (1 + c**2 + a * c) / (8 / 3)


@functools.cache
def largest(theta):
    return float(shape(numpy.linspace(-1, 1, 10_000), theta).max())


def simulate_one(theta, rng, divisions=2):
    theta = float(theta[0])
    m = largest(theta)
    events = []
    while len(events) < EVENTS:
        c = rng.uniform(-1, 1)
        v = rng.random()
        if shape(c, theta) / m**divisions >= v:
            events.append(c)
    return numpy.array(events)


def log_posterior_on(grid, x, divisions=2):
    """Log-density on an equispaced grid of theta, by the trapezoid rule in c and in theta."""
    c = numpy.linspace(-1, 1, 10_001)
    log_density = []
    for theta in grid:
        scale = largest(float(theta)) ** divisions
        area = numpy.trapezoid(numpy.clip(shape(c, theta) / scale, 0, 1), c)
        with numpy.errstate(divide="ignore"):
            heights = numpy.log(numpy.clip(shape(x, theta) / scale, 0, 1))
        log_density.append(heights.sum() - len(x) * math.log(area))
    log_density = numpy.array(log_density)
    top = log_density.max()
    return log_density - top - math.log(numpy.trapezoid(numpy.exp(log_density - top), grid))
