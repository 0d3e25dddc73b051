"""The command line as its users meet it: exit codes, one-line errors, no torch for help."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command import prudent, prudent_process, refused
from prudent._files import to_json
from prudent._progress import Progress
from prudent.diagnostics.registry import DIAGNOSTICS
from prudent.errors import InputError
from prudent.experiments import store
from prudent.experiments.config import THOROUGH_NEEDS, RunConfig
from prudent.training import Options
from prudent.training.methods import PUBLISHED, RECOMMENDED
from terminal import seen_on_a_terminal

TINY = ["--budget", "128", "--epochs", "2", "--batch-size", "32", "--num-test", "20"]
SMOKE = Path(__file__).parents[1] / "sweeps" / "smoke.toml"
SWEEP = ["sweep", str(SMOKE), "-o", "run"]
TRAIN = ["train", "gaussian", "--method", "nre", *TINY, "-o", "run"]


def named_runs(place):
    """A directory of three runs, of which nothing but the names is read."""
    for name in ("02c4bc4fa91b", "0cfbdb15b9be", "5b05db1a21f3"):
        (place / "runs" / name).mkdir(parents=True)
        (place / "runs" / name / "metrics.json").write_text("{}")


COMMANDS = ["demo", "problems", "simulate", "train", "diagnose", "sample", "plot", "sweep"]
COMMANDS += ["report"]


@pytest.mark.parametrize("arguments", [[], ["-h"], *[[name, "--help"] for name in COMMANDS]])
def test_help(arguments):
    result = prudent(*arguments)
    assert result.returncode == 0
    assert "Usage: prudent" in result.stdout
    assert "Examples:" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert len(result.stdout.splitlines()) <= (84 if "train" in arguments else 60)


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["problems"],
        ["train", "slpc", "-o", "x"],
        ["train", "slcp", "--device", "gpu", "-o", "x"],
        ["train", "no_module:problem", "-o", "x"],
        ["diagnose", "nowhere"],
        ["report", ".", "-o", "x.pdf"],
        ["train", "--data", "none.npz", "--prior", "prior.toml", "-o", "x"],
        ["train", "--data", __file__, "--prior", "none.toml", "-o", "x"],
        ["train", "--data", __file__, "-o", "x"],
        ["train", "slcp", "-o", "/proc/x"],
        ["diagnose", ".", "--data", "none.npz"],
        ["sample", ".", "--observation", "none.npy"],
        ["plot", ".", "--observation", __file__, "--truth", "none.npy"],
        ["report", ".", "--observation", "none.npy"],
        ["--version"],
        ["sweep", "--help"],
        ["sweep", str(SMOKE), "--dry-run"],
        ["sweep", str(SMOKE), "--status"],
    ],
)
def test_quick_answers_do_not_load_torch(arguments):
    code = (
        "import sys; sys.argv[1:] = sys.argv[1:]\n"
        "from prudent.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules, 'torch was loaded'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "slpc", "-o", "run"], "unknown problem `slpc`. Did you mean `slcp`?"),
        (["train", "slcp", "--method", "calnr", "-o", "run"], "Did you mean `calnre`?"),
        (["train", "slcp", "--budget", "-5", "-o", "run"], "`budget` is -5"),
        (["train", "slcp", "--budget", "many", "-o", "run"], "`budget` is 'many'; expected"),
        (["train", "slcp", "--epochs", "0", "-o", "run"], "`epochs` is 0"),
        (["train", "slcp", "--method", "nre", "--weight", "5", "-o", "run"], "no regularizer"),
        (["train", "slcp", "--target", "safe", *TINY, "-o", "run"], "unknown target `safe`"),
        (["train", "slcp"], "--output"),
        (["train", "slcp", "--epoch", "3", "-o", "run"], "--epochs"),
        (["simulate", "slpc", "-o", "x.zarr"], "Did you mean `slcp`?"),
        (["simulate", "slcp", "-n", "0", "-o", "x.zarr"], "`num_simulations`"),
        (["train", "no_module:problem", *TINY, "-o", "run"], "cannot import `no_module`"),
        (["trian"], "Did you mean 'train'?"),
        (["diagnose", "nowhere"], "nowhere does not exist. Make a run with: prudent train"),
        (["diagnose", ".", "--num-test", "0"], "`num_test` is 0"),
        (["report", "."], "no finished runs"),
        (["train", "slcp", "-o", "file/run"], "choose another output"),
        (["train", "-o", "run"], "problem: missing; every run needs"),
        (["train", "slcp", "--preset", "papre", "-o", "run"], "Did you mean `paper`?"),
        (["train", "slcp", "--proposal", "pior", "-o", "run"], "Did you mean `prior`?"),
        (["train", "slcp", "--device", "cuda:99", *TINY, "-o", "run"], "available: cpu"),
        (["train", "--config", "nowhere.toml", "-o", "run"], "no file nowhere.toml"),
        (["train", "--config", "file", "-o", "run"], "file is not valid TOML"),
        (["train", "slcp", "-o", ""], "the output is empty"),
        (["simulate", "slcp", "-o", " "], "the output is empty"),
        (["simulate", "slcp", "-o", "s.npz"], "such as s.zarr"),
        (["report", ".", "-o", "x.pdf"], "a report is one HTML page: -o x.html"),
        (
            ["report", ".", "-o", "."],
            ". is a directory; a report is one HTML page: -o report.html",
        ),
        (["train", "slcp", "--device", "gpu", "-o", "run"], "A graphics card is cuda"),
        (["train", "slcp", "--target", "2", "-o", "run"], "or a number in [0, 1]"),
        (["train", "gaussian", *TINY, "--batch-size", "120", "-o", "run"], "pass --batch-size 2"),
        ([*SWEEP, "--status", "--watch"], "--status and --watch contradict each other"),
        ([*SWEEP, "--dry-run", "--print-script"], "contradict each other; choose one."),
        ([*SWEEP, "--verify"], "--verify goes with --status"),
        ([*SWEEP, "--dry-run", "--engine", "spark"], "unknown engine `spark`"),
        ([*SWEEP, "--dry-run", "--address", "tcp://x:1"], "pass --engine dask"),
        ([*SWEEP, "--dry-run", "--engine", "dask", "--address", "x"], "such as tls://10.0.0.1"),
        ([*SWEEP, "--set", "training.epochs=x"], "Error: --set training.epochs=x: `epochs`"),
        (["diagnose", "runs"], "holds 3 runs; name one: 02c4bc4fa91b 0cfbdb15b9be 5b05"),
        (["diagnose", "runs/0"], "beginning of 2 runs: 02c4bc4fa91b 0cfbdb15b9be."),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, message, tmp_path):
    (tmp_path / "file").write_text("in the way")
    named_runs(tmp_path)
    assert message in refused(*arguments, cwd=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("problm = 'slcp'", "problm: unknown key. Did you mean `problem`?"),
        ("problem = 'slcp'\n[training]\nepoch = 3", "Did you mean `epochs` (default 500)?"),
        ("problem = 'slcp'\ntraining = 3", "training: expected a table of settings, got 3."),
        ("problem = 'slcp'\nbudget = '1024'", "`budget` is '1024'"),
        ("problem = 'slcp'\nformat = 99", "another version"),
        ("problem = ", "not valid TOML"),
    ],
)
def test_mistakes_in_a_file_are_named(text, message, tmp_path):
    (tmp_path / "run.toml").write_text(text)
    result = prudent("train", "--config", "run.toml", "-o", "run", cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def configured(monkeypatch, place, *arguments):
    """The run that a command would make."""
    found = []

    def stop(config, *_):
        found.append(config)
        raise InputError("enough")

    monkeypatch.setattr("prudent.experiments.run.run_one", stop)
    result = prudent("train", *arguments, "-o", "run", cwd=place)
    assert result.stderr.endswith("Error: enough\n")
    (config,) = found
    return config


@pytest.mark.parametrize(
    ("arguments", "method", "members"),
    [
        (["slcp"], RECOMMENDED, 5),
        (["slcp", "--preset", "fast"], RECOMMENDED, 1),
        (["slcp", "--preset", "Paper"], PUBLISHED, 1),
        (["slcp", "--preset", "paper", "--method", "prudent"], "prudent", 5),
        (["slcp", "--method", "calnre"], "calnre", 1),
        (["--config", "paper.toml"], PUBLISHED, 1),
        (["--config", "named.toml"], "nre", 1),
        (["--config", "named.toml", "--preset", "paper"], "nre", 1),
        (["--config", "named.toml", "--method", "bnpe"], "bnpe", 1),
    ],
)
def test_without_a_method_it_is_the_recommended_one(
    arguments, method, members, tmp_path, monkeypatch
):
    """Or, as for `prudent.fit`, the paper's with its settings."""
    (tmp_path / "paper.toml").write_text("problem = 'slcp'\ntraining.preset = 'paper'\n")
    (tmp_path / "named.toml").write_text("problem = 'slcp'\nmethod = 'nre'\n")
    config = configured(monkeypatch, tmp_path, *arguments)
    assert (config.method, config.training.members) == (method, members)


