"""Sweep files: grids, mistakes, limits, names; nothing is run here."""

import dataclasses
import json
import time
from pathlib import Path

import pytest

from faults import peak_memory
from prudent.errors import InputError
from prudent.experiments.config import RunConfig
from prudent.experiments.cost import cost_of, disk_bytes, seconds
from prudent.experiments.launch import find_sweep
from prudent.experiments.store import count, states
from prudent.experiments.sweep import check_name, read_sweep, stored_sweep
from prudent.problems import names as problem_names
from prudent.training import Options
from prudent.training.methods import METHODS

IDENTITIES = json.loads(Path(__file__).with_name("identities.json").read_text())
BASE = "problem = 'slcp'\nmethod = 'nre'\nbudget = 64\n"


def sweep(tmp_path, text, *changes, **options):
    path = tmp_path / "my.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_sweep(path, changes, **options)


def refusal(tmp_path, text, *changes, **options):
    with pytest.raises(InputError) as caught:
        sweep(tmp_path, text, *changes, **options)
    return str(caught.value)


class TestGrid:
    def test_a_list_is_a_grid_and_a_single_value_is_fixed(self, tmp_path):
        found = sweep(
            tmp_path,
            "problem = ['slcp', 'weinberg']\nmethod = ['nre', 'calnre']\nbudget = 1024\n"
            "seed = [0, 1, 2]\n[training]\nepochs = 20\n",
        )
        assert len(found.configs) == 12
        assert found.name == "my"
        assert {config.training.epochs for config in found.configs} == {20}
        first = RunConfig("slcp", "nre", 1024, 0, training=Options(epochs=20))
        assert found.configs[0] == first

    def test_a_table_of_runs_begins_from_the_rest(self, tmp_path):
        found = sweep(
            tmp_path,
            "problem = 'slcp'\nbudget = 64\nseed = [0, 1]\ntraining.epochs = 3\n"
            "[[runs]]\nmethod = ['nre', 'npe']\n"
            "[[runs]]\nmethod = 'calnre'\nseed = 0\ntraining.weight = [1, 5, 25]\n",
        )
        labels = [(c.method, c.seed, c.training.weight) for c in found.configs]
        assert len(labels) == 2 * 2 + 3
        assert labels[-3:] == [("calnre", 0, 1), ("calnre", 0, 5), ("calnre", 0, 25)]
        assert {config.training.epochs for config in found.configs} == {3}

    def test_duplicates_are_merged_and_counted(self, tmp_path):
        found = sweep(
            tmp_path,
            "problem = 'slcp'\nmethod = 'calnre'\nbudget = [64, 64]\ntraining.weight = [5, 5.0]\n",
        )
        assert len(found.configs) == 1
        assert found.num_duplicates == 3

    @pytest.mark.parametrize(("settings", "identity"), IDENTITIES)
    def test_identities_stay(self, settings, identity):
        """Who changes these changes the name of every run that people have."""
        found = RunConfig.from_settings(settings)
        assert found.identity == identity
        assert RunConfig.from_settings(found.to_dict()) == found

    def test_a_stored_sweep_is_of_this_format(self, tmp_path):
        settings, identity = IDENTITIES[0]
        stored = {"name": "my", "source": "my.toml", "runs": [settings]}
        (tmp_path / "sweep.json").write_text(json.dumps({"format": 3, **stored}))
        assert [config.identity for config in stored_sweep(tmp_path).configs] == [identity]
        for other in (1, 2, 4, "3", None):
            (tmp_path / "sweep.json").write_text(json.dumps({"format": other, **stored}))
            with pytest.raises(InputError, match=r"another version of prudent\. Use that"):
                stored_sweep(tmp_path)

    def test_the_spelling_of_a_number_is_not_part_of_the_identity(self):
        def identity(weight):
            return RunConfig("slcp", "bnre", 64, training=Options(weight=weight)).identity

        assert identity(5) == identity(5.0) != identity(6)

    def test_changes_from_the_command_line(self, tmp_path):
        found = sweep(tmp_path, BASE, "seed=0..2", "method=nre,npe", "training.epochs=7")
        assert len(found.configs) == 6
        assert {config.training.epochs for config in found.configs} == {7}
        told = refusal(tmp_path, BASE, "budget=7.5")
        assert told == "--set budget=7.5: `budget` is 7.5; expected a whole number >= 2."
        assert "Did you mean `training.epochs`?" in refusal(tmp_path, BASE, "epochs=3")
        assert "write key=value" in refusal(tmp_path, BASE, "seed")
        assert "too long" in refusal(tmp_path, BASE, "seed=0..999999999")

    def test_a_directory_knows_its_sweep(self, tmp_path):
        found = sweep(tmp_path, BASE, "seed=0..2")
        found.write(tmp_path)
        again = stored_sweep(tmp_path)
        assert again.configs == found.configs
        assert (again.name, again.source) == (found.name, found.source)
        with pytest.raises(InputError, match="Name its file"):
            stored_sweep(tmp_path / "nowhere")


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("methd = 'nre'", "my.toml:1:1: methd: unknown key. Did you mean `method`?"),
            (BASE + "nm_test = 5", "Did you mean `num_test` (default 2000)?"),
            (BASE + "training.weigth = 5", "my.toml:4:10: training.weigth: unknown key. Did you"),
            (BASE + "[training]\nepoch = 5", "Did you mean `epochs` (default 500)?"),
            (BASE + "epochs = 5", "epochs: belongs in the table [training]"),
            (BASE + "training = 5", "expected a table"),
            (BASE + "seed = [0, true]", "seed[1]: `seed` is True; expected a whole number >= 0."),
            (BASE + "seed = [0, [1]]", "seed[1]: `seed` is [1]; expected a whole number >= 0."),
            (BASE + "seed = 2020-01-01", "`seed` is datetime.date(2020, 1, 1); expected a whole"),
            (BASE + "seed = nan", "`seed` is nan; expected a whole number >= 0."),
            (
                BASE + "training.target = inf",
                "`target` is inf; expected conservative, calibrated or a number",
            ),
            (
                BASE + "num_test = 1e3",
                "num_test: `num_test` is 1000.0; expected a whole number >= 1: write 1000.",
            ),
            (BASE + "num_test = '4'", "`num_test` is '4'; expected a whole number"),
            (BASE + "seed = -1", "seed: `seed` is -1"),
            (BASE + "device = 3", "device: `device` is 3; expected cpu, cuda or mps."),
            (BASE + "training.preset = 'papre'", "Did you mean `paper`?"),
            (BASE + "training.levels = 'uper'", "Did you mean `upper`?"),
            ("problem = 'slpc'\nmethod = 'nre'\nbudget = 4", "Did you mean `slcp`?"),
            ("problem = 'slcp'\nmethod = 'nr'\nbudget = 4", "Did you mean `nre`?"),
            ("method = 'nre'\nbudget = 4", "problem: missing"),
            (BASE + "seed = []", "the list is empty, so there is nothing to run"),
            (BASE + "runs = []", "nothing to run"),
            (BASE + "runs = 3", "expected tables [[runs]]"),
            (BASE + "[[runs]]\nseeds = 3", "runs[0].seeds: unknown key. Did you mean `seed`"),
            (BASE + "training.weight = 5", "no regularizer in nre"),
            (BASE + "training.num_samples = [4, 8]", "no coverage penalty in nre"),
            (BASE + "name = '../x'", "'../x' is not a name"),
            ("", "problem: missing"),
        ],
    )
    def test_are_named_with_their_place(self, tmp_path, text, message):
        assert message in refusal(tmp_path, text)

    def test_are_told_all_at_once(self, tmp_path):
        text = "problem = ['slcp', 'slpc']\nmethod = 'nr'\nbudget = [-1, 1.5]\nseed = 'x'\n"
        told = refusal(tmp_path, text).splitlines()
        assert told[0] == "5 mistakes:"
        assert [line.split(": ")[1] for line in told[1:]] == [
            "problem[1]",
            "method",
            "budget[0]",
            "budget[1]",
            "seed",
        ]
        many = refusal(tmp_path, BASE + f"seed = [{'-1, ' * 50}]")
        assert many.endswith("and 39 more") or "1 mistakes" not in many

    def test_a_shared_mistake_is_told_once(self, tmp_path):
        text = "problem = 'slpc'\nbudget = 4\n[[runs]]\nmethod = 'nre'\n[[runs]]\nmethod = 'npe'\n"
        assert len(refusal(tmp_path, text).splitlines()) == 1


