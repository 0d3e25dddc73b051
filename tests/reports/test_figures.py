"""Every registered figure: readable, deterministic, equal to its table, and seen to change."""

import dataclasses
import functools
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import stores
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from prudent.diagnostics.verdict import MOST_MISSED, band
from prudent.errors import InputError
from prudent.experiments import load_results
from prudent.reports import figures
from prudent.reports.cells import Series
from prudent.reports.figures import draw, save
from prudent.reports.figures.comparison import coverage, log_posterior, tradeoff
from prudent.reports.figures.intuition import MODES, Mixture, mass_level
from prudent.reports.figures.one_run import run_coverage
from prudent.training import methods

NAMES = figures.names()
REFERENCES = Path(__file__).parent / "references" / "figures.json"
GRID = 24
# Bits of 1,104. The pinned matplotlib gives none; the margin is for other builds of its fonts.
# Other data change more than twice as many in every figure, see the negative control.
TOLERANCE = 15
# Inches that a label may seem to leave the paper, by rounding of glyph boxes.
ROUNDING = 0.03
FAILED = (({"problem": "slcp", "method": "npe", "budget": 1024, "seed": 0}, "not finite"),)
BUDGETS = (1024, 4096)
WEIGHTS = (0.5, 5.0, 50.0)
DRAWS = (4, 16, 64)


@functools.cache
def sweep():
    return stores.synthetic_results(budgets=BUDGETS, failed=FAILED)


@functools.cache
def scan():
    variants = [{"weight": w} for w in WEIGHTS] + [{"num_samples": n} for n in DRAWS if n != 16]
    return stores.synthetic_results(
        ("slcp",), ("nre", "calnre"), (1024,), (0, 1, 2), training=variants
    )


@functools.cache
def thorough():
    return stores.synthetic_results(("mg1",), ("calnre", "npe"), (1024,), (0,), thorough=True)


def results_for(name):
    if name in ("overhead", "sensitivity_weight", "sensitivity_samples"):
        return scan()
    return thorough() if figures.get(name).table in ("ranks", "draws") else sweep()


def texts(figure):
    return [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]


def words(figure):
    return "\n".join(t.get_text() for t in texts(figure))


def notes(figure):
    """The text above the legend, without its line breaks."""
    return " ".join(figure.legends[0].get_title().get_text().split())


def pixels(figure, dpi=80):
    """Grey, from 0 to 255."""
    with Image.open(io.BytesIO(figures.png(figure, dpi))) as image:
        return np.asarray(image.convert("L"), dtype=float)


def fingerprint(figure, dpi=80):
    """Of blocks in a grid, which are lighter than their neighbour to the left and above."""
    rows = np.array_split(pixels(figure, dpi), GRID, axis=0)
    blocks = np.array([[b.mean() for b in np.array_split(row, GRID, axis=1)] for row in rows])
    # White next to white is no difference, whatever the last bit says.
    return np.concatenate([(np.diff(blocks, axis=axis) > 2).flatten() for axis in (0, 1)])


def to_hex(bits):
    return np.packbits(bits).tobytes().hex()


def distance(bits, reference):
    stored = np.unpackbits(np.frombuffer(bytes.fromhex(reference), dtype=np.uint8))
    return int((bits != stored[: len(bits)].astype(bool)).sum())


@pytest.fixture(scope="module", params=NAMES)
def drawn(request):
    return request.param, draw(request.param, results_for(request.param))


def test_every_figure_says_what_it_asks_and_how_to_read_it():
    for name, entry in figures.FIGURES.items():
        assert entry.name == name
        assert entry.question.endswith("?")
        assert entry.reading.endswith(".")
        assert entry.table in (None, "runs", "curves", "history", "ranks", "draws")


def test_titles_labels_and_sizes(drawn):
    _, figure = drawn
    assert figure.get_suptitle()
    grid = {(id(a.get_gridspec()), a.get_subplotspec().num1): a for a in figure.axes}
    for axis in figure.axes:
        spec = axis.get_subplotspec()
        column = [a for a in grid.values() if a.get_subplotspec().colspan == spec.colspan]
        row = [a for a in grid.values() if a.get_subplotspec().rowspan == spec.rowspan]
        assert any(a.get_xlabel() for a in column)
        assert any(a.get_ylabel() for a in row)
    small = {t.get_text(): t.get_fontsize() for t in texts(figure) if t.get_fontsize() < 7}
    assert not small
    assert "$" not in words(figure)  # exponents of mathtext would be smaller than that
    assert figure.get_size_inches()[0] >= 3.3


