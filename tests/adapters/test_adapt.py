"""Models that need no peer: functions, objects, flows of zuko; what they can do and cannot."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
import zuko
from peers import BOX, NOISE, NORMAL, check_alpha, check_gradients, pairs
from torch import nn
from torch.distributions import Independent, Normal

import prudent
from prudent.diagnostics import Diagnosis, posterior_ranks
from prudent.errors import DataError, InputError, StoreError

# The exact posterior of the normal prior is normal, with this mean per x and this spread.
GAIN, SPREAD = 1 / (1 + NOISE**2), NOISE / math.sqrt(1 + NOISE**2)


def exact(x, widen=1.0):
    return Independent(Normal(GAIN * x, torch.full_like(x, widen * SPREAD)), 1)


def functions(widen=1.0):
    return {
        "log_prob": lambda theta, x: exact(x, widen).log_prob(theta),
        "sample": lambda number, x: exact(x, widen).sample((number,)),
    }


def flow(seed=0, kind=zuko.flows.MAF, **options):
    torch.manual_seed(seed)
    return kind(2, 2, transforms=2, hidden_features=(8,), **options)


@pytest.mark.parametrize("kept", [("log_prob", "sample"), ("sample",), ("log_prob",)])
@pytest.mark.parametrize("widen", [1.0, 0.6])
def test_functions_are_judged_by_what_they_are(kept, widen):
    chosen = {name: functions(widen)[name] for name in kept}
    adapted = prudent.adapt(prior=NORMAL, **chosen)
    number = 300 if kept == ("log_prob",) else 1000
    found = prudent.diagnose(adapted, *pairs(NORMAL, number, 0), progress=False)
    assert (found.verdict.kind == "over-confident") is (widen < 1)
    ways = {("log_prob", "sample"): "samples", ("sample",): "draws", ("log_prob",): "importance"}
    assert found.computed_by == ways[kept]
    assert adapted(torch.zeros(2)).verdict == str(found.verdict)


def test_draws_alone_say_what_cannot_be_had():
    adapted = prudent.adapt(prior=NORMAL, sample=functions()["sample"])
    assert "no penalty with densities" in adapted.abilities
    assert "no penalty with densities" in repr(adapted)
    posterior = adapted(np.zeros(2))
    assert posterior.mean().shape == (1, 2)
    assert posterior.interval(0.9).low.shape == (1, 2)
    assert "theta_1" in str(posterior)
    assert not posterior.facts.density
    for asked in (lambda: posterior.region(0.9), posterior.map):
        with pytest.raises(InputError, match="draws and has no density"):
            asked()
    with pytest.raises(InputError, match="has no density"):
        posterior.log_prob(torch.zeros(1, 2))
    with pytest.raises(InputError, match="a temperature needs the density"):
        prudent.recalibrate(adapted, *pairs(NORMAL, 50, 0))
    thorough = prudent.diagnose(adapted, *pairs(NORMAL, 200, 1), thorough=True, progress=False)
    assert set(thorough.results) == {"sbc", "tarp", "local_coverage"}


class Own(nn.Module):
    """Somebody's model with the two methods."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(SPREAD))

    def log_prob(self, theta, x):
        return Independent(Normal(GAIN * x, self.scale.expand_as(x)), 1).log_prob(theta)

    def sample(self, number, x):
        return exact(x).sample((number,))


def test_an_object_with_both_methods_and_weights():
    check_gradients(Own(), NORMAL)
    own = Own()
    check_alpha(own, NORMAL, own.log_prob, normalized=True)


@pytest.mark.parametrize(
    "model",
    [
        flow(),
        flow(kind=zuko.flows.NSF),
        zuko.mixtures.GMM(2, 2, components=2, hidden_features=(8,)),
    ],
    ids=["MAF", "NSF", "GMM"],
)
def test_distributions_of_zuko(model):
    check_gradients(model, BOX)
    check_alpha(model, BOX, lambda theta, x: model(x).log_prob(theta), normalized=True)


