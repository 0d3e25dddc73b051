import math

import numpy
import pytest
import torch
from references import agreement
from references import spatial_sir as plain

from prudent._randomness import generator, threads
from prudent.problems import spatial_sir

PROBLEM = spatial_sir.problem()
SIDE = spatial_sir.SIDE
# Mean fractions S, I, R, I & R: as the facts page quotes them, and from 2,500 runs of the plain
# loop, which agree among themselves but are much more precise.
MEANS = {
    (0.8, 0.2): ((0.032, 0.011, 0.959, 0.002), (0.0440, 0.0119, 0.9462, 0.00208)),
    (0.5, 0.1): ((0.196, 0.071, 0.740, 0.007), (0.1946, 0.0699, 0.7421, 0.00651)),
    (0.9, 0.02): ((0.001, 0.288, 0.717, 0.006), (0.0033, 0.2840, 0.7184, 0.00566)),
}
NUM_PLAIN = 2_500


def simulate_at(theta, num, seed=0):
    return spatial_sir.simulate(torch.tensor(theta).repeat(num, 1), generator(seed, theta))


def fractions(x):
    """Means over the lattice of S, I, R, and I & R."""
    x = numpy.asarray(x, dtype=float)
    return numpy.concatenate((x, x[:, 1:2] * x[:, 2:3]), axis=1).sum((2, 3)) / SIDE**2


def summaries(x):
    """The fractions, and the rows and the columns that the epidemic has reached."""
    reached = numpy.asarray(x)[:, 0] == 0
    rows, columns = (reached.any(axis).sum(1, keepdims=True) for axis in (2, 1))
    return numpy.concatenate((fractions(x), rows, columns), axis=1)


def run_steps(monkeypatch, num_steps, theta, seeds, num_rounds=1):
    """The images after a few steps only, from given seeds (n, SIDE, SIDE)."""
    monkeypatch.setattr(spatial_sir, "NUM_STEPS", num_steps)
    monkeypatch.setattr(spatial_sir, "STEPS_PER_ROUND", num_steps // num_rounds)
    images = torch.zeros(len(seeds), 3, SIDE, SIDE)
    images[:, 1] = seeds
    rows = torch.tensor(theta).repeat(len(seeds), 1)
    scratch = spatial_sir.Scratch(len(seeds))
    spatial_sir.run_block(rows, images, scratch, generator(0, num_steps))
    return images


def test_problem():
    theta, x = PROBLEM.draw(3, seed=0)
    assert theta.shape == (3, 2)
    assert x.shape == (3, 3, 50, 50)
    assert x.dtype == torch.float32
    assert PROBLEM.prior.log_prob(torch.tensor([0.5, 0.5])) == 0
    assert PROBLEM.log_posterior is None
    assert spatial_sir.simulate(theta[:0], generator(0)).shape == (0, 3, 50, 50)
    assert PROBLEM.simulate(theta.double(), generator(0)).dtype == torch.float32


def test_images():
    x = PROBLEM.draw(1_000, seed=1)[1]
    assert x.unique().tolist() == [0.0, 1.0]
    susceptible, infected, recovered = x.bool().unbind(1)
    assert torch.equal(susceptible, ~infected & ~recovered)
    assert bool((infected & recovered).any())
    assert bool((~susceptible).any(dim=(1, 2)).all())


@pytest.mark.parametrize("probability", [0.0, 1e-3, 0.3, 1.0])
def test_geometric(probability):
    trials = spatial_sir.geometric(torch.full((40,), probability), generator(0)).flatten()
    assert set(trials.unique().tolist()) <= set(range(1, 102))
    for k in (1, 2, 10, 100):
        exact = (1 - probability) ** k
        # 5 standard errors of 100,000 draws; none where the outcome is certain.
        tolerance = 5 * math.sqrt(exact * (1 - exact) / len(trials))
        assert abs(float((trials > k).float().mean()) - exact) <= tolerance


def test_seeds():
    # Nobody infects, nobody recovers: the last image shows the seeds.
    x = simulate_at((0.0, 0.0), 2_000)
    seeds = x[:, 1].double()
    assert bool((x[:, 2] == 0).all())
    number = seeds.sum((1, 2))
    # A cell stays empty with probability E[q^K], q = 1 - 1/2500, K = 1 + Poisson(3).
    q = 1 - 1 / SIDE**2
    exact = SIDE**2 * (1 - q * math.exp(-3 * (1 - q)))
    # 5 standard errors, here and below.
    assert abs(float(number.mean()) - exact) < 5 * float(number.std()) / math.sqrt(len(x))
    # The variance of a Poisson(3) is 3, its own standard error sqrt((3 + 2 * 9) / n).
    assert abs(float(number.var()) - 3) < 5 * math.sqrt(21 / len(x))
    # Rows and columns are uniform: 49 degrees of freedom, standard deviation sqrt(2 * 49).
    for axis in (1, 2):
        found = seeds.sum((0, axis))
        chi_square = float(((found - found.mean()).square() / found.mean()).sum())
        assert abs(chi_square - 49) < 5 * math.sqrt(98)


@pytest.mark.slow
def test_recovery_and_its_lag():
    # Nobody infects. Recovery after D steps, geometric: infected as long as D >= 100, recovered
    # from D <= 100 on, both at D = 100. Without the lag the two would exclude each other.
    gamma = 0.02
    x = simulate_at((0.0, gamma), 4_000)
    number = float((x[:, 0] == 0).sum())
    for found, exact in (
        (x[:, 1], (1 - gamma) ** 99),
        (x[:, 2], 1 - (1 - gamma) ** 100),
        (x[:, 1] * x[:, 2], gamma * (1 - gamma) ** 99),
    ):
        # 5 standard errors of about 16,000 seeds.
        tolerance = 5 * math.sqrt(exact * (1 - exact) / number)
        assert abs(float(found.sum()) / number - exact) < tolerance
    # Negative control: the tolerance tells 0.0027, the overlap, from 0.
    overlap = gamma * (1 - gamma) ** 99
    assert overlap > 5 * math.sqrt(overlap * (1 - overlap) / number)


@pytest.mark.parametrize("num_neighbours", range(1, 9))
def test_one_step(monkeypatch, num_neighbours):
    beta = 0.7
    around = [(r, c) for r in (24, 25, 26) for c in (24, 25, 26) if (r, c) != (25, 25)]
    seeds = torch.zeros(4_000, SIDE, SIDE)
    for row, column in around[:num_neighbours]:
        seeds[:, row, column] = 1
    center = run_steps(monkeypatch, 1, (beta, 0.5), seeds)[:, 1, 25, 25]
    exact = num_neighbours * beta / 8
    # 5 standard errors; the next number of neighbours is at least 8 away.
    assert abs(float(center.mean()) - exact) < 5 * math.sqrt(exact * (1 - exact) / len(seeds))


@pytest.mark.parametrize("num_steps", [1, 10])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 49), (49, 0), (49, 49), (20, 49)])
def test_nothing_crosses_the_boundary(monkeypatch, num_steps, row, column):
    seeds = torch.zeros(200, SIDE, SIDE)
    seeds[::2, row, column] = 1
    images = run_steps(monkeypatch, num_steps, (1.0, 0.1), seeds)
    position = torch.arange(SIDE)
    near = (position - row).abs().view(-1, 1).maximum((position - column).abs()) <= num_steps
    reached = images[:, 0] == 0
    assert not bool(reached[:, ~near].any())
    # The lattices between, without a seed, stay empty; those with one do spread.
    assert not bool(reached[1::2].any())
    assert bool((reached[::2].sum((1, 2)) > 1).any())