def assert_nothing_is_cut(figure):
    pixels(figure)  # places everything
    FigureCanvasAgg(figure).draw()
    width, height = figure.get_size_inches()
    box = figure.get_tightbbox()
    assert box.x0 > -ROUNDING
    assert box.y0 > -ROUNDING
    assert box.x1 < width + ROUNDING
    assert box.y1 < height + ROUNDING
    renderer = figure.canvas.get_renderer()
    for legend in figure.legends:
        below = legend.get_window_extent(renderer)
        for axis in figure.axes:
            assert not below.overlaps(axis.get_tightbbox(renderer))
    for axis in figure.axes:
        labels = [t.get_window_extent(renderer) for t in axis.get_xticklabels() if t.get_text()]
        labels = sorted(labels, key=lambda box: box.x0)
        assert all(a.x1 <= b.x0 for a, b in zip(labels, labels[1:], strict=False))


def test_nothing_is_cut_or_overlaps(drawn):
    assert_nothing_is_cut(drawn[1])


@pytest.mark.parametrize("name", ["coverage", "log_posterior", "auc", "tradeoff"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 1)])
def test_sweeps_of_any_shape_fit(name, shape):
    problems = ("gravitational_waves", "lotka_volterra", "mg1", "slcp", "spatial_sir", "weinberg")
    budgets = [2**power for power in range(10, 18)]
    num_problems, num_budgets, num_seeds = shape
    results = stores.synthetic_results(
        problems[:num_problems], stores.METHODS, budgets[-num_budgets:], range(num_seeds)
    )
    assert_nothing_is_cut(draw(name, results))


def test_a_cut_label_would_be_seen():
    figure = draw("coverage", sweep())
    figure.text(0.9, 0.5, "far too long for what is left of the paper")
    with pytest.raises(AssertionError):
        assert_nothing_is_cut(figure)


@pytest.mark.slow
def test_files_open_and_depend_on_the_results_alone(drawn, tmp_path):
    name, _ = drawn
    files = []
    strange = {"font.size": 20, "axes.facecolor": "red", "lines.linewidth": 5}
    # Neither settings of the user nor what was saved before may change a byte.
    for settings, order in (({}, ("png", "svg", "pdf")), (strange, ("svg", "png"))):
        with mpl.rc_context(settings):
            before = dict(mpl.rcParams)
            figure = draw(name, results_for(name))
            for form in order:
                save(figure, tmp_path / f"{name}.{form}", dpi=60)
            assert dict(mpl.rcParams) == before
        files.append({form: (tmp_path / f"{name}.{form}").read_bytes() for form in order})
    assert files[1].items() <= files[0].items()
    with Image.open(tmp_path / f"{name}.png") as image:
        image.verify()
    tags = [element.tag for element in ElementTree.fromstring(files[0]["svg"]).iter()]
    assert any(tag.endswith("}text") for tag in tags)  # and not the outlines of letters
    assert b"<dc:date>" not in files[0]["svg"]
    assert files[0]["pdf"].startswith(b"%PDF")
    assert files[0]["pdf"].rstrip().endswith(b"%%EOF")


def test_a_pdf_has_no_time(tmp_path):
    for number in (1, 2):
        save(draw("intuition", sweep()), tmp_path / f"{number}.pdf")
    data = (tmp_path / "1.pdf").read_bytes()
    assert data == (tmp_path / "2.pdf").read_bytes()
    assert b"CreationDate" not in data


@pytest.mark.parametrize("name", ["coverage", "tradeoff", "sensitivity_weight", "sbc", "corner"])
def test_names_from_outside_cannot_break_a_figure(name):
    evil = "$\\frac$\x1b<script>alert(1)</script>" + 1000 * "x"
    results = results_for(name)
    fields = [field.name for field in dataclasses.fields(results) if field.name != "finished"]
    tables = {field: getattr(results, field).copy() for field in fields}
    for table in tables.values():
        for column in {"problem", "parameter"} & set(table):
            table[column] = evil + table[column]
    figure = draw(name, dataclasses.replace(results, **tables))
    text = figures.svg(figure)
    ElementTree.fromstring(text)
    assert "<script" not in text
    assert "$\\frac$�<script>" in words(figure)
    assert max(len(t.get_text()) for t in texts(figure)) < 500


