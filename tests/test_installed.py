"""The package as it is installed: what is inside, what its import costs, that it works alone.

``make package`` runs this and the tests of the core in an environment without any extra.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import torch

import prudent

ROOT = Path(__file__).parents[1]
ALONE = bool(os.environ.get("PRUDENT_CORE"))
EXTRAS = ("matplotlib", "pandas", "h5py", "zarr", "arviz", "emcee", "sklearn", "dask")
ALL = "import prudent; [getattr(prudent, name) for name in prudent.__all__]"


@pytest.mark.skipif(not ALONE, reason="only where the wheel is installed alone")
def test_this_is_the_wheel_and_nothing_else():
    assert "site-packages" in prudent.__file__
    assert [name for name in EXTRAS if importlib.util.find_spec(name)] == []
    package = resources.files("prudent")
    assert (package / "sweeps" / "smoke.toml").is_file()
    assert (package / "sweeps" / "demo.toml").is_file()
    (sdist,) = (ROOT / "dist").glob("*.tar.gz")
    assert sdist.name == f"prudent-{prudent.__version__}.tar.gz"


def test_types_are_shipped():
    assert (resources.files("prudent") / "py.typed").is_file()


def imported(code):
    """The names of all modules that some code has imported at its end."""
    words = [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"]
    return {*subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()}


@pytest.mark.process
def test_importing_it_costs_little_beside_torch():
    """Counted in modules, each of which is a file to read, whatever machine reads it."""
    alone, everything = imported("import torch"), imported(ALL)
    assert alone <= everything
    assert len(everything) < 1.5 * len(alone)
    assert not {"torch", "numpy"} & imported("import prudent")
    heavy = imported("import torch._dynamo")
    assert len(heavy) > 1.5 * len(alone), "the count sees an import that takes as long as torch"


def command(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "prudent", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.process
def test_a_whole_inference_without_extras(tmp_path):
    theta = torch.rand(300, 2)
    x = theta + 0.1 * torch.randn(300, 2)
    rows = torch.cat([theta, x], dim=1).tolist()
    lines = ["a,b,x_1,x_2", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "sims.csv").write_text("\n".join(lines))
    prior = 'kind = "box"\nlow = [0, 0]\nhigh = [1, 1]\nnames = ["a", "b"]\n'
    (tmp_path / "prior.toml").write_text(prior)
    (tmp_path / "x.csv").write_text("0.4,0.6\n")
    quick = ["--method", "npe", "--epochs", "2", "--batch-size", "64", "-q"]
    trained = [
        "train",
        "--data",
        "sims.csv",
        "--prior",
        "prior.toml",
        *quick,
        "-o",
        "run",
        "--json",
    ]
    done = command(*trained, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"]
    drawn = ["sample", "run", "--observation", "x.csv", "-n", "50", "-o", "draws.csv"]
    done = command(*drawn, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Verdict: " in done.stdout
    assert len((tmp_path / "draws.csv").read_text().splitlines()) == 51
    if ALONE:
        done = command("plot", "run", "--observation", "x.csv", cwd=tmp_path)
        assert done.returncode == 2
        assert "figures need matplotlib" in done.stderr


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {prudent.__version__}\n" in text
    assert "2310.13402" in text
    assert len(re.findall("family-names", text)) == 7


def test_the_workflow_runs_what_ci_runs():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "run: .ci/run" in text
    assert "run: make nightly" in text
    targets = (ROOT / "Makefile").read_text().split("\ntest: ")[1].split("\n\n")[0]
    assert {"lint", "suite", "peers", "docs", "package"} <= {*targets.split()}
