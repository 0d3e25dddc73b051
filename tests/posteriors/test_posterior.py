"""One posterior of parts: another ability is one class, and what comes in is converted once."""

import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import Independent, Normal, Uniform

import prudent
from prudent.errors import InputError
from prudent.estimators import Ensemble, FlowEstimator, RatioEstimator
from prudent.estimators.summaries import Summaries
from prudent.posteriors.density import Density
from prudent.posteriors.normalized import Normalized
from prudent.posteriors.posterior import Posterior
from prudent.priors.density import log_density
from prudent.problems.gaussian import NOISE, exact_posterior
from prudent.recalibration import conformalize

PROBLEM = prudent.problems.get("gaussian")
WIDTH = 0.5


class Reweighted(Density):
    """A part from outside: the posterior under another prior, nowhere denser than so many times.

    Args:
        inner: The density under the first prior.
        prior: The other prior.
        power: One, or the power to which its weight is taken, which would be wrong.
    """

    def __init__(self, inner, prior, power=1.0):
        facts = replace(inner.facts, divided="pool", noise=False)
        super().__init__(prior, inner.dim, inner.like, facts)
        self.inner, self.power = inner, power
        middle = torch.zeros(1, inner.dim)
        self.most = log_density(prior, middle) - log_density(inner.prior, middle)

    def __len__(self):
        return len(self.inner)

    def rows(self, index):
        return Reweighted(self.inner.rows(index), self.prior, self.power)

    def log_share(self, theta):
        ratio = log_density(self.prior, theta) - log_density(self.inner.prior, theta)
        return self.power * (ratio - self.most)

    def log_prob(self, theta):
        return self.inner.log_prob(theta) + self.log_share(theta)

    def candidates(self, number):
        theta = self.inner.sample((number,))
        return theta, self.log_share(theta)


class Elsewhere:
    """An estimator whose posteriors are those of another one under another prior."""

    normalized = True

    def __init__(self, inner, prior, power=1.0):
        self.inner, self.prior, self.power, self.info = inner, prior, power, {}

    def __call__(self, x):
        inner = self.inner(x)
        part = Reweighted(inner.density, self.prior, self.power)
        return Posterior(self, Normalized(part), inner.x)


def exact():
    return prudent.adapt(
        prior=PROBLEM.prior,
        log_prob=lambda theta, x: exact_posterior(x).log_prob(theta),
        sample=lambda number, x: exact_posterior(x).sample((number,)),
    )


def narrower():
    return Independent(Normal(torch.zeros(2), torch.full((2,), WIDTH)), 1)


def test_a_part_from_outside_is_normalized_drawn_from_and_summarized():
    posterior = Elsewhere(exact(), narrower())(x := PROBLEM.draw(3, 0)[1])
    precision = NOISE**-2 + WIDTH**-2
    expected = Normal(x * NOISE**-2 / precision, torch.full_like(x, precision**-0.5))
    theta = torch.randn(20, 3, 2)
    found, known = posterior.log_prob(theta), expected.log_prob(theta).sum(-1)
    torch.testing.assert_close(found, known, atol=0.03, rtol=0)
    gap = posterior.unnormalized().log_prob(theta) - known
    assert (gap - gap[0]).abs().max() < 1e-4 < gap.abs().min()
    torch.testing.assert_close(posterior.mean(), expected.loc, atol=0.05, rtol=0)
    torch.testing.assert_close(posterior.std(), expected.scale, atol=0.02, rtol=0)
    assert posterior.sample(5, seed=0).shape == (5, 3, 2)
    assert posterior.sampling.method == "rejection"
    assert posterior.rows(slice(1, 2)).region(0.9).contains(expected.loc[1:2]).all()
    torch.testing.assert_close(posterior.map(), expected.loc, atol=0.01, rtol=0)


@pytest.mark.parametrize(("power", "right"), [(1.0, True), (4.0, False)])
def test_a_part_from_outside_is_judged(power, right):
    prior = narrower()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theta = prior.sample((400,))
        x = theta + NOISE * torch.randn(400, 2)
    found = prudent.diagnose(Elsewhere(exact(), prior, power), theta, x, progress=False)
    assert (found.verdict.kind != "over-confident") == right
    assert found.agreement["disagreement"] is None  # draws are those of the density all the same


BOX = Independent(Uniform(-3 * torch.ones(2), 3 * torch.ones(2)), 1)


def network(kind=FlowEstimator, **options):
    torch.manual_seed(0)
    return kind(BOX, 2, (2,), hidden=(8,), **options).eval()


def in_box():
    return prudent.adapt(exact().model, BOX)