def test_dots_per_inch_are_those_asked_for(tmp_path):
    figure = draw("intuition", sweep())
    save(figure, tmp_path / "a.png", dpi=200)
    with Image.open(tmp_path / "a.png") as image:
        assert image.width == pytest.approx(200 * figure.get_size_inches()[0], abs=1)


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"\.png \.svg \.pdf"):
        save(Figure(), tmp_path / "a.jpg")
    assert not list(tmp_path.iterdir())


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(InputError, match="Did you mean `coverage`"):
        draw("covrage", sweep())


@pytest.mark.parametrize("name", [name for name in NAMES if figures.get(name).table])
def test_a_store_without_results_says_what_to_run(name):
    with pytest.raises(InputError, match=r"prudent (demo|sweep)"):
        draw(name, stores.empty_results())
    failed = stores.synthetic_results(failed=[({}, "out of memory")])
    with pytest.raises(InputError, match=r"prudent (demo|sweep)"):
        draw(name, failed)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("overhead", "num_samples"),
        ("sensitivity_samples", "num_samples"),
        ("sensitivity_weight", "weight"),
    ],
)
def test_a_setting_that_does_not_vary_is_an_error(name, setting):
    with pytest.raises(InputError, match=f"differ in `{setting}`.*prudent sweep"):
        draw(name, sweep())


# What a figure looks like


def test_figures_look_as_they_did(drawn):
    name, figure = drawn
    reference = json.loads(REFERENCES.read_text())[name]
    far = distance(fingerprint(figure), reference)
    assert far <= TOLERANCE, f"{far} bits differ; look at it, then run this file to accept"


def contrast_on_white(color):
    """The contrast of WCAG 2."""
    part = np.array(mpl.colors.to_rgb(color))
    light = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return 1.05 / (light @ [0.2126, 0.7152, 0.0722] + 0.05)


def test_lines_can_be_seen(drawn):
    _, figure = drawn
    lines = [line for axis in figure.axes for line in axis.lines]
    assert all(contrast_on_white(line.get_color()) >= 3 for line in lines)
    assert contrast_on_white("#bddf26") < 3  # the end of a color map that was drawn with


@pytest.mark.parametrize("name", NAMES)
def test_other_data_would_be_seen(name):
    reference = json.loads(REFERENCES.read_text())[name]
    if name == "intuition":
        figure = draw(name, sweep(), level=0.4, num_samples=20)
    else:
        figure = draw(name, other_data(results_for(name)))
    assert distance(fingerprint(figure), reference) > 2 * TOLERANCE


def other_data(results):
    """The same runs and labels with other numbers."""
    runs, curves = results.runs.copy(), results.curves.copy()
    history, ranks, draws = results.history.copy(), results.ranks.copy(), results.draws.copy()
    for name in ("auc", "log_posterior", "worst_shortfall", "information_gain", "train_seconds"):
        runs[name] = runs[name].to_numpy()[::-1]
    for name in ("coverage", "lower", "upper"):
        curves[name] = 1 - (1 - curves[name]) ** 4
    history[["loss", "validation_loss"]] = history[["validation_loss", "loss"]].to_numpy()[::-1]
    ranks["value"] = 4 * ranks["level"] * (1 - ranks["level"])
    wide = draws["kind"] == "posterior"
    draws.loc[wide, "value"] = 2 + 3 * draws.loc[wide, "value"]
    return dataclasses.replace(
        results, runs=runs, curves=curves, history=history, ranks=ranks, draws=draws
    )


# What a figure says


def lines(axis):
    """The labelled lines of an axis."""
    return {line.get_label(): line for line in axis.lines if line.get_label()[0] != "_"}


