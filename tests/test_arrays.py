"""What users hand over: tensors, arrays, lists and data frames, of any type of number."""

import itertools

import numpy as np
import pandas
import pytest
import torch
from torch.distributions import Beta, Distribution, Independent, Normal, Uniform

from prudent import _arrays, diagnose, fit, load, problems
from prudent.coverage import CoveragePenalty
from prudent.datasets import Pairs, provenance, read
from prudent.diagnostics import c2st, kl, local_coverage, mmd, posterior_ranks, predictive_check
from prudent.errors import DataError, InputError, PrudentError
from prudent.priors.density import log_density
from prudent.priors.families import Product
from prudent.priors.files import from_table
from prudent.training import methods

# Whole numbers, of which theta are made here, are no draws of the prior.
pytestmark = pytest.mark.filterwarnings(
    "ignore:theta does not follow the prior", "ignore:.*pairs repeat others"
)
GAUSSIAN = problems.get("gaussian")
SMALL = {"hidden": [16], "epochs": 1, "batch_size": 64, "progress": False}
# Whole numbers are the same in every type.
THETA = torch.randint(0, 5, (256, 2), generator=torch.Generator().manual_seed(0)).float()
X = THETA + torch.randint(0, 3, (256, 2), generator=torch.Generator().manual_seed(1))
CONTAINERS = {
    "float32": torch.Tensor.float,
    "float64": torch.Tensor.double,
    "int64": torch.Tensor.long,
    "numpy float64": lambda values: values.double().numpy(),
    "numpy float16": lambda values: values.half().numpy(),
    "numpy int": lambda values: values.long().numpy(),
    "numpy uint": lambda values: values.numpy().astype(np.uint32),
    "numpy long double": lambda values: values.numpy().astype(np.longdouble),
    "big endian": lambda values: values.numpy().astype(">f8"),
    "list": lambda values: values.tolist(),
    "frame": lambda values: frame(values.double().numpy()),
    "nullable frame": lambda values: frame(values.double().numpy()).astype("Float64"),
}


def frame(values):
    return pandas.Series(values) if values.ndim == 1 else pandas.DataFrame(values)


def weights(estimator):
    return torch.cat([value.flatten() for value in estimator.state_dict().values()])


@pytest.fixture(autouse=True)
def _any_pairs(monkeypatch):
    """Here the pairs of a training are diagnosed as well."""
    monkeypatch.setattr(provenance, "refuse_seen", lambda *args: None)


@pytest.fixture(scope="module")
def estimators():
    found = {name: fit(THETA, X, GAUSSIAN.prior, method=name, **SMALL) for name in ("npe", "nre")}
    found["folds"] = fit(
        THETA, X, GAUSSIAN.prior, method="npe", members=2, ensemble="folds", **SMALL
    )
    return found


def of_posterior(name, call):
    def result(estimators, of):
        posterior = estimators[name](of(X[:4]))
        torch.manual_seed(0)
        return call(posterior, of(THETA[:4]))

    return result


def test_function(theta, x):
    return theta.sum(-1)


