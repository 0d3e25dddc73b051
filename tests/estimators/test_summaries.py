"""What a posterior says of itself, against posteriors that are known exactly."""

import math
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, Uniform

import prudent
from prudent import _arrays
from prudent.errors import DataError, InputError
from prudent.estimators import Ensemble, FlowEstimator, RatioEstimator, summaries
from prudent.estimators.importance import SamplingReport
from prudent.estimators.summaries import NUM_DRAWS, Summaries, check_names
from prudent.priors.checks import marginal_density
from prudent.priors.families import Product
from prudent.problems.gaussian import exact_posterior
from prudent.recalibration import conformalize

PROBLEM = prudent.problems.get("gaussian")
X = torch.tensor([[0.5, -1.0], [2.0, 0.3], [0.0, 0.0]])
ERROR = NUM_DRAWS**-0.5


class Known(Summaries):
    """The exact posteriors, widened; ``report`` is what their draws claim to be worth."""

    def __init__(self, x=X, widen=1.0, report=None, **info):
        self.exact, self.report = exact_posterior(x, widen), report
        self.estimator = types.SimpleNamespace(prior=PROBLEM.prior, info=info)

    def __len__(self):
        return self.exact.batch_shape[0]

    def log_prob(self, theta):
        return self.exact.log_prob(torch.as_tensor(theta))

    def _draw(self, shape):
        return self.exact.sample(shape), self.report


def poor(number=3):
    return SamplingReport("importance", NUM_DRAWS, torch.tensor([2.5] * number))


def test_moments_quantiles_and_intervals():
    posterior, exact = Known(), exact_posterior(X).base_dist
    spread = exact.stddev
    assert posterior.mean().shape == posterior.std().shape == (3, 2)
    assert ((posterior.mean() - exact.mean).abs() < 4.5 * ERROR * spread).all()
    assert (posterior.std() / spread - 1).abs().max() < 4.5 * ERROR / 2**0.5
    for q in (0.05, 0.5, 0.95):
        normal = Normal(0.0, 1.0).icdf(torch.tensor(q))
        error = math.sqrt(q * (1 - q)) * ERROR / Normal(0.0, 1.0).log_prob(normal).exp()
        found = (posterior.quantile(q) - exact.mean) / spread - normal
        assert found.abs().max() < 4.5 * error
    low, high = posterior.interval(0.9)
    assert torch.equal(torch.stack((low, high)), posterior.quantile([0.05, 0.95]))
    assert ((high - low) / (2 * 1.645 * spread) - 1).abs().max() < 0.1
    # The negative control: a posterior that is half as wide again is seen to be.
    assert (Known(widen=1.5).std() / spread - 1).min() > 4.5 * ERROR


def test_the_densest_point_is_found():
    """To a thousandth of the spread, where the best of the draws is much farther away."""
    posterior, exact = Known(), exact_posterior(X).base_dist
    found = (posterior.map() - exact.mean) / exact.stddev
    assert found.abs().max() < 2e-3
    draws = posterior._drawn[0]
    best = draws[posterior.log_prob(draws).argmax(0), torch.arange(3)]
    assert ((best - exact.mean) / exact.stddev).abs().max() > 5e-3


def test_the_densest_point_stays_inside_the_prior():
    prior = Independent(Uniform(torch.zeros(2), torch.ones(2)), 1)
    posterior = Known(torch.tensor([[1.5, 0.5]]))
    posterior.estimator.prior = prior
    found = posterior.map()
    assert prior.log_prob(found) == 0
    assert found[0, 0] > 0.98
    assert found[0, 1] == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_regions_hold_their_share(level):
    posterior = Known()
    region, fresh = posterior.region(level), exact_posterior(X).sample((20_000,))
    error = 4.5 * math.sqrt(level * (1 - level) * (1 / NUM_DRAWS + 1 / 20_000))
    inside = region.contains(fresh[:500])
    assert torch.equal(inside, posterior.log_prob(fresh[:500]) > region.threshold)
    share = (posterior.log_prob(fresh) >= region.threshold).double().mean(0)
    assert (share - level).abs().max() < error
    # The log-density at the edge of a Gaussian's region is known.
    exact = exact_posterior(X)
    edge = exact.log_prob(exact.base_dist.mean) + math.log(1 - level)
    assert (region.threshold - edge).abs().max() < 0.12
    assert region.credibility.tolist() == pytest.approx([level] * 3)
    wrong = (
        exact.log_prob(exact_posterior(X, 1.5).sample((20_000,))) >= region.threshold
    ).double()
    assert (wrong.mean(0) - level).abs().min() > error


