"""Files that notice damage, errors in one line, and libraries that are missing."""

import json
import sys

import pytest

from prudent._extras import require
from prudent._files import dump_json, load_json, sha256
from prudent.errors import InputError, StoreError, one_line


def test_json_with_its_own_checksum(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(dump_json({"auc": 0.25, "names": ["a"]}))
    assert json.loads(path.read_bytes())["sha256"]
    assert load_json(path, "Run again.") == {"auc": 0.25, "names": ["a"]}
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.35"))
    with pytest.raises(StoreError, match=r"does not match its checksum .* Run again\."):
        load_json(path, "Run again.")


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"{}", b'{"sha256": "0"}', b'{"sha256": 3}'])
def test_json_that_is_not_ours(tmp_path, data):
    path = tmp_path / "a.json"
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"a\.json"):
        load_json(path, "")


def test_json_with_a_checksum_from_elsewhere(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'{"a": 1}')
    assert load_json(path, "", sha256(b'{"a": 1}')) == {"a": 1}
    with pytest.raises(StoreError, match="does not match"):
        load_json(path, "", sha256(b'{"a": 2}'))
    with pytest.raises(StoreError, match="no file .*b.json"):
        load_json(tmp_path / "b.json", "")


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a\n\n b"), "ValueError: a b"),
        (ValueError(), "ValueError"),
        (InputError("what\n to do"), "what to do"),
        (InputError(), "InputError"),
        (Unprintable(), "Unprintable"),
        (ValueError("x" * 1000), "ValueError: " + "x" * 5 + "..."),
    ],
)
def test_an_error_in_one_line(error, text):
    assert one_line(error, 20) == text


def test_a_missing_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)  # whatever parts of it were imported before
    monkeypatch.setitem(sys.modules, "sklearn.tree", json)
    with pytest.raises(InputError) as error:
        require("sklearn.tree", "distances", "local coverage")
    expected = (
        "local coverage needs scikit-learn. In the directory of prudent's pyproject.toml: "
        'pip install -c constraints.txt -e ".[distances]"'
    )
    assert str(error.value) == expected
    assert require("json.decoder", "any", "nothing").JSONDecoder is json.JSONDecoder
