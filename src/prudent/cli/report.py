"""``prudent report``."""

from __future__ import annotations

import click

from prudent.cli.options import debug
from prudent.cli.output import show


@click.command()
@click.argument("runs", type=click.Path(exists=True, file_okay=False))
@click.option("-o", "--output", default="report.html", help="The file to write.")
@debug
def report(runs: str, output: str) -> None:
    """Write one HTML page about all finished runs in the directory RUNS.

    \b
    Examples:
      prudent report runs/demo
      prudent report runs/first -o first.html
    """
    from prudent.experiments.store import load_runs

    found = load_runs(runs)
    from prudent.reports.html import write_report

    write_report(found, output)
    show(f"Report: {output} ({len(found)} finished {'run' if len(found) == 1 else 'runs'})")
