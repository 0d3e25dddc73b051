"""The report: equal to the store, self-contained, deterministic, escaped, and small."""

import cProfile
import dataclasses
import hashlib
import html
import json
import math
import pstats
import re
import shutil
import sys
from importlib import resources

import pandas as pd
import pytest
from browser.payloads import PAYLOADS, hostile_results
from click.testing import CliRunner
from stores import LEVELS, METHODS, empty_results, synthetic_results, write_failure, write_store

from faults import CRASHED, fault_points
from prudent.cli.entry import cli
from prudent.diagnostics.registry import DIAGNOSTICS
from prudent.diagnostics.verdict import TRUSTED, Curve
from prudent.errors import InputError
from prudent.experiments import load_results, load_runs
from prudent.experiments.config import RunConfig
from prudent.reports import cells as cell_model
from prudent.reports import figures, sentences
from prudent.reports.cells import arranged, private
from prudent.reports.data import embedded
from prudent.reports.figures._rows import bands_of
from prudent.reports.html import SCRIPTS, write_report
from prudent.reports.tables import COLUMNS, rows, text

PLOTLY = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"


def page_of(results, tmp_path, **options):
    path = tmp_path / "report.html"
    write_report(results, path, **options)
    return path.read_text(encoding="utf-8")


def data_of(page):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(found[1], parse_constant=lambda name: pytest.fail(name))


def cells_of(results):
    return cell_model.cells(arranged(results.runs), results.curves)


def with_states(results, states):
    """The same with other states for some finished runs, whose curves are taken away."""
    runs = results.runs.copy()
    for number, (state, error) in states.items():
        runs.loc[number, ["state", "error"]] = state, error
        runs.loc[number, ["auc", "worst_shortfall", "log_posterior", "num_pairs"]] = math.nan
    gone = set(runs["run"][list(states)])
    tables = {
        name: getattr(results, name)[~getattr(results, name)["run"].isin(gone)]
        for name in ("curves", "history", "ranks", "draws")
    }
    return dataclasses.replace(results, runs=runs, **tables)


@pytest.fixture(scope="module")
def demo():
    return synthetic_results(("slcp",), ("nre", "bnre", "calnre"), (1024, 4096), (0,))


@pytest.fixture(scope="module")
def seeds():
    return synthetic_results(("slcp", "mg1"), ("nre", "calnre"), (1024,), (0, 1, 2))


# ---- The numbers are those of the store


def test_page_data_equal_the_store(demo, tmp_path):
    data = data_of(page_of(demo, tmp_path))
    runs, found = demo.runs.set_index("run"), data["runs"]
    assert sorted(found["run"]) == sorted(runs.index)
    for metric in ("auc", "worst_shortfall", "log_posterior", "information_gain", "num_pairs"):
        column = found["pairs"] if metric == "num_pairs" else found["values"][metric]["mean"]
        values = dict(zip(found["run"], column, strict=True))
        for run, value in values.items():
            assert value == pytest.approx(runs.loc[run, metric], rel=1e-5), metric
    for number, run in enumerate(found["run"]):
        curve = demo.curves[demo.curves["run"] == run]
        stored = curve["coverage"].tolist()
        # At every fifth level and the last.
        few = [*stored[4:-1:5], stored[-1]]
        assert data["coverage"]["curve"][number] == pytest.approx(few, rel=1e-5)
        bound = Curve.of(curve["level"], curve["coverage"], 2000).most_short
        assert found["bound"][number] == pytest.approx(bound, rel=1e-5)
        history = demo.history[demo.history["run"] == run]
        stored = data["history"]["runs"][number][0]
        assert stored["validation_loss"] == pytest.approx(
            history["validation_loss"].tolist(), rel=1e-5
        )
        best = history.loc[history["selected"], "epoch"].max()
        assert stored["selected"] == best


