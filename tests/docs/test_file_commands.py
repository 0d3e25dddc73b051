"""The commands for people who have files work as they are written, from an empty directory.

Only the epochs of a training are cut short.
"""

import re
import shlex
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

import prudent
from command import prudent as command
from prudent.cli.entry import cli

ROOT = Path(__file__).parents[2]
PRIOR = 'kind = "box"\nlow = [0.5, 0.05]\nhigh = [2.0, 1.0]\nnames = ["amplitude", "rate"]\n'
PRIOR += 'units = ["V", ""]\n'
RNG = np.random.default_rng(0)


def simulated(number):
    theta = RNG.uniform([0.5, 0.05], [2.0, 1.0], (number, 2))
    mean = theta[:, :1] * np.exp(-theta[:, 1:] * np.arange(4))
    return {"theta": theta, "x": mean + 0.1 * RNG.normal(size=(number, 4))}


def written(place):
    """What a user has before the first command."""
    for name, number in (("sims.h5", 400), ("test.h5", 150)):
        with h5py.File(place / name, "w") as file:
            for key, value in simulated(number).items():
                file[key] = value
    (place / "prior.toml").write_text(PRIOR)
    several = simulated(5)
    np.save(place / "x.npy", several["x"][0])  # noqa: TID251
    np.save(place / "theta.npy", several["theta"])  # noqa: TID251
    rows = [",".join(map(str, row)) for row in several["x"]]
    (place / "x.csv").write_text("\n".join(rows))
    (place / "observed.csv").write_text(rows[0])
    with h5py.File(place / "data.h5", "w") as file:
        file["counts"], file["other"] = several["x"][:1], np.zeros(3)


def shell_lines(text):
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("prudent")]


def run(place, line):
    words = shlex.split(line, comments=True)[1:]
    if words[0] == "train":
        words += ["--epochs", "1", "--num-test", "50"]
    result = command(*words, "-q", cwd=place)
    assert result.returncode == 0, (line, result.stderr)
    return result.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("place")
    written(place)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/guides/own-files.md"])
def test_commands_of_the_page_run_in_order(page, tmp_path):
    written(tmp_path)
    text = (ROOT / page).read_text()
    lines = shell_lines(text.split("## You have files")[-1].split("## You have a training")[0])
    assert len(lines) >= 4
    for line in lines:
        if "simulate" in line:  # the next training begins anew
            shutil.rmtree(tmp_path / "run")
        told = run(tmp_path, line)
        if line.startswith(("prudent sample", "prudent plot")):
            assert told.startswith("Verdict: "), "nobody takes samples unwarned"
            output = re.search(r"-o (\S+)", line)[1]
            assert (tmp_path / output).stat().st_size > 500


@pytest.fixture(scope="module")
def trained(place):
    quick = "--method npe --batch-size 64"
    run(place, f"prudent train --data sims.h5 --prior prior.toml {quick} -o runs/first")
    shutil.copytree(place / "runs" / "first", place / "run")
    prudent.load(place / "run").save(place / "model.safetensors")
    return place


def examples(name):
    found = re.findall(r"^ +(prudent .*)$", cli.commands[name].help, flags=re.MULTILINE)
    assert found
    return found


OF_HELP = [line for name in ("sample", "plot", "diagnose") for line in examples(name)]
OF_PAGE = shell_lines((ROOT / "docs/guides/posterior.md").read_text())


@pytest.mark.parametrize("line", [*OF_HELP, *OF_PAGE])
def test_examples_of_the_help_and_of_the_posterior_page(line, trained):
    if "thorough" in line:
        pytest.importorskip("sklearn")
    if line.startswith("prudent diagnose") and "--data" not in line:
        line += " --data test.h5"  # a run from files has no simulator
    line = line.replace("--num-test 10000", "--num-test 100")
    assert run(trained, line)


def test_units_and_truth_are_in_the_figure(trained):
    run(trained, "prudent plot run --observation x.csv --row 3 --truth theta.npy -o corner.svg")
    page = (trained / "corner.svg").read_text()
    for word in ("amplitude [V]", "rate", "truth", "prior", "50 %"):
        assert word in page
    told = run(trained, "prudent sample run --observation x.npy -n 50")
    assert "amplitude [V]" in told


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("untrusted", 1),
        ("auc > 2", 0),
        ("auc < 2", 1),
        ("posterior_variance > 1e9", 0),
        ("log_normalization > 1e9", 1),  # not measured of a flow
        ("acu > 0", 2),
        ("auc = 0", 2),
        ("auc > much", 2),
    ],
)
def test_conditions_decide_the_exit_code(condition, code, trained):
    arguments = ["diagnose", "run", "--data", "test.h5", "-q", "--num-test", "20"]
    result = command(*arguments, "--fail-if", condition, cwd=trained)
    assert result.returncode == code, result.stderr


def test_a_dry_run_writes_nothing(trained, tmp_path):
    for name in ("sims.h5", "prior.toml"):
        shutil.copy(trained / name, tmp_path / name)
    arguments = ["train", "--data", "sims.h5", "--prior", "prior.toml", "--dry-run", "-o", "run"]
    told = command(*arguments, cwd=tmp_path)
    assert told.returncode == 0
    assert "320" in told.stdout
    assert sorted(one.name for one in tmp_path.iterdir()) == ["prior.toml", "sims.h5"]
    assert command(*arguments, "--theta", "y", cwd=tmp_path).returncode == 2


def test_a_sweep_of_ones_own_begins_from_a_file(tmp_path):
    assert command("sweep", "mine.toml", "--init", cwd=tmp_path).returncode == 0
    assert command("sweep", "mine.toml", "--dry-run", cwd=tmp_path).returncode == 0
    assert "exists" in command("sweep", "mine.toml", "--init", cwd=tmp_path).stderr


def test_versions_of_what_it_builds_on():
    told = command("--version", "-v").stdout
    assert re.search(r"^torch \d", told, re.MULTILINE)
    assert re.search(r"^python 3", told, re.MULTILINE)
