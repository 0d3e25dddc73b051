import math

import pytest
import torch
from references import agreement
from references import two_moons as plain

from prudent._randomness import generator
from prudent.problems import two_moons

PROBLEM = two_moons.problem()
ROOT = math.sqrt(2)


def simulate_at(theta, num, seed=0):
    return PROBLEM.simulate(
        torch.tensor(theta).expand(num, 2), generator(seed, "two_moons", theta)
    )


def test_shape():
    theta, x = PROBLEM.draw(1_000, seed=1)
    assert theta.shape == x.shape == (1_000, 2)
    assert x.dtype == torch.float32
    assert two_moons.simulate(theta[:0], generator(0)).shape == (0, 2)


def test_mean():
    x = simulate_at((0.3, -0.8), 200_000).double()
    # The mean of cos a is 2 / pi, that of sin a is 0; 5 standard errors.
    expected = torch.tensor([0.2 / math.pi + 0.25 - 0.5 / ROOT, -1.1 / ROOT])
    assert bool(((x.mean(0) - expected).abs() < 5 * x.std(0) / math.sqrt(len(x))).all())


@pytest.mark.parametrize("theta", [(0.3, -0.8), (-0.5, -0.5), (1.0, 0.9)])
def test_agrees_with_plain_reference(theta):
    slow = agreement.simulate_many(plain.simulate_one, theta, 10_000, seed=3)
    x = simulate_at(theta, 20_000, seed=4).numpy()
    assert agreement.worst_ratio(x, slow) < 1
    off = simulate_at((theta[0] - 0.01, theta[1]), 20_000, seed=4).numpy()
    assert agreement.worst_ratio(off, slow) > 1
    larger = agreement.simulate_many(plain.simulate_one, theta, 10_000, seed=5, radius=0.105)
    assert agreement.worst_ratio(x, larger) > 1


def test_posterior_is_the_plain_likelihood_up_to_a_constant():
    theta, x = (pair.double() for pair in PROBLEM.draw(50, seed=6))
    # Nearby points, so that neither density vanishes; the half-disc's rim may be crossed.
    near = (theta + 0.003 * torch.randn(50, 2, generator=generator(7), dtype=torch.float64)).clamp(
        -1, 1
    )
    difference = PROBLEM.log_posterior(torch.stack((theta, near)), x).diff(dim=0).squeeze(0)
    seen = 0
    for row in range(50):
        at, there = (plain.likelihood(p[row].tolist(), x[row].tolist()) for p in (theta, near))
        if at > 0 and there > 0:
            assert float(difference[row]) == pytest.approx(math.log(there / at), abs=1e-9)
            seen += 1
        assert (there == 0) == (float(difference[row]) == -math.inf)
    assert seen > 40


def brute_force(x, num=701):
    """The integral of the posterior over both crescents on a fine grid of theta."""
    # The part of the prior box within 0.17 of the centre of the crescent, in coordinates s and t.
    shift = 0.25 - x[:, 0]
    start = shift.clamp_min(0)
    left = torch.maximum(x[:, 1] - 0.17, start - ROOT)
    right = torch.minimum(x[:, 1] + 0.17, ROOT - start)
    nearest = torch.where(left * right < 0, 0.0, torch.minimum(left.abs(), right.abs()))
    s_step = (torch.minimum(shift + 0.17, ROOT - nearest) - start) / num
    # Another number of cells along t, so that no edge runs along the corners of cells.
    t_step = (right - left) / int(1.6 * num)
    s = start + s_step * (torch.arange(num).view(-1, 1, 1) + 0.5)
    t = left + t_step * (torch.arange(int(1.6 * num)).view(1, -1, 1) + 0.5)
    total = torch.zeros(len(x), dtype=torch.float64)
    for sign in (1, -1):
        theta = torch.stack(torch.broadcast_tensors(sign * s - t, sign * s + t), -1) / ROOT
        total += PROBLEM.log_posterior(theta, x).exp().sum((0, 1)) * s_step * t_step
    return total


# Beside each edge of the prior box, in each corner, and on the line where the crescents meet.
EDGES = torch.tensor(
    [
        [0.99, 0.2], [-0.99, 0.2], [0.2, 0.99], [0.2, -0.99],
        [0.99, 0.99], [-0.99, -0.99], [0.99, -0.99], [-0.99, 0.99], [0.5, -0.51],
    ]
)  # fmt: skip


