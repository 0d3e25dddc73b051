r"""M/G/1: a queue seen through five quantiles of its inter-departure times, three parameters.

Fifty customers arrive at rate :math:`\theta_3`, that is, with exponential gaps, and are served one
after the other for a time uniform between :math:`\theta_1` and :math:`\theta_2`. With arrival
times :math:`v_i`, service times :math:`s_i` and departure times :math:`D_i`, :math:`D_0 = 0`, the
i-th inter-departure time is

.. math:: d_i = s_i + \max(0, v_i - D_{i-1}), \qquad D_i = D_{i-1} + d_i,

and the observation holds the minimum, the quartiles and the maximum of :math:`d_1, \dots, d_{50}`.

Benchmark: three things belong to it and are kept on purpose. :math:`\theta_2` is an end point, not
a width, and may be the smaller one, so exchanging :math:`\theta_1` and :math:`\theta_2` changes
nothing. The rate comes arbitrarily close to 0, so the times have no finite mean under the prior
and a large set holds enormous values. The quantiles interpolate linearly. Where the rate is
exactly 0, as a float32 uniform can be once in 2^24 draws, the benchmark returns NaN; here the rate
is taken as 1e-8, half the smallest positive one.

The likelihood of all fifty times is tractable, that of their quantiles is not, so there is no
exact posterior.
"""

import numpy as np
import torch
from torch import Tensor

from prudent.problems.problem import Problem, box

NUM_CUSTOMERS = 50
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
LONGEST_SERVICE = 10.0
LARGEST_RATE, SMALLEST_RATE = 1 / 3, 1e-8
BLOCK = 8192


def simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
    """Observations (N, 5): quantiles 0, 1/4, 1/2, 3/4 and 1 of the inter-departure times."""
    return torch.cat([_simulate(rows, generator) for rows in theta.split(BLOCK)])


def _simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
    # In float64: with a small rate the clock reaches 1e9, and differences of a few units count.
    uniform = torch.rand(2, NUM_CUSTOMERS, len(theta), generator=generator, dtype=torch.float64)
    one_end, other_end, rate = theta.double().unbind(1)
    service = one_end + (other_end - one_end) * uniform[0]
    arrival = (-torch.log1p(-uniform[1]) / rate.clamp_min(SMALLEST_RATE)).cumsum(0)
    departure = torch.zeros_like(one_end)
    gaps = torch.empty_like(service)
    for i in range(NUM_CUSTOMERS):
        gaps[i] = service[i] + (arrival[i] - departure).clamp_min(0)
        departure += gaps[i]
    return quantiles(gaps.T).float()


def quantiles(values: Tensor) -> Tensor:
    """The five quantiles (N, 5) of ``values`` (N, M), with linear interpolation."""
    # numpy sorts short rows with vector instructions, twenty times as fast as torch.
    ordered = torch.from_numpy(np.sort(values.numpy(), axis=1))
    position = torch.tensor(LEVELS, dtype=values.dtype) * (values.shape[1] - 1)
    below = position.long()
    above = (below + 1).clamp_max(values.shape[1] - 1)
    return torch.lerp(ordered[:, below], ordered[:, above], position - below)


def problem() -> Problem:
    """The M/G/1 benchmark with 50 customers."""
    return Problem(
        name="mg1",
        prior=box([0.0, 0.0, 0.0], [LONGEST_SERVICE, LONGEST_SERVICE, LARGEST_RATE]),
        simulator=simulate,
        x_shape=(len(LEVELS),),
        parameter_names=("service_bound_1", "service_bound_2", "arrival_rate"),
    )