def test_the_log_posterior_is_the_median_and_the_range():
    figure = draw("log_posterior", sweep())
    assert [axis.get_title() for axis in figure.axes] == ["slcp", "weinberg"]
    runs = sweep().runs
    own = runs[(runs["problem"] == "weinberg") & (runs["method"] == "calnre")]
    groups = own.groupby("budget")["log_posterior"]
    drawn_line = lines(figure.axes[1])["CalNRE"]
    np.testing.assert_allclose(drawn_line.get_xdata(), groups.median().index)
    np.testing.assert_allclose(drawn_line.get_ydata(), groups.median())
    band = figure.axes[1].collections[stores.METHODS.index("calnre")]
    heights = band.get_paths()[0].vertices[:, 1]
    assert set(groups.min().round(9)) | set(groups.max().round(9)) <= set(heights.round(9))
    prior = lines(figure.axes[1])["prior"].get_ydata()
    np.testing.assert_allclose(prior, own["log_prior"].median())


def test_the_auc_is_the_mean_with_two_standard_deviations():
    figure = draw("auc", sweep())
    runs = sweep().runs
    groups = runs[(runs["problem"] == "slcp") & (runs["method"] == "nre")].groupby("budget")["auc"]
    np.testing.assert_allclose(lines(figure.axes[0])["NRE"].get_ydata(), groups.mean())
    heights = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx((groups.mean() - 2 * groups.std()).min())
    assert heights.max() == pytest.approx((groups.mean() + 2 * groups.std()).max())


def test_coverage_shows_every_seed_and_the_mean():
    figure = draw("coverage", sweep())
    assert len(figure.axes) == 4
    first = figure.axes[0]
    assert {"cautious", "over-confident"} <= {t.get_text() for t in first.texts}
    thin = [c for c in first.collections if isinstance(c, LineCollection)]
    assert [len(c.get_segments()) for c in thin] == [3, 3, 3, 2, 3]  # a seed of NPE failed
    curves = sweep().curves
    own = curves[(curves["problem"] == "slcp") & (curves["budget"] == 1024)]
    means = own.groupby(["method", "level"])["coverage"].mean()
    thick = [line for line in first.lines if len(line.get_xdata()) == len(stores.LEVELS)]
    for method, line in zip(stores.METHODS, thick, strict=True):
        np.testing.assert_allclose(line.get_ydata(), means[method])


@pytest.mark.parametrize("name", ["coverage", "log_posterior", "auc", "tradeoff"])
def test_missing_seeds_are_named(name):
    assert "NPE slcp 1,024: 2 of 3 seeds" in notes(draw(name, sweep()))
    complete = stores.synthetic_results(budgets=BUDGETS)
    assert not re.search(r"\d of 3 seeds", notes(draw(name, complete)))


def test_a_cell_without_a_finished_run_says_so():
    lost = [({"problem": "slcp", "budget": 4096}, "out of memory")]
    figure = draw("coverage", stores.synthetic_results(budgets=BUDGETS, failed=lost))
    empty = [a for a in figure.axes if "no finished run" in [t.get_text() for t in a.texts]]
    assert empty == [figure.axes[1]]
    assert "and 2 more cells with fewer seeds" in notes(figure)


def test_a_number_that_is_not_finite_counts_as_missing():
    runs = sweep().runs.copy()
    row = runs[(runs["method"] == "nre") & (runs["seed"] == 1)].index[0]
    runs.loc[row, "log_posterior"] = np.nan
    assert "NRE slcp 1,024: 2 of 3 seeds" in notes(log_posterior(runs))


def test_settings_are_never_averaged():
    figure = draw("coverage", scan())
    curves = scan().curves.merge(scan().runs[["run", "weight", "num_samples"]], on="run")
    curves["weight"] = curves["weight"].fillna(5.0)
    settings = [(0.5, 16), (5.0, 4), (5.0, 16), (5.0, 64), (50.0, 16)]
    names = [handle.get_label() for handle in figure.legends[0].legend_handles]
    assert names == ["NRE", *(f"CalNRE (weight {w:g}, num_samples {n})" for w, n in settings)]
    thick = [line for line in figure.axes[0].lines if len(line.get_xdata()) == len(stores.LEVELS)][
        1:
    ]
    looks = {(line.get_linestyle(), line.get_marker()) for line in thick}
    assert len(looks) == len(settings)
    for line, (weight, number) in zip(thick, settings, strict=True):
        own = curves[(curves["weight"] == weight) & (curves["num_samples"] == number)]
        own = own[own["method"] == "calnre"]
        np.testing.assert_allclose(line.get_ydata(), own.groupby("level")["coverage"].mean())