@pytest.mark.parametrize("other", [1, 2])
def test_the_config_of_a_run_of_another_format_is_refused(other, tmp_path):
    stored = RunConfig("gaussian", "nre", 128).to_dict()
    (tmp_path / "config.json").write_bytes(to_json({**stored, "format": other}))
    told = refused("train", "--config", "config.json", "-o", "run", cwd=tmp_path)
    assert told.endswith("was written by another version of prudent. Use that version.")


def test_debug_shows_the_traceback(tmp_path):
    result = prudent("train", "slpc", "-o", "run", "--debug", cwd=tmp_path)
    assert result.returncode != 0
    assert "Traceback" in result.stderr


@pytest.mark.process
@pytest.mark.slow
def test_train_diagnose_report(tmp_path):
    """The three commands in a row, from a directory with a space, without a terminal."""
    place = tmp_path / "a place"
    place.mkdir()
    trained = prudent_process(*TRAIN, cwd=place)
    assert trained.returncode == 0, trained.stderr
    assert "Results: run" in trained.stdout
    assert "worst shortfall" in trained.stdout
    assert "\x1b" not in trained.stdout + trained.stderr
    assert "\r" not in trained.stdout + trained.stderr
    again = prudent(
        "train", "gaussian", "--method", "nre", *TINY, "-o", "run", "--json", cwd=place
    )
    facts = json.loads(again.stdout)
    assert facts["schema"] == "prudent.train/1"
    assert f"{facts['metrics']['auc']:+.3f}" in trained.stdout
    other = prudent("train", "gaussian", "--method", "npe", *TINY, "-o", "run", cwd=place)
    assert other.returncode == 2
    assert "method: nre there, npe now" in other.stderr
    diagnosed = prudent("diagnose", "run", "--num-test", "20", "--json", cwd=place)
    assert json.loads(diagnosed.stdout)["metrics"]["num_pairs"] == 20
    reported = prudent_process("report", "run", "-o", "page.html", cwd=place)
    assert reported.stdout == "Report: page.html (1 of 1 runs finished)\n"
    assert sorted(path.name for path in place.iterdir()) == ["page.html", "run"]


