"""Results as tables: one row per run, failed ones with their reason."""

import dataclasses
import json
import shutil
import subprocess
import sys

import pytest

import prudent.experiments
from prudent._files import dump_json, sha256, to_json
from prudent.errors import InputError
from prudent.experiments import RunConfig
from prudent.experiments.cost import MOST_READ
from prudent.experiments.run import run_one as run
from prudent.experiments.store import read, record_failure
from prudent.training import Options

pandas = pytest.importorskip("pandas")

CONFIG = RunConfig(
    "weinberg", "npe", 128, num_test=16, training=Options(epochs=2, batch_size=32, patience=5)
)
# Other people's scripts rely on these.
COLUMNS = [
    *("run", "state", "problem", "method", "budget", "seed", "num_test", "threads", "device"),
    *("epochs", "batch_size", "learning_rate", "validation_fraction", "clip_norm", "patience"),
    *("members", "ensemble", "weight", "warmup_epochs", "num_samples", "proposal", "target"),
    *("indicator", "computation", "levels", "distance", "fraction"),
    *("auc", "worst_shortfall", "log_posterior", "log_posterior_error", "num_pairs"),
    *("simulate_seconds", "train_seconds", "diagnose_seconds", "error", "path"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    run(CONFIG, root / CONFIG.identity, progress=False)
    failed = RunConfig("weinberg", "calnre", 128, 1, training=Options(weight=3))
    record_failure(failed, root / failed.identity, "no luck", "Traceback ...")
    return root


def test_one_row_per_run(root):
    table = prudent.experiments.load_results(root).runs
    assert set(COLUMNS) <= set(table.columns)
    assert len(table) == 2
    done, failed = table.iloc[0], table.iloc[1]
    stored = read(root / CONFIG.identity)
    assert done["run"] == CONFIG.identity
    assert (done["state"], done["method"], done["patience"]) == ("done", "npe", 5)
    assert not set(stored.metrics) & set(CONFIG.flat())  # no metric hides a setting
    assert done["auc"] == stored.metrics["auc"]
    assert done["train_seconds"] == stored.timing["seconds"]["train"]
    assert (failed["state"], failed["error"]) == ("failed", "no luck")
    assert (failed["method"], failed["seed"], failed["weight"]) == ("calnre", 1, 3.0)
    assert pandas.isna(failed["auc"])


def test_curves(root):
    curves = prudent.experiments.load_results(root).curves
    names = ["run", "problem", "method", "budget", "seed", "level", "coverage", "lower", "upper"]
    assert list(curves.columns) == names
    assert len(curves) == 99
    assert (curves["lower"] <= curves["upper"]).all()


def test_a_copy_of_a_run_is_no_new_seed(root, tmp_path, caplog):
    names = [CONFIG.identity, "backup", f"{CONFIG.identity} (copy)"]
    for name in names:
        shutil.copytree(root / CONFIG.identity, tmp_path / name)
    results = prudent.experiments.load_results(tmp_path)
    assert len(results.runs) == len(results.finished) == 1
    assert caplog.text.count("2 runs are copies of others there and are left out") == 1
    caplog.clear()
    assert len(prudent.experiments.load_results(root).runs) == 2
    assert not caplog.text


def test_a_run_knows_its_test_pairs(root, tmp_path):
    """Runs on other seeds or files have others; trained anew, a run has the same."""
    known = {
        (seed, again): run(
            dataclasses.replace(CONFIG, seed=seed), tmp_path / f"{seed} {again}", False
        ).metrics["tested_on"]
        for seed, again in ((0, 0), (0, 1), (1, 0))
    }
    assert known[0, 0] == known[0, 1] == read(root / CONFIG.identity).metrics["tested_on"]
    assert known[0, 0] != known[1, 0]


def test_a_directory_where_all_failed_has_a_table(tmp_path):
    with pytest.raises(InputError, match="no finished runs"):
        prudent.experiments.load_results(tmp_path)
    record_failure(CONFIG, tmp_path / CONFIG.identity, "no luck")
    assert list(prudent.experiments.load_results(tmp_path).runs["state"]) == ["failed"]


def test_missing_pandas_is_named(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r'-e "\.\[results\]"'):
        prudent.experiments.load_results(root)


def copies(source, root, number):
    """A store of many finished runs that differ in their seeds, and the file that made it."""
    parts = {path.name: path.read_bytes() for path in source.iterdir()}
    del parts["model.safetensors"]
    metrics = json.loads(parts.pop("metrics.json"))
    config = json.loads(parts["config.json"])
    del metrics["sha256"]
    for seed in range(number):
        data = to_json({**config, "seed": seed})
        listing = {
            **metrics["files"],
            "config.json": {"sha256": sha256(data), "bytes": len(data)},
        }
        path = root / RunConfig.from_settings({**config, "seed": seed}).identity
        path.mkdir(parents=True)
        for name, part in {**parts, "config.json": data}.items():
            (path / name).write_bytes(part)
        (path / "metrics.json").write_bytes(dump_json({**metrics, "files": listing}))
    text = "problem = 'weinberg'\nmethod = 'npe'\nbudget = 128\nnum_test = 16\n"
    text += "training = {epochs = 2, batch_size = 32, patience = 5}\n"
    (root.parent / "many.toml").write_text(text + f"seed = {list(range(number + 100))}\n")


@pytest.mark.slow
def test_two_thousand_runs(root, tmp_path):
    """Each is looked at once, and the times of some: reading all of them would take minutes."""
    copies(root / CONFIG.identity, tmp_path / "many", 2000)
    code = (
        "import sys\n"
        "from prudent.cli import main\n"
        "opened = []\n"
        "look = lambda event, given: event == 'open' and opened.append(str(given[0]))\n"
        "sys.addaudithook(look)\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "assert 'torch' not in sys.modules, 'torch was loaded'\n"
        "print(sum('many' in name for name in opened))"
    )
    for option, figures in (("--status", ("done 2,000", "left 100")), ("--dry-run", ("100 new",))):
        done = subprocess.run(
            [sys.executable, "-c", code, "sweep", "many.toml", "-o", "many", option],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        *text, number = done.stdout.splitlines()
        assert all(figure in "\n".join(text) for figure in figures)
        assert int(number) <= 2000 + MOST_READ + 10
    assert len(prudent.experiments.load_results(tmp_path / "many").runs) == 2000
    shutil.rmtree(tmp_path / "many")
