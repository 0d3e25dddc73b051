"""Two moons, one observation at a time, straight from its definition."""

import math

import numpy


def simulate_one(theta, rng, radius=0.1):
    first, second = (float(t) for t in theta)
    a = rng.uniform(-math.pi / 2, math.pi / 2)
    r = rng.normal(radius, 0.01)
    p = (r * math.cos(a) + 0.25, r * math.sin(a))
    shift = (-abs(first + second) / math.sqrt(2), (-first + second) / math.sqrt(2))
    return numpy.array([p[0] + shift[0], p[1] + shift[1]])


def likelihood(theta, x):
    """Density of x at theta, from the definition: p is x minus the shift."""
    first, second = theta
    across = x[0] + abs(first + second) / math.sqrt(2) - 0.25
    along = x[1] - (-first + second) / math.sqrt(2)
    r = math.hypot(across, along)
    if across <= 0:
        return 0.0
    normal = math.exp(-0.5 * ((r - 0.1) / 0.01) ** 2) / (0.01 * math.sqrt(2 * math.pi))
    return normal / (math.pi * r)
