"""Lotka-Volterra event by event, as plainly as it can be written. Slow on purpose."""

import math

import numpy as np

LOW, HIGH = -4.0, 1.0 + 1e-5
NUM_EVENTS = 1001


def simulate_rates(log_rates, rng):
    """The chain for given logs of (predator birth, predator death, prey birth, prey death)."""
    rates = [math.exp(value) for value in log_rates]
    predators, prey = 50, 100
    x = np.zeros((NUM_EVENTS, 2))
    for k in range(NUM_EVENTS):
        propensities = [
            rates[0] * predators * prey,
            rates[1] * predators,
            rates[2] * prey,
            rates[3] * predators * prey,
        ]
        total = sum(propensities)
        if total <= 1e-5:
            break
        point = rng.random() * total
        event = 0
        while point >= propensities[event]:
            point -= propensities[event]
            event += 1
        if event == 0:
            predators += 1
        elif event == 1:
            predators -= 1
        elif event == 2:
            prey += 1
        else:
            prey -= 1
        x[k] = predators, prey
    return x


def simulate_one(theta, rng):
    """One simulation: the prey's log rates are drawn from the prior, then the chain runs."""
    nuisances = rng.uniform(LOW, HIGH, size=2)
    return simulate_rates([*theta, *nuisances], rng)


def exact_law(log_rates, num_events):
    """The probability of every (predators, prey) after so many events, by summing all paths."""
    rates = np.exp(log_rates)
    law = np.zeros((51 + num_events, 101 + num_events))
    law[50, 100] = 1
    predators, prey = np.indices(law.shape)
    propensities = [
        rates[0] * predators * prey,
        rates[1] * predators,
        rates[2] * prey,
        rates[3] * predators * prey,
    ]
    total = sum(propensities)
    total[0, 0] = 1
    for _ in range(num_events):
        flows = [law * propensity / total for propensity in propensities]
        extinct = law[0, 0]
        law = np.zeros_like(law)
        law[0, 0] = extinct
        law[1:, :] += flows[0][:-1, :]
        law[:-1, :] += flows[1][1:, :]
        law[:, 1:] += flows[2][:, :-1]
        law[:, :-1] += flows[3][:, 1:]
    return law
