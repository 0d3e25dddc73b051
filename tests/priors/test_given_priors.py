"""Priors by name, in lists, from scipy and from files, wherever a prior is taken."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributions import Beta, Independent, MultivariateNormal, Normal, Uniform

import prudent
from prudent import priors
from prudent.errors import InputError, PrudentError
from prudent.priors.checks import SCIPY, from_spec, to_spec
from prudent.priors.density import log_density, support_of
from prudent.priors.given import as_prior

FILE = """
[[parameter]]
name = "rate"
unit = "1/s"
family = "LogUniform"
low = 0.1
high = 10.0

[[parameter]]
name = "mass"
family = "Normal"
loc = 0.0
scale = 1.0
"""


def named():
    return priors.independent(rate=priors.LogUniform(0.1, 10.0), mass=Normal(0.0, 1.0))


def fitted(prior, theta=None, **options):
    known = as_prior(prior).prior
    torch.manual_seed(0)
    theta = known.sample((128,)) if theta is None else theta
    x = torch.tensor(np.asarray(theta).copy()).float() + 0.1 * torch.randn(len(theta), 2)
    options = {"method": "npe", "epochs": 1, "hidden": [8], "progress": False, **options}
    return prudent.fit(theta, x, prior, **options)


def test_names_are_those_of_the_parameters(tmp_path):
    (tmp_path / "prior.toml").write_text(FILE)
    made = priors.from_file(tmp_path / "prior.toml")
    assert (made.parameter_names, made.units) == (["rate", "mass"], ["1/s", ""])
    for prior in (named(), made, tmp_path / "prior.toml", str(tmp_path / "prior.toml")):
        estimator = fitted(prior)
        assert estimator.info["parameter_names"] == ["rate", "mass"]
        estimator.save(tmp_path / "model")
        again = prudent.load(tmp_path / "model")
        assert again.info["parameter_names"] == ["rate", "mass"]
        assert support_of(again.prior, 2).low.tolist() == pytest.approx([0.1, -np.inf])
        assert prudent.load(tmp_path / "model", prior=prior).dim == 2
    assert fitted(named(), names=["a", "b"]).info["parameter_names"] == ["a", "b"]
    pair = MultivariateNormal(torch.zeros(2), torch.eye(2))
    several = priors.independent(Uniform(0.0, 1.0), shape=pair)
    assert several.parameter_names == ["theta_1", "shape_1", "shape_2"]


def test_columns_in_another_order_are_refused():
    theta = pd.DataFrame(named().sample((128,)).numpy(), columns=["rate", "mass"])
    assert fitted(named(), theta).info["parameter_names"] == ["rate", "mass"]
    with pytest.raises(InputError, match=r"columns of theta are mass rate.*prior rate mass"):
        fitted(named(), theta[["mass", "rate"]])


def test_lists_and_all_who_take_a_prior(tmp_path):
    given = [Uniform(0.0, 1.0), Normal(torch.zeros(1), torch.ones(1))]
    assert fitted(given).dim == 2

    def log_prob(theta, x):
        return -((theta - x) ** 2).sum(dim=-1)

    adapted = prudent.adapt(prior=named(), log_prob=log_prob, normalized=False)
    assert (adapted.dim, adapted.info["parameter_names"]) == (2, ["rate", "mass"])
    problem = prudent.problems.custom(lambda theta: theta + 1, given)
    assert problem.dim == 2
    assert prudent.problems.custom(lambda t: t, named()).parameter_names == ("rate", "mass")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([Uniform(0.0, 1.0), 3.0], "got a float: 3.0"),
        ([], "needs a parameter"),
        ([Uniform(torch.zeros(2), torch.ones(2))], r"batch_shape \(2,\).*one by one"),
        ("prior.tomml", "prior.tomml"),
        (7, "no `sample`, `log_prob`"),
    ],
)
def test_mistakes_are_told(given, told):
    with pytest.raises(PrudentError, match=told):
        prudent.fit(torch.rand(64, 1), torch.rand(64, 1), given)


def test_scipy_priors_are_drawn_evaluated_and_saved():
    stats = pytest.importorskip("scipy.stats")
    frozen = [stats.beta(2, 3), stats.truncnorm(-1, 2, loc=1.0, scale=0.5), stats.expon(scale=2)]
    prior = as_prior(frozen).prior
    torch.manual_seed(0)
    theta = prior.sample((20_000,))
    assert theta.dtype == torch.float32
    columns = list(zip(frozen, theta.T.double(), strict=True))
    expected = sum(one.logpdf(column) for one, column in columns)
    np.testing.assert_allclose(log_density(prior, theta), expected, rtol=1e-4, atol=1e-4)
    for one, column in columns:
        assert stats.kstest(column, one.cdf).pvalue > 1e-4
    # A wrong density is seen.
    assert stats.kstest(theta[:, 0].double(), stats.beta(2, 3.3).cdf).pvalue < 1e-4
    again = from_spec(json.loads(json.dumps(to_spec(prior))))
    assert torch.equal(again.log_prob(theta), prior.log_prob(theta))
    box = torch.tensor([[-0.1, 1.0, 1.0], [0.5, 3.0, 1.0], [0.5, 1.0, -1.0]])
    assert log_density(prior, box).isneginf().all()


def test_scipy_priors_of_several_numbers_and_of_many_digits():
    stats = pytest.importorskip("scipy.stats")
    assert as_prior(stats.norm([0, 1], [1, 2])).prior.event_shape == (2,)
    normal = as_prior(stats.multivariate_normal([0, 1], [[1, 0.5], [0.5, 1]])).prior
    assert isinstance(normal, MultivariateNormal)
    assert as_prior(stats.dirichlet([1, 2, 3])).prior.event_shape == (3,)
    far = as_prior([stats.uniform(1e8 - 1, 2)]).prior.sample((100,))
    assert far.dtype == torch.float64
    assert len(far.unique()) == 100
    with pytest.raises(InputError, match="frozen continuous"):
        as_prior(stats.poisson(3))


def test_files_name_families_of_scipy_and_nothing_else():
    stats = pytest.importorskip("scipy.stats")
    assert all(isinstance(getattr(stats, name), stats.rv_continuous) for name in SCIPY)
    spec = {"class": "Scipy", "family": "norm", "dtype": "float32", "numbers": [], "named": {}}
    assert from_spec(spec).sample((2,)).shape == (2,)
    for family in ("rv_histogram", "gaussian_kde", "__doc__"):
        with pytest.raises(PrudentError, match="names a prior"):
            from_spec({**spec, "family": family})


def test_nothing_of_scipy_is_imported_at_first():
    code = "import sys, prudent; prudent.priors.independent; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_correlated_and_truncated():
    made = priors.correlated(np.array([0.0, 1.0]), [1.0, 2.0], [[1.0, 0.5], [0.5, 1.0]])
    assert made.covariance_matrix.tolist() == [[1, 1], [1, 4]]
    with pytest.raises(InputError, match="positive definite"):
        priors.correlated([0.0, 0.0], [1.0, 1.0], [[1.0, 2.0], [2.0, 1.0]])
    prior = as_prior([priors.truncated(Normal(0.0, 1.0), low=0.0, high=1.0)]).prior
    assert support_of(prior, 1).high.tolist() == [1]
    joined = priors.independent(*[made, Independent(Beta(torch.ones(2), torch.ones(2)), 1)])
    assert to_spec(joined)["factors"][0]["class"] == "MultivariateNormal"
    assert joined.sample((3,)).shape == (3, 4)