HOSTILE = {
    "large": b"# " + b"x" * 2_000_000,
    "long key": b".".join([b"a"] * 20_000) + b" = 1",
    "long header": b"[" + b".".join([b"a"] * 20_000) + b"]",
    "long quoted key": b".".join([b'"a"'] * 20_000) + b" = 1",
    "long key in a table": b"x = {" + b" . ".join([b"a"] * 20_000) + b" = 1}",
    "one long word": b"a" * 250_000 + b" = 1",
    "deep": b"x = " + b"[" * 1000 + b"]" * 1000,
    "rather deep": b"x = " + b"[" * 20 + b"]" * 20,
    "digits": b"seed = " + b"1" * 5_000,
    "date": BASE.encode() + b"seed = 1979-05-27T07:32:00Z",
    "not a number": BASE.encode() + b"training.weight = [nan, inf]",
    "zero byte": b"problem = 'a\0b'",
    "twice": b"problem = 'slcp'\nproblem = 'slcp'",
    "byte order mark": b"\xef\xbb\xbf" + BASE.encode(),
    "latin-1": b"# comment\nproblem = 'M\xfcnchen'",
    "endless string": b'problem = "',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_files_are_refused_at_once(tmp_path, text):
    start = time.process_time()
    message = refusal(tmp_path, text)
    assert time.process_time() - start < 1.0
    assert "my.toml" in message
    assert len(message) < 2000


def test_tabs_and_other_line_ends_are_fine(tmp_path):
    assert len(sweep(tmp_path, b"problem\t=\t'slcp'\r\nmethod='nre'\r\nbudget=4\r\n").configs) == 1


class TestSize:
    def test_a_huge_grid_is_refused_before_it_is_made(self, tmp_path):
        values = ", ".join(map(str, range(10_000)))
        text = BASE + "".join(f"{key} = [{values}]\n" for key in ("seed", "num_test", "threads"))
        start = time.process_time()
        message = refusal(tmp_path, text)
        assert time.process_time() - start < 0.5
        assert "1,000,000,000,000 runs (10,000 × 10,000 × 10,000)" in message
        assert "--max-runs 1000000000000" in message
        assert peak_memory(lambda: refusal(tmp_path, text)) < 4e7

    def test_the_limit_can_be_moved(self, tmp_path):
        text = BASE + "seed = [0, 1, 2]"
        assert "The limit is 2" in refusal(tmp_path, text, max_runs=2)
        assert len(sweep(tmp_path, text, max_runs=3).configs) == 3


NAMES = [
    *("..", ".", "", "a/../../b", "/etc", "~", "~root", "$HOME", "%2e%2e%2f", "..\\x", "a\0b"),
    *("a\nb", "-rf", "a.", "a ", " a", "x" * 300, "a\u202eb", "\U0001f600", "a:b", None, 3),
]


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_names_that_could_be_paths_are_refused(name):
    with pytest.raises(InputError, match="is not a name"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "smoke", "a.b-c_d", "9", "x" * 64])
