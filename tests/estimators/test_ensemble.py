"""The average of members, as an estimator: by hand, on disk, in a diagnosis."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import prudent
from prudent.errors import InputError
from prudent.estimators import Ensemble, FlowEstimator, RatioEstimator

BOX = prudent.problems.get("two_moons")
THETA, X = BOX.draw(240, 0)
SMALL = {"hidden": [16], "epochs": 3, "batch_size": 32, "progress": False}
KINDS = {"nre": RatioEstimator, "npe": FlowEstimator}


def members(family, number=5, **networks):
    """Untrained networks of different weights."""
    made = []
    for seed in range(number):
        torch.manual_seed(seed)
        member = KINDS[family](BOX.prior, 2, X.shape[1:], **{**networks, "hidden": [16]})
        member.adapt(THETA, X)
        made.append(member.eval())
    return made


@pytest.mark.parametrize("family", KINDS)
def test_the_density_is_the_mean_of_the_members(family):
    parts = members(family)
    posterior = Ensemble(parts)(X[:7])
    theta = BOX.prior.sample((3, 7))
    with torch.no_grad():
        each = torch.stack([part(X[:7]).log_prob(theta) for part in parts]).double()
        close = {"atol": 1e-5, "rtol": 0}
        torch.testing.assert_close(
            posterior.log_prob(theta).double(), each.exp().mean(0).log(), **close
        )
        ratios = torch.stack([part(X[:7]).log_ratio(theta) for part in parts]).double()
        torch.testing.assert_close(
            posterior.log_ratio(theta).double(), ratios.exp().mean(0).log(), **close
        )
    # The released code of the paper subtracts 5 where ln 5 belongs: off by 3.4.
    wrong = each.exp().sum(0).log() - 5
    assert (posterior.log_prob(theta).detach() - wrong).abs().min() > 3


@pytest.mark.slow
@pytest.mark.parametrize("networks", [{}, FlowEstimator.paper((2,))])
def test_an_ensemble_of_flows_is_normalised(networks):
    """Inside the prior's box, also where its members have mass beyond it."""
    posterior = Ensemble(members("npe", **networks)).eval()(X[:3])
    axis = (torch.arange(160) - 79.5) / 80
    cells = torch.cartesian_prod(axis, axis)[:, None].expand(-1, 3, -1)
    with torch.no_grad():
        mass = posterior.log_prob(cells).exp().sum(0) * (1 / 80) ** 2
        outside = posterior.log_prob(torch.tensor([1.01, 0.0]).expand(3, 2))
    torch.testing.assert_close(mass, torch.ones(3), atol=0.02, rtol=0)
    assert (outside == -torch.inf).all()


@pytest.mark.parametrize("family", KINDS)
def test_draws_come_from_all_members(family):
    """The mean of the draws is that of the mixture, not that of one member."""
    parts = members(family, 3)
    with torch.no_grad():
        for index, part in enumerate(parts):  # far apart, so that one member alone would show
            last = [p for p in part.head.parameters()][-1]
            last += 0.3 * index
    ensemble = Ensemble(parts)
    torch.manual_seed(0)
    posterior = ensemble(X[:4])
    draws = posterior.sample((4000,))
    assert draws.shape == (4000, 4, 2)
    assert posterior.sample().shape == (4, 2)
    each = torch.stack([part(X[:4]).sample((4000,)) for part in parts])
    if family == "npe":
        torch.testing.assert_close(draws.mean(0), each.mean((0, 1)), atol=0.1, rtol=0)
    else:
        assert posterior.sampling.method == "importance"
        candidates = BOX.prior.sample((20000, 4))
        with torch.no_grad():
            weight = posterior.log_ratio(candidates).softmax(0)
        expected = (weight.unsqueeze(-1) * candidates).sum(0)
        torch.testing.assert_close(draws.mean(0), expected, atol=0.1, rtol=0)


def test_rows_are_those_of_the_members():
    posterior = Ensemble(members("nre"))(X[:9])
    theta = BOX.prior.sample((9,))
    index = torch.tensor([4, 2])
    torch.testing.assert_close(
        posterior.rows(index).log_prob(theta[index]), posterior.log_prob(theta)[index]
    )
    assert len(posterior.rows(slice(3, 5))) == 2


@pytest.mark.parametrize("kind", ["seeds", "folds"])
@pytest.mark.parametrize("method", ["calnre", "calnpe"])
@pytest.mark.slow
def test_members_train_in_one_call_and_make_the_trip_to_disk(method, kind, tmp_path):
    options = {"method": method, "members": 3, "ensemble": kind, **SMALL}
    ensemble = prudent.fit(THETA, X, BOX.prior, seed=5, **options)
    assert len(ensemble) == 3
    first, second, _ = (member.state_dict() for member in ensemble)
    assert any(not torch.equal(first[name], second[name]) for name in first)
    again = prudent.fit(THETA, X, BOX.prior, seed=5, **options).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in ensemble.state_dict().items())
    ensemble.save(tmp_path / "model")
    loaded = prudent.load(tmp_path / "model")
    theta, x = BOX.draw(50, 1)
    with torch.no_grad():
        assert torch.equal(loaded(x).log_prob(theta), ensemble(x).log_prob(theta))
    assert loaded.info == ensemble.info
    assert {row["member"] for row in ensemble.history} == {0, 1, 2}
    result = prudent.diagnose(loaded, theta, x, progress=False)
    assert result.num_pairs == 50
    assert repr(loaded) == f"<Ensemble of 3 {method}: theta (2,), x (2,)>"


