"""A hundred wrong calls, half on the command line and half in Python, beside those of other tests.

Each ends in one clear line: exit code 2 or an ``InputError``, nothing written, no bug in prudent.
"""

import os
import warnings

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal

import prudent
from command import prudent as command
from command import refused
from faults import tree_digest
from prudent.coverage import CoveragePenalty, alpha, penalty
from prudent.datasets import read
from prudent.errors import InputError, PrudentError
from prudent.experiments import RunConfig, load_results, run_sweep
from prudent.problems import box, custom
from prudent.recalibration import conformalize
from prudent.training import Options

DATA = ["train", "--data", "s.npz", "--prior", "prior.toml", "-o", "out"]
SAMPLE = ["sample", "run", "--observation", "x.npy"]
LONG = "n" * 300


def data(file="s.npz", prior="prior.toml", *more):
    return ["train", "--data", file, "--prior", prior, *more, "-o", "out"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Simulations, a prior, an observation and a run on them; and files that are none of these."""
    place = tmp_path_factory.mktemp("wrong")
    rng = np.random.default_rng(0)
    theta = rng.uniform(-3, 3, (200, 2))
    x = theta + rng.normal(size=(200, 2))
    arrays = {
        "s": {"theta": theta, "x": x},
        "swapped": {"theta": np.hstack([x, x]), "x": theta},
        "one": {"theta": theta[:1], "x": x[:1]},
        "huge": {"theta": theta, "x": x * 1e300},
        "short": {"theta": theta, "x": x[:-1]},
        "flat": {"theta": theta[:, 0], "x": x},
        "nan": {"theta": theta * np.nan, "x": x},
        "words": {"theta": np.full((20, 2), "a"), "x": x[:20]},
        "far": {"theta": 100 + theta, "x": x},
        "same": {"theta": 0 * theta, "x": x},
    }
    for name, values in arrays.items():
        np.savez(place / f"{name}.npz", **values)
    np.save(place / "x.npy", x[0])  # noqa: TID251
    np.save(place / "x3.npy", np.zeros(3))  # noqa: TID251
    np.save(place / "many.npy", x[:5])  # noqa: TID251
    np.save(place / "nan.npy", x[0] * np.nan)  # noqa: TID251
    (place / "prior.toml").write_text('kind = "box"\nlow = [-3, -3]\nhigh = [3, 3]\n')
    (place / "upside.toml").write_text('kind = "box"\nlow = [3, 3]\nhigh = [-3, -3]\n')
    (place / "three.toml").write_text('kind = "box"\nlow = [0, 0, 0]\nhigh = [1, 1, 1]\n')
    (place / "empty.toml").write_text("")
    (place / "ragged.csv").write_text("theta_1,theta_2,x_1,x_2\n1,2,3,4\n1,2,3\n")
    (place / "letters.csv").write_text("theta_1,theta_2,x_1\n1,2,three\n")
    (place / "image.png").write_bytes(b"\x89PNG")
    (place / "empty.npz").write_bytes(b"")
    (place / "dir.npz").mkdir()
    (place / "sweep.toml").write_text('problem = "slcp"\nmethod = "nre"\nbudget = 64\n')
    os.mkfifo(place / "pipe.csv")
    (place / "zero.npz").symlink_to("/dev/zero")
    short = ["--method", "npe", "--epochs", "1", "-q", "-o", "run"]
    done = command("train", "--data", "s.npz", "--prior", "prior.toml", *short, cwd=place)
    assert done.returncode == 0, done.stderr
    return place


COMMANDS = [
    (data("none.npz"), "no file none.npz"),
    (data("pipe.csv"), "is a pipe or a device"),
    (data("zero.npz"), "is a pipe or a device"),
    (data(f"{LONG}.npz"), "File name too long"),
    (data("dir.npz"), "Name a file"),
    (data("image.png"), "known are .csv"),
    (data("empty.npz"), "is damaged or not .npz"),
    (data("ragged.csv"), "the number of columns changed from 4 to 3 at row 2."),
    (data("letters.csv"), "is no table of numbers"),
    (data("swapped.npz"), "Swapped theta and x?"),
    (data("one.npz"), "has 1 of the simulations; expected 5 or more"),
    (data("huge.npz"), "none of 160 simulations is finite in float32 (0 hold NaN)"),
    (data("short.npz"), "must come in pairs"),
    (data("flat.npz"), "has 1 parameters, the prior has 2"),
    (data("nan.npz"), "not finite"),
    (data("words.npz"), "expected real numbers"),
    (data("far.npz"), "have no density under the prior"),
    (data("same.npz"), "is the same in all simulations"),
    (data("s.npz", "none.toml"), "no file none.toml"),
    (data("s.npz", "pipe.csv"), "unknown problem"),
    (data("s.npz", "upside.toml"), "low 3 is not below high -3"),
    (data("s.npz", "three.toml"), "has 2 parameters, the prior has 3"),
    (data("s.npz", "empty.toml"), "not a prior"),
    (data("s.npz", "prior.toml", "--x", "y"), "no `y` in s.npz"),
    (data("s.npz", "prior.toml", "--test-data", "none.npz"), "no file none.npz"),
    (data("s.npz", "prior.toml", "--test-data", "s.npz"), "are among the training pairs"),
    (data("s.npz", "prior.toml", "--members", "0"), "`members` is 0"),
    (data("s.npz", "prior.toml", "--epochs", "1e3"), "write 1000"),
    (data("s.npz", "prior.toml", "--seed", "-1"), "`seed` is -1"),
    (["train", "--data", "s.npz", "-o", "out"], "does not say which prior"),
    (["train", "--config", "run/config.json", "-o", "out"], "give it with --data and --prior"),
    (["train", "slcp", "--budget", "64", "-o", "/proc/out"], "cannot write below /proc"),
    (["train", "slcp", "--budget", "64", "-o", LONG], "has 300 bytes; expected at most 200"),
    (["train", "slcp", "--epochs", "nan", "-o", "out"], "`epochs` is"),
    (["train", "slcp", "--learning-rate", "inf", "-o", "out"], "`learning_rate`"),
    (["simulate", "slcp", "-n", "10", "-o", "/proc/x.zarr"], "cannot write below /proc"),
    (["simulate", "slcp", "-n", "ten", "-o", "x.zarr"], "'ten' is not a valid integer"),
    ([*SAMPLE, "-o", "x.pdf"], "expected a file ending in .npz .csv .nc"),
    ([*SAMPLE, "-o", "none/x.npz"], "no directory none"),
    ([*SAMPLE, "-o", "/proc/x.npz"], "cannot write below /proc"),
    ([*SAMPLE, "-n", "0"], "`num_samples` is 0"),
    ([*SAMPLE, "--row", "1"], "`row` is 1"),
    (["sample", "run", "--observation", "x3.npy"], "expected an observation of shape (2,)"),
    (["sample", "run", "--observation", "many.npy"], "choose one with --row"),
    (["sample", "run", "--observation", "nan.npy"], "hold NaN or infinity"),
    (["sample", "run", "--observation", "pipe.csv"], "is a pipe or a device"),
    (["plot", "run", "--observation", "x.npy", "--truth", "x3.npy"], "shape (2,)"),
    (["diagnose", "run"], "was trained on a file"),
    (["diagnose", "run", "--data", "s.npz"], "are among the training pairs"),
    (["report", "/etc", "-o", "page.html"], "no finished runs in /etc. Make some with: prudent"),
    (["sweep", "pipe.csv"], "is a pipe or a device"),
    (["sweep", "sweep.toml", "--set", "budget=one", "-o", "out"], "--set budget=one"),
]


@pytest.mark.parametrize(("arguments", "message"), COMMANDS)
def test_a_wrong_command_is_one_line(arguments, message, place):
    before = tree_digest(place / "run")
    told = refused(*arguments, cwd=place)
    assert message in told
    assert "bug in prudent" not in told
    assert tree_digest(place / "run") == before


def test_advice_does_no_harm(place):
    assert "/etc" not in refused("report", "/etc", cwd=place).partition("Make some with")[2]


PRIOR = box([-3.0, -3.0], [3.0, 3.0])
NORMAL = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
THETA = np.random.default_rng(0).uniform(-3, 3, (128, 2))
X = THETA + np.random.default_rng(1).normal(size=(128, 2))
SHORT = {"method": "npe", "epochs": 1, "hidden": [8], "transforms": 1, "progress": False}


@pytest.fixture(scope="module")
def estimator():
    return prudent.fit(THETA, X, PRIOR, **SHORT)


def fit(theta=THETA, x=X, prior=PRIOR, **more):
    return prudent.fit(theta, x, prior, **{**SHORT, **more})


def holed(values):
    return np.where(np.arange(len(values))[:, None] == 3, np.nan, values)


CALLS = {
    "theta flat": (lambda e: fit(THETA[:, 0]), "One parameter? Use theta[:, None]"),
    "x flat": (lambda e: fit(x=X[:, 0]), "Use x[:, None]"),
    "rows": (lambda e: fit(x=X[:-1]), "`theta` has 128 rows, `x` has 127"),
    "transposed": (lambda e: fit(THETA.T), "Use theta.T"),
    "words": (lambda e: fit("theta", X), "expected `theta` as an array of numbers"),
    "ragged": (lambda e: fit([[1, 2], [3]], X[:2]), "expected `theta` as an array of numbers"),
    "complex": (lambda e: fit(x=X * 1j), "is complex"),
    "no rows": (lambda e: fit(THETA[:0], X[:0]), "are empty"),
    "no x": (lambda e: prudent.fit(THETA, prior=PRIOR), "`x` is missing"),
    "nan in x": (lambda e: fit(x=holed(X)), "the first is row 3"),
    "nan in theta": (lambda e: fit(holed(THETA)), "1 of 128 rows of `theta`"),
    "huge": (lambda e: fit(x=X * 1e300), "not finite in float32 (0 hold NaN)"),
    "all invalid": (lambda e: fit(x=X * np.nan, invalid="exclude"), "nothing is left"),
    "invalid": (lambda e: fit(invalid="drop"), "drop"),
    "swapped": (lambda e: fit(np.hstack([X, X]), THETA), "theta"),
    "no prior": (lambda e: prudent.fit(THETA, X), "no prior"),
    "wrong prior": (lambda e: fit(prior=box([0.0], [1.0])), "expected `theta` of shape (N, 1)"),
    "outside": (lambda e: fit(THETA + 9), "have no density under the prior"),
    "constant": (lambda e: fit(0 * THETA), "is the same in all simulations"),
    "method": (lambda e: fit(method="npee"), "Did you mean `npe`?"),
    "option": (lambda e: fit(epoch=3), "Did you mean `epochs`?"),
    "embeding": (lambda e: fit(embeding="vector"), "Did you mean `embedding`?"),
    "seed": (lambda e: fit(seed=-1), "`seed` is -1; expected a whole number >= 0"),
    "seed of a half": (lambda e: fit(seed=0.5), "`seed` is 0.5"),
    "no epochs": (lambda e: fit(epochs=0), "`epochs` is 0"),
    "rate": (lambda e: fit(learning_rate=-1.0), "`learning_rate` is -1.0"),
    "batch": (lambda e: fit(batch_size=1000), "`batch_size` is 1000"),
    "names": (lambda e: fit(names=["a"]), "expected 2 parameter names, got 1"),
    "names twice": (lambda e: fit(names=["a", "a"]), "that differ"),
    "device": (lambda e: fit(device="gpu"), "available: cpu"),
    "transforms": (lambda e: fit(method="nre", hidden=[8]), "has no flow"),
    "box": (lambda e: box([1e8], [1e8 + 2]), "use float64"),
    "observation": (lambda e: e(X[0, :1]), "x"),
    "density": (lambda e: e(X[:1]).log_prob(THETA[0, :1]), "theta"),
    "draws": (lambda e: e(X[:1]).sample(-1), "expected the shape of draws"),
    "draws by seed": (lambda e: e(X[:1]).sample(2, seed=-1), "`seed` is -1"),
    "draws by method": (lambda e: e(X[:1]).sample(2, method="mcmc"), "only ratios"),
    "quantile": (lambda e: e(X[:1]).quantile(50), "between 0 and 1"),
    "level": (lambda e: e(X[:1]).interval(90), "between 0 and 1"),
    "which": (lambda e: e(X[:1]).records(1), "expected 0 to 0"),
    "truth": (lambda e: e(X[:1]).plot(truth=[1.0]), "expected `truth` of shape (2,)"),
    "levels": (lambda e: prudent.diagnose(e, -THETA, -X, levels=[90]), "expected `levels`"),
    "seen": (lambda e: prudent.diagnose(e, THETA, X), "are among the training pairs"),
    "diagnosed by seed": (lambda e: conformalize(e, -THETA, -X, seed=-2), "`seed` is -2"),
    "load": (lambda e: prudent.load("none.safetensors"), "no file none.safetensors"),
    "read": (lambda e: read("none.npz"), "no file none.npz"),
    "weight": (lambda e: fit(method="calnpe", weight=-1.0), "`weight` is -1.0"),
    "alpha": (lambda e: alpha(torch.zeros(2), torch.zeros(3, 4)), "log_prob"),
    "penalty": (lambda e: penalty(torch.zeros(2, 2)), "expected `alpha`"),
    "draws of a penalty": (lambda e: CoveragePenalty(NORMAL, 0), "`num_samples` is 0"),
    "proposal": (lambda e: CoveragePenalty("pior"), "pior"),
    "problem": (lambda e: prudent.problems.get("slpc"), "Did you mean `slcp`?"),
    "number": (lambda e: prudent.problems.get("slcp").draw(-1, 0), "`num_simulations` is -1"),
    "simulator": (lambda e: custom(lambda theta: 1 / 0, PRIOR), "ZeroDivisionError"),
    "preset": (lambda e: Options.of("papre"), "Did you mean `paper`?"),
    "run": (lambda e: RunConfig("slcp", "npe", 1), "`budget` is 1"),
    "results": (lambda e: load_results("nowhere"), "no directory nowhere"),
    "sweep": (lambda e: run_sweep("nowhere.toml", "runs"), "no file nowhere.toml"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_one_line(name, estimator, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, message = CALLS[name]
    with warnings.catch_warnings(action="ignore"), pytest.raises(PrudentError) as told:
        call(estimator)
    assert isinstance(told.value, InputError) or name == "load"
    assert message in str(told.value)
    assert "\n" not in str(told.value)
    assert not any(tmp_path.iterdir())


def test_there_are_a_hundred():
    assert min(len(COMMANDS), len(CALLS)) >= 50