def test_the_static_table_has_the_numbers_too(demo, tmp_path):
    page = page_of(demo, tmp_path)
    body = re.search(r"<tbody>\n(.*?)\n</tbody>", page, re.S)[1]
    lines = [html.unescape(re.sub("<[^>]+>", "|", line)) for line in body.splitlines()]
    assert len(lines) == len(demo.runs)
    for line, (_, run) in zip(lines, demo.runs.iterrows(), strict=True):
        assert f"{run['auc']:+.3f} ± {run['auc_error']:.3f}" in line
        assert f"{run['worst_shortfall']:.3f} |at most {run['shortfall_bound']:.3f}|" in line


def test_thorough_runs_bring_their_ranks(tmp_path):
    results = synthetic_results(("slcp",), ("nre",), (1024,), (0,), thorough=True)
    ranks = data_of(page_of(results, tmp_path))["ranks"]
    line = ranks["runs"][0][0]
    stored = results.ranks[results.ranks["parameter"] == line["parameter"]]
    assert line["value"] == pytest.approx(stored["value"].tolist(), rel=1e-5)
    assert ranks["shared"][line["upper"]] == pytest.approx(stored["upper"].tolist(), rel=1e-5)


def test_numbers_that_are_not_finite_are_null(demo, tmp_path):
    runs = demo.runs.copy()
    runs.loc[0, ["log_posterior", "information_gain"]] = -math.inf, math.nan
    page = page_of(dataclasses.replace(demo, runs=runs), tmp_path)
    data = data_of(page)
    assert data["runs"]["values"]["log_posterior"]["mean"][0] is None
    assert "not finite" in page
    with pytest.raises(ValueError, match="JSON compliant"):
        embedded(math.nan)


# ---- The verdict


def test_the_verdict_names_who_can_be_trusted_and_the_cost(demo):
    cells = cells_of(demo)
    kinds = {(cell.budget, cell.series.method): cell.verdict.kind for cell in cells}
    assert kinds[1024, "nre"] == "over-confident"
    assert kinds[1024, "calnre"] == "conservative"
    found = sentences.cases(cells)
    best = found[0].best
    gains = demo.runs.set_index(["budget", "method"])["information_gain"]
    safe = [
        method for (budget, method), kind in kinds.items() if budget == 1024 and kind in TRUSTED
    ]
    assert best.series.method == max(safe, key=lambda method: gains[1024, method])
    sentence = sentences.case_sentence(found[0])
    assert "NRE is over-confident" in sentence
    assert f"{gains[1024, best.series.method]:.2f} ±" in sentence
    assert "to train" in sentence
    assert "in 2 of 2 cases" in sentences.headline(found)


def test_a_method_that_is_never_safe_is_never_recommended():
    results = synthetic_results(("slcp",), ("nre", "npe"), (1024,), (0,))
    sentence = sentences.headline(sentences.cases(cells_of(results)))
    assert "no method is known not to be over-confident" in sentence


def test_a_tie_names_all_who_are_best():
    results = synthetic_results(("slcp", "weinberg"), ("nre", "bnre", "calnre"), (512,), (0,))
    found = sentences.cases(cells_of(results))
    one, other = (
        dataclasses.replace(
            case, cells=tuple(c for c in case.cells if c.series.method in ("nre", method))
        )
        for case, method in zip(found, ("bnre", "calnre"), strict=True)
    )
    assert "is most often BNRE or CalNRE (1 of 2 each)" in sentences.headline([one, other])


def test_one_bad_seed_cannot_hide_among_good_ones(seeds):
    cells = {(c.problem, c.series.method): c for c in cells_of(seeds)}
    good = cells["slcp", "calnre"]
    assert good.verdict.trusted
    bad = seeds.runs[(seeds.runs["problem"] == "slcp") & (seeds.runs["method"] == "calnre")][
        "run"
    ].iloc[0]
    curves, runs = seeds.curves.copy(), seeds.runs.copy()
    mine = (curves["run"] == bad) & curves["level"].between(0.3, 0.7)
    curves.loc[mine, "coverage"] = curves.loc[mine, "level"] - 0.05
    runs.loc[runs["run"] == bad, "worst_shortfall"] = 0.05
    changed = dataclasses.replace(seeds, curves=curves, runs=runs)
    cell = next(c for c in cells_of(changed) if (c.problem, c.series.method) == ("slcp", "calnre"))
    assert not cell.verdict.trusted
    assert "1 of 3 seeds" in cell.verdict.text