@pytest.mark.process
def test_simulate_and_continue(tmp_path):
    command = ["simulate", "gaussian", "-n", "300", "--chunk-size", "100", "-o", "sims.zarr"]
    first = prudent(*command, cwd=tmp_path)
    assert first.stdout == "Simulations: sims.zarr (300 of gaussian)\n", first.stderr
    (tmp_path / "sims.zarr" / "done" / "1.json").unlink()
    again = prudent(*command, "--workers", "2", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["num_simulations"] == 300
    other = prudent(*command, "--seed", "1", cwd=tmp_path)
    assert other.returncode == 2
    assert "seed 0, not 1" in other.stderr.splitlines()[-1]


def test_a_problem_of_ones_own_is_imported_only_when_named(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom prudent import problems\n"
        "prior = problems.box([0.0], [1.0])\n"
        "problem = problems.custom(lambda t: t + torch.randn(len(t), 1), prior)\n"
    )
    command = ["train", "mine:problem", "--method", "nre", *TINY, "-o", "run"]
    trained = prudent(*command, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "importing mine:problem" in trained.stderr
    refused = prudent("diagnose", "run", "--num-test", "32", cwd=tmp_path)
    assert refused.returncode == 2
    assert "results never import code" in refused.stderr
    allowed = prudent(
        "diagnose", "run", "--num-test", "32", "--problem", "mine:problem", cwd=tmp_path
    )
    assert allowed.returncode == 0, allowed.stderr


def test_problems_as_json():
    assert "slcp" in json.loads(prudent("problems", "--json").stdout)["problems"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("prudent train sl", {"slcp"}),
        ("prudent simulate wein", {"weinberg"}),
        ("prudent train slcp --method cal", {"calnre", "calnpe"}),
        ("prudent swe", {"sweep"}),
        ("prudent sweep --st", {"--status"}),
        ("prudent sweep --engine d", {"dask"}),
        ("prudent train slcp --proposal m", {"model", "model-rsample"}),
        ("prudent train slcp --target c", {"conservative", "calibrated"}),
        ("prudent train slcp --preset p", {"paper"}),
        ("prudent train slcp --device c", {"cpu", "cuda"}),
        ("prudent report runs --format s", {"svg"}),
        ("prudent report runs --format png,", {"png,svg", "png,pdf"}),
        ("prudent diagnose runs/0", {"runs/02c4bc4fa91b", "runs/0cfbdb15b9be"}),
        ("prudent diagnose no/run", {"no/run"}),
    ],
)
def test_shell_completion(words, expected, tmp_path):
    named_runs(tmp_path)
    result = prudent(
        cwd=tmp_path,
        _PRUDENT_COMPLETE="bash_complete",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split()) - 1),
    )
    assert {line.split(",", 1)[1] for line in result.stdout.splitlines()} == expected


