"""M/G/1, one customer at a time, straight from the description of the benchmark."""

import math

import numpy

CUSTOMERS = 50


def simulate_one(theta, rng, width=False):
    first, second, rate = (float(t) for t in theta)
    span = second if width else second - first
    service = [first + span * rng.random() for _ in range(CUSTOMERS)]
    arrivals, clock = [], 0.0
    for _ in range(CUSTOMERS):
        clock += -math.log(1 - rng.random()) / rate
        arrivals.append(clock)
    gaps, departure = [], 0.0
    for i in range(CUSTOMERS):
        if i == 0:
            gap = service[0] + arrivals[0]
        else:
            gap = service[i] + max(0.0, arrivals[i] - departure)
        departure += gap
        gaps.append(gap)
    return numpy.percentile(gaps, [0, 25, 50, 75, 100])
