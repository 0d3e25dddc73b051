"""Extreme, broken and failed simulations; a diverging step; damaged and malicious files."""

import logging
import os
import re

import pytest
import torch
from torch import nn

import prudent
from faults import mutations
from prudent import fit
from prudent.datasets import Pairs
from prudent.errors import DataError, StoreError, TrainingError
from prudent.estimators import RatioEstimator
from prudent.training import Options, bce, methods, train, weighted_sum
from prudent.training.checkpoint import Checkpoints

PROBLEM = prudent.problems.get("gaussian")
THETA, X = PROBLEM.draw(256, 0)
SMALL = {"hidden": [16], "epochs": 3, "batch_size": 32, "progress": False}


def outlier(x):
    x[17, 0] = 1e7
    return x


def constant(x):
    x[:, 1] = 4.0
    return x


EXTREME = {
    "huge": lambda x: x * 1e30,
    "tiny": lambda x: x * 1e-30,
    "denormal": lambda x: x * 1e-42,
    "constant column": constant,
    "one outlier": outlier,
    "heavy tail": lambda x: x.abs().pow(-3) * x.sign(),
    "one row": lambda x: x[:1].expand_as(x),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        *((name, kind) for name in methods.names() if name != "prudent" for kind in EXTREME),
        # Made of the others, and slow.
        ("prudent", "one outlier"),
        ("prudent", "one row"),
    ],
)
def test_extreme_observations_train_to_finite_weights(kind, method, caplog):
    x = EXTREME[kind](X.clone())
    with caplog.at_level(logging.WARNING):
        members = 2 if method == "prudent" else 1
        estimator = fit(THETA, x, PROBLEM.prior, method=method, members=members, **SMALL)
    assert all(value.isfinite().all() for value in estimator.state_dict().values())
    with torch.no_grad():
        assert estimator(x).log_prob(THETA).isfinite().all()
    noted = "are the same in all simulations" in caplog.text
    assert noted == (kind in ("constant column", "one row"))


def test_overflow_in_float32_is_a_named_refusal():
    with pytest.raises(DataError, match="`x` spans more than float32 holds"):
        fit(THETA, X.clamp(-1, 1) * 3e38, PROBLEM.prior, **SMALL)
    with pytest.raises(DataError, match="are not finite in float32"):
        fit(THETA.double(), X.double() * 1e300, PROBLEM.prior, **SMALL)


def failing(number, seed):
    """Simulations fail more often for small theta; what is left is a biased sample."""
    problem = prudent.problems.get("gaussian", dim=1)
    theta, x = problem.draw(number, seed)
    torch.manual_seed(seed)
    x[torch.rand(number) > torch.sigmoid(2 * theta[:, 0])] = torch.nan
    return problem.prior, theta, x


def posterior_means(log_density):
    grid = torch.linspace(-4, 4, 401)[:, None, None].expand(401, 9, 1)
    weight = log_density(grid).softmax(0)
    return (weight * grid[..., 0]).sum(0)


OBSERVED = torch.linspace(-1.5, 1.5, 9)[:, None]


def exact_log_density(theta):
    prior = -(theta[..., 0] ** 2) / 2
    likelihood = -((OBSERVED[:, 0] - theta[..., 0]) ** 2) / 2 / 0.25
    return prior + likelihood + torch.sigmoid(2 * theta[..., 0]).log()


@pytest.mark.parametrize("method", ["nre", "npe"])
@pytest.mark.slow
def test_a_gaussian_with_failures(method):
    """prior x likelihood x P(valid | theta), which a marginal of valid theta alone would miss."""
    prior, theta, x = failing(8000, 0)
    options = {"method": method, "hidden": [32, 32], "progress": False}
    options |= {"epochs": 30, "batch_size": 64}
    with pytest.warns(UserWarning, match="excluded"):
        estimator = fit(theta, x, prior, invalid="exclude", **options)
    exact = posterior_means(exact_log_density)
    with torch.no_grad():
        learned = posterior_means(estimator(OBSERVED).log_prob)
    assert (learned - exact).abs().mean() < 0.1
    if method == "nre":
        valid = x.isfinite().all(1)
        with pytest.warns(UserWarning, match="theta does not follow the prior"):
            biased = fit(theta[valid], x[valid], prior, **options)
        with torch.no_grad():
            wrong = posterior_means(biased(OBSERVED).log_prob)
        assert (wrong - exact).abs().mean() > 0.08