def test_the_plan_of_a_sweep_as_json():
    done = prudent("sweep", str(SMOKE), "--dry-run", "--json", "--set", "seed=0..1")
    plan = json.loads(done.stdout)
    assert plan["schema"] == "prudent.sweep-plan/1"
    assert plan["num_runs"] == plan["counts"]["left"] == 24
    assert plan["seconds"] > 0


@pytest.mark.parametrize(
    "arguments",
    [["sweep", "nowhere.toml"], ["train", "slcp"], ["train", "slcp", "--epoch", "3", "-o", "run"]],
)
def test_an_error_is_json_for_those_who_asked_for_it(arguments, tmp_path):
    done = prudent(*arguments, "--json", cwd=tmp_path)
    error = json.loads(done.stdout)["error"]
    assert done.returncode == error["code"] == 2
    assert f"Error: {error['message']}" in done.stderr
    assert "Traceback" not in done.stderr


def test_all_mistakes_of_a_sweep_are_told_at_once(tmp_path):
    (tmp_path / "my.toml").write_text("problem = 'slpc'\nmethod = 'nr'\nbudget = 1.5\n")
    done = prudent("sweep", "my.toml", "-o", "runs", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: 3 mistakes:\n  my.toml:1:1: problem: unknown problem")
    assert not (tmp_path / "runs").exists()


def test_version():
    from prudent import __version__

    assert prudent("--version").stdout == f"prudent {__version__}\n"


@pytest.mark.process
def test_plain_ascii_terminals_work(tmp_path):
    result = prudent_process(
        "train",
        "gaussian",
        "--method",
        "nre",
        *TINY,
        "-o",
        "run",
        cwd=tmp_path,
        PYTHONIOENCODING="ascii",
    )
    assert result.returncode == 0, result.stderr
    assert "+/-" in result.stdout


@pytest.mark.process
def test_a_terminal_sees_the_loss_terms(tmp_path):
    seen = seen_on_a_terminal([sys.executable, "-m", "prudent", *TRAIN], tmp_path)
    assert b"| 2/2, validation loss " in seen
    assert b"bce" not in seen
    assert b"| 20/20" in seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 3}, "(epochs: 2 there, 3 now)"),
        ({"epochs": 3, "proposal": "box"}, "(epochs: 2 there, 3 now, proposal: even there, box"),
    ],
)
def test_another_run_in_the_way_is_refused_with_what_differs(options, message, tmp_path):
    """Before the training, which would fail here."""
    path = tmp_path / "run"
    config = RunConfig("gaussian", "calnre", 128, training=Options(epochs=2))
    store.publish(path, store_files(config), {"num_pairs": 64}, {})
    wanted = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    done = prudent("train", "gaussian", "--method", "calnre", "--budget", "128", *wanted,
                   "-o", "run", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr) < 200


def store_files(config):
    return {"config.json": to_json(config.to_dict()), "coverage.json": to_json({})}


