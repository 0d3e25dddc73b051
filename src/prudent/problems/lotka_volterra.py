r"""Lotka-Volterra: predators and prey, one event after the other, two parameters.

From 50 predators X and 100 prey Y, one of four events happens at a time, with probability
proportional to its propensity:

====================  =================  ==========
event                 propensity         change
====================  =================  ==========
a predator is born    :math:`r_1 X Y`    X + 1
a predator dies       :math:`r_2 X`      X - 1
a prey is born        :math:`r_3 Y`      Y + 1
a prey is eaten       :math:`r_4 X Y`    Y - 1
====================  =================  ==========

The parameters are :math:`\ln r_1` and :math:`\ln r_2`. The prey's log rates are nuisances: they
are drawn from the same box for every simulation. An observation is the pair (X, Y) after each of
1001 events.

Oddities of the benchmark, kept on purpose:

* No waiting time is simulated. Row k is "after the k-th event", not "at time k", so a common
  factor of all four rates changes nothing.
* Rows after extinction of both species are zero; many observations end in zeros.
* The upper end of the box is 1 + 1e-5.

The benchmark stops when the propensities add up to 1e-5 or less. With the rates of the prior that
means that both species are extinct, and this is how it is done here. Events are chosen with 24-bit
uniforms in float32, so the probability of an event is exact to about 1e-7.

The exact posterior is unknown, because the likelihood of a path must still be integrated over the
prey's rates and divided by its own integral over the box.
"""

import math

import torch
from torch import Tensor

from prudent.problems.problem import Problem, box

LOW = -4.0
HIGH = 1.0 + 1e-5
NUM_EVENTS = 1001
START = (50.0, 100.0)
STOP = 1e-5
# Large enough to hide the cost of a call; small enough for one step's tensors to stay in cache and
# for torch not to share so little work among threads. It bounds memory and changes no result: the
# uniforms of a row are consecutive in the stream.
BLOCK = 8000


def run_block(rates: Tensor, uniforms: Tensor) -> Tensor:
    """Predators and prey after each event (NUM_EVENTS, 2, n), all paths of a block at once.

    From the four rates (4, n) and one number in [0, 1) for each event (NUM_EVENTS, n).
    """
    num_rows = rates.shape[1]
    path = torch.empty(NUM_EVENTS + 1, 2, num_rows)
    path[0] = torch.tensor(START).unsqueeze(-1)
    product, point = torch.empty(2, num_rows)
    # Row i of `reached` is the sum of the first i + 1 propensities; the event is the first one
    # whose sum exceeds a uniform point below the total. A zero total has no such point, which is
    # what freezes an extinct row at (0, 0).
    reached, exceeds = torch.empty(2, 4, num_rows)
    first, second, third, total = reached
    for before, after, uniform in zip(path[:-1], path[1:], uniforms, strict=True):
        predators, prey = before
        torch.mul(predators, prey, out=product)
        torch.mul(rates[0], product, out=first)
        torch.addcmul(first, rates[1], predators, out=second)
        torch.addcmul(second, rates[2], prey, out=third)
        torch.addcmul(third, rates[3], product, out=total)
        torch.mul(uniform, total, out=point)
        torch.lt(point, reached, out=exceeds)
        # `exceeds` is 1111, 0111, 0011 or 0001 for the four events and 0000 after extinction.
        # Predators change by twice the first digit minus the second, prey by twice the third
        # minus the second and the fourth.
        torch.add(before, exceeds[::2], alpha=2, out=after)
        after.sub_(exceeds[1])
        after[1].sub_(exceeds[3])
    return path[1:]


def simulate_chain(log_rates: Tensor, generator: torch.Generator) -> Tensor:
    """Observations (N, 1001, 2) for all four log rates (N, 4)."""
    # Below this, a species could be alive with propensities that count as a stop.
    assert log_rates.numel() == 0 or float(log_rates.min()) > math.log(STOP)
    x = torch.empty(len(log_rates), NUM_EVENTS, 2)
    for rows, target in zip(log_rates.float().split(BLOCK), x.split(BLOCK), strict=True):
        uniforms = torch.rand(len(rows), NUM_EVENTS, generator=generator).T.contiguous()
        path = run_block(rows.exp().T.contiguous(), uniforms)
        target.flatten(1).copy_(path.flatten(0, 1).T)
    return x


def simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
    """Observations (N, 1001, 2): predators and prey after each event."""
    nuisances = LOW + (HIGH - LOW) * torch.rand(len(theta), 2, generator=generator)
    return simulate_chain(torch.cat((theta, nuisances), dim=1), generator)


def problem() -> Problem:
    """The two-parameter Lotka-Volterra benchmark."""
    return Problem(
        name="lotka_volterra",
        prior=box([LOW, LOW], [HIGH, HIGH]),
        simulator=simulate,
        x_shape=(NUM_EVENTS, 2),
        parameter_names=("ln predator birth", "ln predator death"),
        networks={"nre": {"embedding": {"kind": "series_cnn", "scale": 1.0}, "hidden": [128] * 3}},
    )
