"""The whole path on another device, a fake one that refuses what hardware refuses."""

import pytest
import torch
import zuko

import prudent
from elsewhere import DEVICE, elsewhere, is_elsewhere
from prudent.coverage import CoveragePenalty
from prudent.errors import DataError, InputError
from prudent.problems import box
from prudent.recalibration import conformalize, recalibrate

PRIOR = box([0.0, 0.0], [1.0, 1.0])
QUICK = {"epochs": 1, "batch_size": 32, "progress": False, "hidden": [16]}
# Every operation goes through Python, and all layers of a flow are alike.
FLOW = {**QUICK, "transforms": 1}


def pairs(number, seed):
    generator = torch.Generator().manual_seed(seed)
    theta = torch.rand(number, 2, generator=generator)
    return theta, theta + 0.1 * torch.randn(number, 2, generator=generator)


def test_the_fake_refuses_what_hardware_refuses():
    with elsewhere() as device:
        there, here = torch.ones(3, device=device), torch.ones(3)
        assert (there.device, is_elsewhere(there)) == (DEVICE, True)
        assert float((there + 1.0).sum()) == 6.0
        assert torch.equal((there * there).cpu(), here)
        with pytest.raises(RuntimeError, match="on meta and on cpu"):
            there + here
        with pytest.raises(RuntimeError, match="a generator of cpu"):
            torch.rand(3, device=device, generator=torch.Generator())
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["npe", "calnpe", "nre", "calnre"])
def test_nothing_is_left_behind(method, tmp_path):
    """Fit, condition, draw, summarize, save and load."""
    theta, x = pairs(3, 1)
    with elsewhere() as device:
        options = FLOW if method in ("npe", "calnpe") else QUICK
        estimator = prudent.fit(*pairs(128, 0), PRIOR, method=method, device=device, **options)
        for tensor in (*estimator.parameters(), *estimator.buffers()):
            assert tensor.device == DEVICE
        posterior = estimator(x)
        assert posterior.log_prob(theta).device == DEVICE
        assert torch.equal(
            posterior.log_prob(theta).cpu(), posterior.log_prob(theta.to(device)).cpu()
        )
        if method in ("npe", "calnpe"):
            assert posterior.sample(20, seed=0).device == DEVICE
        if method == "npe":  # which the penalty of a training does not change
            assert posterior.mean().device == posterior.map().device == DEVICE
            assert posterior.region(0.9).contains(theta).shape == (3,)
        estimator.save(tmp_path / "model.safetensors")
        again = prudent.load(tmp_path / "model.safetensors")
        assert {one.device.type for one in again.parameters()} == {"cpu"}
        assert torch.allclose(again(x).log_prob(theta), posterior.log_prob(theta).cpu(), atol=1e-5)
        moved = again.to(device)(x).log_prob(theta)
        assert torch.equal(moved.cpu(), posterior.log_prob(theta).cpu())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["npe"])
def test_it_is_diagnosed_and_recalibrated_where_it_is(method):
    test = pairs(130, 2)
    with elsewhere() as device:
        estimator = prudent.fit(*pairs(128, 0), PRIOR, method=method, device=device, **FLOW)
        there = prudent.diagnose(estimator, *test, progress=False)
        from_there = prudent.diagnose(estimator, *(one.to(device) for one in test), progress=False)
        assert there.auc == from_there.auc
        here = prudent.diagnose(estimator.to("cpu"), *test, progress=False)
        assert there.auc == pytest.approx(here.auc, abs=1e-3)
        estimator.to(device)
        assert recalibrate(estimator, *test)(test[1][:2]).log_prob(test[0][:2]).device == DEVICE
        conformal = conformalize(estimator, *test)
        assert conformal(test[1][:2]).region(0.9).contains(test[0][:2]).shape == (2,)