@pytest.mark.slow
def test_posterior_integrates_to_one():
    inside = PROBLEM.simulate(torch.tensor([[0.3, -0.5], [0.6, 0.2]]), generator(8))
    cut = PROBLEM.simulate(EDGES.repeat(2, 1), generator(9))
    x = torch.cat((inside, cut)).double()
    total = torch.cat([brute_force(row) for row in x.split(1)])
    # Cells that an edge of the box cuts leave an error of some 1e-4.
    assert float((total - 1).abs().max()) < 1e-3
    # Control: the box matters, for nearly all rows that it can cut and for no other.
    share = two_moons.log_mass(x).exp()
    assert bool((share[:2] > 0.999).all())
    assert int((share[2:] < 0.97).sum()) > 14


def test_quadrature_has_converged():
    x = PROBLEM.draw(3_000, seed=9)[1].double()
    fine = torch.cat([two_moons.log_mass(rows, num_angles=1024) for rows in x.split(500)])
    assert float((two_moons.log_mass(x) - fine).abs().max()) < 2e-4


def test_posterior_has_two_mirror_images():
    theta, x = PROBLEM.draw(500, seed=10)
    value = PROBLEM.log_posterior(torch.stack((theta, -theta.flip(-1))), x)
    assert torch.allclose(value[0], value[1], atol=1e-4)
    assert not torch.allclose(value[0], PROBLEM.log_posterior(theta.flip(-1), x))


def test_truth_has_a_density():
    theta, x = PROBLEM.draw(30_000, seed=11)
    assert bool(torch.isfinite(PROBLEM.log_posterior(theta, x)).all())
    assert bool((PROBLEM.log_posterior(theta[:9] + 2.5, x[:9]) == -math.inf).all())


@pytest.fixture(scope="module")
def checks():
    num, radii, angles = 10_000, 20, 20
    theta, x = (pair.double() for pair in PROBLEM.draw(num, seed=12))
    # Nodes in the polar coordinates of q, one in each cell at a random place, on both crescents.
    offset = torch.rand(2, radii, angles, num, generator=generator(13), dtype=torch.float64)
    radius = 0.05 + 0.1 * (torch.arange(radii).view(-1, 1, 1) + offset[0]) / radii
    angle = math.pi * ((torch.arange(angles).view(-1, 1) + offset[1]) / angles - 0.5)
    s = radius * angle.cos() - x[:, 0] + 0.25
    t = x[:, 1] - radius * angle.sin()
    sides = [torch.stack((sign * s - t, sign * s + t), -1) / ROOT for sign in (1, -1)]
    grid = torch.stack(sides).flatten(0, 2)
    log_weight = radius.log().masked_fill(s < 0, -math.inf)
    log_weight = torch.stack((log_weight, log_weight)).flatten(0, 2)

    def one_moon(theta, x):
        return PROBLEM.log_posterior(theta, x).masked_fill(theta.sum(-1) < 0, -math.inf)

    results = agreement.on_grid(PROBLEM.log_posterior, grid, log_weight, theta, x)
    forgetful = agreement.on_grid(one_moon, grid, log_weight, theta, x, powers=(1.0,))
    return results | {"one moon": forgetful[1.0]}


@pytest.mark.slow
def test_exact_posterior_has_exact_coverage(checks):
    # The standard error is 0.29 / sqrt(10,000) = 0.003.
    assert abs(agreement.auc(checks[1.0][0])) < 0.01
    assert agreement.auc(checks[1.5][0]) < -0.01


@pytest.mark.slow
def test_exact_posterior_has_uniform_transform(checks):
    limit = agreement.critical(10_000)
    # Narrower crescents hardly change the marginal of theta_1, which the angle dominates; the
    # control here forgets one of the two instead.
    assert agreement.distance_to_uniform(checks[1.0][1][:, 0]) < limit
    assert agreement.distance_to_uniform(checks[1.0][1][:, 1]) < limit
    assert agreement.distance_to_uniform(checks["one moon"][1][:, 0]) > limit