test_function.__test__ = False
CALLS = {
    "fit": lambda e, of: weights(fit(of(THETA), of(X), GAUSSIAN.prior, method="npe", **SMALL)),
    "fit nre": lambda e, of: weights(fit(of(THETA), of(X), GAUSSIAN.prior, method="nre", **SMALL)),
    "diagnose": lambda e, of: diagnose(
        e["npe"], of(THETA[:60]), of(X[:60]), progress=False
    ).metrics(),
    "diagnose nre": lambda e, of: diagnose(
        e["nre"], of(THETA[:20]), of(X[:20]), progress=False
    ).metrics(),
    "one observation": lambda e, of: e["npe"](of(X[0])).log_prob(of(THETA[0])),
    "one of an ensemble": lambda e, of: e["folds"](of(X[0])).log_prob(of(THETA[:9])),
    **{
        f"{call} {name}": of_posterior(name, function)
        for name in ("npe", "nre", "folds")
        for call, function in {
            "log_prob": lambda posterior, theta: posterior.log_prob(theta),
            "log_ratio": lambda posterior, theta: posterior.log_ratio(theta),
        }.items()
    },
    "sample": of_posterior("npe", lambda posterior, theta: posterior.sample(10)),
    "sample folds": of_posterior("folds", lambda posterior, theta: posterior.sample(10)),
    "ranks": lambda e, of: (
        posterior_ranks(e["npe"], of(THETA[:9]), of(X[:9]), num_samples=9, progress=False).ranks
    ),
    "ranks of draws": lambda e, of: (
        posterior_ranks(
            [THETA[9:18].tolist()],
            of(THETA[:9]),
            of(X[:9]),
            {"sum": test_function},
            progress=False,
        ).ranks
    ),
    "predictive check": lambda e, of: (
        predictive_check(e["npe"], GAUSSIAN, of(X[:2]), num_samples=20, progress=False).p_values
    ),
    "local coverage": lambda e, of: repr(local_coverage(of((THETA[:, 0] > 2).float()), of(X))),
    "kl": lambda e, of: float(kl(of(THETA[:, 0]), of(X[:, 0]))),
    "mmd": lambda e, of: float(mmd(of(THETA), of(X))),
    "c2st": lambda e, of: float(c2st(of(THETA), of(X))),
    "pairs": lambda e, of: torch.cat((Pairs.of(of(THETA), of(X)).theta, X)),
    "simulate": lambda e, of: GAUSSIAN.simulate(of(THETA), torch.Generator().manual_seed(0)),
    "box": lambda e, of: (
        problems.box(of(torch.tensor([0.0, 1.0])), of(torch.tensor([2.0, 3.0])))
        .log_prob(torch.ones(2) * 1.5)
        .float()
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_container_gives_what_a_float32_tensor_gives(estimators, call):
    expected = CALLS[call](estimators, CONTAINERS["float32"])
    for name, of in CONTAINERS.items():
        found = CALLS[call](estimators, of)
        tensor = isinstance(found, torch.Tensor)
        assert torch.equal(found, expected) if tensor else found == expected, name


def test_the_calls_that_failed(estimators):
    """Each ended in an error of numpy, torch or pandas once."""
    estimator, x = estimators["nre"], X[:1].numpy()
    assert estimator(x).sample(100).shape == (100, 1, 2)
    assert estimator(x).sample(np.int64(3)).shape == (3, 1, 2)
    assert estimator(x.tolist()).log_prob(THETA[:1].numpy()).shape == (1,)
    assert estimators["npe"](x).sample(100).shape == (100, 1, 2)
    assert estimators["npe"](x).sample_and_log_prob(5)[1].shape == (5, 1)
    columns = pandas.DataFrame({"a": THETA[:, 0], "b": THETA[:, 1]}, index=range(7, 263))
    x = columns + np.arange(256)[:, None]
    assert fit(columns, x, GAUSSIAN.prior, method="npe", **SMALL).dim == 2


class Thing:
    """An object that is no number."""


REFUSED = {
    "objects": np.array([[Thing(), Thing()]] * 256),
    "strings": [["1", "2"]] * 256,
    "strings in a frame": pandas.DataFrame([["1", "2"]] * 256),
    "ragged": [[1.0, 2.0], [1.0]] * 128,
    "complex": THETA.numpy() + 1j,
    "None": [[None, 1.0]] * 256,
    "too many columns": torch.zeros(256, 3),
    "a number": 3.0,
    "dates": np.full((256, 2), np.datetime64("2020-01-01")),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_is_no_array_of_numbers_is_refused_in_one_line(estimators, wrong):
    value, estimator = REFUSED[wrong], estimators["npe"]
    calls = [
        lambda: fit(value, X, GAUSSIAN.prior, **SMALL),
        lambda: diagnose(estimator, value, X, progress=False),
        lambda: diagnose(estimator, THETA, value, progress=False),
        lambda: estimator(value),
        lambda: estimator(X).log_prob(value),
        lambda: estimators["nre"](X).log_ratio(value),
        lambda: estimators["folds"](X).log_prob(value),
        lambda: GAUSSIAN.simulate(value, torch.Generator()),
    ]
    for call in calls:
        with pytest.raises(PrudentError) as raised:
            call()
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("shape", [1.5, "9", (2, -1), (2.0,), None])
def test_shapes_of_draws_are_whole_numbers(estimators, shape):
    for estimator in estimators.values():
        with pytest.raises(InputError, match="shape of draws as whole numbers"):
            estimator(X[:1]).sample(shape)


def test_what_only_tensors_can_do_says_so():
    with pytest.raises(InputError, match="`theta` as a tensor"):
        CoveragePenalty(GAUSSIAN.prior)(None, THETA.numpy())
    with pytest.raises(InputError, match=r"of shape \(N, 2\): .* whose first layer takes"):
        fit(THETA, X, GAUSSIAN.prior, **SMALL, embedding=torch.nn.Linear(3, 4))
    for hidden in ("64", 64):
        with pytest.raises(InputError, match=rf"`hidden` is {hidden!r}; expected a list"):
            fit(THETA, X, GAUSSIAN.prior, **{**SMALL, "hidden": hidden})
    with pytest.raises(InputError, match="got Linear without `prior` and `normalized`"):
        diagnose(torch.nn.Linear(2, 2), THETA, X)
    with pytest.raises(InputError, match="`low` below `high`"):
        problems.box([1, 1], [0, 0])


class Bare(Distribution):
    """A prior that does not say where it lives."""

    def __init__(self):
        super().__init__(event_shape=torch.Size([2]), validate_args=False)

    def sample(self, sample_shape=()):
        return torch.randn(*sample_shape, 2)

    def log_prob(self, value):
        return -0.5 * value.square().sum(-1)


def test_a_prior_without_a_support_is_taken():
    assert fit(THETA, X, Bare(), method="calnpe", **SMALL).dim == 2


# Types of numbers


def uniform(low, high, dtype=torch.float64):
    return Independent(Uniform(torch.tensor(low, dtype=dtype), torch.tensor(high, dtype=dtype)), 1)


def pairs(center=0.0, scale=1.0, number=256):
    random = np.random.default_rng(0)
    standard = random.uniform(-1, 1, (number, 2))
    return center + scale * standard, standard + 0.2 * random.normal(size=(number, 2))


DOUBLE = uniform([-1.0, -1.0], [1.0, 1.0])


@pytest.mark.parametrize("method", methods.names())
def test_a_prior_of_float64(method, tmp_path):
    """Theta, draws and densities have the type of the prior, in every method and diagnosis."""
    theta, x = pairs()
    members = 2 if method == "prudent" else 1
    estimator = fit(theta, x, DOUBLE, method=method, members=members, **SMALL)
    posterior = estimator(x[:3])
    for draws in (posterior.sample(20), posterior.rows(slice(1)).sample(())):
        assert draws.dtype == torch.float64
    assert posterior.log_prob(theta[:3]).dtype == torch.float64
    assert posterior.log_ratio(theta[:3]).dtype == torch.float64
    found = {
        way: diagnose(estimator, theta[:20], x[:20], method=way, progress=False).log_posterior
        for way in ("grid", "samples", "importance")
    }
    assert max(found.values()) - min(found.values()) < 0.05
    estimator.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert torch.equal(again(x[:3]).log_prob(theta[:3]), posterior.log_prob(theta[:3]))


@pytest.mark.parametrize("method", ["npe", "calnre"])
@pytest.mark.parametrize("ensemble", ["seeds", "folds"])
def test_ensembles_under_a_prior_of_float64(method, ensemble, tmp_path):
    theta, x = pairs()
    options = {**SMALL, "members": 2, "ensemble": ensemble}
    estimator = fit(theta, x, DOUBLE, method=method, **options)
    assert estimator(x[:3]).sample(9).dtype == torch.float64
    thorough = diagnose(estimator, theta[:130], x[:130], thorough=True, progress=False)
    assert set(thorough.results) == {"sbc", "tarp", "local_coverage"}
    estimator.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert torch.equal(again(x[:3]).log_prob(theta[:3]), estimator(x[:3]).log_prob(theta[:3]))


@pytest.mark.parametrize("proposal", ["box", "model", "model-rsample", "a distribution"])
def test_proposals_under_a_prior_of_float64(proposal):
    given = uniform([-2.0, -2.0], [2.0, 2.0]) if proposal == "a distribution" else proposal
    estimator = fit(*pairs(), DOUBLE, method="calnpe", proposal=given, **SMALL)
    assert estimator.history[0]["skipped"] == 0


def test_types_of_theta_and_prior_may_differ():
    """A prior of float32 decides, and a file of float64 keeps its digits for one of float64."""
    theta, x = pairs()
    single = uniform([-1.0, -1.0], [1.0, 1.0], torch.float32)
    estimator = fit(theta, x, single, method="npe", **SMALL)
    same = fit(theta.astype(np.float32), x.astype(np.float32), single, method="npe", **SMALL)
    assert torch.equal(weights(estimator), weights(same))
    assert estimator(x[:3]).sample(5).dtype == torch.float32
    assert estimator(x[:3]).log_prob(theta[:3]).dtype == torch.float32
    mixed = fit(Pairs.of(theta, x), prior=DOUBLE, method="calnre", **SMALL)
    assert mixed(x[:3]).sample(5).dtype == torch.float64


@pytest.mark.parametrize("method", ["npe", "calnpe", "calnre"])
@pytest.mark.parametrize(("center", "scale"), [(1e6, 1.0), (1e8, 1.0), (0.0, 1e20), (0.0, 1e-20)])
def test_far_from_zero_nothing_is_lost(method, center, scale):
    """Location and scale drop out: training, draws and diagnoses are those of [-1, 1]."""
    plain, x = pairs()
    theta, _ = pairs(center, scale)
    prior = uniform([center - scale] * 2, [center + scale] * 2)
    expected = fit(plain, x, DOUBLE, method=method, **SMALL)
    estimator = fit(theta, x, prior, method=method, **SMALL)
    assert torch.allclose(
        estimator(x[:50]).log_ratio(theta[:50]), expected(x[:50]).log_ratio(plain[:50]), atol=1e-3
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = (estimator(x[:50]).sample(200) - center) / scale
    assert len(draws.unique()) > 10_000
    # Rounding of float64 at 1e8 is 1e-8; of float32, by 8, it would be far beyond.
    wanted = diagnose(expected, plain[:60], x[:60], progress=False)
    found = diagnose(estimator, theta[:60], x[:60], progress=False)
    assert found.auc == pytest.approx(wanted.auc, abs=0.01)
    assert found.information_gain == pytest.approx(wanted.information_gain, abs=0.01)
    variance = np.array(found.posterior_variance) / scale**2
    assert variance == pytest.approx(np.array(wanted.posterior_variance), rel=0.02)


def test_files_keep_the_digits_of_theta(tmp_path):
    theta, x = pairs(1e8)
    np.savez(tmp_path / "sims.npz", theta=theta, x=x)
    prior = uniform([1e8 - 1] * 2, [1e8 + 1] * 2)
    found = fit(tmp_path / "sims.npz", prior=prior, method="npe", **SMALL)
    assert torch.equal(weights(found), weights(fit(theta, x, prior, method="npe", **SMALL)))
    stream = read(tmp_path / "sims.npz", dtype=torch.float64)
    assert stream.theta.dtype == torch.float64


@pytest.mark.parametrize("center", [1e6, 1e8])
def test_what_float32_has_lost_is_refused(center):
    theta, x = pairs(center)
    single = uniform([center - 1] * 2, [center + 1] * 2, torch.float32)
    double = uniform([center - 8] * 2, [center + 8] * 2)
    for lost, prior in ((theta, single), (torch.tensor(theta).float(), double)):
        with pytest.raises(DataError, match="float32 .* a constant, or pass .* float64") as raised:
            fit(lost, x, prior, **SMALL)
        assert "\n" not in str(raised.value)
    table = {"kind": "box", "low": [1e8 - 1], "high": [1e8 + 1]}
    with pytest.raises(InputError, match="not below high .* in float32"):
        from_table(table)


@pytest.mark.parametrize("scale", [1e20, 1e-20])
def test_spreads_whose_square_float32_does_not_hold_are_refused(scale):
    theta, x = pairs(0.0, scale)
    prior = uniform([-scale] * 2, [scale] * 2, torch.float32)
    with pytest.raises(DataError, match="spreads from .* Divide it by a constant"):
        fit(theta, x, prior, **SMALL)


def test_observations_whose_digits_are_lost_warn():
    theta, x = pairs()
    x[:, 1] = 1e9 + 1000 * x[:, 1]
    with pytest.warns(UserWarning, match="components 1 of x vary by less than float32 resolves"):
        fit(theta, x, DOUBLE, method="npe", **SMALL)


# The edge of a box


@pytest.mark.parametrize("low", [1000.0, 10000.0])
@pytest.mark.parametrize("method", ["calnpe", "calnre", "bnpe"])
def test_draws_that_torch_rounds_to_the_edge_train(method, low):
    """The draws of the very prior were refused once, or stopped in `coverage`."""
    prior = uniform([low] * 2, [low + 1] * 2, torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theta = prior.sample((1024,))
        theta[7, 0] = low + 1
        x = theta - low + 0.2 * torch.randn(1024, 2)
    assert prior.log_prob(theta).isneginf().any()
    estimator = fit(theta, x, prior, method=method, **{**SMALL, "epochs": 8})
    assert sum(row["skipped"] for row in estimator.history) == 0
    assert diagnose(estimator, theta[:50], x[:50], progress=False).num_invalid == 0


def test_the_edge_of_a_box_is_inside_and_beyond_is_not():
    edge = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5], [1.0 + 1e-6, 0.5], [-1e-6, 0.5]])
    flat = uniform([0.0, 0.0], [1.0, 1.0], torch.float32)
    assert log_density(flat, edge).tolist() == [0.0, 0.0, 0.0, -torch.inf, -torch.inf]
    several = Independent(Uniform(torch.zeros(3, 2), torch.tensor([[1.0], [2.0], [5.0]])), 1)
    found = log_density(several, edge[:3].double())
    torch.testing.assert_close(found, several.log_prob(torch.full((3, 2), 0.5)).double())
    product = Product([Uniform(0.0, 1.0), Normal(0.0, 1.0)])
    inside = torch.tensor([True, True, True, False, False])
    assert torch.equal(log_density(product, edge).isfinite(), inside)
    beta = Independent(Beta(torch.full((2,), 0.5), torch.full((2,), 0.5)), 1)
    assert torch.equal(log_density(beta, edge).isfinite(), inside)


@pytest.mark.parametrize("number", [1001, 2500, 3000])
def test_many_draws_are_made_in_pieces(number, monkeypatch):
    monkeypatch.setattr(_arrays, "MOST_AT_ONCE", 1000)
    asked, count = [], itertools.count()

    def draw(some):
        asked.append(some)
        return torch.tensor([[[float(next(count))]] * 2 for _ in range(some)]), some

    found, reports = _arrays.in_pieces(draw, number, 2)
    assert max(asked) == 500
    assert sum(asked) == sum(reports) == number
    assert found[:, 1, 0].tolist() == list(range(number))


def test_draws_that_no_memory_holds_are_one_line():
    def draw(some):
        return torch.zeros(some, 1, 2), None

    with pytest.raises(InputError, match=r"need 8000000.0 GB of memory, more than there is"):
        _arrays.in_pieces(draw, 10**15, 1)
