"""Pools of flows and their temperatures: normalized, drawn from as they say, inside the prior."""

import math

import pytest
import torch
from scipy.stats import kstest
from torch.distributions import Gamma, Independent, Normal, Uniform

import prudent
from prudent._randomness import seeded
from prudent.errors import InputError
from prudent.estimators import Ensemble, FlowEstimator, RatioEstimator
from prudent.estimators._regression import Regression
from prudent.priors.density import log_density
from prudent.priors.families import Product
from prudent.priors.support import Support


def box(dim):
    return Independent(Uniform(torch.full((dim,), -2.0), torch.full((dim,), 3.0)), 1)


def members(dim, number=3, kind=FlowEstimator, prior=None, disagreement=0.15):
    """Untrained networks that disagree, of x with two numbers."""
    prior = box(dim) if prior is None else prior
    made = []
    for seed in range(number):
        with seeded(seed, "pool test"):
            member = kind(prior, dim, (2,), hidden=[16, 16])
            theta = prior.sample((500,))
            member.adapt(theta, theta[:, :1].expand(-1, 2) + 0.4 * torch.randn(500, 2))
            with torch.no_grad():
                for weight in member.head.parameters():
                    weight += disagreement * torch.randn_like(weight)
        made.append(member.eval())
    return made


def observations(number=3):
    return torch.linspace(-1.5, 2.5, 2 * number).reshape(number, 2)


@pytest.mark.slow
@pytest.mark.parametrize("floor", [0.0, 0.1])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
@pytest.mark.parametrize("dim", [1, 2])
def test_densities_integrate_to_one(temperature, dim, floor):
    posterior = Ensemble(members(dim), None, temperature, floor)(observations())
    number = 4001 if dim == 1 else 301
    ends = torch.linspace(-2, 3, number)
    axis = (ends[1:] + ends[:-1]) / 2
    cells = torch.cartesian_prod(*[axis] * dim).reshape(-1, 1, dim).expand(-1, 3, -1)
    with torch.no_grad():
        raw = posterior.unnormalized().log_prob(cells).exp().sum(0) * (5 / (number - 1)) ** dim
        # What the density is divided by, as at one point.
        point = cells[number // 3].unsqueeze(0)
        gap = posterior.log_prob(point) - posterior.unnormalized().log_prob(point)
    mass = raw * gap[0].exp()
    torch.testing.assert_close(mass, torch.ones(3), atol=0.01, rtol=0)
    if temperature != 1:  # what has to be divided by is far from one
        assert (raw - 1).abs().max() > 0.03


def alphas(posterior, theta):
    """The alphas of draws (L, N, D), by many other draws with weights."""
    free = posterior.unnormalized()
    _, density, proposal = free.from_noise(torch.randn(6000, len(posterior), theta.shape[-1]))
    weight = (density - proposal).softmax(dim=0)
    with torch.no_grad():
        own = free.log_prob(theta)
    return torch.stack([(weight * (density < one)).sum(dim=0) for one in own]).flatten()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 1.5])
