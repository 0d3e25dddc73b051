"""Training on stores, files and streams: the same call, the same result, flat memory."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pandas
import pytest
import torch

import prudent
from prudent import fit, problems
from prudent.datasets import Pairs, Stream, read
from prudent.datasets.simulate import draw_pairs, simulate
from prudent.errors import DataError, InputError
from prudent.priors.checks import from_spec, to_spec
from prudent.priors.density import log_density
from prudent.priors.families import Product
from prudent.priors.files import from_table
from prudent.problems import Problem

GAUSSIAN = problems.get("gaussian")
SMALL = {"hidden": [16], "epochs": 2, "batch_size": 64, "progress": False}


def weights(estimator):
    return torch.cat([value.flatten() for value in estimator.state_dict().values()])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return simulate("gaussian", 1024, tmp_path_factory.mktemp("s") / "s.zarr", progress=False)


def test_a_store_a_path_and_arrays_give_the_same_bits(store, tmp_path):
    pairs = draw_pairs(GAUSSIAN, 1024, 0)
    expected = weights(fit(pairs.theta, pairs.x, GAUSSIAN.prior, method="nre", **SMALL))
    np.savez(tmp_path / "sims.npz", theta=pairs.theta, x=pairs.x)
    with h5py.File(tmp_path / "sims.h5", "w") as file:
        file["theta"], file["x"] = pairs.theta.numpy(), pairs.x.numpy()
    frames = [pandas.DataFrame(values.numpy()) for values in (pairs.theta, pairs.x)]
    for data in (store, store.path, str(store.path), pairs):
        prior = GAUSSIAN.prior if data is pairs else None
        assert torch.equal(weights(fit(data, prior=prior, method="nre", **SMALL)), expected)
    for name in ("sims.npz", "sims.h5"):
        found = fit(tmp_path / name, prior=GAUSSIAN.prior, method="nre", **SMALL)
        assert torch.equal(weights(found), expected)
    assert torch.equal(weights(fit(*frames, GAUSSIAN.prior, method="nre", **SMALL)), expected)


def test_what_is_missing_is_named(store, tmp_path):
    with pytest.raises(InputError, match="no prior; pass the torch distribution"):
        fit(store.pairs(), **SMALL)
    with pytest.raises(InputError, match="`x` is missing"):
        fit(torch.zeros(4, 2), prior=GAUSSIAN.prior)
    own = simulate(
        Problem("mine", GAUSSIAN.prior, GAUSSIAN.simulator, (2,), ("a", "b")),
        256,
        tmp_path / "s",
        progress=False,
    )
    with pytest.raises(InputError, match="no prior"):
        fit(own)


def test_a_registered_problem_brings_its_networks(tmp_path):
    problem = problems.get("lotka_volterra")
    store = simulate(problem, 64, tmp_path / "s", chunk_size=64, progress=False)
    options = {"method": "nre", "epochs": 1, "batch_size": 32, "progress": False}
    networks = problem.networks["nre"]
    for kind, brought in (
        ("paper", networks),
        ("standard", {"embedding": networks["embedding"]}),
    ):
        found = fit(store, networks=kind, **options)
        expected = fit(store.pairs(), prior=problem.prior, networks=kind, **brought, **options)
        assert torch.equal(weights(found), weights(expected))
    assert fit(store, hidden=[8], **options).hidden == (8,)


def failing(theta, generator):
    x = GAUSSIAN.simulator(theta, generator)
    x[theta[:, 0] > 1] = torch.nan
    return x


@pytest.mark.parametrize("stream", [False, True])
def test_failed_simulations_count_in_the_marginal(tmp_path, stream):
    problem = Problem("gaussian", GAUSSIAN.prior, failing, (2,), GAUSSIAN.parameter_names)
    store = simulate(problem, 1024, tmp_path / "s", progress=False)
    with pytest.raises(DataError, match="failed. Pass invalid="):
        fit(store, method="nre", **SMALL)
    found = fit(read(store, stream=stream), prior=GAUSSIAN.prior, method="nre", **SMALL)
    theta, x, _ = store.read(0, 1024)
    assert found.info["num_simulations"] == 1024
    assert found.info["num_invalid"] == int((theta[:, 0] > 1).sum()) > 0
    with pytest.warns(UserWarning, match="excluded"):
        expected = fit(theta, x, GAUSSIAN.prior, method="nre", invalid="exclude", **SMALL)
    if not stream:
        assert torch.equal(weights(found), weights(expected))


@pytest.mark.parametrize("options", [{}, {"members": 2, "ensemble": "folds"}])
@pytest.mark.slow
def test_a_stream_trains_as_well_as_memory(store, options):
    """Other batches and another split: the bits differ, the loss does not by much."""
    train = {**SMALL, **options, "epochs": 12, "method": "npe", "networks": "paper"}
    memory, streamed = fit(store, **train), fit(Stream(store), **train)
    assert not torch.equal(weights(memory), weights(streamed))
    theta, x = GAUSSIAN.draw(1000, 3, "test")
    nothing = fit(store, **{**train, "epochs": 1, "learning_rate": 1e-9})
    with torch.no_grad():
        densities = [found(x).log_prob(theta) for found in (memory, streamed, nothing)]
    losses = [-float(density.mean()) for density in densities]
    assert abs(losses[0] - losses[1]) < 0.15
    assert losses[2] - losses[1] > 0.5, "nothing was learned"
    if options:
        assert streamed.fold.shape == (1024,)
        judged = streamed.out_of_fold
        assert torch.equal(judged.pairs.theta, store.pairs().theta)
        held = streamed.fold == 0
        inside = streamed.members[0](store.pairs().x[held]).log_prob(store.pairs().theta[held])
        assert torch.allclose(inside, judged.measurement.log_posterior[held], atol=1e-5)


def test_large_files_are_streamed_by_themselves(store, tmp_path, monkeypatch):
    assert isinstance(read(store), Pairs)
    monkeypatch.setattr("prudent.datasets.readers.STREAM_BYTES", 1000)
    pairs = store.pairs()
    with h5py.File(tmp_path / "sims.h5", "w") as file:
        file["theta"], file["x"] = pairs.theta.numpy(), pairs.x.numpy()
    prudent_file = tmp_path / "sims.safetensors"
    import safetensors.torch

    prudent_file.write_bytes(safetensors.torch.save({"theta": pairs.theta, "x": pairs.x}))
    for source in (store, tmp_path / "sims.h5", prudent_file):
        stream = read(source)
        assert isinstance(stream, Stream)
        assert stream.digest() == pairs.digest()
    assert isinstance(read(store, stream=False), Pairs)
    options = {"prior": GAUSSIAN.prior, "method": "npe", **SMALL}
    checkpoint = fit(read(store), checkpoint=tmp_path / "c", **options)
    again = fit(read(store), checkpoint=tmp_path / "c", **options)
    assert torch.equal(weights(checkpoint), weights(again))


MEMORY = """
import re, resource, sys
from pathlib import Path
import torch
import prudent
from prudent.datasets import read, readers, streaming