def test_a_bare_table_that_hides_its_settings_is_refused():
    with pytest.raises(InputError, match="several runs of one seed"):
        coverage(scan().curves)
    assert len(coverage(sweep().curves).axes) == 4


def test_the_target_of_the_penalty_is_in_the_title():
    twin = stores.synthetic_results(("slcp",), training=[{"target": "calibrated"}])
    assert "target calibrated" in draw("coverage", twin).get_suptitle()
    assert "target" not in draw("coverage", sweep()).get_suptitle()


def test_the_tradeoff_is_of_means():
    figure = draw("tradeoff", sweep())
    runs = sweep().runs
    own = runs[(runs["problem"] == "slcp") & (runs["method"] == "nre")]
    mean = own.groupby("budget")[["information_gain", "worst_shortfall"]].mean()
    np.testing.assert_allclose(figure.axes[0].lines[0].get_xydata(), mean)
    assert "Best is the lower right" in notes(figure)


def test_overhead_is_relative_to_the_plain_method():
    figure = draw("overhead", scan())
    runs = scan().runs
    pace = runs["train_seconds"] / runs["epochs"]
    plain = pace[runs["method"] == "nre"].mean()
    own = runs[(runs["method"] == "calnre") & runs["weight"].isin([np.nan, 5.0])]
    expected = (pace / plain)[own.index].groupby(own["num_samples"]).mean()
    line = next(line for line in figure.axes[0].lines if len(line.get_xdata()) == 3)
    np.testing.assert_array_equal(line.get_xdata(), DRAWS)
    np.testing.assert_allclose(line.get_ydata().astype(float), expected)
    assert figure.axes[0].get_ylabel() == "times as long"


def test_overhead_without_the_plain_method_is_in_seconds():
    variants = [{"num_samples": number} for number in DRAWS]
    results = stores.synthetic_results(("slcp",), ("calnpe",), (1024,), (0, 1), training=variants)
    figure = draw("overhead", results)
    assert figure.axes[0].get_ylabel() == "seconds per epoch"
    line = next(line for line in figure.axes[0].lines if len(line.get_xdata()) == 3)
    runs = results.runs
    pace = (runs["train_seconds"] / runs["epochs"]).groupby(runs["num_samples"]).mean()
    np.testing.assert_allclose(line.get_ydata().astype(float), pace)


@pytest.mark.parametrize("patience", [None, 20, 19])
def test_overhead_draws_runs_that_cannot_stop_early(patience):
    """The runs have 20 epochs, of which the first is progress."""
    variants = [{"num_samples": number, "patience": patience} for number in DRAWS]
    results = stores.synthetic_results(("slcp",), ("calnpe",), (1024,), (0, 1), training=variants)
    if patience == 19:
        with pytest.raises(InputError, match="differ in `num_samples`"):
            draw("overhead", results)
        return
    assert "stop early" not in notes(draw("overhead", results))
    early = [{**one, "patience": 19} for one in variants]
    options = {"training": [*variants, *early]}
    both = stores.synthetic_results(("slcp",), ("calnpe",), (1024,), (0, 1), **options)
    assert "6 runs that may stop early not drawn" in notes(draw("overhead", both))


def test_overhead_is_per_network():
    folds = {"members": 6, "ensemble": "folds"}
    variants = [{"num_samples": number, **folds} for number in DRAWS]
    results = stores.synthetic_results(("slcp",), ("calnpe",), (1024,), (0, 1), training=variants)
    figure, runs = draw("overhead", results), results.runs
    line = next(line for line in figure.axes[0].lines if len(line.get_xdata()) == 3)
    pace = (runs["train_seconds"] / (runs["epochs"] * 6)).groupby(runs["num_samples"]).mean()
    np.testing.assert_allclose(line.get_ydata().astype(float), pace)


