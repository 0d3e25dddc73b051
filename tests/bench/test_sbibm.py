"""The study of the public benchmark: its tasks are sbibm's, its page is what was measured."""

import bz2
import hashlib
import importlib
import json
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from scipy.stats import binom, chi2

import prudent

ROOT = Path(__file__).parents[2]
OBSERVATIONS = json.loads(Path(__file__).with_name("sbibm_observations.json").read_text())


def script(name):
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


sbibm, protocol, tasks = script("sbibm"), script("sbibm_protocol"), script("sbibm_tasks")
REPEATED = [name for name in tasks.NAMES if name != "sir"]


def repeated(name, seed):
    """Parameters and observation as sbibm drew them from a seed."""
    problem = tasks.task(name)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        theta = problem.prior.sample((1,))
        return theta[0], problem.simulator(theta, torch.default_generator)[0]


@pytest.mark.parametrize("name", REPEATED)
def test_stored_seeds_repeat_the_stored_observations(name):
    # A path of Lotka and Volterra takes as long as all other observations together.
    for one in OBSERVATIONS[name][: 1 if name == "lotka_volterra" else 10]:
        theta, x = repeated(name, one["seed"])
        torch.testing.assert_close(theta, torch.tensor(one["theta"]), rtol=2e-5, atol=2e-6)
        torch.testing.assert_close(x, torch.tensor(one["x"]), rtol=2e-6, atol=2e-6)
    _, other = repeated(name, one["seed"] + 50)
    assert not torch.allclose(other, x, rtol=1e-3, atol=1e-3)


def misfit(share, counts):
    """The probability of counts that are as far from what shares let expect."""
    expected = tasks.ASKED * share
    known = expected > 5
    far = ((counts - expected).square() / (expected * (1 - share)))[known].sum()
    return chi2.sf(float(far), int(known.sum()))


def test_the_stored_counts_of_sir_are_those_of_our_epidemics():
    theta = torch.tensor([one["theta"] for one in OBSERVATIONS["sir"]])
    counts = torch.tensor([one["x"] for one in OBSERVATIONS["sir"]])
    assert misfit(tasks.infected(theta), counts) > 0.01
    assert misfit(tasks.infected(theta * torch.tensor([1.0, 1.05])), counts) < 1e-6
    prior = tasks.task("sir").prior
    for one, known in zip(OBSERVATIONS["sir"], theta, strict=True):
        with torch.random.fork_rng():
            torch.manual_seed(one["seed"])
            torch.testing.assert_close(prior.sample(), known)


def test_counts_of_sir_are_binomial():
    theta = torch.tensor([OBSERVATIONS["sir"][0]["theta"]])
    share = float(tasks.infected(theta)[0, 2])
    given = theta.expand(4000, 2)
    counts = tasks.task("sir").simulator(given, torch.Generator().manual_seed(0))[:, 2]
    assert abs(float(counts.mean()) / (1000 * share) - 1) < 5 * ((1 - share) / share / 4e6) ** 0.5
    # That of a Poisson distribution would be half as large again.
    assert float(counts.var()) == pytest.approx(binom.var(1000, share), rel=0.1)


