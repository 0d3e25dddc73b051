"""The code of the page about priors runs as it is written."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "priors.md"


@pytest.mark.filterwarnings("ignore:.*are the same")
def test_the_code_of_the_page_runs(capsys):
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    assert capsys.readouterr().out == "['rate', 'mass', 'angle']\n"
    assert bool((names["theta"][:, 1] > 0).all())