@pytest.mark.parametrize(
    ("name", "values"), [("sensitivity_weight", WEIGHTS), ("sensitivity_samples", DRAWS)]
)
def test_sensitivity_varies_one_setting(name, values):
    figure = draw(name, scan())
    left, middle, right = figure.axes
    shown = [
        line.get_label() for line in left.lines if len(line.get_xdata()) == len(stores.LEVELS)
    ]
    assert shown == [f"{value:g}" for value in values] + ["NRE, 1,024 simulations"]
    ticks = [tick.get_text() for tick in middle.get_xticklabels()]
    assert ticks == [f"{value:g}" for value in values]
    setting = {"sensitivity_weight": "weight", "sensitivity_samples": "num_samples"}[name]
    runs = scan().runs[scan().runs["method"] == "calnre"].copy()
    runs["weight"] = runs["weight"].fillna(5.0)
    other = {"weight": ("num_samples", 16), "num_samples": ("weight", 5.0)}[setting]
    groups = runs[runs[other[0]] == other[1]].groupby(setting)
    np.testing.assert_allclose(middle.lines[0].get_ydata(), groups["auc"].mean())
    np.testing.assert_allclose(right.lines[0].get_ydata(), groups["log_posterior"].median())


def test_ranks_are_drawn_with_their_bands():
    ranks = thorough().ranks
    first = ranks[ranks["run"] == ranks["run"].iloc[0]]
    figure = draw("sbc", thorough())
    names = ["service_bound_1", "service_bound_2", "arrival_rate"]
    assert [axis.get_title().split(",")[0] for axis in figure.axes] == names
    for axis, name in zip(figure.axes, names, strict=True):
        own = first[first["parameter"] == name]
        np.testing.assert_allclose(axis.lines[1].get_xydata(), own[["level", "value"]])
        heights = axis.collections[0].get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == (own["lower"].min(), own["upper"].max())
    own = first[first["test"] == "tarp"]
    axis = draw("tarp", thorough()).axes[0]
    np.testing.assert_allclose(axis.lines[1].get_xydata(), own[["level", "value"]])


def test_the_example_of_ranks_teaches_what_a_band_is():
    """A curve leaves its band where p is small, and the example has one of each."""
    seen = set()
    ranks = thorough().ranks
    for _, own in ranks.groupby(["run", "test", "parameter"]):
        inside = own["value"].between(own["lower"], own["upper"]).all()
        if own["p_value"].iloc[0] < 0.05:
            assert not inside
        seen.add((own["p_value"].iloc[0] < 0.05, bool(inside)))
    assert {(True, False), (False, True)} <= seen


def test_the_corner_is_a_lower_triangle_with_the_truth():
    figure = draw("corner", thorough())
    assert len(figure.axes) == 6
    draws = thorough().draws
    truth = draws[draws["kind"] == "truth"].drop_duplicates("parameter").set_index("parameter")
    mark = figure.axes[1].lines[-1].get_xydata()[0]
    np.testing.assert_allclose(mark, truth["value"][["service_bound_1", "service_bound_2"]])
    bare = dataclasses.replace(thorough(), draws=draws[draws["kind"] == "posterior"])
    figure = draw("corner", bare)
    assert "exact" not in words(figure)
    assert "truth" not in words(figure)


def test_the_corner_ends_at_the_bounds_of_the_prior():
    """If the run has stored them; densities are reflected there."""
    draws = thorough().draws
    draws = draws[draws["run"] == draws["run"].iloc[0]]
    shown = draws[draws["kind"] != "truth"]
    ends = [
        shown.groupby("parameter", sort=False)["value"]
        .quantile(end)
        .reset_index()
        .assign(draw=place)
        for place, end in enumerate((0.01, 0.99))
    ]
    keys = {name: draws[name].iloc[0] for name in ("run", "problem", "method", "budget", "seed")}
    bounds = pd.concat(ends).assign(kind="bounds", **keys)
    figure = draw("corner", dataclasses.replace(thorough(), draws=pd.concat((draws, bounds))))
    first = draws["parameter"].iloc[0]
    low, high = bounds[bounds["parameter"] == first].sort_values("draw")["value"]
    rulers = {line.get_xdata()[0] for line in figure.axes[0].lines if len(line.get_xdata()) == 2}
    assert {low, high} <= rulers
    (density,) = [part for part in figure.axes[0].collections if len(part.get_paths())][:1]
    reached = density.get_paths()[0].vertices[:, 0]
    assert (reached.min(), reached.max()) == pytest.approx((low, high))


