"""The report: self-contained, deterministic, escaped, and equal to the store."""

import dataclasses
import html
import re

import pytest

from prudent.experiments.config import RunConfig
from prudent.experiments.store import Run
from prudent.history import History
from prudent.reports.figures import coverage_figure, png, svg
from prudent.reports.html import run_verdict, write_report
from prudent.reports.tables import COLUMNS, rows, text

HISTORY = History(
    {"epoch": e, "loss": 1 / e, "validation_loss": 1 / e + 0.1, "selected": e < 4}
    for e in range(1, 6)
)
LEVELS = [round(0.05 * i, 2) for i in range(1, 20)]


def make_run(tmp_path, method="nre", power=1.0, **metrics):
    curve = [level**power for level in LEVELS]
    (tmp_path / "history.jsonl").write_text(HISTORY.to_jsonl())
    return Run(
        path=tmp_path,
        config=RunConfig("slcp", method, 1024),
        metrics={
            "auc": sum(c - level for c, level in zip(curve, LEVELS, strict=True)) / 19,
            "worst_shortfall": max(0.0, *(lv - c for lv, c in zip(LEVELS, curve, strict=True))),
            "log_posterior": -2.5,
            "log_posterior_error": 0.02,
            "num_pairs": 2000,
            **metrics,
        },
        coverage={
            "levels": LEVELS,
            "curve": curve,
            "lower": [max(0.0, value - 0.02) for value in curve],
            "upper": [min(1.0, value + 0.02) for value in curve],
        },
        timing={"seconds": {"train": 12.3}, "versions": {"prudent": "0", "torch": "0"}},
    )


@pytest.fixture
def runs(tmp_path):
    return [make_run(tmp_path, "nre", 2.0), make_run(tmp_path, "calnre", 0.7)]


def test_the_page_holds_verdict_figure_and_table(runs, tmp_path):
    write_report(runs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    order = [page.index(part) for part in ("over-confident:", "<svg", "<table", "versions")]
    assert order == sorted(order)
    cells = [html.unescape(cell) for cell in re.findall("<td>(.*?)</td>", page)]
    assert cells == [cell for row in rows(runs) for cell in row]
    for run in runs:
        assert html.escape(run_verdict(run)) in page


def test_the_page_asks_for_nothing_from_outside(runs, tmp_path):
    write_report(runs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "default-src 'none'" in page
    assert "<script" not in page
    links = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", page)
    assert all(link.startswith(("#", "data:")) for link in links)


def test_the_same_runs_give_the_same_bytes(runs, tmp_path):
    write_report(runs, tmp_path / "a.html")
    write_report(runs, tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_text_from_runs_stays_text(tmp_path):
    run = make_run(tmp_path)
    evil = "<img src=x onerror=alert(1)>$title"
    run = dataclasses.replace(run, timing={**run.timing, "versions": {"torch": evil}})
    write_report([run], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<img" not in page
    assert evil in html.unescape(page)


def test_missing_numbers_show_as_a_dash(tmp_path):
    run = make_run(tmp_path, log_posterior=None, log_posterior_error=None)
    assert "- ± -" in rows([run])[0]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_table_fits_the_terminal(runs, width):
    lines = text(runs, width).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(COLUMNS[0])


def test_figures_need_no_global_state(runs):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    figure = coverage_figure(runs)
    assert svg(figure).startswith("<svg")
    assert png(figure).startswith(b"\x89PNG")
    assert dict(mpl.rcParams) == before
    labels = [item.get_text() for item in figure.axes[0].get_legend().get_texts()]
    assert labels == ["NRE", "CalNRE"]


def test_training_curves_of_few_runs(runs, tmp_path):
    write_report(runs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<details>") == 2
    identifiers = re.findall(r' id="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    write_report(runs * 7, tmp_path / "many.html")
    assert "Not drawn for more than 12 runs" in (tmp_path / "many.html").read_text()
