r"""Spatial SIR: an epidemic on a 50 x 50 lattice, two parameters.

A few seeds are infected, 1 + Poisson(3) of them, each on a uniformly chosen cell. In each of 100
steps a susceptible cell with n infected cells among its eight neighbors is infected with
probability :math:`n \beta / 8`, and an infected cell recovers with probability :math:`\gamma`.
Outside the lattice nobody is infected. An observation is three images of zeros and ones:
susceptible, infected, recovered.

Oddities of the benchmark, kept on purpose:

* A cell that recovers stays infected, and infectious, for one more step, because infection is
  masked with the recovered of the step before. "Infected" and "recovered" overlap.
* Seeds may fall on the same cell.

**The same law with fewer numbers.** Two uniforms for each cell and step are half a million for one
simulation. They are replaced by decisions that can be drawn in advance and by a few random bits:

* The number of steps after which an infected cell recovers is geometric in :math:`\gamma`.
* To be infected with probability :math:`n \beta / 8` is to meet one of the eight neighbors at
  random and, if it is infected, to be infected with probability :math:`\beta`. How many infected
  neighbors it takes is geometric in :math:`\beta`. The meeting itself needs three random bits:
  one number out of eight, which is below n with probability n / 8.

The two geometric numbers come from uniforms of 24 bits; the rest is exact.

The exact posterior is unknown, because the likelihood of the last image sums over all histories
that lead to it.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from prudent._randomness import threads
from prudent.problems.problem import Problem, box

SIDE = 50
NUM_STEPS = 100
MEAN_EXTRA_SEEDS = 3.0
# A margin of one row and one column per lattice makes every neighbor a fixed offset in one flat
# tensor of all lattices: the margin also closes the next row and the next lattice. What lies
# behind the last lattice is seen by its margin only.
WIDTH = SIDE + 1
CELLS = WIDTH * WIDTH
NEVER = 255
THREE_BITS_PER_BYTE = 0x0707070707070707
# Even, because one random byte serves two steps.
STEPS_PER_ROUND = 10
# Bounds memory. The lattices of a block share a stream of bits, so results depend on this number.
BLOCK = 256


def geometric(probability: Tensor, generator: torch.Generator) -> Tensor:
    """Trials up to the first success (n, SIDE, SIDE), from 1 to NUM_STEPS + 1, which is never."""
    # P(trials > k) = (1 - p)^k. The first clamp saves inf / inf where p = 1 and the uniform is 0.
    uniform = torch.rand(len(probability), SIDE, SIDE, generator=generator)
    trials = uniform.log_().clamp_(min=-100).div_(torch.log1p(-probability).view(-1, 1, 1))
    return trials.ceil_().clamp_(1, NUM_STEPS + 1)


class Scratch:
    """Memory for the steps of a block, allocated once: fresh pages cost more than the sums."""

    def __init__(self, num_lattices: int) -> None:
        size = num_lattices * CELLS
        self.infected = torch.zeros(size + 2 * (WIDTH + 1), dtype=torch.bool)
        self.line = torch.empty(size + 2 * WIDTH, dtype=torch.uint8)
        self.count = torch.empty(size, dtype=torch.uint8)
        self.flags = torch.empty(2, size, dtype=torch.bool)
        self.bits = torch.empty(2, size // 8 + 1, dtype=torch.int64)


def run_round(
    wait: Tensor, age: Tensor, limit: Tensor, scratch: Scratch, generator: torch.Generator
) -> Tensor:
    """Advance a few steps, in place. The lattices lie one after the other in flat tensors.

    ``wait`` (int8) counts the infected neighbors that a cell can meet unharmed, and is negative
    once it is infected; ``age`` (uint8) the steps since then, NEVER for a susceptible cell, where
    NEVER + 1 is 0; ``limit`` (uint8) is the age at which it recovers, its last as an infected one.

    Returns which lattices (n,) still have a susceptible cell beside an infected one. Without one,
    nobody will be infected any more.
    """
    size = len(age)
    infected = scratch.infected[WIDTH + 1 : WIDTH + 1 + size]
    cells = scratch.infected.view(torch.uint8)
    left, middle, right = (cells[i : i + size + 2 * WIDTH] for i in range(3))
    line = scratch.line[: size + 2 * WIDTH]
    above, same, below = (line[i * WIDTH : i * WIDTH + size] for i in range(3))
    count = scratch.count[:size]
    met, hit = scratch.flags[:, :size]
    stream, bits = scratch.bits[:, : size // 8 + 1]
    neighbor = bits.view(torch.uint8)[:size]

    def count_infected() -> None:
        torch.le(age, limit, out=infected)
        torch.add(left, middle, out=line).add_(right)
        torch.add(above, same, out=count).add_(below)

    for step in range(STEPS_PER_ROUND):
        count_infected()
        if step % 2 == 0:
            stream.random_(generator=generator)
        else:
            stream.bitwise_right_shift_(3)
        torch.bitwise_and(stream, THREE_BITS_PER_BYTE, out=bits)
        # The number out of eight; a cell that is infected already does not mind being met.
        torch.lt(neighbor, count, out=met)
        wait.sub_(met.view(torch.int8))
        torch.signbit(wait, out=hit)
        age.add_(hit.view(torch.uint8))
    count_infected()
    return count.mul_(hit.logical_not_()).view(size // CELLS, CELLS).amax(1) > 0


def run_block(theta: Tensor, images: Tensor, scratch: Scratch, generator: torch.Generator) -> None:
    """Run an epidemic from the seeds, infected in ``images`` (n, 3, SIDE, SIDE), to its end."""
    meetings, duration = (geometric(theta[:, i], generator) for i in range(2))
    meetings -= 1
    seeds = images[:, 1] > 0
    wait = meetings.masked_fill_(seeds, -1)
    margin = (0, 1, 0, 1)
    # The margin counts as hit, so that it is not susceptible, and as past its limit.
    wait = pad(wait.to(torch.int8), margin, value=-1).flatten(1)
    age = pad((~seeds).to(torch.uint8).mul_(NEVER), margin, value=1).flatten(1)
    limits = limit = pad(duration.to(torch.uint8), margin).flatten(1)
    rows, last_age = torch.arange(len(theta)), torch.empty_like(age)
    for step in range(STEPS_PER_ROUND, NUM_STEPS + 1, STEPS_PER_ROUND):
        active = run_round(wait.view(-1), age.view(-1), limit.view(-1), scratch, generator)
        if step == NUM_STEPS:
            active[:] = False
        # Copying pays when enough lattices leave; the others do no harm by staying.
        if int(active.sum()) < 0.9 * len(rows):
            leave, stay = (~active).nonzero().squeeze(1), active.nonzero().squeeze(1)
            # index_select copies whole lattices, indexing by brackets cell by cell.
            final = age.index_select(0, leave)
            final.add_(wait.index_select(0, leave).signbit(), alpha=NUM_STEPS - step)
            last_age.index_copy_(0, rows[leave], final)
            rows, wait, age, limit = (p.index_select(0, stay) for p in (rows, wait, age, limit))
        if len(rows) == 0:
            break
    last_age, limits = (p.unflatten(1, (WIDTH, WIDTH))[:, :-1, :-1] for p in (last_age, limits))
    hit = last_age != NEVER
    images[:, 0] = ~hit
    images[:, 1] = last_age <= limits
    images[:, 2] = hit & (last_age >= limits)


def simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
    """Observations (N, 3, 50, 50): who is susceptible, infected, recovered after the last step."""
    x = torch.zeros(len(theta), 3, SIDE, SIDE)
    extra = torch.poisson(torch.full((len(theta),), MEAN_EXTRA_SEEDS), generator=generator)
    owner = torch.repeat_interleave(1 + extra.long())
    cell = torch.randint(SIDE * SIDE, owner.shape, generator=generator)
    x.flatten(2)[owner, 1, cell] = 1.0
    scratch = Scratch(min(BLOCK, len(theta)))
    # Another program on one of two cores made the short steps seventy times slower, measured.
    with threads(1):
        for parameters, images in zip(theta.float().split(BLOCK), x.split(BLOCK), strict=True):
            run_block(parameters, images, scratch, generator)
    return x


def problem() -> Problem:
    """The spatial SIR benchmark."""
    return Problem(
        name="spatial_sir",
        prior=box([0.0, 0.0], [1.0, 1.0]),
        simulator=simulate,
        x_shape=(3, SIDE, SIDE),
        parameter_names=("infection", "recovery"),
        networks={"nre": {"embedding": {"kind": "resnet18"}, "hidden": [256] * 3}},
    )