@pytest.mark.slow
def test_classifier():
    stream = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 250, 2, generator=stream)
    assert sbibm.c2st(first, second) == pytest.approx(0.5, abs=0.08)
    # The best classifier between normals one spread apart is right in 0.69 of the cases.
    assert 0.6 < sbibm.c2st(first, second + torch.tensor([1.0, 0.0])) < 0.77
    # Scales do not matter: both are divided by the spread of the reference.
    scale = torch.tensor([1e-3, 1e3])
    assert sbibm.c2st(first * scale, (second + 9) * scale) > 0.99
    second[3, 1] = torch.nan
    with pytest.raises(ValueError, match="1 draws are not finite"):
        sbibm.c2st(first, second)


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A wheel with two observations of two moons and few reference draws."""
    stream = torch.Generator().manual_seed(0)
    with zipfile.ZipFile(tmp_path / protocol.WHEEL, "w") as wheel:
        for number, one in enumerate(OBSERVATIONS["two_moons"][:2], 1):
            folder = f"sbibm/tasks/two_moons/files/num_observation_{number}"
            wheel.writestr(f"{folder}/observation.csv", f"a,b\n{one['x'][0]},{one['x'][1]}\n")
            draws = torch.rand(50, 2, generator=stream).tolist()
            text = "a,b\n" + "".join(f"{first},{second}\n" for first, second in draws)
            name = f"{folder}/reference_posterior_samples.csv.bz2"
            wheel.writestr(name, bz2.compress(text.encode()))
    digest = hashlib.sha256((tmp_path / protocol.WHEEL).read_bytes()).hexdigest()
    monkeypatch.setattr(protocol, "SHA", digest)
    for module in (sbibm, protocol):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(sbibm.STUDY, "path", tmp_path / "sbibm.json")
    return tmp_path


def test_the_wheel_is_read_and_another_one_refused(archive, monkeypatch):
    found = protocol.stored("two_moons", 2, "observation.csv")
    assert found.tolist() == [pytest.approx(OBSERVATIONS["two_moons"][1]["x"])]
    reference = protocol.stored("two_moons", 1, "reference_posterior_samples.csv.bz2")
    assert reference.shape == (50, 2)
    monkeypatch.setattr(protocol, "SHA", "0" * 64)
    with pytest.raises(ValueError, match="expected .*0000, got .*delete the file"):
        protocol.wheel()


@pytest.mark.slow
def test_one_training_serves_three_rows_and_a_killed_study_goes_on(archive, monkeypatch):
    trained, fit = [], prudent.fit

    def quick(*arguments, method, **options):
        trained.append(method)
        small = {"members": 2, "epochs": 2, "hidden": [8], "transforms": 1}
        return fit(*arguments, method=method, **options, **small)

    def accuracy(reference, draws):
        return float((draws > reference).double().mean())

    def killed(reference, draws):
        if num_measured() == 3:
            raise KeyboardInterrupt
        return accuracy(reference, draws)

    def num_measured():
        return sum(len(one["c2st"]) for one in sbibm.STUDY.read())

    def measure_all():
        for name in sbibm.POOLED:
            sbibm.measure("two_moons", 100, name, 0)

    monkeypatch.setattr(prudent, "fit", quick)
    monkeypatch.setattr(sbibm, "NUM_OBSERVATIONS", 2)
    monkeypatch.setattr(sbibm, "NUM_TEST", 60)
    monkeypatch.setattr(sbibm, "c2st", accuracy)
    measure_all()
    expected = sbibm.STUDY.read()
    assert [len(one["c2st"]) for one in expected] == [2, 2, 2]
    by_name = {one["estimator"]: one for one in expected}
    assert by_name["prudent"]["temperature"] > 1 == by_name["pool"]["temperature"]
    assert len({one["log_posterior"] for one in expected}) == 3
    for one in expected:
        assert sbibm.judged(one).kind == one["verdict"]
        assert all(0 <= share <= 1 for share in one["reference_inside"])

    sbibm.STUDY.path.unlink()
    monkeypatch.setattr(sbibm, "c2st", killed)
    with pytest.raises(KeyboardInterrupt):
        measure_all()
    assert num_measured() == 3
    monkeypatch.setattr(sbibm, "c2st", accuracy)
    measure_all()
    timeless = [{**one, "diagnose_seconds": 0} for one in sbibm.STUDY.read()]
    assert timeless == [{**one, "diagnose_seconds": 0} for one in expected]
    assert trained == ["prudent"]


@pytest.mark.parametrize("gone", [True, False])
def test_half_a_row_of_a_network_that_is_gone_is_measured_anew(archive, monkeypatch, gone):
    old = result(c2st=[0.9], reference_inside=[0.9], worth=[9])
    sbibm.STUDY.keep([old])
    path = sbibm.model("prudent", *sbibm.STUDY.cell(old)[:2], 0)
    path.parent.mkdir()
    if not gone:
        path.touch()
    whole = type("Stub", (), {"info": {"seconds": 1.0}, "temperature": 1.0})
    stubs = {
        "trained": lambda *_: whole,
        "coverage": lambda *_: {name: old[name] for name in ("levels", "inside", "num_pairs")},
        "near": lambda *_: {"c2st": 0.6, "worth": 5, "reference_inside": 0.8},
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(sbibm, name, stub)
    sbibm.measure(*sbibm.STUDY.cell(old))
    assert sbibm.STUDY.read()[0]["c2st"] == ([0.6] if gone else [0.9]) + [0.6] * 9


def test_a_cell_that_fails_leaves_the_others(monkeypatch, archive, capsys):
    def measure(name, budget, which, seed):
        done.append((name, budget, which, seed))
        if len(done) == 1:
            raise ValueError("3 draws are not finite.")

    done = []
    monkeypatch.setattr(sbibm, "measure", measure)
    monkeypatch.setattr(sbibm.os, "nice", lambda _: 0)
    with pytest.raises(SystemExit, match="1 cells failed"):
        sbibm.run(0)
    assert done == sbibm.cells(0)
    assert "two_moons 1000 prudent 0 failed: ValueError: 3 draws" in capsys.readouterr().out


def test_the_order_is_broad_and_nothing_is_planned_twice():
    planned = sbibm.cells(0)
    assert len(planned) == len(set(planned)) == 8 * 2 * 5 + 2 * 5
    assert [cell[0] for cell in planned[:8]] == list(tasks.NAMES)
    assert {cell[1:3] for cell in planned[:8]} == {(1000, "prudent")}
    assert {cell[1] for cell in planned[48:80]} == {1000, 10_000}
    assert {cell[2] for cell in planned[48:80]} == {"nre", "calnpe"}
    assert {cell[1] for cell in planned[80:]} == {100_000}


def result(task="two_moons", budget=1000, estimator="prudent", seed=0, short=0.0, **others):
    """A result whose coverage falls short by the same at all levels."""
    levels = [round(0.01 * step, 2) for step in range(1, 100)]
    found = {
        "task": task,
        "budget": budget,
        "estimator": estimator,
        "seed": seed,
        "levels": levels,
        "num_pairs": 1000,
        "num_unresolved": 0,
        "inside": [round(1000 * max(0.0, level - short)) for level in levels],
        "auc": -short,
        "worst_shortfall": short,
        "log_posterior": 3.0,
        "information_gain": 4.0,
        "information_gain_error": 0.1,
        "computed_by": "samples",
        "c2st": [0.6] * 10,
        "worth": [10_000] * 10,
        "reference_inside": [0.7] + [0.9] * 9,
    }
    return found | others


def test_tables_show_wins_losses_and_gaps():
    good, bad = result(), result("slcp", short=0.2, log_posterior=None, c2st=[1.0] * 10)
    half = result("sir", c2st=[0.5] * 9)
    rows = {row[:2]: row for row in sbibm.table([good, bad, half])}
    assert len(rows) == 18
    assert rows["two_moons", "1,000"][2:4] == ("0.600", "–")
    assert rows["two_moons", "1,000"][7] == "0.725"
    assert rows["two_moons", "1,000"][-1] == "-0.125"
    assert rows["slcp", "1,000"][-1] == "+0.025"
    assert rows["sir", "1,000"][2] == rows["sir", "1,000"][-1] == "–"
    told = sbibm.summary([good, bad, half]).splitlines()
    assert "measured on 2 of 8 tasks, and on 1 of them no farther off" in told[0]
    assert "Of 3 runs, 2 are known to be safe and 1 are over-confident" in told[0]
    assert "measured on 0 of 2 tasks" in told[2]
    covered = sbibm.coverage_table([bad, good])
    assert [row[0] for row in covered] == ["two_moons", "slcp"]
    assert covered[0][3:] == ("calibrated", "+0.000", "0.000", "3.00", "0.88", "0.70", "1 of 10")
    assert covered[1][3:7] == ("over-confident", "-0.200", "0.200", "−∞")
    # Seeds are averaged, each over its observations.
    other = result(seed=1, c2st=[0.7] * 10)
    assert sbibm.finished([good, other])["two_moons", 1000, "prudent"] == pytest.approx(0.65)


def test_published_numbers_are_complete():
    known = json.loads(sbibm.PUBLISHED.read_text())
    assert {*known} == {*tasks.NAMES, "gaussian_mixture_of_the_paper"}
    for rivals in known.values():
        assert {*sbibm.RIVALS} <= {*rivals}
        assert all(len(row) == 3 and 0.5 <= min(row) <= max(row) <= 1 for row in rivals.values())


def test_the_page_shows_what_the_study_measured():
    """`python bench/sbibm.py table` mends this."""
    expected = sbibm.page(script("study").Study("sbibm", ()).read())
    assert sbibm.BLOCK.findall(sbibm.PAGE.read_text()) == [expected]
