"""What `prudent sweep` answers before it starts a worker."""

import json
from types import SimpleNamespace

import pytest
from sweeping import prepare, sweep

from command import prudent
from faults import tree_digest


def test_a_file_from_elsewhere_that_names_code_must_be_trusted(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    prepare(tmp_path, [160])
    for looking in ("--dry-run", "--status"):
        assert prudent("sweep", "../my.toml", looking, cwd=here).returncode == 0
    before = tree_digest(tmp_path)
    done = prudent("sweep", "../my.toml", cwd=here)
    assert done.returncode == 2
    assert "names code (mine:problem)" in done.stderr
    assert "--allow-code" in done.stderr
    assert tree_digest(tmp_path) == before


def test_too_little_space_is_refused_before_the_start(tmp_path, monkeypatch):
    from prudent.errors import InputError
    from prudent.experiments.launch import _check_space

    _check_space(tmp_path / "new", 10**6, force=False)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**5))
    with pytest.raises(InputError, match="need about 1 MB, but 0 MB are free"):
        _check_space(tmp_path / "new", 10**6, force=False)
    _check_space(tmp_path / "new", 10**6, force=True)


def test_a_directory_of_a_newer_version_is_refused(tmp_path):
    prepare(tmp_path, [160])
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "sweep.json").write_text('{"format": 9}')
    before = tree_digest(tmp_path)
    for arguments in ([], ["--status"]):
        code, _, err = sweep(tmp_path, *arguments)
        assert (code, arguments) in ((2, []), (0, ["--status"]))
        assert arguments or "another version of prudent" in err
    assert tree_digest(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my.toml", "-o", "file/x"], "choose another output"),
        (["my.toml", "-o", "file"], "choose another output"),
        (["my.toml", "-o", ""], "the output is empty"),
        (["my.toml", "-o", "x" * 300], "name has 300 bytes"),
        (["my.toml", "--workers", "0"], "`workers` is 0"),
        (["my.toml", "--set", "seed=0..20000"], "The limit is 10,000"),
        (["my.toml", "--set", "seed=[]"], "nothing to run"),
        (["nowhere.toml"], "no file nowhere.toml"),
        (["my.toml", "--engine", "dusk"], "Did you mean `dask`?"),
        (["my.toml", "--address", "tcp://x:1"], "for the engine dask, not for local"),
        (["my.toml", "--engine", "slurm"], "there is no `sbatch` here"),
        (["my.toml", "--timeout", "-1"], "`timeout` is -1"),
        ([], "name the FILE"),
        (["-o", ".", "--status"], "Name its file as well"),
    ],
)
def test_mistakes_change_nothing(tmp_path, arguments, message):
    prepare(tmp_path, [160])
    (tmp_path / "file").touch()
    before = tree_digest(tmp_path)
    done = prudent("sweep", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert tree_digest(tmp_path) == before


@pytest.mark.parametrize("name", ["a b", "quote's", "; echo x", "-o", "日本", "new\nline"])
def test_any_name_of_an_output_works(tmp_path, name):
    prepare(tmp_path, [160])
    (tmp_path / "fine.toml").write_text((tmp_path / "my.toml").read_text())
    done = prudent("sweep", "fine.toml", f"--output={name}", "--status", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == name


@pytest.mark.parametrize(
    "name", ["\x1b[31mred", "a\rb", "bell\a", "[/nope]", "[bold]", "\u202eright"]
)
def test_names_do_not_steer_the_terminal(tmp_path, name):
    prepare(tmp_path, [160])
    text = (
        (tmp_path / "my.toml").read_text().replace("mine:problem", f"{json.dumps(name)[1:-1]}:x")
    )
    (tmp_path / "my.toml").write_text(text)
    (tmp_path / "file").touch()
    for arguments, expected in ((["--dry-run"], 0), (["--status"], 0), (["-o", "file/x"], 2)):
        code, out, err = sweep(tmp_path, *arguments)
        assert code == expected
        assert not set(out + err) & set("\x1b\r\a\u202e")
        assert "Traceback" not in err
