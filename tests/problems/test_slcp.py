import math

import pytest
import torch
from references import agreement
from references import slcp as plain

from prudent._randomness import generator
from prudent.problems import slcp

PROBLEM = slcp.problem()
# Parameters that make narrow, lopsided or cut-off posteriors, down to those that rounding swamps.
HARD = torch.tensor(
    [
        [1e-2, 2.5], [2.9, 1e-2], [1e-3, 2.0], [3.0, 1e-3], [1e-3, 1e-3],
        [3.0, 3.0], [2.9, -0.05], [0.02, 0.03], [1e-4, 1.0], [1.0, 1e-4], [1e-5, 1e-5],
    ]
)  # fmt: skip


def simulate_at(theta, num, seed=0):
    return PROBLEM.simulate(torch.tensor(theta).expand(num, 2), generator(seed, "slcp", theta))


def test_shape():
    theta, x = PROBLEM.draw(1_000, seed=1)
    assert theta.shape == (1_000, 2)
    assert x.shape == (1_000, 8)
    assert x.dtype == torch.float32
    assert PROBLEM.prior.log_prob(theta[0]) == pytest.approx(-3.5835, abs=5e-5)
    assert slcp.simulate(theta[:0], generator(0)).shape == (0, 8)


@pytest.mark.parametrize("theta", [(1.5, -0.7), (-0.2, 2.5)])
def test_moments(theta):
    num = 50_000
    draws = simulate_at(theta, num).double().unflatten(1, (4, 2))
    for i, mean in enumerate((0.7, -2.9)):
        scale = theta[i] ** 2
        values = draws[..., i].flatten()
        # 5 standard errors of a mean and of a standard deviation of 200,000 normal values.
        assert abs(float(values.mean()) - mean) < 5 * scale / math.sqrt(4 * num)
        assert abs(float(values.std()) / scale - 1) < 5 / math.sqrt(8 * num)
    # The four draws share one correlation: two products then have covariance E[rho^2] =
    # 1 - tanh(3) / 3, while a mean of 0 for each holds by symmetry.
    product = (draws - draws.mean((0, 1))).prod(-1) / (theta[0] * theta[1]) ** 2
    assert abs(float(product.mean())) < 5 * float(product.mean(1).std()) / math.sqrt(num)
    pairs = product[:, 0] * product[:, 1]
    expected = 1 - math.tanh(3) / 3
    assert abs(float(pairs.mean()) - expected) < 5 * float(pairs.std()) / math.sqrt(num)


def statistics(x):
    """The eight numbers, and four products that show the correlation."""
    x = torch.as_tensor(x, dtype=torch.float64)
    product = (x[:, 0::2] - 0.7) * (x[:, 1::2] + 2.9)
    return torch.cat((x, product, product.sum(1, keepdim=True)), 1).numpy()


@pytest.mark.parametrize("theta", [(1.5, -0.7), (-0.2, 2.5), (0.05, 0.05)])
def test_agrees_with_plain_reference(theta):
    slow = statistics(agreement.simulate_many(plain.simulate_one, theta, 10_000, seed=3))
    x = statistics(simulate_at(theta, 20_000, seed=4))
    assert agreement.worst_ratio(x, slow) < 1
    # Controls: 5 % off in one parameter, and a normal instead of a uniform latent.
    off = statistics(simulate_at((theta[0] * 1.05, theta[1]), 20_000, seed=4))
    assert agreement.worst_ratio(off, slow) > 1
    normal = agreement.simulate_many(plain.simulate_one, theta, 10_000, seed=5, latent="normal")
    assert agreement.worst_ratio(x, statistics(normal)) > 1


def test_posterior_is_the_plain_likelihood_up_to_a_constant():
    theta, x = (pair.double() for pair in PROBLEM.draw(40, seed=6))
    theta = theta.sign() * theta.abs().clamp_min(0.1)
    x = PROBLEM.simulate(theta.float(), generator(7))
    other = theta * torch.empty(40, 2, dtype=torch.float64).uniform_(
        0.7, 1, generator=generator(8)
    )
    difference = PROBLEM.log_posterior(torch.stack((theta, other)), x).diff(dim=0).squeeze(0)
    for row in range(40):
        at, there = (plain.log_likelihood(p[row], x[row]) for p in (theta, other))
        # The plain one takes the means in float64: 1e-8 off, over a scale of 0.01.
        assert float(difference[row]) == pytest.approx(there - at, abs=1e-3, rel=1e-5)


def brute_force(x):
    """The integral of the posterior of one observation, by midpoints in log |theta|."""
    # A range with nearly all the mass, and below it a coarse one for posteriors flat at 0.
    scale = slcp.summarize(x)[0][0].sqrt().clamp_min(2e-4)
    cuts = torch.stack((torch.full_like(scale, 1e-8), scale / 3.5, (20 * scale).clamp_max(3)))
    nodes, weights = [], []
    for low, high, num in ((cuts[0].log(), cuts[1].log(), 80), (*cuts[1:].log(), 160)):
        step = (high - low) / num
        nodes.append((low + step * (torch.arange(num).unsqueeze(1) + 0.5)).exp())
        weights.append(nodes[-1] * step)
    (first, second), (weight_1, weight_2) = torch.cat(nodes).T, torch.cat(weights).T
    theta = torch.cartesian_prod(first, second).unsqueeze(1)
    density = PROBLEM.log_posterior(theta, x).squeeze(1).exp()
    return 4 * float(density @ torch.cartesian_prod(weight_1, weight_2).prod(1))


