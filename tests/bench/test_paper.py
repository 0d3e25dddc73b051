"""The study of the paper's experiments: its order, its claims, and its pages are what it holds."""

import importlib
import math
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEVELS = [round(0.01 * step, 2) for step in range(1, 100)]


def script(name):
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


paper, claims, study = script("paper"), script("paper_claims"), script("study")


def line(name, config, sign=1):
    """What a run would have measured if the paper were right, or with the other sign if not."""
    training, problem, method = config.training, config.problem, config.method
    big = training.weight is not None
    cautious = {"nre": False, "npe": False, "calnpe": problem != "gravitational_waves" or big}
    honest = cautious.get(method, (problem, config.budget, method) != ("slcp", 1024, "calnre"))
    shifts = [sign * (0.05 if honest else -0.05)] * len(LEVELS)
    sharp = sign * {"nre": 0.0, "bnre": -0.8, "calnre": -0.02, "calnpe": 0.1}.get(method, 0.0)
    # Of two that change places, the closer one is not close any more.
    sharp -= 1.0 * (sign < 0 and method == "calnre")
    sharp += (0.02 if (method == "nre") == (sign > 0) else 0.01) * config.seed
    pace = 1e-5 * config.budget
    draws = math.log2(training.num_samples)
    if training.target == "calibrated":
        shifts = [sign * math.copysign(0.05, one - 0.5) + 0.1 * (sign < 0) for one in LEVELS]
        sharp -= sign * 0.3
    if name == "sensitivity" and method == "calnre":
        weight = math.log2(training.weight / 5)
        shifts = [0.01 * sign * (1 + 4 * weight) * (1 + sign * 0.2 * (4 - draws))] * len(LEVELS)
        sharp += sign * (0.02 * draws - 0.05 * weight)
    if (problem, method, config.budget) == ("mg1", "calnpe", 16384):
        sharp -= sign * 0.05
    if method.startswith("cal"):
        extra = 0.5 + 0.05 * training.num_samples if sign > 0 else 10 + 5 * math.cos(3 * draws)
        pace *= 1 + training.fraction * extra
    number, epochs = config.num_test, training.epochs * config.num_networks
    shares = [min(1, max(0, level + shift)) for level, shift in zip(LEVELS, shifts, strict=True)]
    excess = [share - level for share, level in zip(shares, LEVELS, strict=True)]
    return {
        **{"log_posterior": sharp - 1, "seconds": pace * epochs},
        **{"run": config.identity, "problem": problem, "budget": config.budget, "method": method},
        **{key: getattr(training, key) for key in study.SETTINGS},
        **{"seed": config.seed, "levels": LEVELS, "num_pairs": number, "num_unresolved": 0},
        **{"log_posterior_error": 0.01, "log_prior": -2.0, "diagnose_seconds": 1.0},
        **{"information_gain": sharp + 1, "information_gain_error": 0.01, "computed_by": "grid"},
        "auc": sum(excess) / len(excess),
        "worst_shortfall": max(0.0, -min(excess)),
        "inside": [round(number * share) for share in shares],
    }


@pytest.fixture(scope="module")
def plan():
    return paper.STUDY.plan()


def found(cells):
    return {row[0]: row for row in (one.row(cells) for one in claims.CLAIMS)}


def test_runs_come_in_the_order_of_their_answers(plan):
    configs = [config for _, config in plan]
    assert len({one.identity for one in configs}) == len(configs) == 593 + 90 + 90
    first = configs[:144]
    assert {one.budget for one in first} == {1024, 4096}
    assert {one.seed for one in first} == {0, 1, 2}
    assert {one.problem for one in first} == {"slcp", "weinberg", "mg1", "lotka_volterra"}
    # Every seed of a block begins when all else of the block has the one before.
    for budget, size in ((1024, 20), (4096, 20)):
        block = [one for one in first if one.budget == budget and one.method != "prudent"]
        seeds = [one.seed for one in block if one.training.members == 1]
        assert seeds == [seed for seed in range(3) for _ in range(size)]
    names = [name for name, _ in plan]
    assert names[144 : 144 + 84 + 90] == ["sensitivity"] * 84 + ["overhead"] * 90
    assert [(name, one.budget) for name, one in plan[-6:]] == [("sensitivity", 131072)] * 6


def test_all_results_are_of_planned_runs(plan):
    known = {config.identity for _, config in plan}
    assert {one["run"] for one in paper.STUDY.read()} <= known


@pytest.mark.slow
def test_claims_that_hold_and_claims_that_do_not(plan):
    good, _ = paper.cells_of([line(*pair) for pair in plan])
    bad, _ = paper.cells_of([line(*pair, sign=-1) for pair in plan])
    none, _ = paper.cells_of([])
    for cells, status in ((good, "holds"), (bad, "does not hold here"), (none, "not run yet")):
        rows = found(cells)
        assert len(rows) == len(claims.CLAIMS)
        others = {text: row[2:4] for text, row in rows.items() if row[2] != status}
        others.pop("On a GPU training takes twice as long, whatever L", None)
        assert others == {}
    assert all(row[4] == "0" and not row[5] for row in found(none).values())
    assert all(not row[5] for row in found(good).values())
    assert sum(bool(row[5]) for row in found(bad).values()) >= len(claims.CLAIMS) - 2