def test_history_has_the_terms_of_the_run():
    curves = sweep().history
    run = curves[curves["method"] == "calnre"]["run"].iloc[0]
    figure = draw("history", sweep(), run=run)
    labels = [axis.get_ylabel() for axis in figure.axes]
    assert labels == ["objective", "coverage penalty", "gradient norm", "learning rate"]
    own = curves[curves["run"] == run]
    kept = own[own["selected"]]["epoch"].max()
    assert lines(figure.axes[0])["epoch that was kept"].get_xdata()[0] == kept
    np.testing.assert_allclose(lines(figure.axes[0])["training"].get_ydata(), own["loss"])


@pytest.mark.parametrize("name", ["run_coverage", "history", "sbc", "tarp", "corner"])
def test_figures_of_one_run_say_which(name):
    results = results_for(name)
    table = getattr(results, figures.get(name).table)
    last = table["run"].iloc[-1]
    assert table["run"].iloc[0] in draw(name, results).get_suptitle().replace("\n", " ")
    assert last in draw(name, results, run=last[:8]).get_suptitle().replace("\n", " ")
    with pytest.raises(InputError, match="0 runs .* begin with `nothing`"):
        draw(name, results, run="nothing")


def corners(*ends):
    """The points of a band, without its ends."""
    return {
        (float(x), round(float(y), 6))
        for end in ends
        for x, y in zip(stores.LEVELS, end, strict=True)
    }


def bands(axis):
    """The points of the bands of the verdict."""
    drawn = [c.get_paths()[0].vertices for c in axis.collections if c.get_alpha() == 0.35]
    inner = [path[(path[:, 0] > 0) & (path[:, 0] < 1)] for path in drawn]
    return [{(round(x, 6), round(y, 6)) for x, y in path.tolist()} for path in inner]


def expected_bands(*numbers):
    return [corners(*band(number, tuple(stores.LEVELS))) for number in numbers]


@pytest.mark.parametrize("name", ["coverage", "run_coverage"])
@pytest.mark.parametrize("number", [300, 2000])
def test_the_band_of_coverage_is_that_of_the_verdict(name, number):
    results = stores.synthetic_results(("slcp",), ("nre",), (1024,), (0,))
    results = dataclasses.replace(results, runs=results.runs.assign(num_pairs=number))
    figure = draw(name, results)
    (axis,) = figure.axes
    assert bands(axis) == expected_bands(number)
    assert f"({number:,} test pairs)" in notes(figure)
    assert axis.get_xlabel() == "credibility level"
    assert axis.get_ylabel().replace("\n", " ").endswith("share of truths inside the region")


def test_the_band_of_several_seeds_is_that_of_all_their_pairs():
    first, second, *_ = draw("coverage", sweep()).axes
    assert bands(first) == expected_bands(4000, 6000)  # a seed of NPE failed
    assert bands(second) == expected_bands(6000)


def single(**changes):
    results = stores.synthetic_results(("slcp",), ("nre", "npe"), BUDGETS, (0,))
    return dataclasses.replace(results, runs=results.runs.assign(**changes))


@pytest.mark.parametrize("name", ["auc", "log_posterior"])
def test_one_seed_has_the_error_that_its_run_stores(name):
    figure = draw(name, single(**{f"{name}_error": 0.5}))
    own = single().runs.query("method == 'nre'").set_index("budget")[name]
    heights = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(own.min() - 1.96 * 0.5, abs=1e-3)
    assert heights.max() == pytest.approx(own.max() + 1.96 * 0.5, abs=1e-3)
    assert "One seed, with 95 % over its test pairs" in notes(figure)
    assert "One seed" not in notes(draw(name, sweep()))


def test_the_tradeoff_has_bars_and_no_negative_shortfall():
    changes = {"worst_shortfall": 0.01, "shortfall_bound": 0.03}
    figure = draw("tradeoff", single(information_gain_error=0.5, **changes))
    bars = [c for c in figure.axes[0].collections if isinstance(c, LineCollection)]
    across, upright = (np.array(bars[place].get_segments()) for place in (0, 1))
    np.testing.assert_allclose(np.ptp(across[..., 0], axis=1), 2 * 1.96 * 0.5, atol=1e-3)
    assert (upright[..., 1].min(), upright[..., 1].max()) == pytest.approx((0.01, 0.03))
    assert "over-confident" in words(figure)
    assert figure.axes[0].patches[0].get_y() == pytest.approx(MOST_MISSED)