@pytest.mark.parametrize(
    "command", [["train", "slcp", "--thorough"], [*SWEEP[:2], "--set", "thorough=true"]]
)
def test_a_thorough_run_needs_its_library_before_it_trains(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    done = prudent(*command, "-o", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "thorough diagnoses need scikit-learn. In the directory" in done.stderr
    assert not list(tmp_path.iterdir())
    needed = {row.needs for row in DIAGNOSTICS.values()} - {None}
    assert needed == {THOROUGH_NEEDS[:2]}


def test_watching_ends_where_nothing_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("prudent.cli.sweep.WATCH_SECONDS", 0.0)
    done = prudent(*SWEEP, "--watch", cwd=tmp_path)
    assert done.returncode == 2
    assert "nothing is running in run: 12 of 12 runs are not done. Continue with" in done.stderr
    assert len(done.stdout.splitlines()) == 1


FAILING = """
import torch
from prudent import problems
def simulator(theta):
    if (theta > 0.9).any():
        raise RuntimeError("my solver diverged")
    return theta + torch.randn_like(theta)
problem = problems.custom(simulator, problems.box([0.0], [1.0]))
broken = problems.Problem("broken", problem.prior, lambda *_: 1 / 0, (1,), ("a",))
"""


def test_errors_of_a_simulator_are_told_as_its_own(tmp_path):
    """Some are left out and told as plain lines; nothing is told if only the result is wanted."""
    (tmp_path / "mine.py").write_text(FAILING)
    command = ["train", "mine:problem", "--method", "nre", *TINY, "-o"]
    told = prudent(*command, "run", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert (
        " raised) and left out. The first error: RuntimeError: my solver diverged. Mend the si"
        in (told.stderr)
    )
    assert "of 20 test pairs: their observations hold NaN" in told.stderr
    assert "Warning" not in told.stderr
    assert ".py" not in told.stderr
    assert prudent(*command, "quiet", "-q", cwd=tmp_path).stderr == ""
    broken = prudent("train", "mine:broken", *TINY, "-o", "broken", cwd=tmp_path)
    assert broken.returncode == 2
    assert (
        "all 128 simulations of `broken` are invalid (128 raised). The first error: ZeroDiv"
        in (broken.stderr)
    )


@pytest.mark.parametrize(
    ("members", "checkpoint", "message"),
    [
        (1, "epoch-000003", "interrupted after epoch 3 of 500; the same command continues."),
        (5, "member-1/epoch-000003", "interrupted after epoch 3 of 500 of network 2 of 5; the"),
        (1, "", "interrupted before the first epoch."),
    ],
)
def test_an_interrupted_training_says_its_epoch(
    members, checkpoint, message, tmp_path, monkeypatch
):
    def stop(config, path, *_, **__):
        if checkpoint:
            file = store.unfinished_path(path, ".checkpoint") / f"{checkpoint}.safetensors"
            file.parent.mkdir(parents=True)
            file.touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("prudent.experiments.run.run_claimed", stop)
    done = prudent("train", "slcp", "--members", str(members), "-o", "run", cwd=tmp_path)
    assert done.returncode == 130
    assert f"Error: {message}" in done.stderr


@pytest.mark.parametrize("where", ["terminal", "notebook", "log"])
def test_progress_shows_what_matters_in_80_columns(where, monkeypatch, caplog):
    clock, stream = [0.0], io.StringIO()
    stream.isatty = lambda: where == "terminal"
    monkeypatch.setattr("prudent._progress.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "80")
    caplog.set_level("INFO", "prudent")
    if where == "notebook":
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
    row = {"bce": 1.0, "coverage": 7.95e-08, "validation_loss": 1.16, "skipped": 0}
    with Progress("training 2 of 5", 500, unit="epoch", done=100) as bar:
        clock[0] = 60.0
        bar.advance({**row, "validation_shortfall": 0.0312})
        bar.bar.refresh()
    expected = "101/500, 6:39:00 left, validation loss 1.16, shortfall 0.031"
    if where == "log":
        assert stream.getvalue() == ""
        assert caplog.messages == [f"training 2 of 5: {expected}"]
        return
    line = next(part for part in stream.getvalue().split("\r") if "101" in part).rstrip()
    assert re.fullmatch(rf"training 2 of 5 \|.\| {re.escape(expected)}", line)
    assert len(line) <= 80


@pytest.mark.process
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("arguments", ["problems", "problems --json", "--help"])
@pytest.mark.parametrize(
    ("output", "told"),
    [(">/dev/full", "standard output is full"), (">&-", "standard output is closed")],
)
def test_an_output_that_takes_nothing_is_no_bug(arguments, output, told):
    shell = f"{sys.executable} -m prudent {arguments} {output}"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
    if (arguments, output) == ("--help", ">&-"):  # click says nothing to nobody
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert done.returncode == 1
    assert done.stderr == f"Error: {told}; what was written to files is kept.\n"


def test_what_memory_does_not_hold_is_one_line(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")

    monkeypatch.setattr("prudent.cli.simulate.problems.names", fail)
    result = prudent("problems", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: there is not enough memory for that")