def test_a_flow_is_handed_out_and_judged_inside_the_prior():
    """Densities integrate to one over the box, draws are inside, and leakage is reported."""
    model = flow()
    adapted = prudent.adapt(model, BOX)
    x = pairs(BOX, 3, 0)[1]
    axis = (torch.arange(200) + 0.5) / 100 - 1
    cells = torch.cartesian_prod(axis, axis).unsqueeze(1).expand(-1, 3, -1)
    with torch.no_grad():
        mass = adapted(x).log_prob(cells).exp().mean(dim=0) * 4
        leak = 1 - model(x).log_prob(cells).exp().mean(dim=0) * 4
    # The mass inside is known to one per cent.
    torch.testing.assert_close(mass, torch.ones(3), rtol=0, atol=0.04)
    draws = adapted(x).sample(2000, seed=0)
    assert float(draws.abs().max()) <= 1
    assert adapted(x).log_prob(torch.full((3, 2), 1.5)).tolist() == [-math.inf] * 3
    found = prudent.diagnose(adapted, *pairs(BOX, 50, 1), progress=False)
    assert found.leakage == pytest.approx(float(leak.mean()), abs=0.1)
    assert found.leakage > 0.2


def test_conformal_regions_of_a_leaking_flow_hold_what_they_promise():
    adapted = prudent.adapt(flow(), BOX)
    conformal = prudent.recalibration.conformalize(adapted, *pairs(BOX, 100, 0))
    theta, x = pairs(BOX, 200, 1)
    inside = conformal(x).contains(theta, 0.8).double().mean()
    # Three standard errors of 100 pairs that set the level and 200 that test it.
    assert abs(float(inside) - 0.8) < 3 * math.sqrt(0.16 * (1 / 100 + 1 / 200))


def test_recalibration_repairs_and_does_not_vouch_for_the_original():
    adapted = prudent.adapt(prior=NORMAL, **functions(0.6))
    theta, x = pairs(NORMAL, 200, 2)
    assert prudent.diagnose(adapted, theta, x, progress=False).verdict.kind == "over-confident"
    repaired = prudent.recalibrate(adapted, *pairs(NORMAL, 300, 0))
    assert repaired(x[0]).verdict.startswith("not measured")
    # The spread is too small by 0.6, so that the log ratio is about 1 / 0.36 as steep.
    calibrated = prudent.recalibrate(adapted, *pairs(NORMAL, 300, 0), target="calibrated")
    assert 2.0 < calibrated.temperature < 4.5
    assert repaired.temperature > calibrated.temperature
    verdict = prudent.diagnose(repaired, theta, x, progress=False).verdict
    assert verdict.kind != "over-confident"
    assert adapted(x[0]).verdict.startswith("over-confident")
    assert calibrated(x[0].tolist()).std()[0] == pytest.approx([SPREAD] * 2, rel=0.3)
    # Of 300 pairs six may lie outside of 99 % regions: to be sure of that costs width.
    assert bool((repaired(x[0]).std() > calibrated(x[0]).std()).all())


def test_posteriors_have_the_summaries_of_ours():
    adapted = prudent.adapt(flow(), BOX, names=("mass", "spin"))
    x = pairs(BOX, 4, 0)[1]
    for many in (x, x.numpy(), x.tolist()):
        assert adapted(many).mean().shape == (4, 2)
    posterior = adapted(x[0].numpy())
    assert len(posterior) == 1
    assert posterior.names == ["mass", "spin"]
    assert bool(posterior.region(0.99).contains(posterior.map()))
    assert posterior.quantile(0.5).shape == (1, 2)
    assert "mass" in str(posterior)
    assert posterior.plot() is not None
    assert "posterior" in posterior.to_arviz()
    same = adapted(x).sample(5, seed=3)
    assert torch.equal(same, adapted(x).sample(5, seed=3))
    torch.testing.assert_close(adapted(x).rows(slice(1, 2)).mean(), adapted(x[1]).mean())


