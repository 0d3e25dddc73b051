"""Every family of priors: draws follow the density, and a saved model has the same prior."""

import json

import numpy as np
import pytest
import torch
from torch import distributions
from torch.distributions import Independent

import prudent
from prudent._randomness import seeded
from prudent.errors import InputError
from prudent.estimators import FlowEstimator
from prudent.priors.checks import PARAMETERS, from_spec, marginal_density, to_spec
from prudent.priors.density import log_density, support_bounds
from prudent.priors.families import LogUniform, Product, Truncated
from prudent.priors.support import Support

NUM_DRAWS = 20_000
# The 1e-6 quantile of the Kolmogorov distance of so many draws from their own distribution.
FARTHEST = 2.69 / NUM_DRAWS**0.5
NUMBERS = {
    "Uniform": {"low": -1.0, "high": 3.0},
    "LogUniform": {"low": 0.01, "high": 10.0},
    "StudentT": {"df": 5.0, "loc": 1.0, "scale": 2.0},
    "Beta": {"concentration1": 2.0, "concentration0": 3.0},
    "Kumaraswamy": {"concentration1": 2.0, "concentration0": 3.0},
    "Pareto": {"scale": 1.5, "alpha": 3.0},
    "InverseGamma": {"concentration": 3.0, "rate": 2.0},
    "Weibull": {"scale": 2.0, "concentration": 1.5},
}
OTHERS = {"loc": 0.5, "scale": 0.8, "rate": 1.5, "concentration": 2.5, "df": 4.0}


def family(name, **changes):
    numbers = NUMBERS.get(name) or {key: OTHERS[key] for key in PARAMETERS[name]}
    return from_spec({"class": name, "parameters": {**numbers, **changes}})


CUT = {
    "Normal": (0.0, 2.0),
    "LogNormal": (0.5, torch.inf),
    "Exponential": (-1.0, 1.0),
    "Cauchy": (-torch.inf, 0.0),
    "Laplace": (0.6, 4.0),
    "Gumbel": (0.0, 3.0),
    "Weibull": (1.0, 2.0),
    "HalfNormal": (0.3, torch.inf),
    "LogUniform": (0.1, 1.0),
    # Of these torch knows no quantiles.
    "Gamma": (0.5, 2.0),
    "Chi2": (3.0, torch.inf),
    "InverseGamma": (-1.0, 1.0),
}
FAMILIES = {name: family(name) for name in PARAMETERS}
FAMILIES |= {f"cut {name}": Truncated(family(name), *ends) for name, ends in CUT.items()}


def distance(draws, prior):
    """The Kolmogorov distance of draws from the integral of a density, by quadrature."""
    draws = np.sort(draws.double().numpy())
    ends = np.quantile(draws, [0.0005, 0.9995])
    # Draws as nodes resolve the density where it is steep.
    points = np.unique(np.concatenate([np.linspace(*ends, 20_001), draws]))
    points = points[(points >= ends[0]) & (points <= ends[1])]
    logs = log_density(Independent(prior.expand((1,)), 1), torch.tensor(points)[:, None])
    density = logs.exp().numpy()
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(points))])
    below = np.searchsorted(draws, points, side="right") / len(draws)
    return float(np.abs(below - below[0] - mass).max())


@pytest.mark.parametrize("name", FAMILIES)
def test_draws_follow_the_density(name):
    with seeded(0, name):
        draws = FAMILIES[name].sample((NUM_DRAWS,))
    assert draws.dtype == torch.float32
    assert distance(draws, FAMILIES[name]) < FARTHEST


@pytest.mark.parametrize(
    ("drawn", "claimed"),
    [
        (family("LogUniform"), family("LogUniform", high=13.0)),
        (family("Normal"), FAMILIES["cut Normal"]),
        (FAMILIES["cut Normal"], Truncated(family("Normal", loc=0.4), 0.0, 2.0)),
        (family("Weibull"), family("Weibull", scale=2.1)),
    ],
)
def test_draws_of_another_family_do_not(drawn, claimed):
    with seeded(0):
        assert distance(drawn.sample((NUM_DRAWS,)), claimed) > FARTHEST