def test_seeds_share_their_pairs_and_folds_use_all():
    """Members by seeds standardise the same pairs; members by folds leave out one fold each."""
    options = {"method": "npe", "members": 4, **SMALL}
    same = prudent.fit(THETA, X, BOX.prior, ensemble="seeds", **options)
    locations = {tuple(member.x_scale.location.tolist()) for member in same}
    assert len(locations) == 1
    assert same.fold is None
    crossed = prudent.fit(THETA, X, BOX.prior, ensemble="folds", **options)
    fold = crossed.fold
    assert fold.bincount().tolist() == [60, 60, 60, 60]
    judged = crossed.out_of_fold
    assert torch.equal(judged.pairs.theta, THETA)
    assert torch.equal(judged.pairs.x, X)
    found = judged.measurement.log_posterior
    with torch.no_grad():
        for index, member in enumerate(crossed):
            rest = fold != index
            member_again = FlowEstimator(BOX.prior, 2, (2,))
            member_again.adapt(THETA[rest], X[rest])
            assert torch.equal(member_again.x_scale.location, member.x_scale.location)
            own = ~rest
            expected = member(X[own]).log_prob(THETA[own])
            torch.testing.assert_close(found[own], expected)
    seen = torch.stack([m(X).log_prob(THETA).detach() for m in crossed])
    assert not torch.allclose(found, seen[0], atol=1e-3)


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(2, 4), nn.ReLU())


def test_members_do_not_share_an_embedding_of_the_users(tmp_path):
    network = Net()
    before = network[0].weight.detach().clone()
    options = {"method": "nre", "members": 2, **SMALL}
    copied = prudent.fit(THETA, X, BOX.prior, embedding=network, **options)
    assert torch.equal(network[0].weight, before)
    weights = [member.embedding[0].weight for member in copied]
    assert not torch.equal(weights[0], weights[1])
    made = prudent.fit(THETA, X, BOX.prior, embedding=Net, seed=1, **options)
    again = prudent.fit(THETA, X, BOX.prior, embedding=Net, seed=1, **options)
    for member, twin in zip(made, again, strict=True):
        assert torch.equal(member.embedding[0].weight, twin.embedding[0].weight)
    made.save(tmp_path / "model")
    with pytest.raises(InputError, match="embedding network of its own"):
        prudent.load(tmp_path / "model")
    loaded = prudent.load(tmp_path / "model", embedding=Net())
    with torch.no_grad():
        assert torch.equal(loaded(X).log_prob(THETA), made(X).log_prob(THETA))


def test_mistakes_are_named():
    with pytest.raises(InputError, match="at least one member"):
        Ensemble([])
    with pytest.raises(InputError, match="one kind and shape"):
        Ensemble([*members("nre", 1), *members("npe", 1)])
    with pytest.raises(InputError, match="Did you mean `folds`"):
        prudent.fit(THETA, X, BOX.prior, members=2, ensemble="fold", **SMALL)
    with pytest.raises(InputError, match="cannot cut 3 pairs into 5 folds"):
        prudent.fit(
            THETA[:3], X[:3], BOX.prior, members=5, ensemble="folds", **{**SMALL, "batch_size": 1}
        )
    with pytest.raises(InputError, match="expected `embedding` as a network"):
        prudent.fit(THETA, X, BOX.prior, embedding=lambda: math.pi, **SMALL)


@pytest.mark.parametrize(
    ("method", "way"), [("npe", "samples"), ("nre", "importance"), ("npe", "draws")]
)
def test_an_out_of_fold_diagnosis_is_saved_whole(method, way, tmp_path):
    """With the way in which it was measured, and so with the caveats of its verdict."""
    problem = prudent.problems.get("gaussian")  # without a box there is no grid
    options = {"method": method, "members": 2, "ensemble": "folds", **SMALL, "epochs": 1}
    estimator = prudent.fit(*problem.draw(80, 0), problem.prior, **options)
    if way == "draws":  # no method of ours is judged by them
        judged = prudent.diagnose(estimator, *problem.draw(80, 1), method=way, progress=False)
        estimator.out_of_fold = replace(judged, out_of_fold=True)
    found = estimator.out_of_fold
    assert found.computed_by == way
    estimator.save(tmp_path / "model")
    found.save(tmp_path / "diagnosis")
    for again in (
        prudent.load(tmp_path / "model").out_of_fold,
        prudent.diagnostics.Diagnosis.load(tmp_path / "diagnosis"),
    ):
        assert str(again) == str(found)
        assert again.verdict == found.verdict
        assert ("by draws alone" in str(again)) == (way == "draws")
        assert again.metrics() == found.metrics()
        assert again.coverage.curves() == found.coverage.curves()
        assert torch.equal(again.pairs.theta, found.pairs.theta)
        assert again.out_of_fold