class Normed(nn.Sequential):
    """An embedding whose statistics every batch moves."""

    def __init__(self):
        super().__init__(nn.Linear(2, 4), nn.BatchNorm1d(4))


def breaking(broken):
    """A loss that is not finite in some steps of the training."""
    steps = [0]

    def faulty(posterior, theta):
        trains = torch.is_grad_enabled()
        steps[0] += int(trains)
        value = bce(posterior, theta)
        return value * torch.inf if trains and steps[0] in broken else value

    return faulty


def with_broken_steps(broken, checkpoint=None, epochs=3):
    training, validation = Pairs.of(THETA, X).split(0.2, 0)
    torch.manual_seed(0)
    estimator = RatioEstimator(PROBLEM.prior, 2, (2,), Normed(), hidden=[8])
    estimator.adapt(THETA, X)
    train(
        estimator,
        weighted_sum((1.0, breaking(broken))),
        training,
        validation,
        options=Options(epochs=epochs, batch_size=8),
        seed=0,
        progress=False,
        checkpoints=checkpoint,
    )
    return estimator


def test_a_skipped_step_leaves_no_trace_but_the_count():
    """Weights and batch statistics are those of a training that never saw the batch."""
    estimator = with_broken_steps({25, 50})
    assert [row["skipped"] for row in estimator.history] == [1, 1, 0]
    counter = estimator.embedding[1].num_batches_tracked
    best = max(row["epoch"] for row in estimator.history if row["selected"])
    assert int(counter) == 26 * best - min(best, 2)
    assert all(value.isfinite().all() for value in estimator.state_dict().values())


def test_too_many_stop_the_run_and_name_the_batch_and_the_checkpoint_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("prudent.training.checkpoint.LONGEST_SECONDS", 0.0)
    with pytest.raises(TrainingError) as raised:
        with_broken_steps({28, 29, 30}, Checkpoints(tmp_path, {}))
    message = str(raised.value)
    assert "epoch 2: 2 of 26 steps" in message
    assert "`faulty`" in message
    named = re.search(r"at step (\d+), whose batch holds the simulations ([\d, ]+)", message)
    assert named[1] == "3"
    rows = [int(row) for row in named[2].rstrip(", ").split(", ")]
    assert len(rows) == 8
    assert max(rows) < 256
    state, _ = Checkpoints(tmp_path, {}).latest()
    assert state["epoch"] == 1


def test_the_rows_named_are_those_of_the_users_data():
    pairs = Pairs.of(THETA, X)
    training, validation = pairs.split(0.2, 0)
    batch = next(training.batches(16, torch.Generator().manual_seed(0)))
    assert torch.equal(X[batch.row_numbers], batch.x)
    broken = X.clone()
    broken[::3] = torch.nan
    with pytest.warns(UserWarning, match="excluded"):
        left = Pairs.of(THETA, broken, invalid="exclude")
    assert torch.equal(X[left.split(0.5, 1)[0].row_numbers], left.split(0.5, 1)[0].x)


@pytest.mark.parametrize("method", ["nre", "npe"])
def test_every_flipped_bit_of_a_model_is_noticed(method, tmp_path):
    estimator = fit(THETA, X, PROBLEM.prior, method=method, **SMALL)
    path = tmp_path / "model.safetensors"
    estimator.save(path)
    number = 0
    for damaged in mutations(path.read_bytes(), 1000):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match="model.safetensors"):
            prudent.load(path)
        number += 1
    assert number > 1000


class Evil:
    def __init__(self, sentinel):
        self.sentinel = sentinel

    def __reduce__(self):
        return os.mkdir, (str(self.sentinel),)


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt", "model.pkl", "model"])
def test_a_pickle_in_place_of_a_model_does_not_run(name, tmp_path):
    import pickle  # noqa: TID251

    sentinel, path = tmp_path / "sentinel", tmp_path / name
    path.write_bytes(pickle.dumps(Evil(sentinel)))
    with pytest.raises(StoreError, match="not a whole safetensors file"):
        prudent.load(path)
    checkpoints = tmp_path / "work"
    checkpoints.mkdir()
    (checkpoints / "epoch-000001.safetensors").write_bytes(path.read_bytes())
    with pytest.raises(StoreError, match="no checkpoint in .* is whole"):
        fit(THETA, X, PROBLEM.prior, method="npe", checkpoint=checkpoints, **SMALL)
    assert not sentinel.exists()
    pickle.loads(path.read_bytes())  # noqa: S301 the payload does work
    assert sentinel.exists()