def test_observations_that_are_not_finite_or_of_another_shape_are_refused():
    adapted = prudent.adapt(flow(), BOX, x_shape=(2,))
    with pytest.raises(DataError, match="1 of 2 observations hold NaN"):
        adapted(torch.tensor([[0.0, math.nan], [0.0, 0.0]]))
    with pytest.raises(DataError, match=r"expected `x` of shape \(N, 2\), got \(4, 3\)"):
        adapted(torch.zeros(4, 3))


def test_training_mode_is_that_of_the_flow_itself():
    model = flow()
    adapted = prudent.adapt(model, BOX)
    assert not model.training
    theta, x = pairs(BOX, 8, 0)
    assert adapted.train() is adapted
    assert model.training
    torch.testing.assert_close(adapted(x).log_prob(theta), model(x).log_prob(theta))


def test_an_embedding_goes_before_the_flow():
    embedding = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    adapted = prudent.adapt(flow(), BOX, embedding=embedding, x_shape=(3, 4))
    assert adapted(torch.zeros(3, 4)).mean().shape == (1, 2)
    assert adapted(torch.zeros(5, 3, 4)).mean().shape == (5, 2)
    assert len(adapted.parameters()) == len([*flow().parameters(), *embedding.parameters()])


def test_estimators_of_ours_come_back_as_they_are():
    problem = prudent.problems.get("gaussian")
    own = prudent.fit(*problem.draw(64, 0), problem.prior, method="npe", epochs=1, progress=False)
    assert prudent.adapt(own) is own


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": 3, "prior": BOX}, "Expected a posterior or trained estimator of sbi"),
        ({"model": lambda theta, x: theta, "prior": BOX}, "got a function; say which it is"),
        ({"prior": BOX}, "got nothing, no `log_prob"),
        ({"model": BOX, "prior": BOX}, "which has no `log_prob.theta, x.` and no `sample.n, x.`"),
        ({"model": zuko.flows.MAF, "prior": BOX}, "got the class MAF; pass an object of it"),
        ({"model": flow()}, r"has no prior; pass it: prudent.adapt\(model, prior\)"),
        ({"prior": BOX, **functions(), "normalized": False}, "leave `sample` out"),
        ({"model": flow(), "prior": BOX, "keys": ("a", "b")}, "`keys` is not for zuko.MAF"),
        ({"model": flow(), "prior": BOX, "names": ["one"]}, "expected 2 parameter names"),
    ],
)
def test_what_cannot_be_adapted_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        prudent.adapt(**given)


def test_functions_of_other_shapes_are_refused():
    wrong = prudent.adapt(prior=NORMAL, log_prob=lambda theta, x: theta.sum(-1)[0])
    with pytest.raises(InputError, match="expected `log_prob` to map theta of shape"):
        wrong(torch.zeros(3, 2)).log_prob(torch.zeros(3, 2))
    wrong = prudent.adapt(prior=NORMAL, sample=lambda number, x: x)
    with pytest.raises(InputError, match="expected `sample` to draw theta of shape"):
        wrong(torch.zeros(3, 2)).sample(5)


def test_what_a_model_raises_is_told_with_what_it_got():
    swapped = prudent.adapt(prior=NORMAL, sample=lambda x, number: x.sample(number))
    with pytest.raises(InputError, match=r"`sample` of the function failed for 5 draws and x \(3"):
        swapped(torch.zeros(3, 2)).sample(5)
    three = Independent(Normal(torch.zeros(3), torch.ones(3)), 1)
    with pytest.raises(InputError, match=r"failed for theta \(1, 4, 3\).* is the prior that of"):
        prudent.adapt(flow(), three)(torch.zeros(4, 2)).log_prob(torch.zeros(4, 3))


class Rows:
    """A prior of two parameters that takes and draws rows alone, and is no torch distribution."""

    def sample(self, shape):
        return torch.rand(torch.Size(shape).numel(), 2)

    def log_prob(self, theta):
        assert theta.ndim == 2
        inside = ((theta >= 0) & (theta <= 1)).all(dim=1)
        return torch.zeros(len(theta)).masked_fill(~inside, -torch.inf)