def test_lattices_that_leave_leave_nothing_behind(monkeypatch):
    # A lattice that is infected all over leaves after the first round, from behind one that goes
    # on. What is left of it in memory must not infect the other from below.
    seeds = torch.ones(2, SIDE, SIDE)
    seeds[0] = 0
    seeds[0, 0, 0] = 1
    images = run_steps(monkeypatch, 20, (1.0, 0.0), seeds, num_rounds=2)
    assert bool((images[1, 1] == 1).all())
    reached = images[0, 0] == 0
    assert bool(reached[:3, :3].all())
    assert not bool(reached[21:].any())
    assert not bool(reached[:, 21:].any())


@pytest.mark.parametrize("theta", MEANS)
def test_means(theta):
    found = fractions(simulate_at(theta, 2_000))
    page, reference = MEANS[theta]
    spread = found.std(0)
    gap = numpy.abs(found.mean(0) - reference)
    # 5 standard errors of both samples, and the rounding of the constants.
    assert (gap < 5 * spread * math.sqrt(1 / len(found) + 1 / NUM_PLAIN) + 5e-5).all()
    # The page does not say how many runs it took: 4 standard errors of 100, and its rounding.
    assert (numpy.abs(found.mean(0) - page) < 4 * spread / 10 + 5e-4).all()


@pytest.mark.slow
@pytest.mark.parametrize("theta", [(0.8, 0.2), (0.5, 0.1), (0.15, 0.03)])
def test_agrees_with_the_plain_loop(theta):
    x = summaries(simulate_at(theta, 2_000, seed=5))
    reference = summaries(agreement.simulate_many(plain.simulate_one, theta, 300, seed=5))
    assert agreement.worst_ratio(x, reference) < 1
    # Negative controls: infection 20 % too likely or too unlikely; recovery likewise.
    for beta, gamma in ((1.2, 1), (0.8, 1), (1, 1.2), (1, 0.8)):
        wrong = summaries(simulate_at((beta * theta[0], gamma * theta[1]), 1_000))
        assert agreement.worst_ratio(wrong, reference) > 1, (beta, gamma)


@pytest.mark.slow
def test_lag_is_noticed():
    theta = (0.6, 0.3)
    x = summaries(simulate_at(theta, 2_000, seed=6))[:, :3]
    for lag in (True, False):
        reference = agreement.simulate_many(plain.simulate_one, theta, 300, seed=6, lag=lag)
        # S, I and R alone, without the overlap, which would give the variant away.
        agrees = agreement.worst_ratio(x, summaries(reference)[:, :3]) < 1
        assert bool(agrees) is lag


def test_threads_are_given_back():
    before = torch.get_num_threads()
    for number in (2, 1):
        torch.set_num_threads(number)
        simulate_at((0.5, 0.5), 2)
        assert torch.get_num_threads() == number
        with threads(1):
            assert torch.get_num_threads() == 1
        with pytest.raises(ZeroDivisionError), threads(1):
            raise ZeroDivisionError
        assert torch.get_num_threads() == number
    torch.set_num_threads(before)


def test_several_blocks(monkeypatch):
    # The bits depend on the size of the block, the law does not.
    theta = (0.5, 0.1)
    whole = summaries(simulate_at(theta, 512))
    monkeypatch.setattr(spatial_sir, "BLOCK", 50)
    assert agreement.worst_ratio(summaries(simulate_at(theta, 512, seed=1)), whole) < 1
    assert agreement.worst_ratio(summaries(simulate_at((0.4, 0.1), 512, seed=1)), whole) > 1