@pytest.mark.slow
def test_posterior_integrates_to_one():
    x = PROBLEM.draw(4, seed=9)[1]
    hard = PROBLEM.simulate(HARD, generator(10))
    totals = [brute_force(row) for row in torch.cat((x, hard)).split(1)]
    # The midpoint rule is good to about 1e-4 here; the evidence of rounded ones to 1e-3.
    assert max(abs(total - 1) for total in totals) < 2e-3


def test_quadratures_have_converged():
    theta, x = PROBLEM.draw(1_000, seed=11)
    theta, x = torch.cat((theta, HARD)), torch.cat((x, PROBLEM.simulate(HARD, generator(12))))
    fine = slcp.log_evidence(x, num_angles=64, num_nodes=80)
    assert float((slcp.log_evidence(x) - fine).abs().max()) < 1e-5
    rough = slcp.log_evidence(x, num_angles=8, num_nodes=12)
    assert float((rough - fine).abs().max()) > 1e-3
    change = slcp.log_likelihood(theta, x) - slcp.log_likelihood(theta, x, num_nodes=100)
    assert float(change.abs().max()) < 1e-6


def test_both_evidences_agree():
    x = torch.cat((PROBLEM.draw(10, seed=13)[1], PROBLEM.simulate(HARD[:8], generator(14))))
    root = slcp.summarize(x)[0] / torch.tensor(slcp.ROUNDING)
    x = x[(root > 1_000).all(-1)]
    assert len(x) > 12
    other = torch.cat([slcp.log_evidence_rounded(row) for row in x.split(1)])
    assert float((slcp.log_evidence(x) - other).abs().max()) < 1e-3


def test_evidence_under_rounding_has_converged():
    theta = torch.tensor([[1e-3, 2.0], [2.0, 1e-3], [3e-4, 3e-4], [1e-5, 1.0], [1e-6, 1e-6]])
    x = PROBLEM.simulate(theta, generator(15))
    fine = torch.cat([slcp.log_evidence_rounded(row, num_per_axis=256) for row in x.split(1)])
    usual = torch.cat([slcp.log_evidence_rounded(row) for row in x.split(1)])
    assert float((usual - fine).abs().max()) < 1e-3


def test_four_modes():
    theta, x = PROBLEM.draw(200, seed=16)
    signs = torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]]).unsqueeze(1)
    value = PROBLEM.log_posterior(signs * theta, x)
    assert value.shape == (4, 200)
    assert torch.equal(value, value[:1].expand(4, -1))
    # A mode in each quadrant: the density is lower on both axes than at the truth.
    axis = torch.stack((theta * torch.tensor([0.0, 1.0]), theta * torch.tensor([1.0, 0.0])))
    assert bool((PROBLEM.log_posterior(axis, x) < value[0] - 1).all())


@pytest.mark.slow
def test_truth_has_a_density_and_the_outside_none():
    theta, x = PROBLEM.draw(20_000, seed=17)
    theta, x = torch.cat((theta, HARD)), torch.cat((x, PROBLEM.simulate(HARD, generator(18))))
    value = PROBLEM.log_posterior(theta, x)
    assert value.dtype == torch.float32
    # -20 is far below any truth in 20,000: no posterior is absurdly narrow.
    assert bool((value > -20).all())
    assert bool((PROBLEM.log_posterior(theta[:9] + 7, x[:9]) == -math.inf).all())
    assert not bool(PROBLEM.log_posterior(torch.zeros(9, 2), x[:9]).isnan().any())


@pytest.fixture(scope="module")
def checks():
    num, angles, radii = 10_000, 24, 18
    theta, x = (pair.double() for pair in PROBLEM.draw(num, seed=19))
    # Nodes in (phi, log R), which follow the posterior whatever its width, one in each cell at a
    # random place; phi is dense at 45 degrees, where correlation puts a ridge.
    offset = torch.rand(2, angles, radii, num, generator=generator(20), dtype=torch.float64)
    y = 2 * (torch.arange(angles).view(-1, 1, 1) + offset[0]) / angles - 1
    phi = math.pi / 4 * (1 + torch.sinh(3 * y) / math.sinh(3))
    log_radius = (
        math.log(0.2) + math.log(50) * (torch.arange(radii).view(-1, 1) + offset[1]) / radii
    )
    root = slcp.summarize(x)[0]
    alpha = torch.stack((phi.cos(), phi.sin()), -1) * log_radius.exp().unsqueeze(-1)
    # All four quadrants are alike; the sign of each node is drawn at random.
    sign = torch.randint(2, alpha.shape, generator=generator(21)) * 2 - 1
    grid = (sign * (root / alpha).sqrt()).flatten(0, 1)
    log_weight = 2 * log_radius + torch.cosh(3 * y).log() - 1.5 * alpha.log().sum(-1)
    return agreement.on_grid(PROBLEM.log_posterior, grid, log_weight.flatten(0, 1), theta, x)


@pytest.mark.slow
def test_exact_posterior_has_exact_coverage(checks):
    # The standard error is 0.29 / sqrt(10,000) = 0.003.
    assert abs(agreement.auc(checks[1.0][0])) < 0.01
    assert agreement.auc(checks[1.5][0]) < -0.01


@pytest.mark.slow
def test_exact_posterior_has_uniform_transform(checks):
    limit = agreement.critical(10_000)
    for i in range(2):
        assert agreement.distance_to_uniform(checks[1.0][1][:, i]) < limit
        assert agreement.distance_to_uniform(checks[1.5][1][:, i]) > limit
