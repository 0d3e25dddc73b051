"""``prudent report``."""

import os
import sys
import webbrowser
from pathlib import Path
from typing import Any

import click

from prudent._extras import require
from prudent._files import check_file
from prudent.cli.options import EXIT_CODES, debug, output, quiet
from prudent.cli.output import check_writable, say, show
from prudent.errors import InputError

FORMATS = ("png", "svg", "pdf")


def complete_formats(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The formats that are not there yet, after those that are."""
    before, comma, last = incomplete.rpartition(",")
    left = (one for one in FORMATS if one not in before.split(","))
    return [before + comma + one for one in left if one.startswith(last)]


@click.command(epilog=EXIT_CODES)
@click.argument("runs", type=click.Path())
@output(default="report.html", help="The file to write.")
@click.option("--figures", type=click.Path(), help="Also write every figure to this directory.")
@click.option(
    "--format",
    "formats",
    default="png",
    help="Formats of these figures: some of png,svg,pdf.",
    shell_complete=complete_formats,
)
@click.option("--dpi", default=300, help="Dots per inch of the figures in PNG.")
@click.option("--run", help="Run of figures of one run: its name, or how its identity begins.")
@click.option(
    "--observation", type=click.Path(), help="File with an observation, whose posterior is shown."
)
@click.option("--x", help="Name of the observation in its file; guessed by default.")
@click.option("--row", type=int, help="Number of the observation in its file, from 0.")
@click.option("--open", "show_it", is_flag=True, help="Open the page in a browser.")
@quiet
@debug
def report(
    runs: str,
    output: str,
    figures: str | None,
    formats: str,
    dpi: int,
    run: str | None,
    observation: str | None,
    x: str | None,
    row: int | None,
    show_it: bool,
) -> None:
    """Write one HTML page about all runs in the directory RUNS.

    The page says which method can be trusted at which budget and what it costs.
    It is one file without links to anywhere, and can be sent.

    \b
    Examples:
      prudent report runs/demo
      prudent report runs/first -o first.html --open
      prudent report runs/smoke --figures figures --format png,svg
      prudent report runs/smoke --figures figures --run 3fa9
      prudent report runs/first --observation x.npy -o first.html
    """
    endings = _endings(formats)
    if not 10 <= dpi <= 2400:
        raise InputError(f"`--dpi` is {dpi}; expected 10 to 2400.")
    if run is not None and figures is None and observation is None:
        raise InputError(
            "`--run` chooses the run of figures or of an observation; add --figures DIRECTORY or "
            "--observation FILE."
        )
    if observation is None and (x is not None or row is not None):
        raise InputError(f"`--{'x' if x is not None else 'row'}` needs --observation.")
    _check_page(Path(output))
    if observation is not None:
        check_file(Path(observation))
    require("pandas", "report", "reports")
    require("matplotlib", "report", "figures")
    for directory in (Path(output).parent, *([Path(figures)] if figures is not None else [])):
        check_writable(directory)
    from prudent.experiments import load_results

    results = load_results(runs)
    chosen = None if run is None else _identity(results, run)
    found = None if observation is None else _answer(results, chosen, observation, x=x, row=row)
    from prudent.reports.html import write_report

    _make(Path(output).parent)
    write_report(results, output, directory=runs, answer=found)
    done = int((results.runs["state"] == "done").sum())
    if found is not None:
        show(f"{found}\n")
    show(f"Report: {output} ({done:,} of {len(results.runs):,} runs finished)")
    if figures is not None:
        _write_figures(results, Path(figures), endings, dpi, chosen)
    if show_it:
        _open(Path(output))


def _check_page(page: Path) -> None:
    """Refuse a directory, or a name that promises something else than a page."""
    if page.is_dir():
        raise InputError(
            f"{page} is a directory; a report is one HTML page: -o {page / 'report.html'}"
        )
    if page.suffix.lower() not in (".html", ".htm"):
        raise InputError(
            f"`{page.name}` is not the name of a page; a report is one HTML page: "
            f"-o {page.with_suffix('.html')} (PDF of figures: --figures DIRECTORY --format pdf)"
        )


def _endings(formats: str) -> list[str]:
    endings = [part.strip().lower() for part in formats.split(",") if part.strip()]
    if not endings or not {*endings} <= {*FORMATS}:
        raise InputError(f"`--format` is {formats!r}; expected some of png,svg,pdf.")
    return endings


def _identity(results: Any, run: str) -> str:
    """The identity of the one run that a name or the beginning of an identity means."""
    done = results.runs[results.runs["state"] == "done"]
    known = {row.run: Path(str(row.path)).name for row in done.itertuples()}
    found = [name for name, place in known.items() if name.startswith(run) or place == run]
    if len(found) != 1:
        some = " ".join((found or list(known))[:5])
        raise InputError(
            f"`--run` {run} is {len(found)} finished runs; expected one, such as {some}"
        )
    return str(found[0])


def _answer(results: Any, run: str | None, observation: str, **options: Any) -> Any:
    """The answer to an observation of the chosen run, or of the only one that is finished."""
    done = results.runs[results.runs["state"] == "done"]
    chosen = done if run is None else done[done["run"] == run]
    if len(chosen) != 1:
        some = " ".join(done["run"].astype(str)[:5])
        raise InputError(
            f"{len(done):,} runs are finished, and an observation is shown by one; choose it with "
            f"--run, such as {some}"
            if len(done)
            else "no run is finished yet."
        )
    say("loading torch ...")
    from prudent.reports.answers import answer

    return answer(Path(chosen["path"].iloc[0]), observation, **options)


def _write_figures(
    results: Any, directory: Path, endings: list[str], dpi: int, run: str | None
) -> None:
    """Draw all that the store has data for, and say what it has none for, and of which run."""
    from prudent.reports.figures import FIGURES, draw, save

    _make(directory)
    written, left_out = 0, []
    for name, entry in FIGURES.items():
        try:
            figure = draw(name, results, **({"run": run} if run and entry.takes_run else {}))
        except InputError as error:
            left_out.append(f"{name} ({error})")
            continue
        for ending in endings:
            save(figure, directory / f"{name}.{ending}", dpi)
            written += 1
    show(f"Figures: {directory} ({written} files)")
    for text in left_out:
        say(f"not drawn: {text}")
    if run is None and int((results.runs["state"] == "done").sum()) > 1:
        single = " ".join(name for name, entry in FIGURES.items() if entry.takes_run)
        say(f"{single}: of the first run, named in the title; choose another with --run")


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {directory}: {error.strerror}.") from error


def _open(page: Path) -> None:
    """Open a browser where there is a screen."""
    graphical = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if not graphical or not webbrowser.open(page.resolve().as_uri()):
        say(f"no browser can be opened here; open {page} yourself.")