@pytest.mark.parametrize("name", CUT)
def test_a_cut_density_integrates_to_one_and_is_zero_outside(name):
    prior = FAMILIES[f"cut {name}"]
    exact = prior.base
    inside = prior.sample((100,)).double()
    assert bool(((inside >= prior.low) & (inside <= prior.high)).all())
    # The mass that is cut away, found by other means: the share of draws of the whole family.
    with seeded(1):
        whole = exact.sample((200_000,))
    share = float(((whole >= prior.low) & (whole <= prior.high)).double().mean())
    ratio = (prior.log_prob(inside) - exact.log_prob(inside)).exp()
    assert ratio.numpy() == pytest.approx(np.full(100, 1 / share), rel=0.02)
    outside = torch.tensor([prior.low - 1e-3, prior.high + 1e-3])
    assert prior.log_prob(outside[outside.isfinite()]).isneginf().all()


PRIORS = {
    "product": Product(
        [family("LogUniform"), FAMILIES["cut Normal"], family("Gamma"), FAMILIES["cut LogNormal"]]
    ),
    "correlated": distributions.MultivariateNormal(
        torch.tensor([1.0, -1.0]), torch.tensor([[2.0, 0.9], [0.9, 1.0]])
    ),
    "Dirichlet": distributions.Dirichlet(torch.tensor([1.0, 2.0, 3.0])),
    "log box": Independent(LogUniform(torch.tensor([0.1, 1.0]), torch.tensor([1.0, 9.0])), 1),
    "float64": Product([Truncated(distributions.Normal(*torch.tensor([1e8, 1.0]).double()), 1e8)]),
}
PRIORS |= {name: Product([one]) for name, one in FAMILIES.items()}


@pytest.mark.parametrize("name", PRIORS)
def test_a_saved_model_has_the_same_prior(name, tmp_path):
    prior = PRIORS[name]
    theta = prior.sample((50,))
    again = from_spec(json.loads(json.dumps(to_spec(prior), allow_nan=False)))
    assert torch.equal(again.log_prob(theta), prior.log_prob(theta))
    if name not in FAMILIES or name.startswith(("cut N", "LogU")):
        estimator = FlowEstimator(prior, theta.shape[1], (2,), hidden=(8,), transforms=1)
        estimator.save(tmp_path / "model.safetensors")
        loaded = prudent.load(tmp_path / "model.safetensors")
        assert torch.equal(loaded.prior.log_prob(theta), prior.log_prob(theta))
        assert torch.equal(loaded.support.low, estimator.support.low)
        draws = loaded(torch.zeros(1, 2)).sample((64,), seed=0)
        assert (log_density(prior, draws) > -torch.inf).all()


def test_bounds_of_a_product_are_found():
    support = Support(PRIORS["product"], 4)
    expected = [torch.tensor(0.01).item(), 0.0, 0.0, 0.5]
    assert support.low.tolist() == pytest.approx(expected)
    assert support.high.tolist() == [10.0, 2.0, torch.inf, torch.inf]
    low, high = support_bounds(PRIORS["log box"], 2)
    assert low.tolist() == pytest.approx([0.1, 1.0])
    assert high.tolist() == [1.0, 9.0]


def test_the_background_of_a_plot_is_the_density():
    points = np.linspace(0.02, 5.0, 50)
    exact = 1 / points / np.log(1000)
    assert marginal_density(PRIORS["product"], 0, points) == pytest.approx(exact, rel=1e-4)
    one = marginal_density(PRIORS["log box"], 1, np.linspace(1.5, 8.5, 8))
    assert one == pytest.approx(1 / np.linspace(1.5, 8.5, 8) / np.log(9), rel=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LogUniform(torch.tensor(0.0), torch.tensor(1.0)), "0 < low < high"),
        (lambda: Truncated(family("StudentT"), 1.0), "a StudentT cannot be cut"),
        (lambda: Truncated(family("Beta"), 0.5), "Choose another family"),
        (lambda: Truncated(family("Gamma"), 9.0), "less than 0.001 of the Gamma"),
        (lambda: Truncated(family("Normal"), 8.0), "less than 1e-06 of the Normal"),
        (lambda: Truncated(family("Exponential"), -2.0, -1.0), "no Exponential lies between"),
    ],
)
def test_what_cannot_be_cut_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