def test_chance_in_one_of_many_seeds_is_no_alarm():
    assert cell_model.beyond_chance([0.03]) == 1
    assert cell_model.beyond_chance([0.03, *[0.5] * 4], 5) == 0
    assert cell_model.beyond_chance([0.009, *[0.5] * 4], 5) == 1


def test_few_pairs_are_not_trusted(demo):
    runs = demo.runs.assign(num_pairs=64)
    kinds = {c.series.method: c.verdict for c in cells_of(dataclasses.replace(demo, runs=runs))}
    assert kinds["bnre"].kind == "not enough test pairs"
    assert not kinds["bnre"].trusted


@pytest.fixture(scope="module")
def eight():
    """Eight seeds with 60 test pairs each."""
    found = synthetic_results(("slcp",), ("calnre",), (1024,), range(8))
    return dataclasses.replace(found, runs=found.runs.assign(num_pairs=60))


@pytest.mark.parametrize(
    ("known", "number"),
    [
        ({"tested_on": "the same"}, 60),
        ({"tested_on": [f"pairs {seed}" for seed in range(8)]}, 480),
        ({"tested_on": ["one"] * 4 + ["another"] * 4}, 120),
        ({"data": "of a run that does not know more"}, 60),
        ({"data": ""}, 480),
    ],
)
def test_the_same_test_pairs_count_once(eight, known, number):
    results = dataclasses.replace(eight, runs=eight.runs.assign(**known))
    (cell,) = cells_of(results)
    assert cell.num_pairs == number
    assert ("test pairs that seeds share" in cell.evidence) == (number < 480)
    alone = cells_of(dataclasses.replace(results, runs=results.runs[:1]))[0]
    # The bound is that of the pairs there are, of which 2 in 60 are not resolved.
    doubtful = dataclasses.replace(results, runs=results.runs.assign(num_unresolved=2))
    curve = Curve.of(cell.curve["levels"], cell.curve["curve"], number, number // 30)
    assert cells_of(doubtful)[0].bound == pytest.approx(curve.most_short)
    if number == 60:
        assert cell.estimates["auc"].error == alone.estimates["auc"].error
        assert cell.verdict.kind == alone.verdict.kind == "not enough test pairs"
    table = results.curves.merge(results.runs, on=["run", "problem", "method", "budget", "seed"])
    assert list(bands_of([table])) == [number]


def test_a_cell_whose_pairs_do_not_follow_the_prior_is_not_judged(seeds):
    strays = [None, "theta does not follow the prior (0 % of mass ...)", None] * 4
    runs = seeds.runs.assign(strays=strays)
    for cell in cells_of(dataclasses.replace(seeds, runs=runs)):
        assert cell.verdict.kind == "cannot be measured"
        assert "0 % of mass" in cell.evidence


def test_settings_are_kept_apart():
    results = synthetic_results(
        ("slcp",), ("nre", "calnre"), (1024,), (0,), training=({"weight": 1.0}, {"weight": 5.0})
    )
    names = {cell.name for cell in cells_of(results)}
    assert names == {"NRE", "CalNRE (weight 1)", "CalNRE (weight 5)"}


def test_settings_of_different_seeds_are_kept_apart_too():
    results = synthetic_results(
        ("slcp",), ("calnre",), (1024,), (0, 1), training=({"weight": 1.0}, {"weight": 5.0})
    )
    runs = results.runs
    kept = (runs["weight"] == 1.0) == (runs["seed"] == 0)
    found = cells_of(dataclasses.replace(results, runs=runs[kept]))
    assert [(cell.name, cell.num_seeds) for cell in found] == [
        ("CalNRE (weight 1)", 1),
        ("CalNRE (weight 5)", 1),
    ]


def test_the_table_and_the_figure_show_the_same_cells(tmp_path):
    """The figure is drawn from the tables and the page's table from cells: they must agree."""
    results = synthetic_results(
        ("slcp",), ("nre", "calnre"), (512, 1024), (0, 1), training=({"weight": 1.0}, {})
    )
    runs = results.runs.copy()
    runs.loc[runs["seed"] == 1, "num_pairs"] = 500  # so that means are weighted
    results = dataclasses.replace(results, runs=runs)
    figure, found = figures.draw("coverage", results), cells_of(results)
    names = ["NRE", "CalNRE (weight 1)", "CalNRE (weight 5)"]
    assert {handle.get_label() for handle in figure.legends[0].legend_handles} == set(names)
    for axis, budget in zip(figure.axes, (512, 1024), strict=True):
        drawn = [line.get_ydata() for line in axis.lines if len(line.get_xdata()) == len(LEVELS)]
        own = {cell.name: cell.curve["curve"] for cell in found if cell.budget == budget}
        assert list(own) == names
        for curve, name in zip(drawn, names, strict=True):
            assert list(curve) == pytest.approx(own[name])
    page = page_of(results, tmp_path)
    data = data_of(page)
    assert [one["name"] for one in data["series"]] == names
    few = [*found[1].curve["curve"][4:-1:5], found[1].curve["curve"][-1]]
    assert data["coverage"]["mean"][1] == pytest.approx(few, rel=1e-5)
    assert re.search(r"<noscript>.*CalNRE \(weight 1\).*</noscript>", page, re.S)


def test_a_new_diagnostic_reaches_the_page(tmp_path, monkeypatch):
    results = synthetic_results(("slcp",), ("nre",), (1024,), (0,), thorough=True)
    own = results.ranks[results.ranks["test"] == "tarp"].assign(test="novel")
    row = dataclasses.replace(DIAGNOSTICS["tarp"], name="novel", title="Novel")
    monkeypatch.setitem(DIAGNOSTICS, "novel", row)
    data = data_of(page_of(dataclasses.replace(results, novel=own), tmp_path))
    assert [line["test"] for line in data["ranks"]["runs"][0]][-1] == "novel"
    assert data["tests"]["novel"][0] == "Novel"


def test_a_plus_minus_is_a_standard_error_everywhere(seeds):
    """The bound of a shortfall is no standard error, and 0.000 ± 0.030 would be no interval."""
    alone = synthetic_results(("slcp",), ("nre",), (1024,), (0,))
    (cell,) = cells_of(alone)
    assert cell.estimates["worst_shortfall"].error is None
    assert cell.bound == pytest.approx(alone.runs["shortfall_bound"].item())
    assert cell.note("worst_shortfall") == f"at most {cell.bound:.3f}"
    several = next(c for c in cells_of(seeds) if c.series.method == "nre" and c.problem == "slcp")
    own = seeds.runs.query("method == 'nre' and problem == 'slcp'")["worst_shortfall"]
    assert several.estimates["worst_shortfall"].error == pytest.approx(own.sem())
    least = seeds.runs.query("method == 'nre' and problem == 'slcp'")["worst_shortfall"].mean()
    assert several.bound > least


def test_no_number_is_minus_zero(store, tmp_path):
    results = load_results(store)
    names = ["auc", "worst_shortfall", "log_posterior", "information_gain", "region_volume"]
    runs = results.runs.assign(**dict.fromkeys(names, -1e-9), log_prior=-1e-9)
    page = page_of(dataclasses.replace(results, runs=runs), tmp_path)
    shown = re.sub(r"<script>.*?</script>|<svg.*?</svg>", "", page, flags=re.S)
    assert not re.search(r"[-−]0\.0+(?![0-9])", shown)


def test_the_script_rounds_nothing():
    folder = resources.files("prudent.reports").joinpath("templates/report")
    for part in folder.iterdir():
        assert not re.search(r"toFixed|toPrecision|Math\.round", part.read_text()), part


def test_a_page_of_one_run_speaks_of_one(tmp_path):
    results = synthetic_results(("slcp",), ("nre",), (1024,), (0,))
    page = page_of(results, tmp_path)
    assert "Can you trust this posterior" in page
    said = html.unescape(re.search(r'id="verdict">(.*?)</p>', page)[1])
    assert said.startswith("On slcp with 1,024 simulations, NRE is over-confident: ")
    assert "no method" not in said
    assert "nats, " in said
    for absent in (
        "Which posterior can you trust, and",
        "Which runs are missing",
        "A case is one",
    ):
        assert absent not in page
    assert re.search(r'id="filters"[^>]* hidden>', page)
    several = page_of(synthetic_results(("slcp",), ("nre",), (1024,), (0, 1)), tmp_path)
    assert not re.search(r'id="filters"[^>]* hidden>', several)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [(64, "NRE has not enough test pairs to tell"), (9000, "NRE is calibrated")],
)
def test_every_verdict_makes_a_sentence(pairs, words):
    results = synthetic_results(("slcp",), ("nre",), (1024,), (0,))
    curves = results.curves.assign(coverage=results.curves["level"])
    runs = results.runs.assign(num_pairs=pairs, worst_shortfall=0.0)
    changed = dataclasses.replace(results, curves=curves, runs=runs)
    assert words in sentences.headline(sentences.cases(cells_of(changed)))


