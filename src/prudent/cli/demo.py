"""``prudent demo``."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from prudent._extras import require
from prudent.cli.options import debug, quiet, seed
from prudent.cli.output import check_writable, say, show


@click.command()
@click.option("-o", "--output", default="runs/demo", help="Directory for the runs.")
@seed
@quiet
@debug
def demo(output: str, seed: int, quiet: bool) -> None:
    """Train NRE, BNRE and CalNRE on SLCP and compare their coverage.

    \b
    Examples:
      prudent demo
      prudent demo -o runs/other --seed 1
    """
    from prudent.experiments.demo import configs

    require("pandas", "report", "reports")
    require("matplotlib", "report", "figures")
    root = Path(output)
    runs = configs(seed)
    say(
        f"{len(runs)} runs: NRE, BNRE and CalNRE on 1,024 and on 4,096 simulations of SLCP, each "
        f"measured on {runs[0].num_test:,} new ones. About 4 minutes on 2 cores; finished runs "
        "are kept.",
        quiet=quiet,
    )
    check_writable(root)
    from prudent.experiments.runner import run_all

    finished = run_all(runs, root, progress=False if quiet else None)
    from prudent.experiments import load_results
    from prudent.reports.figures import draw, save
    from prudent.reports.html import write_report
    from prudent.reports.tables import text

    results = load_results(root)
    write_report(results, root / "report.html", directory=root)
    save(draw("coverage", results), root / "coverage.png", dpi=150)
    show(text(finished, shutil.get_terminal_size().columns) + "\n")
    for run in finished:
        show(f"{run.config}: {run.verdict}")
    show(f"Report: {root / 'report.html'}")
    show("Next: prudent train --help")
