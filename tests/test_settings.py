"""Every setting is described once, and refused in the same words wherever it is written."""

import json
import tomllib

import pytest

from command import prudent
from prudent import fit
from prudent._settings import Setting, check, documented, setting, settings_of, to_dict
from prudent.errors import InputError
from prudent.experiments.config import KEYS, RunConfig
from prudent.experiments.launch import LaunchOptions
from prudent.experiments.sweep import read_sweep
from prudent.training import Options, methods

BASE = {"problem": "gaussian", "method": "calnre", "budget": 64}
WRONG = ["some text", -1.5, 0, 1.5, 7, -3, True, [1]]
OWN = {"problem": "a:b", "device": "cuda:1"}


def is_refused(described, value):
    try:
        described.check(value)
    except InputError:
        return True
    return False


def wrong_values(settings):
    return [
        pytest.param(key, value, id=f"{key}={value}")
        for key, described in settings.items()
        for value in WRONG
        if is_refused(described, value)
    ]


def message(function, *arguments, **keywords):
    with pytest.raises(InputError) as raised:
        function(*arguments, **keywords)
    return str(raised.value)


@pytest.mark.parametrize(("key", "value"), wrong_values(KEYS))
def test_a_wrong_value_is_refused_in_the_same_words_everywhere(tmp_path, key, value):
    """By the description, in Python, in a file of runs and of one run, by --set and an option."""
    described, (table, _, name) = KEYS[key], key.rpartition(".")
    words = message(described.check, value)
    assert f"`{name}`" in words or words.startswith(f"unknown {name} `")
    if table:
        assert message(Options.of, **{name: value}) == words
        assert message(fit, None, None, None, **{name: value}) == words
        changed = {**BASE, "training": {name: value}}
    else:
        assert message(RunConfig, **{**BASE, name: value}) == words
        changed = {**BASE, name: value}
    assert message(RunConfig.from_settings, changed) == words
    flat = {**BASE, key: value}
    path = tmp_path / "my.toml"
    if value != [1]:  # which would be a grid
        path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in flat.items()))
        assert message(read_sweep, path).endswith(f": {key}: {words}")
    path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in BASE.items()))
    text = json.dumps(value)
    if value != [1]:
        assert message(read_sweep, path, [f"{key}={text}"]) == f"--set {key}={text}: {words}"
    typed = described.parse(str(value))
    if bool in described.types or key == "problem" or not is_refused(described, typed):
        return
    words = message(described.check, typed)
    option = f"--{name.replace('_', '-')}={value}"
    arguments = ["train", "gaussian", "--method=calnre", "--budget=64", option, "-o", "run"]
    done = prudent(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("key", "value"), wrong_values(settings_of(LaunchOptions)))
def test_how_to_launch_is_checked_alike(tmp_path, key, value):
    words = message(LaunchOptions, **{key: value})
    assert words == message(settings_of(LaunchOptions)[key].check, value)
    described = settings_of(LaunchOptions)[key]
    typed = described.parse(str(value))
    if bool not in described.types and is_refused(described, typed):
        path = tmp_path / "my.toml"
        path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in BASE.items()))
        done = prudent("sweep", str(path), f"--{key}={value}", "--dry-run")
        assert done.returncode == 2
        assert message(described.check, typed) in done.stderr


@pytest.mark.parametrize("key", KEYS)
def test_defaults_and_choices_are_valid_in_any_capitals(key):
    described = KEYS[key]
    if described.default is not ...:
        assert described.check(described.default) == described.default
    for choice in described.choices:
        assert described.check(choice.upper()) == choice
    if key in OWN:
        assert described.check(OWN[key]) == OWN[key]


def test_whole_numbers_are_fine_where_fractions_are_meant():
    assert Options(weight=5, target=1, learning_rate=1) == Options(
        weight=5.0, target=1.0, learning_rate=1.0
    )
    assert type(Options(weight=5).weight) is float