KINDS = {
    "flow": network,
    "leaking": lambda: network(bounded=False),
    "ratio": lambda: network(RatioEstimator),
    "pool": lambda: Ensemble([network(), network()]),
    "warm pool": lambda: Ensemble([network(), network()], temperature=1.5, floor=0.1),
    "leaking pool": lambda: Ensemble([network(bounded=False)] * 2),
    "pool of ratios": lambda: Ensemble([network(RatioEstimator)] * 2, temperature=1.5),
    "warm flow": lambda: network().tempered(1.5),
    "adapted": in_box,
    "warm": lambda: in_box().tempered(1.5),
    "conformal": lambda: conformalize(network(), *PROBLEM.draw(50, 1)),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_comes_in_is_converted_once(name, monkeypatch):
    seen = []
    for module in ("posteriors.posterior", "estimators.base", "adapters.estimator"):
        place = f"prudent.{module}.as_tensor"
        monkeypatch.setattr(
            place, lambda what, *rest: seen.append(what) or prudent._arrays.as_tensor(what, *rest)
        )
    theta, x = PROBLEM.draw(4, 0)
    estimator = KINDS[name]()
    seen.clear()
    posterior = estimator(x.tolist())
    assert seen == ["x"]
    for ask in ("log_prob", "log_ratio", "log_prob_and_ratio"):
        seen.clear()
        getattr(posterior, ask)(theta.tolist())
        assert [what for what in seen if what in ("x", "theta")] == ["theta"]
    assert type(posterior) is Posterior


@pytest.mark.parametrize("name", KINDS)
def test_densities_and_ratios_belong_together(name):
    theta, x = PROBLEM.draw(4, 0)
    posterior = KINDS[name]()(x)
    with torch.no_grad():
        both = posterior.log_prob_and_ratio(theta)
        assert torch.equal(both[0], posterior.log_prob(theta))
        assert torch.equal(both[1], posterior.log_ratio(theta))
        torch.testing.assert_close(both[0] - both[1], log_density(BOX, theta))
        draws, log_prob = posterior.sample_and_log_prob((3,))
        torch.testing.assert_close(log_prob, posterior.log_prob(draws), atol=1e-3, rtol=1e-4)
    assert (draws.abs() <= 3).all()


def test_mixed_up_wishes_are_refused():
    ratio, pool = network(RatioEstimator)(PROBLEM.draw(2, 0)[1]), KINDS["pool"]()
    for posterior in (ratio, pool(PROBLEM.draw(2, 0)[1])):
        with pytest.raises(InputError, match="no draws with a gradient"):
            posterior.rsample((3,))
    with pytest.raises(InputError, match="takes no noise"):
        ratio.from_noise(torch.randn(3, 2, 2))


def test_integrals_of_many_rows_are_found_some_at_a_time(monkeypatch):
    monkeypatch.setattr("prudent.posteriors.normalized.ROWS", 3)
    posterior = KINDS["leaking"]()(PROBLEM.draw(8, 0)[1])
    alone = [posterior.rows(slice(i, i + 1)).density.log_norm for i in range(8)]
    torch.testing.assert_close(posterior.density.log_norm, torch.cat(alone), atol=1e-5, rtol=0)
    assert math.log(0.5) < float(posterior.density.log_norm.min()) < 0


def test_there_is_one_posterior_and_parts_are_no_deeper_than_two():
    assert [kind for kind in Summaries.__subclasses__() if "prudent." in kind.__module__] == [
        Posterior
    ]
    parts = [kind for kind in Density.__subclasses__() if "prudent." in kind.__module__]
    assert len(parts) > 5
    assert not any(kind.__subclasses__() for kind in parts)


SHARES = prudent.priors.as_prior(torch.distributions.Dirichlet(torch.ones(3))).prior
SMALL = {"hidden": [8], "epochs": 1, "progress": False}


@pytest.mark.parametrize("method", ["nre", "calnre"])
def test_ratios_of_shares_are_trained(method):
    """Three shares have two coordinates."""
    theta = SHARES.sample((80,))
    estimator = prudent.fit(theta, theta + 0.1, SHARES, method=method, **SMALL)
    assert estimator(theta[:5]).log_prob(theta[:5]).isfinite().all()


@pytest.fixture(scope="module")
def trained():
    problem = prudent.problems.get("gaussian")
    pairs = problem.draw(120, 0)
    return {m: prudent.fit(*pairs, problem.prior, method=m, **SMALL) for m in ("npe", "nre")}


def test_a_floor_is_for_flows_and_is_kept_in_files(trained, tmp_path):
    with pytest.raises(InputError, match="a floor is for flows"):
        trained["nre"].tempered(1.5, 0.05)
    with pytest.raises(InputError, match="a floor is for flows"):
        Ensemble([trained["nre"]], floor=0.05)
    Ensemble([trained["npe"]], floor=0).save(tmp_path / "model")
    assert prudent.load(tmp_path / "model").floor == 0


def test_what_a_tempered_copy_replaces_the_other_keeps(trained):
    warm = trained["npe"].tempered(2.0)
    before, warm.embedding = trained["npe"].embedding, torch.nn.Identity()
    assert trained["npe"].embedding is before
    warm.history.append({"epoch": 99})
    assert trained["npe"].history[-1]["epoch"] != 99


def test_rows_do_not_copy_observations(trained):
    x = torch.zeros(6, 2)
    some = trained["npe"](x).rows(torch.tensor([4, 1])).rows(slice(1, 2))
    assert some._x.data_ptr() == x.data_ptr()
    x[1] = 3.0
    assert torch.equal(some.x, x[1:2])


class Lent:
    """A normal that leaks out of a box, which no class of ours describes."""

    prior = prudent.priors.box([-1.0, -1.0], [1.0, 1.0])
    normalized = True

    def __call__(self, x):
        return Independent(Normal(x, torch.full_like(x, 0.8)), 1)


def test_conformal_levels_leave_the_density_of_a_foreign_estimator():
    theta = Lent.prior.sample((60,))
    x = theta + 0.1 * torch.randn(60, 2)
    assert torch.equal(
        conformalize(Lent(), theta, x)(x).log_prob(theta), Lent()(x).log_prob(theta)
    )