def peak():
    # On Linux a process inherits the ru_maxrss of who started it, but not this one.
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\\s*(\\d+) kB", status.read_text())[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

readers.CHUNK_BYTES = 2**18
streaming.SAMPLE_BYTES = 2**20
options = dict(method="npe", hidden=[8], transforms=1, epochs=1, batch_size=512, progress=False)
options["embedding"] = torch.nn.Linear(128, 4)
prior = prudent.problems.box([0.0], [1.0])
small, large, stream = sys.argv[1:]
prudent.fit(read(small, stream=True), prior=prior, **options)  # what is loaded once
before = peak()
prudent.fit(read(large, stream=stream == "True"), prior=prior, **options)
print(peak() - before)
"""
# Kilobytes: less than what the larger file has more, 49,152, which who keeps it once would take,
# and several times the noise of allocators.
MARGIN = 30_000


def growth(small, large, stream):
    command = [sys.executable, "-c", MEMORY, str(small), str(large), str(stream)]
    # Large blocks go back to the system at once, so that the peak is what was in use.
    settings = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    environment = {**os.environ, **settings, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.process
def test_memory_is_flat_in_the_number_of_simulations(tmp_path):
    """16 MB, and four times as much, take the same memory by stream, and not in memory."""
    rng = np.random.default_rng(0)
    for name, rows in (("small", 8_192), ("one", 32_768), ("four", 4 * 32_768)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["theta"] = rng.random((rows, 1), dtype=np.float32)
            file["x"] = rng.random((rows, 128), dtype=np.float32)
    small, one, four = (tmp_path / f"{name}.h5" for name in ("small", "one", "four"))
    grown = {
        "one": growth(small, one, stream=True),
        "four": growth(small, four, stream=True),
        "loaded": growth(small, four, stream=False),
    }
    print(grown)
    assert grown["four"] - grown["one"] < MARGIN
    assert grown["loaded"] - grown["one"] > 3 * MARGIN, "the measurement sees nothing"


def test_priors_are_written_down():
    prior, names, units = from_table(
        {
            "parameter": [
                {"family": "Uniform", "low": 0, "high": 2, "name": "a", "unit": "V"},
                {"family": "LogNormal", "loc": 0.0, "scale": 1.0},
                {"family": "Normal", "loc": -1.0, "scale": 0.5, "name": "c"},
            ]
        }
    )
    assert isinstance(prior, Product)
    assert (names, units) == (["a", "theta_2", "c"], ["V", "", ""])
    theta = prior.sample((100,))
    factors = [
        torch.distributions.Uniform(0.0, 2.0),
        torch.distributions.LogNormal(0.0, 1.0),
        torch.distributions.Normal(-1.0, 0.5),
    ]
    exact = sum(factor.log_prob(theta[:, i]) for i, factor in enumerate(factors))
    assert torch.allclose(prior.log_prob(theta), exact)
    outside = torch.tensor([[2.5, 1.0, 0.0], [1.0, -1.0, 0.0], [1.0, 1.0, -9.0]])
    assert log_density(prior, outside).isneginf().tolist() == [True, True, False]
    again = from_spec(to_spec(prior))
    assert torch.equal(again.log_prob(theta), prior.log_prob(theta))
    same, _, _ = from_table({"parameter": [{"family": "Normal", "loc": 0, "scale": 1}] * 2})
    assert to_spec(same)["base"]["class"] == "Normal"
    assert from_table(to_spec(GAUSSIAN.prior))[0].event_shape == (2,)
    x = theta + 0.1 * torch.randn(100, 3)
    found = prudent.fit(theta, x, prior, method="npe", **{**SMALL, "batch_size": 32})
    assert found(x[:2]).sample((3,)).shape == (3, 2, 3)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "not a prior"),
        ({"kind": "box", "low": [0.0]}, "`high` is missing"),
        ({"kind": "box", "low": [1.0], "high": [0.0]}, "not below high"),
        ({"kind": "box", "low": "a", "high": [1.0]}, "expected a list with a number"),
        ({"kind": "box", "low": [0], "high": [1], "names": ["a", "b"]}, "1 parameters, 2 names"),
        ({"parameter": [{"family": "Cauchy", "loc": 0}]}, "`scale` is missing"),
        ({"parameter": [{"family": "Normal", "loc": 0}]}, "`scale` is missing"),
        ({"parameter": [{"family": "Normal", "loc": 0, "scale": 1, "sd": 2}]}, "unknown key `sd`"),
        ({"parameter": []}, "not a prior"),
        ({"parameter": 5}, "not a prior"),
        ({"class": "os.system"}, "os.system"),
    ],
)
def test_bad_priors_are_one_line(table, message):
    with pytest.raises(InputError, match=message) as error:
        from_table(table)
    assert "\n" not in str(error.value)