def test_repeated_questions_agree_and_leave_the_generator_alone():
    state = torch.get_rng_state()
    one, other = Known(), Known()
    assert torch.equal(one.mean(), other.mean())
    assert torch.equal(one.mean(), one._drawn[0].mean(0))
    assert torch.equal(one.sample(5, seed=3), other.sample((5,), seed=3))
    assert not torch.equal(one.sample(5, seed=3), one.sample(5, seed=4))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(0)
    first = one.sample(5)
    assert not torch.equal(first, one.sample(5))
    torch.manual_seed(0)
    assert torch.equal(first, one.sample(5))
    with pytest.raises(InputError, match="`seed` is 0.5"):
        one.sample(5, seed=0.5)


def test_draws_that_are_worth_little_are_told_everywhere():
    posterior = Known(X[:1], report=poor(1))
    assert "worth 2.5 independent ones" in posterior.notes()[0]
    calls = (posterior.mean, posterior.std, posterior.interval, posterior.region, posterior.map)
    for ask in (*calls, lambda: posterior.quantile(0.5), lambda: posterior.sample(9)):
        with pytest.warns(UserWarning, match="worth 2.5") as caught:
            ask()
        assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        assert str(posterior).startswith(f"Warning: {posterior.notes()[0]}")
        assert "worth 2.5" in posterior._repr_html_()
        text = posterior.plot().legends[0].get_title().get_text()
    assert "worth 2.5 independent" in " ".join(text.split())
    with warnings.catch_warnings(action="error"):
        assert Known().notes() == []
        Known().mean()


def test_exact_draws_are_not_complained_about():
    report = SamplingReport("rejection", 3, torch.tensor([3.0]), acceptance=0.5)
    assert summaries.complaint(report) is None
    assert "1 observations, effective sample size 3, acceptance 0.50" in repr(report)
    assert "mcmc" not in summaries.complaint(
        SamplingReport("rejection", 1000, torch.tensor([3.0]))
    )


def test_the_table_and_the_page():
    posterior = Known(X[:1], parameter_names=["<mass>", "spin"])
    assert repr(posterior) == "<Known of 1 observation, 2 parameters>"
    verdict, *lines = str(posterior).splitlines()
    assert verdict.startswith("Verdict: not measured")
    assert lines[0].split() == ["parameter", "mean", "std", "5", "%", "50", "%", "95", "%"]
    name, *numbers = lines[1].split()
    assert name == "<mass>"
    expected = [0.4, 0.447, 0.4 - 1.645 * 0.447, 0.4, 0.4 + 1.645 * 0.447]
    assert [float(number) for number in numbers] == pytest.approx(expected, abs=0.05)
    assert "<td>&lt;mass&gt;</td>" in posterior._repr_html_()
    assert "<mass>" not in posterior._repr_html_()
    assert str(Known()) == repr(Known()) == "<Known of 3 observations, 2 parameters>"


def test_names():
    assert Known().names == ["theta_1", "theta_2"]
    for wrong in (["a"], ["a", "b", "c"], "ab", 5, ["a", "a"]):
        with pytest.raises(InputError, match="expected .*2 parameter names"):
            check_names(wrong, 2)