@pytest.mark.parametrize("target", ["7.0", "true", '"7"', "-0.1", "nan"])
def test_a_target_that_nobody_can_train_for_is_refused_before_the_work(tmp_path, target):
    path = tmp_path / "my.toml"
    path.write_text(f"problem='slcp'\nmethod='calnre'\nbudget=64\ntraining.target = {target}\n")
    done = prudent("sweep", str(path), "--dry-run")
    assert done.returncode == 2
    words = message(Options, target=tomllib.loads(f"x = {target}")["x"])
    assert done.stderr == f"Error: {path}:4:10: training.target: {words}\n"
    with pytest.raises(InputError) as raised:
        fit(None, None, None, target=tomllib.loads(f"x = {target}")["x"])
    assert str(raised.value) == words


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"least": 0}, "a number >= 0"),
        ({"above": 0}, "a number > 0"),
        ({"most": 9}, "a number <= 9"),
        ({"below": 9}, "a number < 9"),
        ({"least": 0, "below": 9}, "a number in [0, 9)"),
        ({}, "a number"),
    ],
)
def test_bounds_in_words(bounds, words):
    described = Setting("size", (float,), **bounds)
    assert described.expected == words
    values = {-1.0: {"least", "above"}, 0.0: {"above"}, 9.0: {"below"}, 10.0: {"most", "below"}}
    for value, refusing in values.items():
        assert is_refused(described, value) == bool(refusing & set(bounds))


def test_numbers_that_no_float_can_hold_are_refused():
    assert "expected a number" in message(Options, weight=10**400)


def test_the_name_of_a_method_may_be_written_as_in_figures(tmp_path):
    plain, pretty = (RunConfig("slcp", name, 64) for name in ("calnre", "CalNRE"))
    assert plain == pretty
    assert plain.identity == pretty.identity
    path = tmp_path / "my.toml"
    path.write_text("problem = 'SLCP'\nmethod = ['CalNRE', 'calnre', 'NPE']\nbudget = 64\n")
    found = read_sweep(path)
    assert [config.method for config in found.configs] == ["calnre", "npe"]
    assert found.num_duplicates == 1


def test_a_setting_that_is_not_set_is_no_part_of_the_identity():
    from dataclasses import dataclass

    @documented
    @dataclass(frozen=True)
    class Old:
        """Something."""

        one: int = setting(1, least=1, help="The first")

        def __post_init__(self):
            check(self)

    @dataclass(frozen=True)
    class New(Old):
        two: str | None = setting(None, help="The second", identity="if set")

    assert "one: The first." in Old.__doc__
    assert to_dict(New()) == to_dict(Old())
    assert to_dict(New(two="x")) == {"one": 1, "two": "x"}
    assert settings_of(New)["two"] == Setting(
        "two", (str, type(None)), None, "The second", identity="if set"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine=spark"], "unknown engine `spark`."),
        (
            ["--address=tcp://x:1"],
            "an address is for the engine dask, not for local; pass --engine dask.",
        ),
    ],
)
def test_a_plan_looks_at_the_engine(tmp_path, arguments, words):
    for command in (["sweep", "demo.toml", "--dry-run"], ["simulate", "slcp", "-o", "x.zarr"]):
        done = prudent(*command, *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(f"Error: {words}")
        assert list(tmp_path.iterdir()) == []


@pytest.fixture
def checks(monkeypatch):
    """The names of the settings that were checked, once for each time."""
    found, check_one = [], Setting.check

    def count(described, value):
        found.append(described.name)
        return check_one(described, value)

    monkeypatch.setattr(Setting, "check", count)
    return found


def test_a_setting_is_checked_once_on_its_way_to_a_training(tmp_path, checks):
    text = "problem = 'gaussian'\nmethod = 'CalNRE'\nbudget = 64\nseed = 1\n"
    text += "training.preset = 'fast'\ntraining.epochs = 1\ntraining.weight = 3\n"
    (tmp_path / "my.toml").write_text(text)
    (config,) = read_sweep(tmp_path / "my.toml").configs
    names = ["budget", "epochs", "method", "preset", "problem", "seed", "weight"]
    assert sorted(checks) == names
    assert (config.method, config.training.weight, config.training.members) == ("calnre", 3.0, 1)
    checks.clear()
    again = RunConfig.from_settings(config.to_dict())
    assert again == config
    assert max(map(checks.count, checks)) == 1
    checks.clear()
    told = prudent("train", "--config", "my.toml", "-o", "run", "--dry-run", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert [name for name in checks if name in names and checks.count(name) > 1] == []
    assert {*names} <= {*checks}
    # A run hands its options to the training as they are.
    assert Options.of(config.training) is config.training
    changed = Options.of(config.training, epochs=7)
    assert (changed.epochs, changed.weight) == (7, 3.0)
    assert methods.get("calnre").resolve(config.training) is config.training
