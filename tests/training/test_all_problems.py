"""Every problem trains with every method: the paper's with its networks, ours with our own."""

import pytest
import torch

import prudent
from prudent import fit
from prudent.estimators import Ensemble, FlowEstimator
from prudent.fitting import networks_of
from prudent.training import methods

pytestmark = pytest.mark.slow

PAPER = ["slcp", "weinberg", "mg1", "lotka_volterra", "spatial_sir", "gravitational_waves"]
# Weights of the paper's ratio networks; ours are the same but for what standardisation replaces.
NRE_WEIGHTS = {
    "slcp": 332_033,
    "weinberg": 334_849,
    "mg1": 331_521,
    "lotka_volterra": 99_673,
    "spatial_sir": 11_436_225,
    "gravitational_waves": 42_497,
}


# Networks of two problems take most of the time; a method of each family proves that they train.
LARGE, OFTEN = ("spatial_sir", "gravitational_waves"), ("prudent", "nre", "calnpe")
CASES = [
    pytest.param(
        *(problem, method),
        marks=pytest.mark.nightly if problem in LARGE and method not in OFTEN else [],
    )
    for problem in PAPER
    for method in methods.names()
]


@pytest.fixture(scope="module", params=PAPER)
def problem(request):
    return prudent.problems.get(request.param)


@pytest.fixture(scope="module")
def pairs(problem):
    return problem.draw(20, 0)


@pytest.mark.parametrize(("problem", "method"), CASES, indirect=["problem"])
def test_a_problem_trains_with_a_method(problem, pairs, method):
    kind, ours = ("standard", {"members": 2}) if method == "prudent" else ("paper", {})
    networks = networks_of(problem, methods.get(method).family, kind)
    calls = []

    def count(module, *_):
        if module.training:
            calls.append(1)

    estimator = fit(
        *pairs,
        problem.prior,
        method=method,
        epochs=1,
        batch_size=8,
        num_samples=4,
        invalid="exclude",
        progress=False,
        networks=kind,
        **ours,
        **networks,
    )
    assert all(value.isfinite().all() for value in estimator.state_dict().values())
    assert [row["skipped"] for row in estimator.history] == [0] * (2 if ours else 1)
    parts = list(estimator) if isinstance(estimator, Ensemble) else [estimator]
    for part in parts:
        part.embedding.register_forward_hook(count)
    estimator.train()
    posterior = estimator(pairs[1][:3])
    posterior.log_prob(problem.prior.sample((5, 3)))
    assert len(calls) == len(parts)
    if method == "nre":
        assert sum(p.numel() for p in estimator.parameters()) == NRE_WEIGHTS[problem.name]


def test_flows_have_the_paper_s_number_of_transforms(problem, pairs):
    networks = {**FlowEstimator.paper(problem.x_shape), **networks_of(problem, "npe", "paper")}
    estimator = FlowEstimator(problem.prior, problem.dim, problem.x_shape, **networks)
    expected = 1 if problem.name == "weinberg" else 3
    assert estimator.transforms == expected
    layers = estimator.head.transform.transforms
    splines = [layer for layer in layers if "hyper" in dict(layer.named_children())]
    assert len(splines) == expected


def test_batch_normalisation_sees_each_batch_once():
    """The reference runs the SIR network once per draw; its statistics then move L + 1 times."""
    problem = prudent.problems.get("spatial_sir")
    theta, x = problem.draw(8, 0)
    torch.manual_seed(0)
    estimator = prudent.estimators.RatioEstimator(
        problem.prior, 2, problem.x_shape, **problem.networks["nre"]
    )
    penalty = prudent.coverage.CoveragePenalty(problem.prior, num_samples=4)
    penalty(estimator(x), theta)
    counters = {
        int(value) for name, value in estimator.state_dict().items() if "num_batches" in name
    }
    assert counters == {1}