def test_posteriors_of_thorough_runs_are_in_the_page(tmp_path):
    thorough = synthetic_results(("slcp",), METHODS, (1024,), (0, 1), thorough=True)
    page = page_of(thorough, tmp_path)
    shown = re.search(r'id="posteriors">(.*?)</div>', page, re.S)[1]
    assert shown.count("<svg") == 4
    assert "CalNRE posterior" in shown
    assert "6 more runs have draws" in page
    plain = dataclasses.replace(thorough, draws=thorough.draws.iloc[:0])
    assert "posterior-title" not in page_of(plain, tmp_path)


# ---- What is missing is said


def test_failed_runs_are_counted_and_explained(tmp_path):
    reason = "non-finite loss in `penalty`, epoch 12"
    results = synthetic_results(
        ("slcp",),
        ("nre", "calnre"),
        (1024,),
        (0, 1, 2),
        failed=[({"method": "calnre", "seed": 2}, reason)],
    )
    page = page_of(results, tmp_path)
    assert "2 of 3 seeds" in page
    assert reason in html.unescape(re.search(r'<table id="unfinished">.*?</table>', page, re.S)[0])
    assert "snapshot while running" not in page


def test_a_snapshot_says_so(seeds, tmp_path):
    states = {
        0: ("running", "secrethost pid 4711, epoch 3 of 20"),
        1: ("interrupted", "epoch 7 of 20"),
        2: ("left", None),
    }
    page = page_of(with_states(seeds, states), tmp_path)
    assert "snapshot while running: 9 of 12" in page
    assert "secrethost" not in page
    assert "pid 4711" not in page
    assert "epoch 3 of 20" in page
    assert "not begun" in page


