r"""Cells: runs that differ in nothing but their seed, judged and averaged together.

The coverage of a cell is that of all test pairs of all its seeds, of which those that seeds share
count once. A cell counts as over-confident if that curve falls short by more than chance explains,
or if the curve of one of its seeds does with a p-value of 5 % divided by the number of seeds. So
good seeds cannot hide a bad one, and a method does not look worse because more seeds were run.

Seeds are averaged, settings never are: runs of a problem, method and budget with several settings
are several cells, in tables and figures alike.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prudent.diagnostics.verdict import ERROR_RATE, NORMAL_95, TESTS, Curve, Verdict, judge
from prudent.experiments.config import RunConfig
from prudent.history import finite
from prudent.reports.tables import FORMS, Estimate, number
from prudent.training.methods import METHODS, look, position
from prudent.training.options import Options

if TYPE_CHECKING:
    from pandas import DataFrame

CELL = ["problem", "method", "budget"]
SETTINGS = [
    field.name
    for field in (*fields(RunConfig), *fields(Options))
    if field.name not in (*CELL, "seed", "training")
]
ABSENT = ("nan", "None")  # of runs whose config could not be read
NOTHING = Verdict("no finished run", "", "no finished run")
# The metrics that have an error of one seed.
ERRORS = ("auc", "log_posterior", "information_gain")
# The looks of further settings of one method.
DASHES = ("-", "--", ":", "-.")
MARKERS = ("X", "*", "p", "h", "d", "<", ">")

Row = dict[str, Any]


@dataclass(frozen=True)
class Series:
    """Runs of one method with one setting, mostly none, which share a name and a look everywhere.

    The number is the place of the setting among those of the method: the first has the look of
    the method, the others have its color.
    """

    method: str
    setting: str = ""
    number: int = 0

    @property
    def name(self) -> str:
        """The method as the paper writes it, with the setting if there are several."""
        label = look(self.method).label
        return f"{label} ({self.setting})" if self.setting else label

    @property
    def color(self) -> str:
        """The color of the method."""
        return look(self.method).color

    @property
    def line(self) -> dict[str, Any]:
        """The keywords of matplotlib's ``plot``."""
        _, color, dash, marker = look(self.method)
        if self.number:
            dash = DASHES[(DASHES.index(dash) + self.number) % len(DASHES)]
            marker = MARKERS[(self.number - 1) % len(MARKERS)]
        return {"color": color, "linestyle": dash, "marker": marker}


def series_of(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Series]:
    """The series of some pairs of method and setting, in the order in which they are shown.

    >>> found = series_of([("nre", "weight 10"), ("nre", "weight 5"), ("nre", "weight 5")])
    >>> [(one.name, one.line["marker"]) for one in found.values()]
    [('NRE (weight 5)', 'o'), ('NRE (weight 10)', 'X')]
    """
    found: dict[tuple[str, str], Series] = {}
    for method, setting in sorted(set(pairs), key=_order):
        place = sum(one.method == method for one in found.values())
        found[method, setting] = Series(method, setting, place)
    return found


def _order(pair: tuple[str, str]) -> tuple[Any, ...]:
    """Methods as in their table, and numbers inside of settings by their size."""
    method, setting = pair
    parts = re.split(r"(\d+(?:\.\d+)?)", setting)
    sizes = [float(part) if place % 2 else part for place, part in enumerate(parts)]
    return position(method), method, sizes


@dataclass(frozen=True)
class Cell:
    """All seeds of one method, with one setting, on one problem, at one budget; or one of them."""

    problem: str
    budget: int
    series: Series
    places: tuple[int, ...]  # of its runs in the arranged table, one for each seed
    verdict: Verdict  # on all seeds together; of a run that is not done its state and why
    # The `levels` and the `curve` of all test pairs together, with its interval from `lower` to
    # `upper`; None without a finished run.
    curve: dict[str, list[float]] | None
    num_done: int  # finished seeds
    num_short: int  # seeds that are over-confident, each for itself
    num_pairs: int  # different test pairs of all finished seeds
    bound: float | None  # the most that a level may fall short, with 95 %, all seeds together
    estimates: dict[str, Estimate]  # means over seeds, by metric

    @property
    def num_seeds(self) -> int:
        """The number of seeds, finished or not."""
        return len(self.places)

    @property
    def name(self) -> str:
        """The method, with its setting if there are several."""
        return self.series.name

    @property
    def seeds(self) -> str:
        """The number of finished seeds, and of all if they are not the same."""
        whole = self.num_done == self.num_seeds
        return f"{self.num_done}" if whole else f"{self.num_done} of {self.num_seeds}"

    @property
    def evidence(self) -> str:
        """The evidence of the verdict, and how many seeds are over-confident by themselves."""
        if not self.num_short or self.num_seeds == 1:
            return self.verdict.evidence
        seeds = f"{self.num_short} of {self.num_done} seeds over-confident"
        return f"{self.verdict.evidence} ({seeds})"

    def text(self, metric: str) -> str:
        """The mean of a metric with its standard error."""
        return self.estimates[metric].text(FORMS[metric]) if self.num_done else self.verdict.kind

    def note(self, metric: str) -> str:
        """The bound of a shortfall, and the number of seeds with the metric if some lack it."""
        found = self.estimates[metric].number
        known = metric == "worst_shortfall" and self.bound is not None
        notes = [f"at most {number(self.bound, FORMS[metric])}"] if known else []
        notes += [f"{found} of {self.num_seeds} seeds"] if 0 < found < self.num_seeds else []
        return ", ".join(notes)


