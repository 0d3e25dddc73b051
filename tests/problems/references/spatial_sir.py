"""The spatial SIR lattice step by step, two fresh uniforms per cell and step. Slow on purpose."""

import numpy as np

SIDE = 50
NUM_STEPS = 100


def count_neighbours(infected):
    """Infected cells in the 3 x 3 box around each cell; outside the lattice nobody is infected."""
    padded = np.zeros((SIDE + 2, SIDE + 2))
    padded[1:-1, 1:-1] = infected
    count = np.zeros((SIDE, SIDE))
    for down in range(3):
        for right in range(3):
            count += padded[down : down + SIDE, right : right + SIDE]
    return count


def simulate_one(theta, rng, lag=True):
    """One simulation; ``lag=False`` is a wrong variant in which the recovered leave at once."""
    beta, gamma = theta
    infected = np.zeros((SIDE, SIDE), dtype=bool)
    recovered = np.zeros((SIDE, SIDE), dtype=bool)
    for _ in range(1 + rng.poisson(3)):
        infected[rng.integers(SIDE), rng.integers(SIDE)] = True
    susceptible = ~infected
    for _ in range(NUM_STEPS):
        if not infected.any():
            break
        pressure = susceptible * count_neighbours(infected) * beta / 8
        new = pressure > rng.random((SIDE, SIDE))
        cured = infected * gamma > rng.random((SIDE, SIDE))
        next_recovered = recovered | cured
        infected = (new | infected) & ~(recovered if lag else next_recovered)
        recovered = next_recovered
        susceptible = ~infected & ~recovered
    return np.stack((susceptible, infected, recovered)).astype(float)
