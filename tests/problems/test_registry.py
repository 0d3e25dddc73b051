"""One contract over all registered problems."""

import sys
import types

import pytest
import torch

from prudent import problems
from prudent.errors import DataError, InputError
from prudent.experiments import RunConfig, cost, load_results, run_one
from prudent.reports import write_report
from prudent.training import Options


@pytest.fixture(params=problems.names())
def problem(request):
    if request.param == "gravitational_waves_pycbc":
        pytest.importorskip("pycbc", reason="PyCBC is optional: prudent[gw]")
    return problems.get(request.param)


def test_shapes_types_and_support(problem):
    theta, x = problem.draw(6, seed=0)
    assert theta.shape == (6, problem.dim)
    assert x.shape == (6, *problem.x_shape)
    assert theta.dtype == x.dtype == torch.float32
    assert x.isfinite().all()
    assert problem.prior.support.check(theta).all()
    assert problem.prior.log_prob(theta).shape == (6,)
    assert len(problem.parameter_names) == problem.dim == theta.shape[1]
    assert problem.name in problems.names()


def test_a_seed_gives_the_same_pairs_and_leaves_the_global_generator_alone(problem):
    before = torch.random.get_rng_state()
    first, second = problem.draw(4, seed=3), problem.draw(4, seed=3)
    other, stream = problem.draw(4, seed=4), problem.draw(4, seed=3, stream="test")
    assert torch.equal(before, torch.random.get_rng_state())
    for part in (0, 1):
        assert torch.equal(first[part], second[part])
        assert not torch.equal(first[part], other[part])
        assert not torch.equal(first[part], stream[part])


def test_the_generator_decides(problem):
    theta = problem.draw(20, seed=2)[0]
    first, same, other = (
        problem.simulate(theta, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_simulations_of_one_theta_differ(problem):
    theta = problem.prior.sample((1,)).expand(3, -1)
    x = problem.simulate(theta, torch.Generator().manual_seed(0))
    assert not torch.equal(x[0], x[1])


def test_theta_is_left_alone(problem):
    theta, _ = problem.draw(3, seed=0)
    copy = theta.clone()
    problem.simulate(theta, torch.Generator())
    assert torch.equal(theta, copy)


def test_wrong_theta_is_named(problem):
    generator = torch.Generator()
    with pytest.raises(DataError, match=rf"\(N, {problem.dim}\)"):
        problem.simulate(torch.zeros(problem.dim), generator)
    with pytest.raises(DataError, match=rf"\(N, {problem.dim}\)"):
        problem.simulate(torch.zeros(2, problem.dim + 1), generator)
    if problem.name != "gaussian":
        inside = problem.draw(1, 0)[0]
        both = torch.cat((inside, inside + 1e4))
        with pytest.raises(DataError, match="1 of 2 rows of `theta` lie outside"):
            problem.simulate(both, generator)


def test_nothing_asked_nothing_drawn(problem):
    theta, x = problem.draw(0, seed=0)
    assert theta.shape == (0, problem.dim)
    assert x.shape == (0, *problem.x_shape)


def test_exact_posteriors_have_the_shape_of_a_density(problem):
    if problem.log_posterior is None:
        assert problem.name in {
            "gravitational_waves",
            "gravitational_waves_pycbc",
            "lotka_volterra",
            "mg1",
            "spatial_sir",
        }
        return
    theta, x = problem.draw(5, seed=0)
    value = problem.log_posterior(theta, x)
    assert value.shape == (5,)
    assert value.isfinite().all()
    stacked = problem.log_posterior(theta.expand(3, 5, problem.dim), x)
    torch.testing.assert_close(stacked, value.expand(3, 5))


def test_unknown_names_and_options():
    with pytest.raises(InputError, match="Did you mean `weinberg`"):
        problems.get("weinburg")
    with pytest.raises(InputError, match="whole number"):
        problems.get("gaussian", dim=0)


def test_the_prior_predictive_of_the_gaussian():
    theta, x = problems.get("gaussian", dim=3).draw(20_000, 0)
    # Variance 1 + 0.25, standard error of a variance about 0.0125.
    assert (x.var(0) - 1.25).abs().max() < 0.06
    assert ((x - theta).var(0) - 0.25).abs().max() < 0.012


@pytest.mark.slow
@pytest.mark.parametrize("family", ["nre", "npe"])
def test_every_problem_trains_with_its_networks(problem, family):
    """One epoch on a few simulations, twice: finite, of the right shape, the same bits."""
    from prudent import fit

    theta, x = problem.draw(40, seed=0)
    networks = problem.networks.get(family, {})
    options = {"method": f"cal{family}", "epochs": 1, "batch_size": 16, "num_samples": 2}
    values = []
    for _ in range(2):
        estimator = fit(theta, x, problem.prior, progress=False, **networks, **options)
        with torch.no_grad():
            values.append(estimator(x[:4]).log_prob(theta[:4]))
    assert values[0].shape == (4,)
    assert values[0].isfinite().all()
    assert torch.equal(*values)


def test_a_problem_is_a_module_and_a_line_of_the_registry(monkeypatch, tmp_path):
    """One that is added from outside is listed, simulated, trained on, costed and reported."""
    module = types.ModuleType("prudent.problems.line")
    module.problem = lambda: problems.Problem(
        name="line",
        prior=problems.box([0.0], [1.0]),
        simulator=lambda theta, generator: theta + torch.randn(theta.shape, generator=generator),
        x_shape=(1,),
        parameter_names=("slope",),
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(problems.DESCRIPTIONS, "line", "a slope, seen with noise")
    assert "line" in problems.names()
    options = Options(epochs=1, batch_size=32)
    config = RunConfig("line", "npe", budget=64, num_test=60, training=options)
    assert cost.seconds(config) > 0
    run = run_one(config, tmp_path / "runs" / config.identity, progress=False)
    assert run.config.problem == "line"
    write_report(load_results(tmp_path / "runs"), tmp_path / "report.html")
    assert "line" in (tmp_path / "report.html").read_text()