def test_wrong_questions_are_refused():
    posterior = Known()
    for level in (0.0, 1.0, 90):
        for ask in (posterior.interval, posterior.region):
            with pytest.raises(InputError, match="between 0 and 1"):
                ask(level)
    with pytest.raises(InputError, match="`q` is 5"):
        posterior.quantile(5)
    with pytest.raises(InputError, match="expected 0 to 2"):
        posterior.plot(observation=3)
    with pytest.raises(DataError, match=r"`truth` of shape \(2,\), got \(3,\)"):
        posterior.plot(truth=[1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="expected 2 parameter names, got 1"):
        posterior.plot(names=["a"])


def flow(seed=0):
    torch.manual_seed(seed)
    return FlowEstimator(PROBLEM.prior, 2, (2,), hidden=(8,)).eval()


def ratio(seed=0):
    torch.manual_seed(seed)
    return RatioEstimator(PROBLEM.prior, 2, (2,), hidden=(8,)).eval()


def adapted():
    return prudent.adapt(prior=PROBLEM.prior, log_prob=lambda t, x: exact_posterior(x).log_prob(t))


KINDS = {
    "flow": flow,
    "ratio": ratio,
    "flows": lambda: Ensemble([flow(0), flow(1)]),
    "warm flows": lambda: Ensemble([flow(0), flow(1)], temperature=1.5),
    "ratios": lambda: Ensemble([ratio(0), ratio(1)]),
    "warm flow": lambda: flow().tempered(1.3),
    "adapted": lambda: adapted().tempered(1.3),
    "conformal": lambda: conformalize(flow(), *PROBLEM.draw(99, 1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_posterior_of_ours_has_them_all(name, monkeypatch):
    monkeypatch.setattr(summaries, "NUM_DRAWS", 300)
    posterior = KINDS[name]()(X[:2])
    assert isinstance(posterior, Summaries)
    assert posterior.sample(7, seed=0).shape == (7, 2, 2)
    assert torch.equal(posterior.sample(7, seed=0), posterior.sample((7,), seed=0))
    for value in (posterior.mean(), posterior.std(), posterior.quantile(0.3), posterior.map()):
        assert value.shape == (2, 2)
        assert bool(value.isfinite().all())
    region = posterior.region(0.8)
    assert region.threshold.shape == (2,)
    draws = posterior.sample(200, seed=1)
    with torch.no_grad():
        at_best, at_draws = posterior.log_prob(posterior.map()), posterior.log_prob(draws)
    assert (at_best >= at_draws.amax(0) - 1e-3).all()
    inside = region.contains(draws)
    assert inside.shape == (200, 2)
    assert (inside == (at_draws > region.threshold)).double().mean() > 0.99
    assert (inside.double().mean(0) - region.credibility).abs().max() < 0.15
    assert posterior.rows(slice(1, 2)).records()[0]["parameter"] == "theta_1"


@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"ratio", "ratios", "adapted"}))
def test_ways_to_draw_are_for_ratios(name):
    with pytest.raises(InputError, match="only ratios can be drawn from in several ways"):
        KINDS[name]()(X[:1]).sample(3, method="mcmc")


def fitted(theta, x, **options):
    options = {"method": "npe", "epochs": 1, "hidden": [4], "progress": False, **options}
    return prudent.fit(theta, x, PROBLEM.prior, **options)


def test_names_travel_with_the_model(tmp_path):
    pandas = pytest.importorskip("pandas")
    theta, x = PROBLEM.draw(64, 0)
    frame = pandas.DataFrame(theta.numpy(), columns=["mass", "spin"])
    estimator = fitted(frame, x)
    estimator.save(tmp_path / "model")
    assert prudent.load(tmp_path / "model")(x[:1]).names == ["mass", "spin"]
    assert fitted(frame, x, names=["a", "b"])(x[:1]).names == ["a", "b"]
    assert fitted(theta, x)(x[:1]).names == ["theta_1", "theta_2"]
    assert conformalize(estimator, *PROBLEM.draw(50, 1))(x[:1]).names == ["mass", "spin"]
    with pytest.raises(InputError, match="expected 2 parameter names, got 3"):
        fitted(theta, x, names=["a", "b", "c"])


def test_arviz():
    arviz = pytest.importorskip("arviz", exc_type=ImportError)
    posterior = Known(report=poor(), parameter_names=["mass", "spin"])
    data = posterior.to_arviz(observation=1)
    found = data["posterior"]["theta"]
    assert found.dims == ("chain", "draw", "parameter")
    assert found.coords["parameter"].values.tolist() == ["mass", "spin"]
    np.testing.assert_array_equal(found.values[0], posterior._drawn[0][:, 1])
    assert "worth 2.5" in data["posterior"].attrs["notes"]
    assert data["posterior"].attrs["verdict"].startswith("not measured")
    assert len(arviz.summary(data)) == 2


def test_arviz_of_both_generations(monkeypatch):
    """From 1.0 on, groups are one argument."""
    seen = {}

    def new(data, *, coords, dims):
        seen.update(data=data, coords=coords, dims=dims)
        return {"posterior": types.SimpleNamespace(attrs={})}

    def old(posterior=None, *, coords=None, dims=None):
        return new({"posterior": posterior}, coords=coords, dims=dims)

    for version, from_dict in (("0.23.4", old), ("1.2.0", new)):
        module = types.ModuleType("arviz")
        module.__version__, module.from_dict = version, from_dict
        monkeypatch.setitem(sys.modules, "arviz", module)
        Known(X[:1]).to_arviz()
        assert seen["data"]["posterior"]["theta"].shape == (1, NUM_DRAWS, 2)
        assert seen["coords"] == {"parameter": ["theta_1", "theta_2"]}
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(InputError, match=r'need arviz\. .*pip install .*\[arviz\]"'):
        Known().to_arviz()


def test_the_prior_of_one_parameter():
    points = np.linspace(-1, 1, 41)
    normal = np.exp(-0.5 * points**2) / np.sqrt(2 * np.pi)
    mixed = Product([Uniform(-2.0, 2.0), Normal(0.0, 1.0)])
    full = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    assert marginal_density(PROBLEM.prior, 1, points) == pytest.approx(normal, rel=1e-5)
    assert marginal_density(mixed, 1, points) == pytest.approx(normal, rel=1e-5)
    assert marginal_density(mixed, 0, points) == pytest.approx(np.full(41, 0.25), rel=1e-5)
    assert marginal_density(full, 0, points) == pytest.approx(normal, rel=0.08)


@pytest.mark.parametrize("method", ["npe", "nre"])
def test_many_draws_come_in_pieces(method, monkeypatch):
    """They follow the same posterior, with a report of all of them, and repeat by their seed."""
    theta, x = PROBLEM.draw(64, 0)
    options = {"epochs": 1, "hidden": [8], "progress": False}
    posterior = prudent.fit(theta, x, PROBLEM.prior, method=method, **options)(x[:1])
    whole = posterior.sample(6000, seed=0)
    for module in (_arrays, summaries):
        monkeypatch.setattr(module, "MOST_AT_ONCE", 1024)
    asked, own = [], type(posterior)._draw

    def draw(self, shape, **how):
        asked.append(shape)
        return own(self, shape, **how)

    monkeypatch.setattr(type(posterior), "_draw", draw)
    found = posterior.sample((3, 2000), seed=0)
    assert asked == [(1024,)] * 5 + [(880,)]
    assert found.shape == (3, 2000, 1, 2)
    flat = found.reshape(6000, 1, 2)
    assert torch.equal(posterior.sample(6000, seed=0), flat)
    assert posterior.sampling is None or posterior.sampling.num_samples == 6000
    error = whole.std(dim=0) * (2 / 6000) ** 0.5
    assert bool(((flat.mean(dim=0) - whole.mean(dim=0)).abs() < 5 * error).all())
    assert torch.allclose(flat.std(dim=0), whole.std(dim=0), rtol=0.1)


@pytest.mark.slow
@pytest.mark.process
def test_a_million_draws_take_little_more_than_their_own_memory():
    code = (
        "import resource, prudent\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "problem = prudent.problems.get('gaussian')\n"
        "theta, x = problem.draw(200, 0)\n"
        "fit = dict(method='npe', epochs=1, progress=False)\n"
        "posterior = prudent.fit(theta, x, problem.prior, **fit)(x[:1])\n"
        "posterior.sample(100, seed=0)\n"
        "before = peak()\n"
        "found = posterior.sample(1_000_000, seed=0)\n"
        "print(peak() - before - found.numel() * 4 / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100 * 1024