def test_nothing_finished_is_still_a_page(seeds, tmp_path):
    states = {number: ("failed", "worker died") for number in range(len(seeds.runs))}
    page = page_of(with_states(seeds, states), tmp_path)
    assert "No run is finished yet" in page
    assert "worker died" in page


def test_no_runs_at_all_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no runs to report"):
        write_report(empty_results(), tmp_path / "report.html")


# ---- The page


def test_the_order_of_the_page(demo, tmp_path):
    page = page_of(demo, tmp_path)
    parts = ["<h1", 'id="verdict"', 'id="coverage"', '<table id="table"', 'id="tradeoff"']
    parts += [
        'id="problems"',
        'id="training"',
        'id="ranks"',
        'id="unfinished-title"',
        'id="made-title"',
    ]
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    assert page.count("<h1") == 1
    assert '<html lang="en"' in page
    assert page.index("<noscript>") < page.index("<svg") < page.index("</noscript>")


def test_the_page_asks_for_nothing_from_outside(demo, tmp_path):
    page = page_of(demo, tmp_path)
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)', page)[1])
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'unsafe-inline'" not in policy
    visible = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    links = re.findall(r"""\s(?:src|href)\s*=\s*["']([^"']*)""", visible)
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)


def test_the_library_is_the_one_we_know():
    folder = resources.files("prudent.reports").joinpath("vendor")
    assert (
        hashlib.sha256(folder.joinpath("plotly-basic.min.js").read_bytes()).hexdigest() == PLOTLY
    )
    assert "MIT" in folder.joinpath("plotly-LICENSE.txt").read_text()