def test_a_prior_of_rows_alone_serves_as_any_other():
    theta = torch.rand(200, 2)
    x = theta + 0.1 * torch.randn(200, 2)
    own = prudent.fit(theta, x, Rows(), method="npe", epochs=1, progress=False)
    for estimator in (prudent.adapt(flow(), Rows()), own):
        assert estimator.prior.sample((4, 3)).shape == (4, 3, 2)
        new = torch.rand(50, 2)
        assert bool(prudent.diagnose(estimator, new, new, progress=False).verdict.kind)
        draws = estimator(x[:3]).sample(50, seed=0)
        assert bool(((draws >= 0) & (draws <= 1)).all())


def test_estimators_say_what_they_are():
    adapted = prudent.adapt(flow(), BOX, names=("mass", "<spin>"))
    for text in ("mass, <spin>", "zuko", "a density and draws", "weights in all", "not measured"):
        assert text in adapted.summary()
    assert "&lt;spin&gt;" in adapted._repr_html_()
    repaired = prudent.recalibrate(
        prudent.adapt(prior=NORMAL, **functions()), *pairs(NORMAL, 50, 0)
    )
    assert "at temperature" in repr(repaired)


def test_a_sampler_outside_the_prior_is_refused():
    far = prudent.adapt(prior=BOX, sample=lambda n, x: torch.full((n, *x.shape), 3.0))
    with pytest.raises(InputError, match="almost all draws of 2 posteriors lie outside"):
        far(torch.zeros(2, 2)).sample(10)


def test_diagnose_says_to_adapt():
    with pytest.raises(InputError, match=r"prudent\.adapt\(model, prior\)") as caught:
        prudent.diagnose(flow(), *pairs(BOX, 10, 0))
    assert "\n" not in str(caught.value)


def test_ranks_of_adapted_draws_are_those_of_the_draws():
    adapted = prudent.adapt(prior=NORMAL, **functions())
    theta, x = pairs(NORMAL, 100, 0)
    found = posterior_ranks(adapted, theta, x, num_samples=50, progress=False)
    assert found.names == ("theta_1", "theta_2", "log_prob", "tarp")


def test_a_diagnosis_is_kept_in_a_file_and_reported(tmp_path):
    adapted = prudent.adapt(prior=NORMAL, **functions(0.6))
    found = prudent.diagnose(adapted, *pairs(NORMAL, 300, 0), thorough=True, progress=False)
    found.save(tmp_path / "diagnosis.safetensors")
    again = Diagnosis.load(tmp_path / "diagnosis.safetensors")
    assert str(again) == str(found)
    assert again.metrics() == found.metrics()
    results = prudent.experiments.results_of({"mine": again, "other": found}, problem="normal")
    assert set(results.runs["method"]) == {"mine", "other"}
    assert set(results.ranks["test"]) == {"sbc", "tarp"}
    prudent.reports.write_report(results, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "over-confident" in page
    assert "results_of(diagnoses)" in page
    assert "prudent train" not in page
    damaged = (tmp_path / "diagnosis.safetensors").read_bytes()[:-9]
    (tmp_path / "damaged.safetensors").write_bytes(damaged)
    with pytest.raises(StoreError, match="not a whole safetensors file"):
        Diagnosis.load(tmp_path / "damaged.safetensors")


@pytest.mark.process
def test_no_peer_is_imported_that_a_model_does_not_come_from():
    code = """
import sys, torch, zuko, prudent
prior = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(2), 1.0), 1)
prudent.adapt(zuko.flows.MAF(2, 2), prior)(torch.zeros(3, 2))
found = {"sbi", "lampe", "nflows", "bayesflow", "keras", "torchsort"} & set(sys.modules)
assert not found, found
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_has_no_density_to_warm_says_so():
    prior = prudent.priors.box([-1.0], [1.0])
    draws = prudent.adapt(prior=prior, sample=lambda number, x: x.expand(number, *x.shape))
    with pytest.raises(InputError, match="a temperature needs the density"):
        draws.tempered(2.0)