@pytest.mark.parametrize("shortfall", [0.0, 0.02, 0.4])
def test_no_word_of_the_tradeoff_lies_on_a_marker(shortfall):
    figure = draw("tradeoff", single(worst_shortfall=shortfall))
    pixels(figure)
    (axis,) = figure.axes
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [text.get_window_extent(renderer) for text in axis.texts]
    assert boxes
    for line in axis.lines:
        for point in axis.transData.transform(line.get_xydata()):
            assert not any(box.padded(4).contains(*point) for box in boxes)


def test_budgets_and_units_are_named():
    figure = draw("coverage", sweep())
    assert [axis.get_title() for axis in figure.axes[:2]] == [
        "1,024 simulations",
        "4,096 simulations",
    ]
    assert draw("log_posterior", sweep()).axes[0].get_ylabel() == "log posterior (nats)"
    assert draw("tradeoff", sweep()).axes[0].get_xlabel() == "information gain (nats)"


def test_a_notebook_shows_a_figure_by_itself():
    for figure in (draw("coverage", sweep()), draw("run_coverage", sweep())):
        with Image.open(io.BytesIO(figure._repr_png_())) as image:
            assert image.width > 300
            assert image.getextrema()[0][0] < 50  # something is drawn


def test_intuition_is_computed():
    points = np.linspace(-6, 4.5, 20_001)
    narrow, truth = Mixture((0.7, 0.2)), Mixture((0.9, 0.4))
    inside = narrow.density(points) >= mass_level(narrow.density(points), 0.9)
    step = points[1] - points[0]
    assert step * narrow.density(points)[inside].sum() == pytest.approx(0.9, abs=1e-3)
    assert np.diff(inside.astype(int)).tolist().count(1) == 2  # two segments, as in the paper
    exact = step * truth.density(points)[inside].sum()
    said = re.search(r"holds (\d+) ± (\d+) %", notes(draw("intuition", sweep())))
    assert abs(float(said[1]) / 100 - exact) < 3 * float(said[2]) / 100 + 0.005
    assert truth.draw(20_000, 1).mean() == pytest.approx(np.dot((0.7, 0.3), MODES), abs=0.05)


@pytest.mark.parametrize("name", ["run_coverage", "tarp", "intuition", "tradeoff"])
def test_axes_of_the_user_are_used(name):
    figure = Figure()
    axes = figure.subplots(1, 2)
    results = stores.synthetic_results(("slcp",)) if name == "tradeoff" else results_for(name)
    assert draw(name, results, ax=axes[1]) is figure
    assert axes[1].has_data()
    assert not axes[0].has_data()
    assert not figure.legends


def test_one_axis_is_not_for_two_problems():
    with pytest.raises(InputError, match="one problem"):
        tradeoff(sweep().runs, ax=Figure().subplots())


def test_methods_differ_without_colour():
    markers = [methods.look(name).marker for name in methods.METHODS]
    assert len(set(markers)) == len(markers)
    variants = [Series("nre", "", number).line for number in range(8)]
    assert len({(one["linestyle"], one["marker"]) for one in variants}) == len(variants)


def test_a_store_on_disk_gives_the_same_figures(tmp_path):
    names = (("slcp",), ("nre", "calnpe"), (1024, 4096), (0, 1))
    failed = (({"method": "nre", "budget": 4096, "seed": 1}, "diverged"),)
    root = stores.write_store(tmp_path, *names, failed=failed, thorough=True)
    stored = load_results(root)
    made = stores.synthetic_results(*names, failed=failed, thorough=True)
    for name in ("coverage", "auc", "tradeoff", "log_posterior"):
        assert figures.svg(draw(name, stored)) == figures.svg(draw(name, made))
    run = made.draws["run"].iloc[-1]
    for name in ("history", "sbc", "tarp", "corner"):
        assert figures.svg(draw(name, stored, run=run)) == figures.svg(draw(name, made, run=run))
    assert run_coverage(stored.curves).axes


if __name__ == "__main__":
    made = {name: to_hex(fingerprint(draw(name, results_for(name)))) for name in NAMES}
    REFERENCES.parent.mkdir(exist_ok=True)
    REFERENCES.write_text(json.dumps(made, indent=2, sort_keys=True) + "\n")