def arranged(runs: DataFrame) -> DataFrame:
    """The runs in the order of a page: problem, budget, method, seed."""
    keys = ["problem", "budget", "method", "seed", "run"]
    places = [(position(name), str(name)) for name in runs["method"]]
    ordered = runs.assign(method=places).reset_index(drop=True).sort_values(keys, kind="stable")
    return runs.iloc[ordered.index].reset_index(drop=True)


def settings_of(runs: DataFrame) -> DataFrame:
    """The settings of runs as text, with the method's own weight where none was given.

    The share of steps that a method chooses by the number of draws is its own, no other setting.
    """
    found = runs[[name for name in SETTINGS if name in runs]].astype(object).copy()
    if "weight" in found:
        own = runs["method"].map({name: method.weight for name, method in METHODS.items()})
        found["weight"] = found["weight"].where(found["weight"].notna(), own)
    if "fraction" in found and runs["num_samples"].nunique() > 1:
        pairs = zip(runs["method"], runs["num_samples"], strict=True)
        shares = [
            METHODS[name].resolve(Options(num_samples=int(number))).fraction
            if name in METHODS and number >= 1
            else None
            for name, number in pairs
        ]
        found["fraction"] = found["fraction"].where(found["fraction"] != shares, "own")
    return found.map(lambda item: f"{item:g}" if isinstance(item, int | float) else str(item))


def settings(runs: DataFrame) -> list[str]:
    """For each run the settings that vary among the runs of its method, all else being equal."""
    text = settings_of(runs)
    if text.empty:
        return [""] * len(runs)
    keys = {name: [str(value) for value in runs[name]] for name in CELL}
    varying = text.groupby(list(keys.values())).nunique().gt(1).groupby(level=1).any()
    names = {
        method: [name for name in row.index if row[name]] for method, row in varying.iterrows()
    }
    return [
        ", ".join(f"{name} {row[name]}" for name in names[method] if row[name] not in ABSENT)
        for method, row in zip(keys["method"], text.to_dict("records"), strict=True)
    ]


def cells(runs: DataFrame, curves: DataFrame, *, one_each: bool = False) -> list[Cell]:
    """The cells of arranged runs, in their order; or each run as a cell, judged by itself."""
    rows, found = records(runs), dict(list(curves.groupby("run")))
    names = [
        (row.get("method") or "?", own) for row, own in zip(rows, settings(runs), strict=True)
    ]
    looks = series_of(names)
    order = {pair: place for place, pair in enumerate(looks)}
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, row in enumerate(rows):
        cell = row.get("problem"), row.get("budget"), order[names[place]]
        if one_each or None not in cell:
            groups.setdefault((place,) if one_each else cell, []).append(place)
    made = []
    for places in (groups[key] for key in sorted(groups)):
        own = [rows[place] for place in places]
        verdict = _state(own[0]) if one_each else NOTHING
        made.append(_cell(tuple(places), looks[names[places[0]]], own, found, verdict))
    return made


def _state(row: Row) -> Verdict:
    """The state of a run that is not done, and why."""
    reason = private(row.get("error"), row["state"]) or ""
    return Verdict(row["state"], reason, reason or row["state"])


def _cell(
    places: tuple[int, ...],
    series: Series,
    rows: list[Row],
    curves: dict[str, DataFrame],
    verdict: Verdict,
) -> Cell:
    """A cell; its verdict stays the given one if none of its runs is done."""
    done = [row for row in rows if row["run"] in curves and row.get("num_pairs")]
    curve, bound, chances = None, None, []
    if done:
        each = [curves[row["run"]] for row in done]
        curve = mean_curve(each, own_pairs(done))
        chances = [
            _counted(own["level"], own["coverage"], [row]).p_value()
            for own, row in zip(each, done, strict=True)
        ]
        verdict = _judge(curve, done, chances)
        bound = _counted(curve["levels"], curve["curve"], done).most_short
    return Cell(
        problem=rows[0].get("problem") or "?",
        budget=int(rows[0].get("budget") or 0),
        series=series,
        places=places,
        verdict=verdict,
        curve=curve,
        num_done=len(done),
        num_short=beyond_chance(chances),
        num_pairs=round(sum(own_pairs(done))),
        bound=bound,
        estimates={name: estimate(done, name) for name in FORMS},
    )


def own_pairs(rows: Sequence[Row]) -> list[float]:
    """The number of test pairs of each run, of which runs with the same ones have a share."""
    shared = Counter(map(_tested_on, rows))
    return [float(row.get("num_pairs") or 1) / shared[_tested_on(row)] for row in rows]