@pytest.mark.slow
def test_ranks_are_counted_wherever_draws_are_made():
    with elsewhere() as device:
        estimator = prudent.fit(*pairs(128, 0), PRIOR, method="npe", device=device, **FLOW)
        found = prudent.diagnose(estimator, *pairs(130, 2), thorough=True, progress=False)
    assert set(found.results) >= {"sbc", "tarp"}


def test_the_penalty_of_ones_own_loop():
    theta, x = pairs(32, 0)
    with elsewhere() as device:
        estimator = prudent.fit(*pairs(64, 1), PRIOR, method="npe", device=device, **FLOW).train()
        penalty = CoveragePenalty(PRIOR, num_samples=8)
        value = penalty(estimator(x.to(device)), theta.to(device))
        value = getattr(value, "value", value)
        value.backward()
        assert value.device == DEVICE
        reached = [one.grad for one in estimator.parameters() if one.grad is not None]
        assert reached
        assert all(one.device == DEVICE for one in reached)


def test_mixed_places_are_one_clear_error():
    theta, x = pairs(3, 0)
    with elsewhere() as device:
        estimator = prudent.fit(*pairs(64, 1), PRIOR, method="npe", **FLOW)
        with pytest.raises(DataError, match=r"`x` is on meta, the estimator on cpu; move one of"):
            estimator(x.to(device))
        with pytest.raises(DataError, match=r"`theta` is on meta, the estimator on cpu"):
            estimator(x).log_prob(theta.to(device))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"ensemble": "folds"}])
def test_ensembles_are_where_their_members_are(options):
    theta, x = pairs(3, 1)
    settings = {**QUICK, "method": "npe", "members": 2, **options}
    with elsewhere() as device:
        estimator = prudent.fit(*pairs(128, 0), PRIOR, device=device, **settings)
        assert {one.device for one in estimator.parameters()} == {DEVICE}
        posterior = estimator(x)
        assert posterior.log_prob(theta).device == posterior.sample(5, seed=0).device == DEVICE
        with pytest.raises(DataError, match="`x` is on meta, the estimator on cpu"):
            estimator.to("cpu")(x.to(device))


def test_members_of_two_places_are_refused():
    with elsewhere() as device:
        members = [
            prudent.fit(*pairs(64, 1), PRIOR, method="npe", device=place, **QUICK)
            for place in ("cpu", device)
        ]
        with pytest.raises(InputError, match="expected members on one device, got cpu and meta"):
            prudent.estimators.Ensemble(members)


def small_flow():
    torch.manual_seed(0)
    return zuko.flows.MAF(2, 2, transforms=2, hidden_features=(8,))


def test_adapted_models_stay_where_they_are():
    theta, x = pairs(3, 1)
    with elsewhere() as device:
        adapted = prudent.adapt(small_flow(), PRIOR).to(device)
        here = prudent.adapt(small_flow(), PRIOR)
        posterior = adapted(x)
        assert posterior.log_prob(theta).device == posterior.sample(5, seed=0).device == DEVICE
        found = posterior.unnormalized().log_prob(theta).cpu()
        torch.testing.assert_close(found, here(x).unnormalized().log_prob(theta))
        warm = adapted.tempered(2.0)(x)
        assert warm.log_prob(theta).device == DEVICE
        value = CoveragePenalty("model")(adapted.train()(x.to(device)), theta.to(device))
        assert value.device == DEVICE
        for given, name in ((lambda: here(x.to(device)), "x"), (lambda: wrong(here), "theta")):
            with pytest.raises(DataError, match=f"`{name}` is on meta, the estimator on cpu"):
                given()
        with pytest.raises(InputError, match="networks of zuko are on cpu and meta; move all"):
            prudent.adapt(small_flow(), PRIOR, embedding=torch.nn.Linear(2, 2).to(device))


def wrong(estimator):
    theta, x = pairs(3, 1)
    return estimator(x).log_prob(theta.to(DEVICE))


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(InputError, match="`device` is 'cuda:7', which does not work here"):
        prudent.fit(*pairs(64, 1), PRIOR, method="npe", device="cuda:7", **FLOW)