def test_a_claim_holds_in_part_and_says_where_not(plan):
    odd = ("weinberg", "calnre", 4096)
    lines = [
        line(name, one, -1 if (one.problem, one.method, one.budget) == odd else 1)
        for name, one in plan
        if name == "paper" and one.seed < 2
    ]
    cells, _ = paper.cells_of(lines)
    row = found(cells)["CalNRE is conservative everywhere but on SLCP with 1,024 simulations"]
    assert row[2] == "holds in part"
    assert row[3] == "22 of 23 cases; not weinberg 4,096: worst shortfall 0.050"
    assert row[4] == "1 to 2"
    assert "ten times anew" in row[5]
    assert found(cells)["CalNRE varies less between seeds than NRE"][2] == "not run yet"


@pytest.mark.slow
def test_log_posteriors_of_minus_infinity_are_no_gain(plan):
    lines = [line(*pair) for pair in plan if pair[1].seed < 3]
    for one in lines:
        if one["method"] == "calnre":
            one |= {"log_posterior": None, "log_posterior_error": None}
    cells, number = paper.cells_of(lines)
    statuses = {text: row[2] for text, row in found(cells).items()}
    assert statuses["CalNRE is close to NRE in log posterior"] == "does not hold here"
    assert statuses["CalNRE varies less between seeds than NRE"] == "does not hold here"
    tables = paper.parts(cells, number)
    assert " | -inf (3 of 5) | " in tables["paper-log-posterior-table"]
    assert " | -inf | " in tables["paper-weight-table"]


def test_tables_say_what_is_missing_and_what_the_paper_has(plan):
    lines = [line(*pair) for pair in plan if pair[1].problem == "slcp" and pair[1].seed < 2]
    for one in lines:
        one.update(median_epoch=1e-5 * one["budget"], fastest_epoch=5e-6 * one["budget"])
    cells, number = paper.cells_of(lines)
    parts = paper.parts(cells, number)
    assert (
        "| slcp | 1,024 | -0.049 (2 of 5) / -0.148 | +0.049 (2 of 5) / +0.109 |"
        in (parts["paper-auc-table"])
    )
    assert "| weinberg | 1,024 | – (0 of 5) / -0.048 |" in parts["paper-auc-table"]
    assert "| 16 | 1.00 (2), in 20.0% of the steps | 1.00 (2)" in parts["paper-overhead-table"]
    assert "| – | 3.0–3.4 |" in parts["paper-overhead-table"]
    assert "Some values have no run yet." in parts["paper-weight-table"]
    assert parts["paper-progress"].startswith(f"{len(lines)} of 773 runs are done.")
    assert re.search(r"\| slcp \| [\d.]+ / [\d.]+ \(\d+\) \|", parts["paper-cost"])


@pytest.mark.slow
def test_what_can_be_drawn_is_and_what_cannot_is_taken_away(plan, tmp_path, capsys):
    few = [(name, one) for name, one in plan if one.problem in ("slcp", "weinberg")]
    lines = [line(*pair) for pair in few if pair[1].seed < 2 and pair[1].budget < 8192]
    paper.figure(paper.cells_of(lines)[0], tmp_path)
    drawn = {path.stem: path.stat().st_size for path in tmp_path.iterdir()}
    assert {*drawn} == {*paper.ALTS}
    assert min(drawn.values()) > 10_000
    assert not capsys.readouterr().out
    paper.figure(paper.cells_of([])[0], tmp_path)
    assert not [*tmp_path.iterdir()]
    assert capsys.readouterr().out.count("is not drawn: none of its runs is done.") == len(drawn)


def test_a_study_of_several_files_goes_on_where_it_stopped(tmp_path, monkeypatch):
    configs = {"one": [3, 1], "two": [2, 1, 4]}
    config = type("Config", (), {"__init__": lambda self, n: setattr(self, "identity", n)})

    def run_one(one, path):
        assert path.name == str(one.identity)
        if one.identity == 3 and not stopped:
            stopped.append(one)
            raise KeyboardInterrupt
        made.append(one.identity)
        return one

    made, stopped, path = [], [], type("Root", (), {"__truediv__": lambda _, n: Path(str(n))})
    found = study.SweepStudy("made", ("run",), lambda one: one.identity == 2, ("one", "two"))
    found.path, found.runs = tmp_path / "made.json", path()
    plans = {n: type("S", (), {"configs": [config(i) for i in v]}) for n, v in configs.items()}
    monkeypatch.setattr(study, "sweep", plans.get)
    monkeypatch.setattr(study, "run_one", run_one)
    monkeypatch.setattr(study, "row", lambda one: {"run": one.identity, "inside": []})
    with pytest.raises(KeyboardInterrupt):
        found.run()
    found.run()
    assert made == [3, 1, 4, 2]


def test_the_pages_show_what_the_study_measured():
    """`python bench/paper.py table` mends this, and `figure` draws the pictures as well."""
    parts = paper.parts(*paper.cells_of(paper.STUDY.read()))
    texts = [page.read_text() for page in paper.PAGES]
    for page, text in zip(paper.PAGES, texts, strict=True):
        assert paper.filled(text, parts) == text, page.name
    for name in parts:
        assert len(study.block(name).findall("".join(texts))) == 1, name
    # Pictures of what has runs are there, and nothing else is.
    drawn = {path.stem for path in paper.IMAGES.glob("*.png")}
    shown = re.findall(r"images/paper/(\w+)\.png", texts[0])
    assert sorted(shown) == sorted(drawn)
