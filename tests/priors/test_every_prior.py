"""Every prior that people write: what is judged is what is drawn, inside the prior, and saved."""

import math

import pytest
import torch
from torch import distributions as d
from torch.distributions import Independent

import prudent
from known_priors import PRIORS, UNSAVED, made
from prudent._randomness import seeded
from prudent.errors import InputError
from prudent.estimators import FlowEstimator
from prudent.priors import density
from prudent.priors.checks import check_prior, of_any_shape
from prudent.priors.density import Region, log_density, support_of
from prudent.priors.support import leaks

every = pytest.mark.parametrize("name", PRIORS)
# The noise in standard deviations of the prior.
NOISE = 0.5


def simulated(prior, number, seed):
    with seeded(seed, "pairs"):
        spread = prior.sample((1000,)).std(dim=0)
        theta = prior.sample((number,))
        return theta, theta + NOISE * spread * torch.randn_like(theta), NOISE * spread


def trained(given, prior):
    theta, x, _ = simulated(prior, 400, 0)
    options = {"method": "npe", "epochs": 4, "hidden": [16, 16], "progress": False}
    away = (theta - theta.mean(dim=0)).norm(dim=1)
    return prudent.fit(theta, x, given, **options), x[away.argsort()[:12]]


def outside(posterior, prior):
    """The share of draws without density under the prior."""
    draws = posterior.sample((500,)).flatten(0, 1)
    return float((log_density(prior, draws) == -torch.inf).double().mean())


def integrals(posterior, prior, free=None):
    """The integral of each density, by draws of the prior and by such from three times as wide."""
    with seeded(0, "integral"):
        theta = prior.sample((2**15,))
    center, free = theta.mean(dim=0), free or theta.shape[1]
    theta = torch.cat((theta, center + 3 * (theta - center)))
    wide = log_density(prior, center + (theta - center) / 3) - free * math.log(3)
    both = torch.stack((log_density(prior, theta), wide)).logsumexp(dim=0) - math.log(2)
    return (posterior.log_prob(theta[:, None]) - both[:, None]).double().exp().mean(dim=0)


@every
def test_draws_and_densities_are_inside_and_all_of_it_and_saved(name, tmp_path):
    given = PRIORS[name]()
    estimator, x = trained(given, made(name))
    prior, posterior = estimator.prior, estimator(x)
    assert outside(posterior, prior) == 0
    free = 2 if name == "Dirichlet" else None
    assert (integrals(posterior, prior, free) - 1).abs().max() < 0.05
    assert bool((log_density(prior, posterior.map()) > -torch.inf).all())
    path = tmp_path / "model.safetensors"
    if name in UNSAVED:
        with pytest.warns(UserWarning, match=r"load\(path, prior=...\)"):
            estimator.save(path)
        again = prudent.load(path, prior=given)
    else:
        estimator.save(path)
        again = prudent.load(path)
    theta = posterior.sample((50,))
    torch.testing.assert_close(again(x).log_prob(theta), posterior.log_prob(theta))


def test_by_what_torch_declares_draws_leave_the_prior():
    """The rule that was: the flow lives where the support says, and nothing is cut."""
    prior = made("unchecked log-uniform")
    old = PRIORS["unchecked log-uniform"]()
    half_line = torch.zeros(2).double(), torch.full((2,), torch.inf).double()
    density._known[old] = Region(*half_line, True, old.support)
    theta, x, _ = simulated(prior, 400, 0)
    estimator = FlowEstimator(old, 2, (2,), hidden=(16, 16))
    estimator.adapt(theta, x)
    posterior = estimator.eval()(x[:20])
    assert outside(posterior, prior) > 0.005
    assert integrals(posterior, prior).min() < 0.99


@every
def test_the_region_is_found_once_and_holds_all_draws(name):
    prior = PRIORS[name]()
    if isinstance(prior, list):
        prior = made(name)
    region = support_of(prior, dim := check_prior(prior))
    assert support_of(prior, dim) is region
    # What is not known by its make is cut, although the draws say that it fills its ends.
    assert leaks(prior, dim) == (name in ("ball in a box", "truncated normal"))
    draws = prior.sample((5000,))
    assert bool((log_density(of_any_shape(prior, dim), draws[None]) > -torch.inf).all())
    if name != "mixture":
        assert bool((log_density(prior, draws - 100) == -torch.inf).all())


def test_ends_are_those_of_the_draws():
    region = support_of(made("sbi's list"), 3)
    assert region.low.tolist() == pytest.approx([0.1, -math.inf, 0])
    assert region.high.tolist() == pytest.approx([10, math.inf, 1])
    assert support_of(made("scaled beta"), 2).high.tolist() == [7, 7]
    assert support_of(made("scipy beta"), 2).low.tolist() == [0, 5]
    # Not declared anywhere, but found where the density ends.
    found = support_of(made("truncated normal"), 2)
    assert (found.low.tolist(), found.high.tolist()) == ([-1, -1], [2, 2])
    assert found.filled


def test_gaps_and_corners_without_density_are_seen():
    boxes = d.Uniform(
        torch.tensor([[0.0, 0.0], [2.0, 2.0]]), torch.tensor([[1.0, 1.0], [3.0, 3.0]])
    )
    parts = Independent(boxes, 1)
    with pytest.raises(InputError, match="refuses its own draws.*validate_args=False"):
        check_prior(d.MixtureSameFamily(d.Categorical(torch.ones(2)), parts, validate_args=True))
    prior = d.MixtureSameFamily(d.Categorical(torch.ones(2)), parts, validate_args=False)
    assert not support_of(prior, 2).filled
    assert log_density(
        prior, torch.tensor([[0.5, 0.5], [1.5, 1.5], [0.5, 2.5]])
    ).isfinite().tolist() == [
        True,
        False,
        False,
    ]


def test_whole_numbers_have_no_density_between_them():
    prior = Independent(d.Poisson(torch.ones(2)), 1)
    assert not support_of(prior, check_prior(prior)).filled
    values = log_density(prior, torch.tensor([[0.0, 1.0], [0.5, 1.0], [-1.0, 0.0]]))
    assert values.isfinite().tolist() == [True, False, False]


def exact(prior, noise, width):
    """The posterior of theta + noise, times a width, up to its integral."""

    def log_prob(theta, x):
        away = ((theta - x) / (width * noise)).square().sum(dim=-1) / 2
        return log_density(prior, theta) - away

    return prudent.adapt(prior=prior, log_prob=log_prob, normalized=False)


# The grid follows the edge of the ball in each posterior, in a minute; draws do without.
METHODS = [(name, "importance" if name == "ball in a box" else "auto") for name in PRIORS]
METHODS.append(pytest.param("ball in a box", "grid", marks=pytest.mark.nightly))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), METHODS)
def test_the_exact_posterior_is_green_and_a_narrow_one_is_not(name, method):
    prior, options = made(name), {"method": method, "progress": False}
    prior = of_any_shape(prior, check_prior(prior))
    theta, x, noise = simulated(prior, 1500, 1)
    right = prudent.diagnose(exact(prior, noise, 1.0), theta, x, **options)
    assert right.verdict.trusted, str(right.verdict)
    narrow = prudent.diagnose(exact(prior, noise, 0.6), theta[:600], x[:600], **options)
    assert narrow.verdict.kind == "over-confident"