def test_our_script_makes_no_markup_from_text():
    folder = resources.files("prudent.reports").joinpath("templates/report")
    scripts = [part.read_text() for part in folder.iterdir()]
    assert len(scripts) == len(SCRIPTS)
    script = "".join(scripts)
    for danger in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
    ):
        assert danger not in script


def test_the_same_store_gives_the_same_bytes(demo, tmp_path):
    first = page_of(demo, tmp_path)
    shuffled = dataclasses.replace(demo, runs=demo.runs.iloc[::-1].reset_index(drop=True))
    assert page_of(demo, tmp_path) == first
    assert page_of(shuffled, tmp_path) == first


def test_identifiers_are_unique(demo, tmp_path):
    visible = re.sub(r"<script.*?</script>", "", page_of(demo, tmp_path), flags=re.S)
    found = re.findall(r'\sid="([^"]+)"', visible)
    assert len(found) == len(set(found))


def test_every_text_stays_text(tmp_path):
    page = page_of(hostile_results(), tmp_path, directory=PAYLOADS[0])
    data = data_of(page)
    kept = json.dumps(data, ensure_ascii=False)
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    for payload in PAYLOADS:
        assert json.dumps(payload, ensure_ascii=False)[1:-1] in kept
        assert payload in html.unescape(outside)
    for tag in ("<img", "<svg onload", "<!--", "<b>"):
        assert tag not in outside
    assert page.count("<script") == page.count("</script>") == 3


def test_a_reason_of_a_megabyte_is_kept_once_in_the_data(demo, tmp_path):
    reason = "x" * 2**20
    page = page_of(with_states(demo, {0: ("failed", reason)}), tmp_path)
    assert data_of(page)["runs"]["evidence"][0] == reason
    assert len(page) < len(page_of(demo, tmp_path)) + 2.1 * 2**20