def test_plain_names_are_fine(name):
    check_name(name)


class TestCost:
    def test_every_network_counts(self):
        """Those of the method's own, and each cut into folds; not a single one, nor seeds."""
        numbers = {
            ("nre", ()): 1,
            ("prudent", ()): 5,
            ("prudent", (("preset", "fast"),)): 1,
            ("prudent", (("members", 15),)): 15,
            ("npe", (("members", 2),)): 2,
            ("npe", (("members", 6), ("ensemble", "folds"))): 6,
        }
        configs = {
            RunConfig("slcp", method, 1024, training=Options.of(**dict(options))): number
            for (method, options), number in numbers.items()
        }
        assert {config: config.num_networks for config in configs} == configs
        costs = {n: (seconds(c), disk_bytes([c], 1)) for c, n in configs.items() if n in (5, 15)}
        assert costs[15] > costs[5]
        assert costs[15][1] > 2 * costs[5][1]

    def test_our_problems_differ_and_others_cost_what_is_typical(self):
        own = [RunConfig(name, "nre", 1024) for name in problem_names()]
        assert len({seconds(config) for config in own}) > len(own) // 2
        typical = RunConfig("slcp", "calnpe", 1024)
        unknown = dataclasses.replace(typical, problem="mine:x")
        # But for the time of its simulations, of which nothing is known.
        assert seconds(unknown) == pytest.approx(seconds(typical), rel=1e-3)
        assert seconds(unknown) > 10

    def test_networks_of_the_paper_have_costs_of_their_own(self):
        paper = Options.of("paper")
        own = dataclasses.replace(paper, networks="standard")
        ratios = [
            seconds(RunConfig("slcp", method, 1024, training=paper))
            / seconds(RunConfig("slcp", method, 1024, training=own))
            for method in ("nre", "calnre")
        ]
        assert min(ratios) > 1.5

    def test_what_was_not_measured_is_not_free(self, monkeypatch):
        plain = METHODS["nre"]
        rows = {
            "new": dataclasses.replace(plain, regularizer="new term", weight=1.0),
            "other": dataclasses.replace(plain, family="mine"),
        }
        for name, row in rows.items():
            monkeypatch.setitem(METHODS, name, row)
        least = seconds(RunConfig("slcp", "nre", 1024))
        assert seconds(RunConfig("slcp", "new", 1024)) > least
        assert seconds(RunConfig("slcp", "other", 1024)) >= least

    def test_grows_with_what_is_asked_for(self):
        config = RunConfig("slcp", "calnre", 1024)
        more = [
            dataclasses.replace(config, budget=4096),
            dataclasses.replace(config, num_test=100_000),
            dataclasses.replace(config, training=Options(num_samples=64)),
            dataclasses.replace(config, training=Options(fraction=1.0)),
            dataclasses.replace(config, training=Options(members=5)),
        ]
        assert all(seconds(other) > seconds(config) for other in more)
        assert seconds(config) > seconds(RunConfig("slcp", "nre", 1024))
        assert disk_bytes([config] * 3, 1) > disk_bytes([config] * 2, 1) > 1e6
        large = [
            dataclasses.replace(config, problem="gravitational_waves", budget=n)
            for n in (2, 10**5)
        ]
        assert disk_bytes(large, 1) > 65_544 * 10**5, "simulations are not counted"

    def test_workers_share_it_and_finished_runs_correct_it(self, tmp_path):
        configs = [RunConfig("slcp", "nre", 1024, seed) for seed in range(4)]
        one, two = (cost_of(configs, [], tmp_path, workers) for workers in (1, 2))
        assert one.seconds == pytest.approx(2 * two.seconds)
        path = tmp_path / configs[0].identity
        path.mkdir()
        taken = 3 * seconds(configs[0]) - 2
        (path / "timing.json").write_text(f'{{"seconds": {{"train": {taken}}}}}')
        slow = cost_of(configs[1:], configs[:1], tmp_path, 1)
        assert slow.corrected
        assert slow.seconds == pytest.approx(3 * 3 * seconds(configs[1]))


