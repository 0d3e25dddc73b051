"""Tests of agreement: Kolmogorov-Smirnov, coverage, probability integral transform."""

import math

import numpy
import torch

SIGNIFICANCE = 1e-4
LEVELS = torch.arange(1, 20, dtype=torch.float64) / 20


def simulate_many(simulate_one, theta, num, seed, **options):
    rng = numpy.random.default_rng(seed)
    return numpy.stack([simulate_one(theta, rng, **options) for _ in range(num)])


def distance(a, b):
    """The largest gap between the empirical distribution functions of two samples."""
    a, b = numpy.sort(numpy.asarray(a).ravel()), numpy.sort(numpy.asarray(b).ravel())
    both = numpy.concatenate((a, b))
    cdf_a = numpy.searchsorted(a, both, side="right") / len(a)
    cdf_b = numpy.searchsorted(b, both, side="right") / len(b)
    return numpy.abs(cdf_a - cdf_b).max()


def distance_to_uniform(u):
    """The largest gap between the empirical distribution function and the diagonal."""
    u = numpy.sort(numpy.asarray(u, dtype=float).ravel())
    step = numpy.arange(len(u) + 1) / len(u)
    return max((step[1:] - u).max(), (u - step[:-1]).max())


def critical(num, other=None):
    """Asymptotic critical distance at SIGNIFICANCE; `other` is the size of the second sample."""
    effective = num if other is None else num * other / (num + other)
    return math.sqrt(-math.log(SIGNIFICANCE / 2) / 2 / effective)


def worst_ratio(a, b):
    """The distance over its critical value, for the component (column) where it is largest."""
    a, b = numpy.asarray(a), numpy.asarray(b)
    distances = [distance(a[:, i], b[:, i]) for i in range(a.shape[1])]
    return max(distances) / critical(len(a), len(b))


def auc(alpha):
    """Mean over the levels of coverage - level; alpha is the mass of lower density."""
    covered = (1 - alpha).unsqueeze(0) <= LEVELS.unsqueeze(1)
    return float((covered.double().mean(1) - LEVELS).mean())


def on_grid(log_posterior, grid, log_weight, theta, x, powers=(1.0, 1.5)):
    """The posterior on nodes `grid` (G, N, D): alpha at theta and P(theta' < theta) per dimension.

    The density to a power, renormalised, is the posterior under test: 1 is the exact one, more is
    overconfident. Returns one pair for each power.
    """
    parts = {power: [] for power in powers}
    for rows in torch.arange(len(x)).split(500):
        log_density = log_posterior(grid[:, rows], x[rows])
        lower = log_density < log_posterior(theta[rows], x[rows])
        below = (grid[:, rows] < theta[rows]).double()
        for power in powers:
            mass = (power * log_density + log_weight[:, rows]).softmax(0)
            parts[power].append(((mass * lower).sum(0), (mass.unsqueeze(-1) * below).sum(0)))
    return {power: tuple(map(torch.cat, zip(*part, strict=True))) for power, part in parts.items()}