def test_nothing_private_is_in_the_page(demo, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2hunter2")
    monkeypatch.setenv("HOME", "/home/somebody")
    runs = demo.runs.assign(path="/home/somebody/work/" + demo.runs["run"])
    hidden = with_states(
        dataclasses.replace(demo, runs=runs),
        {0: ("failed", "could not write /home/somebody/work/runs/x: disk quota exceeded.")},
    )
    page = page_of(hidden, tmp_path, directory="/home/somebody/work/mine")
    assert "mine/RUN/config.json" in page
    for secret in ("hunter2hunter2", "somebody"):
        assert secret not in page
    assert private("no space in /home/other/x: 3 MB free") == "no space in ~/x: 3 MB free"


@pytest.mark.slow
def test_twelve_hundred_runs_stay_small(tmp_path):
    results = synthetic_results(
        ("slcp", "weinberg", "mg1", "lotka_volterra", "spatial_sir", "two_moons"),
        METHODS,
        [2**power for power in range(9, 17)],
        range(5),
    )
    assert len(results.runs) == 1200
    long = pd.concat(
        [results.history.assign(epoch=results.history["epoch"] + 20 * k) for k in range(5)]
    )
    page = page_of(dataclasses.replace(results, history=long), tmp_path)
    assert len(page) < 15e6 / 2
    step = data_of(page)["history"]["step"]
    assert step == 2
    assert "Of these many runs one epoch in 2 is drawn." in page


def test_a_demonstration_is_below_five_megabytes(demo, tmp_path):
    assert len(page_of(demo, tmp_path).encode()) < 5e6 / 2


# ---- The command


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("stores") / "smoke"
    write_store(root, ("slcp",), ("nre", "calnre"), (512,), (0,))
    write_failure(root, RunConfig("slcp", "npe", 512), "worker died, signal 9")
    return root


def test_the_command_writes_the_page(store, tmp_path, monkeypatch):
    monkeypatch.chdir(store.parent)
    output = tmp_path / "page.html"
    done = CliRunner().invoke(cli, ["report", "smoke", "-o", str(output)], catch_exceptions=False)
    assert f"Report: {output} (2 of 3 runs finished)" in done.output
    page = output.read_text()
    assert "prudent report smoke -o report.html" in page
    assert "worker died, signal 9" in page
    assert str(store.parent) not in page
    assert len(data_of(page)["runs"]["run"]) == 3


def test_the_page_is_that_of_the_tables(store, tmp_path):
    results = load_results(store)
    found = data_of(page_of(results, tmp_path))
    methods = [one["name"] for one in found["methods"]]
    assert sorted(methods) == ["calnre", "npe", "nre"]
    verdicts = {run.config.identity: run.verdict for run in load_runs(store)}
    table = found["runs"]
    said = dict(zip(table["run"], zip(table["kind"], table["evidence"], strict=True), strict=True))
    assert len(said) == len(verdicts) + 1
    for run, verdict in verdicts.items():
        assert said[run] == (verdict.kind, verdict.evidence)


@pytest.mark.slow
def test_the_command_draws_figures(store, tmp_path):
    folder = tmp_path / "figures"
    arguments = ["report", str(store), "-o", str(tmp_path / "r.html"), "--figures", str(folder)]
    done = CliRunner().invoke(cli, [*arguments, "--format", "svg,pdf"], catch_exceptions=False)
    assert (folder / "coverage.svg").read_text().lstrip().startswith("<")
    assert (folder / "coverage.pdf").read_bytes().startswith(b"%PDF")
    assert "not drawn: sbc" in done.output
    assert "run_coverage" in done.output.splitlines()[-1]
    assert "--run" in done.output.splitlines()[-1]


def test_the_command_draws_the_run_that_is_named(store, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        "prudent.reports.figures.save",
        lambda figure, path, _: drawn.update(
            {path.stem: figure.get_suptitle().replace("\n", " ")}
        ),
    )
    last = load_results(store).curves["run"].iloc[-1]
    arguments = ["report", str(store), "-o", str(tmp_path / "r.html"), "--figures", str(tmp_path)]
    done = CliRunner().invoke(cli, [*arguments, "--run", last[:6]], catch_exceptions=False)
    assert last in drawn["run_coverage"]
    assert last in drawn["history"]
    assert "coverage" in drawn
    assert "of the first run" not in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no directory nowhere"),
        (["."], "no finished runs"),
        (["STORE", "--format", "gif"], "expected some of png,svg,pdf"),
        (["STORE", "--dpi", "0"], "expected 10 to 2400"),
        (["STORE", "--run", "zz"], "add --figures"),
        (
            ["STORE", "--figures", "f", "--run", "zz"],
            "`--run` zz is 0 finished runs; expected one, such as ",
        ),
        (["STORE", "--figures", "f", "--run", ""], "`--run`  is 2 finished runs"),
        (["STORE", "-o", "/proc/nowhere/page.html"], "cannot write below /proc"),
    ],
)
def test_mistakes_are_one_sentence(store, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    given = [str(store) if one == "STORE" else one for one in arguments]
    with pytest.raises(InputError, match=re.escape(message)):
        CliRunner().invoke(cli, ["report", *given], catch_exceptions=False, standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_replaced_stays(store, tmp_path):
    taken = tmp_path / "page.html"
    taken.mkdir()
    with pytest.raises(InputError, match="is a directory; a report is one HTML page"):
        CliRunner().invoke(cli, ["report", str(store), "-o", str(taken)], catch_exceptions=False)
    assert taken.is_dir()
    assert list(tmp_path.iterdir()) == [taken]


def test_a_page_that_fails_leaves_the_old_one(demo, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr("prudent.reports.html._policy", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(demo, path)
    assert path.read_text() == "old"


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.process
def test_a_kill_leaves_the_old_page_or_the_new_one(demo, tmp_path):
    page, whole = tmp_path / "pages" / "report.html", tmp_path / "whole.html"
    write_report(demo, whole)
    seen = set()

    def prepare():
        shutil.rmtree(page.parent, ignore_errors=True)
        page.parent.mkdir()
        page.write_text("old")

    for _, code in fault_points(prepare, lambda: write_report(demo, page), tmp_path / "log"):
        assert code == CRASHED
        assert page.read_bytes() in (b"old", whole.read_bytes())
        seen.add(page.read_bytes() == b"old")
    assert True in seen


def test_no_browser_without_a_screen(store, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("webbrowser.open", lambda _: pytest.fail("opened"))
    arguments = ["report", str(store), "-o", str(tmp_path / "r.html"), "--open"]
    assert "open " in CliRunner().invoke(cli, arguments, catch_exceptions=False).output


# ---- The table for terminals


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_table_fits_the_terminal(store, width):
    lines = text(load_runs(store), width).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(next(iter(COLUMNS)))


def test_a_number_is_written_alike_everywhere(store, tmp_path):
    """0.0845 is 0.084 for one way of rounding and 0.085 for another; -0.0004 is no minus zero."""
    results = load_results(store)
    runs = results.runs.copy()
    runs.loc[runs["state"] == "done", ["worst_shortfall", "auc"]] = 0.0845, -0.0004
    page = page_of(dataclasses.replace(results, runs=runs), tmp_path)
    shown = f"{0.0845:.3f}"
    table = data_of(page)["runs"]["values"]
    assert table["worst_shortfall"]["text"].count(shown) == page.count(f">{shown} <span") == 2
    assert table["auc"]["text"][0].startswith("+0.000 ±")
    run = load_runs(store)[0]
    run = dataclasses.replace(run, metrics={**run.metrics, "auc": -0.0, "worst_shortfall": -0.0})
    assert rows([run])[0][4:6] == ["+0.000", "0.000"]


def test_missing_numbers_show_as_a_dash(store):
    run = load_runs(store)[0]
    empty = dataclasses.replace(
        run, metrics={**run.metrics, "log_posterior": None, "log_posterior_error": None}
    )
    assert "- ± -" in rows([empty])[0]


@pytest.mark.parametrize(
    ("shift", "kind"), [(-0.1, "over-confident"), (0.0, "calibrated"), (0.1, "conservative")]
)
def test_a_run_is_judged_by_its_curve(store, shift, kind):
    run = load_runs(store)[0]
    levels = run.coverage["levels"]
    curve = [min(1.0, max(0.0, level + shift)) for level in levels]
    verdict = dataclasses.replace(run, coverage={**run.coverage, "curve": curve}).verdict
    assert verdict.kind == kind
    assert f"90 % regions contain the truth {90 + 100 * shift:.0f} ±" in verdict.evidence
    assert "(2,000 test pairs, on average over all observations)" in str(verdict)


def test_work_grows_with_the_number_of_runs_and_no_faster(tmp_path):
    """Calls of functions, which do not depend on the machine."""
    calls = []
    for number in (40, 40, 80, 160):  # the first imports what figures need
        results = synthetic_results(("slcp",), ("nre",), (1024,), range(number))
        with cProfile.Profile() as profile:
            page_of(results, tmp_path)
        calls.append(pstats.Stats(profile).total_calls)
    assert calls[3] - calls[2] < 2.5 * (calls[2] - calls[1])
    assert calls[3] < 160 * 20_000


def test_settings_are_those_that_a_reader_can_use(tmp_path):
    plain = synthetic_results(("slcp",), ("npe",), (1024,), (0,))
    runs = plain.runs.assign(data="1f" * 32, prior='{"names": ["a"], "prior": {}}')
    page = page_of(dataclasses.replace(plain, runs=runs), tmp_path)
    settings = page.partition("Settings of all runs")[2].partition("</dl>")[0]
    assert "learning_rate" in settings
    for name in ("1f1f", "&#34;names&#34;", "num_samples", "indicator"):
        assert name not in settings
    with_penalty = page_of(synthetic_results(("slcp",), ("calnpe",), (1024,), (0,)), tmp_path)
    assert "num_samples" in with_penalty.partition("Settings of all runs")[2]