def test_states_of_what_is_in_a_directory(tmp_path):
    configs = [RunConfig("slcp", "nre", 64, seed) for seed in range(5)]
    done, failed, interrupted, foreign, _ = (config.identity for config in configs)
    (tmp_path / done).mkdir()
    (tmp_path / done / "metrics.json").write_text('{"files": {}}')
    (tmp_path / ".work" / failed).mkdir(parents=True)
    (tmp_path / ".work" / failed / "error.txt").write_text("no luck\n\nTraceback ...")
    (tmp_path / ".work" / f"{failed}.lock").write_text('{"pid": 1}')  # of a process that died
    (tmp_path / ".work" / f"{interrupted}.checkpoint").mkdir()
    (tmp_path / ".work" / f"{interrupted}.checkpoint" / "epoch-000031.safetensors").touch()
    (tmp_path / foreign).mkdir()
    found = states(configs, tmp_path)
    assert count(found) == {"done": 1, "running": 0, "failed": 2, "interrupted": 1, "left": 1}
    assert found[1].note == "no luck"
    assert found[2].note == "epoch 31 of 500"
    assert "not a finished run" in found[3].note
    assert states(configs, tmp_path, verify=True)[0].state == "failed"
    assert count(states(configs, tmp_path / "missing"))["left"] == 5


SWEEPS = sorted((Path(__file__).parents[2] / "sweeps").glob("*.toml"))
DEMO = find_sweep("demo.toml")


@pytest.mark.parametrize("path", [*SWEEPS, DEMO], ids=lambda path: path.stem)
def test_our_sweeps_are_valid_and_explain_themselves(path):
    found = read_sweep(path)
    assert found.name == path.stem
    text = path.read_text()
    assert text.startswith("# ")
    assert "A list is a grid" in text.split("\n\n")[0]
    assert f"{len(found.configs):,} runs" in text
    assert found.num_duplicates == 0


def test_our_sweeps_are_all_there():
    expected = ["calibrated", "conservative", "laptop", "overhead", "paper", "price"]
    assert [path.stem for path in SWEEPS] == [*expected, "sensitivity", "smoke", "unseen"]


def test_the_runs_of_the_demonstration_stay(tmp_path, monkeypatch):
    """All have the same settings; it is found by its name, unless there is a file of that name."""
    methods = ("prudent", "npe", "nre", "calnre")
    expected = [RunConfig("slcp", method, 1024, 3).identity for method in methods]
    found = read_sweep(find_sweep("sweeps/demo.toml"), ["seed=3"])
    assert [config.identity for config in found.configs] == expected
    monkeypatch.chdir(tmp_path)
    Path("demo.toml").touch()
    for name in ("demo.toml", "elsewhere/demo.toml", "nothing.toml"):
        assert find_sweep(name) == Path(name)


@pytest.mark.slow
def test_a_sweep_is_one_call(tmp_path):
    from prudent.experiments import load_results, run_sweep

    file = tmp_path / "tiny.toml"
    file.write_text(
        'problem = "weinberg"\nmethod = "npe"\nbudget = [128, 130]\nnum_test = 16\n'
        "training.epochs = 1\ntraining.batch_size = 32\n"
    )
    counts = run_sweep(file, tmp_path / "runs", workers=1, progress=False)
    assert (counts["done"], counts["left"]) == (2, 0)
    assert list(load_results(tmp_path / "runs").runs["budget"]) == [128, 130]
    with pytest.raises(InputError, match="`workers` is 0"):
        run_sweep(file, tmp_path / "runs", workers=0)
