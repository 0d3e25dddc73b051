"""The pages about models of other libraries, executed as they stand."""

import re
from pathlib import Path

import pytest
import torch
from peers import peer

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the peers


def test_the_guide(tmp_path, monkeypatch):
    for name in ("sbi", "lampe", "nflows"):
        peer(name)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    text = (DOCS / "guides" / "own-model.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 9
    names = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"own-model.md block {number + 1}", "exec"), names)
    assert (tmp_path / "report.html").stat().st_size > 0
    assert bool(names["loss"].isfinite())


def test_the_script_of_an_sbi_user(tmp_path, monkeypatch):
    """From simulations to a verdict, a repaired posterior and a picture, in 25 lines."""
    peer("sbi")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    script = (DOCS / "tutorials" / "sbi_script.py").read_text()
    assert len(script.splitlines()) <= 25
    names = {}
    exec(compile(script, "sbi_script.py", "exec"), names)
    assert names["diagnosis"].verdict.kind == "over-confident"
    assert names["again"].verdict.kind != "over-confident"
    assert (tmp_path / "coverage.png").stat().st_size > 0
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "tutorials" / "sbi.md").read_text(), re.S)
    names |= {"density_estimator": names["inference"]._neural_net}
    exec("from prudent.coverage import CoveragePenalty", names)
    exec(blocks[1], names)
    assert bool(names["loss"].isfinite())