@pytest.mark.parametrize("dim", [1, 2, 5, 10])
def test_draws_match_the_density(temperature, dim):
    """Alphas of draws are uniform."""
    with seeded(dim, "draws"):
        posterior = Ensemble(members(dim), None, temperature)(observations(2))
        assert kstest(alphas(posterior, posterior.sample((400,))).numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("wrong", [0.5, 2.0])
def test_other_draws_would_be_seen(wrong):
    with seeded(0, "draws"):
        apart = members(2, disagreement=0.25)
        other = Ensemble(apart, None, wrong)(observations(2)).sample((1000,))
        posterior = Ensemble(apart)(observations(2))
        assert kstest(alphas(posterior, other).numpy(), "uniform").pvalue < 1e-3


@pytest.mark.parametrize("kind", [FlowEstimator, RatioEstimator])
def test_by_hand(kind):
    parts, theta = members(2, kind=kind), box(2).sample((4, 3))
    posterior = Ensemble(parts, None, 1.6)(observations())
    with torch.no_grad():
        each = torch.stack([part(observations()).log_ratio(theta) for part in parts])
        expected = each.exp().mean(0).log() / 1.6
        found = posterior.log_ratio(theta)
    gap = found - expected
    if kind is FlowEstimator:  # up to the normalization
        gap = gap - gap[0]
    torch.testing.assert_close(gap, torch.zeros_like(gap), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_density_does_not_depend_on_the_batch():
    ensemble, theta = Ensemble(members(2), None, 1.3), box(2).sample((4,))
    x = observations(4)
    with torch.no_grad():
        alone = torch.cat([ensemble(x[i : i + 1]).log_prob(theta[i : i + 1]) for i in range(4)])
        torch.testing.assert_close(ensemble(x).log_prob(theta), alone, atol=1e-4, rtol=0)


def test_hot_posteriors_end_as_the_prior_and_not_at_its_edges():
    posterior = members(2)[0].tempered(1e6)(observations())
    theta = box(2).sample((50, 3))
    with torch.no_grad():
        expected = log_density(box(2), theta)
        torch.testing.assert_close(posterior.log_prob(theta), expected, atol=0.01, rtol=0)


def test_rejection_tells_what_it_kept():
    posterior = Ensemble(members(2), temperature=1.5)(observations())
    assert posterior.sample(100, seed=0).shape == (100, 3, 2)
    assert posterior.sampling.method == "rejection"
    assert 0 < posterior.sampling.acceptance < 1
    cold = members(2)[0].tempered(0.5)(observations())
    assert cold.sample((10, 2), seed=4).shape == (10, 2, 3, 2)
    assert bool((cold.sampling.effective_sample_size > 1).all())


@pytest.mark.slow
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("kind", [FlowEstimator, RatioEstimator])
def test_temperatures_multiply_and_travel(kind, single, tmp_path):
    parts = members(2, kind=kind)
    cold = parts[0] if single else Ensemble(parts)
    hot = cold.tempered(1.5).tempered(2.0)
    assert type(hot) is type(cold)
    assert (cold.temperature, hot.temperature) == (1.0, pytest.approx(3.0))
    hot.save(tmp_path / "model")
    again = prudent.load(tmp_path / "model")
    assert (type(again), again.temperature) == (type(hot), hot.temperature)
    theta = box(2).sample((3,))
    with torch.no_grad():
        x = observations()
        assert torch.equal(again(x).log_prob(theta), hot(x).log_prob(theta))
    with pytest.raises(InputError, match="temperature"):
        hot.tempered(0.0)
    with pytest.raises(InputError, match="expected members at temperature one"):
        Ensemble([parts[1], parts[0].tempered(2.0)])


PRIORS = {
    "box": box(2),
    "positive": Independent(Gamma(torch.tensor([2.0, 3.0]), torch.ones(2)), 1),
    "mixed": Product([Uniform(1.0, 3.0), Normal(0.0, 1.0), Gamma(2.0, 1.0)]),
    "line": Independent(Normal(torch.zeros(2), torch.ones(2)), 1),
}


@pytest.mark.parametrize("name", PRIORS)
def test_the_support_has_no_edges(name):
    prior = PRIORS[name]
    theta = prior.sample((200,))
    support = Support(prior, theta.shape[1])
    values, log_volume = support(theta)
    torch.testing.assert_close(support.inverse(values), theta, atol=1e-4, rtol=1e-4)
    for row in range(5):
        jacobian = torch.autograd.functional.jacobian(lambda t: support(t)[0], theta[row])
        assert float(jacobian.det().abs().log()) == pytest.approx(float(log_volume[row]), abs=1e-3)
    torch.testing.assert_close(support.log_volume(values), log_volume, atol=1e-4, rtol=1e-4)
    draws = support.inverse(3 * torch.randn(1000, theta.shape[1]))
    assert bool((log_density(prior, draws) > -torch.inf).all())


def test_uniform_priors_are_normal_there_and_nothing_is_outside():
    support = Support(box(1), 1)
    values, _ = support(box(1).sample((2000,)))
    assert kstest(values[:, 0].numpy(), "norm").pvalue > 1e-3
    flow = members(1)[0](torch.zeros(1, 2))
    with torch.no_grad():
        outside = flow.log_prob(torch.tensor([[[-2.1]], [[3.1]]]))
    assert bool((outside == -torch.inf).all())


def test_flows_of_a_box_do_not_leak():
    draws = members(2)[0](observations()).sample((4000,))
    assert bool((log_density(box(2), draws) > -torch.inf).all())
    paper = FlowEstimator(box(2), 2, (2,), **FlowEstimator.paper((2,)))
    paper.adapt(box(2).sample((100,)), torch.randn(100, 2))
    raw = paper.eval()(observations()).unnormalized()
    leaks = log_density(box(2), raw.sample((4000,))) == -torch.inf
    assert bool(leaks.any())


def test_the_regression_is_least_squares():
    torch.manual_seed(0)
    features = torch.randn(5000, 3)
    slope = torch.tensor([[1.0, -2.0, 0.0], [0.5, 0.0, 1.0]])
    noise = torch.randn(5000, 2) @ torch.tensor([[0.3, 0.0], [0.2, 0.1]]).T
    values = features @ slope.T + 1.5 + noise
    regression = Regression(2, 3)
    torch.testing.assert_close(regression(values, features), values)  # nothing at first
    regression.adapt(values, features)
    rest = regression(values, features)
    torch.testing.assert_close(rest.T.cov(), torch.eye(2), atol=0.01, rtol=0)
    torch.testing.assert_close(regression.weight, slope, atol=0.03, rtol=0)
    torch.testing.assert_close(regression.inverse(rest, features), values, atol=1e-4, rtol=0)
    assert float(regression.log_scale()) == pytest.approx(math.log(0.3 * 0.1), abs=0.05)


@pytest.mark.parametrize("method", ["npe", "nre"])
def test_units_change_no_result(method):
    """Degrees or radians, and a shift: the same posteriors beyond rounding."""
    problem = prudent.problems.get("two_moons")
    (theta, x), (new, seen) = problem.draw(400, 0), problem.draw(100, 1)
    scale, shift = 2.0**7, 64.0  # exact in float32, so that only the arithmetic can differ
    ends = torch.full((2,), shift - scale), torch.full((2,), shift + scale)
    other = Independent(Uniform(*ends), 1)
    options = {"method": method, "epochs": 4, "progress": False}
    first = prudent.fit(theta, x, problem.prior, **options)
    second = prudent.fit(theta * scale + shift, x, other, **options)
    with torch.no_grad():
        before = first(seen).log_prob(new)
        after = second(seen).log_prob(new * scale + shift) + 2 * math.log(scale)
    torch.testing.assert_close(after, before, atol=0.02, rtol=0)


def test_a_floor_is_the_prior_as_one_more_member():
    plain, floored = Ensemble(members(2)), Ensemble(members(2), floor=0.2)
    theta = box(2).sample((50, 3))
    theta[0] = 10.0  # outside the prior
    share = torch.tensor([0.8, 0.2]).log()
    expected = torch.logaddexp(
        plain(observations()).log_prob(theta) + share[0], log_density(box(2), theta) + share[1]
    )
    found = floored(observations()).log_prob(theta)
    torch.testing.assert_close(found, expected)
    assert (found[0] == -torch.inf).all()
    with pytest.raises(InputError, match="floor"):
        Ensemble(members(2), floor=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 1.5])
@pytest.mark.parametrize("floor", [0.0, 0.05])
def test_draws_are_those_of_the_density_with_a_floor(temperature, floor):
    """The mean of one over the density is the volume, if draws and density agree."""
    posterior = Ensemble(members(2), None, temperature, floor)(observations())
    with seeded(0, "floor"):
        draws = posterior.sample((20_000,))
    # Between bounds: far out the mean of a density without a floor has no variance.
    inside = ((draws > -1.5) & (draws < 2.5)).all(dim=-1)
    density = posterior.log_prob(draws)
    near = inside & (density > -6)
    with seeded(1, "floor"):
        even = box(2).sample((40_000, 3))
    region = ((even > -1.5) & (even < 2.5)).all(dim=-1) & (posterior.log_prob(even) > -6)
    volume = 25 * region.double().mean(0)
    found = torch.where(near, (-density).exp(), 0.0).double().mean(0)
    torch.testing.assert_close(found, volume, rtol=0.08, atol=0)


def test_one_flow_as_an_ensemble_is_diagnosed():
    """A member alone has no others whose draws it could be asked about."""
    torch.manual_seed(0)
    pairs = box(2).sample((60,)), torch.zeros(60, 2)
    one = Ensemble(members(2, number=1))
    assert prudent.diagnose(one, *pairs, progress=False).num_pairs == 60


@pytest.mark.slow
def test_a_floor_is_saved(tmp_path):
    posterior = Ensemble(members(2), None, 1.3, 0.02)
    posterior.save(tmp_path / "model.safetensors")
    loaded = prudent.load(tmp_path / "model.safetensors")
    assert (loaded.temperature, loaded.floor) == (1.3, 0.02)
    theta = box(2).sample((20, 3))
    assert torch.equal(
        loaded(observations()).log_prob(theta), posterior(observations()).log_prob(theta)
    )