def _tested_on(row: Row) -> Any:
    """An identifier of the test pairs of a run: their digest, or else the file or the seed."""
    return row.get("tested_on") or (row.get("problem"), row.get("data") or row.get("seed"))


def mean_curve(curves: Sequence[DataFrame], pairs: Sequence[float]) -> dict[str, list[float]]:
    """The coverage of runs together, weighted by their test pairs, with its interval."""
    levels, lower, upper = (curves[0][name] for name in ("level", "lower", "upper"))
    mean = np.average([curve["coverage"].astype(float) for curve in curves], 0, pairs)
    if len(curves) > 1:
        half = NORMAL_95 * np.sqrt(np.clip(mean * (1 - mean), 0, None) / sum(pairs))
        lower, upper = (mean - half).clip(0, 1), (mean + half).clip(0, 1)
    found = {"levels": levels, "curve": mean, "lower": lower, "upper": upper}
    return {name: values.astype(float).tolist() for name, values in found.items()}


def _counted(levels: Sequence[float], curve: Sequence[float], rows: Sequence[Row]) -> Curve:
    """The curve of some runs as counts."""
    own = own_pairs(rows)
    doubts = (row.get("num_unresolved") or 0 for row in rows)
    doubt = sum(n / row["num_pairs"] * d for n, row, d in zip(own, rows, doubts, strict=True))
    return Curve.of(levels, curve, round(sum(own)), math.ceil(doubt))


def _judge(
    curve: dict[str, list[float]], rows: Sequence[Row], chances: Sequence[float]
) -> Verdict:
    """The verdict on finished seeds together, of which none may fall short beyond chance.

    Args:
        curve: The curve of all of them.
        rows: Their metrics.
        chances: The p-value of the curve of each.
    """
    gain, density = (estimate(rows, name) for name in ("information_gain", "log_posterior"))
    found = _counted(curve["levels"], curve["curve"], rows)
    shared = found.number < sum(row["num_pairs"] for row in rows)
    metrics = {
        "pairs": "test pairs that seeds share" if shared else "test pairs",
        "strays": next((row["strays"] for row in rows if row.get("strays")), None),
        "log_posterior": density.mean,
        "log_posterior_error": density.error,
        "log_prior": estimate(rows, "log_prior").mean,
        "information_gain": gain.mean,
        "information_gain_error": gain.error,
        "num_unresolved": found.doubt,
        "disagreement": next(filter(None, (row.get("disagreement") for row in rows)), None),
        **_findings(rows),
    }
    if len(names := {row.get("pairs") for row in rows}) == 1 and any(names):
        metrics["pairs"] = names.pop()
    verdict = judge(**curve, num_pairs=found.number, metrics=metrics)
    bad = beyond_chance(chances, len(rows)) if len(rows) > 1 else 0
    if verdict.kind == "over-confident" or metrics["strays"] or not bad:
        return verdict
    return Verdict.of("over-confident", f"in {bad} of {len(rows)} seeds; together {verdict}", " ")


def _findings(rows: Sequence[Row]) -> Row:
    """The defects that thorough diagnoses found: each test in its worst seed, by Bonferroni."""
    found: Row = {}
    for key in (f"{name}_harm" for name in TESTS):
        known = [row for row in rows if row.get(f"{key}_p_value") is not None]
        if known:
            worst = min(known, key=lambda row: row[f"{key}_p_value"])
            chance = min(1.0, len(known) * worst[f"{key}_p_value"])
            found |= {key: worst[key], f"{key}_p_value": chance}
    return found


def beyond_chance(chances: Sequence[float], number: int = 1) -> int:
    """The number of seeds that fall short, by their p-values, of so many that were looked at."""
    return sum(chance <= ERROR_RATE / number for chance in chances)


def estimate(rows: Sequence[Row], name: str) -> Estimate:
    """The mean of a metric over the seeds that have it, with its error."""
    finite = [row for row in rows if isinstance(row.get(name), int | float)]
    if not finite:
        return Estimate(None, None, 0)
    values = np.array([float(row[name]) for row in finite])
    error: float | None = None
    if name in ERRORS and len(set(map(_tested_on, finite))) == 1:
        error = finite[0].get(f"{name}_error")
    elif len(finite) > 1:
        error = float(values.std(ddof=1) / math.sqrt(len(values)))
    return Estimate(float(values.mean()), error, len(finite))


def private(error: object, state: str = "failed") -> str | None:
    """The reason of a run without what is nobody's business: home, host, absolute paths."""
    if not isinstance(error, str):
        return None
    if state == "running":
        progress = re.search(r"epoch \d+ of \d+", error)
        return progress[0] if progress else None
    text = error.replace(str(Path.cwd()), ".").replace(str(Path.home()), "~")
    return re.sub(r"/(?:home|Users|root)/[^/\s'\"`]+", "~", text)


def records(table: DataFrame) -> list[Row]:
    """Rows as dictionaries, None for what is missing or not finite."""
    return [finite(row) for row in table.to_dict("records")]
