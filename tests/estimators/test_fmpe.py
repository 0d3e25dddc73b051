"""Flow matching: its density, its draws, its files, and that units do not matter."""

import pytest
import torch
from torch.distributions import Independent, Normal, Uniform

import prudent
from prudent import contracts
from prudent.errors import InputError
from prudent.estimators import Ensemble
from prudent.estimators.fmpe import FlowMatchingEstimator

OPTIONS = {"method": "fmpe", "hidden": [32, 32], "batch_size": 64, "progress": False}


def pairs(number=512, dim=1, seed=0):
    """Pairs under a uniform prior whose edges cut the posterior."""
    prior = Independent(Uniform(-torch.ones(dim), torch.ones(dim)), 1)
    torch.manual_seed(seed)
    theta = prior.sample((number,))
    return prior, theta, theta.abs() + 0.3 * torch.randn_like(theta)


@pytest.fixture(scope="module", params=[1, 2])
def trained(request):
    """A small network of one and of two parameters, whose posteriors have several modes."""
    prior, theta, x = pairs(dim=request.param)
    return prudent.fit(theta, x, prior, epochs=30, **OPTIONS)


def grid(dim, cells):
    centre = (torch.arange(cells) + 0.5) * 2 / cells - 1
    return torch.cartesian_prod(*[centre] * dim).reshape(-1, dim), (2 / cells) ** dim


def test_the_density_integrates_to_one_and_draws_follow_it(trained):
    dim = trained.dim
    cells = 512 if dim == 1 else 64
    theta, volume = grid(dim, cells)
    posterior = trained(torch.full((1, dim), 0.6))
    with torch.no_grad():
        mass = posterior.log_prob(theta.unsqueeze(1)).exp().squeeze(1) * volume
    assert float(mass.sum()) == pytest.approx(1, abs=0.02)
    torch.manual_seed(0)
    for draws in (posterior.sample((4000,)), posterior.rsample((4000,)).detach()):
        assert float(draws.abs().max()) <= 1
        for axis in range(dim):
            # Kolmogorov-Smirnov of each parameter; 1.95 is exceeded in 1 of 1,000 cases.
            edge = torch.linspace(-1, 1, 33)[1:-1]
            below = (theta[:, axis, None] < edge).float()
            expected = mass @ below / mass.sum()
            found = (draws[:, 0, axis, None] < edge).float().mean(dim=0)
            assert float((found - expected).abs().max()) * 4000**0.5 < 1.95


def test_the_density_of_draws_is_that_at_their_places(trained):
    torch.manual_seed(0)
    posterior = trained(torch.rand(3, trained.dim))
    draws, log_prob = posterior.sample_and_log_prob((20,))
    with torch.no_grad():
        torch.testing.assert_close(log_prob, posterior.log_prob(draws), atol=0.08, rtol=0)
        one = posterior.log_prob(draws[0, :1])
        each = posterior.log_prob(draws[0, :1].expand(3, -1))
    torch.testing.assert_close(one, each, atol=0.01, rtol=0)
    outside = torch.full((3, trained.dim), 1.5)
    assert posterior.log_prob(outside).tolist() == [-torch.inf] * 3


def test_a_trained_velocity_tells_something_of_theta():
    prior, theta, x = pairs(1024)
    estimator = prudent.fit(theta, x, prior, epochs=40, **OPTIONS)
    _, theta, x = pairs(1000, seed=1)
    result = prudent.diagnose(estimator, theta, x, progress=False)
    assert result.computed_by == "draws"
    assert abs(result.auc) < 0.05
    assert result.information_gain > 0.15
    assert "log posterior  " in str(result)


def test_the_gradient_of_draws():
    prior, _, x = pairs(8, dim=2)
    torch.manual_seed(0)
    estimator = FlowMatchingEstimator(prior, 2, (2,), hidden=(16,)).double()
    torch.nn.init.normal_(estimator.head.layers[-1].weight)
    weight = estimator.head.layers[0].weight
    posterior = estimator(x)

    def drawn():
        torch.manual_seed(1)
        return posterior.rsample((4,)).square().sum()

    (gradient,) = torch.autograd.grad(drawn(), weight)
    ends = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            weight[0, 1] += step
            ends.append(float(drawn()))
    assert float(gradient[0, 1]) == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)


def test_save_and_load(trained, tmp_path):
    trained.save(tmp_path / "model.safetensors")
    again = prudent.load(tmp_path / "model.safetensors")
    assert type(again) is FlowMatchingEstimator
    assert again.to_bytes() == trained.to_bytes()
    x = torch.rand(5, trained.dim)
    with torch.no_grad():
        theta = trained(x).rsample()
        assert torch.equal(again(x).log_prob(theta), trained(x).log_prob(theta))


def test_a_resumed_training_is_the_same(tmp_path):
    class Stopped(Exception):
        pass

    rows = []

    def stop(row):
        rows.append(row)
        if len(rows) == 3:
            raise Stopped

    prior, theta, x = pairs(128)
    options = {**OPTIONS, "epochs": 6, "checkpoint": tmp_path}
    with pytest.raises(Stopped):
        prudent.fit(theta, x, prior, **{**options, "progress": stop})
    resumed = prudent.fit(theta, x, prior, **options)
    whole = prudent.fit(theta, x, prior, **{**options, "checkpoint": None})
    assert resumed.to_bytes() == whole.to_bytes()


def test_units_change_nothing():
    """Theta and x in other units: the same draws there, and densities by the volume."""
    prior, theta, x = pairs(256, dim=2)
    unit, origin = torch.tensor([1e-3, 1e4]).double(), torch.tensor([5.0, -2e4]).double()
    found = []
    for scale, start in ((torch.ones(2).double(), torch.zeros(2).double()), (unit, origin)):
        here = Independent(Uniform(start - scale, start + scale), 1)
        estimator = prudent.fit(
            scale * theta.double() + start, x.double(), here, epochs=3, **OPTIONS
        )
        posterior = estimator(x[:20])
        torch.manual_seed(0)
        draws = (posterior.sample((50,)) - start) / scale
        with torch.no_grad():
            density = posterior.log_prob(scale * theta[:20].double() + start)
        found.append((draws, density + scale.log().sum()))
    torch.testing.assert_close(found[0], found[1], atol=1e-3, rtol=1e-3)


def test_abilities_and_pools(trained):
    posterior = trained(torch.rand(2, trained.dim))
    for ability in ("Posterior", "Rows", "LogRatio", "Reparametrized", "SlowDensity"):
        assert isinstance(posterior, getattr(contracts, ability))
    pool = Ensemble([trained, trained])(torch.full((2, trained.dim), 0.5))
    alone = trained(torch.full((2, trained.dim), 0.5))
    theta = torch.full((2, trained.dim), 0.4)
    torch.testing.assert_close(pool.log_prob(theta), alone.log_prob(theta), atol=0.01, rtol=0)
    assert pool.sample((7,)).shape == (7, 2, trained.dim)


def test_a_broken_network_is_refused_and_does_not_hang():
    prior = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    estimator = FlowMatchingEstimator(prior, 1, (1,), hidden=(4,)).eval()
    with torch.no_grad():
        estimator.head.layers[0].weight.fill_(torch.nan)
    for ask in (lambda p: p.sample((3,)), lambda p: p.log_prob(torch.zeros(2, 1))):
        with pytest.raises(InputError, match="velocity is not finite"):
            ask(estimator(torch.zeros(2, 1)))
