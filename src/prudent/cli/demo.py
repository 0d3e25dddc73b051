"""``prudent demo``."""

import dataclasses
import shutil
from pathlib import Path

import click

from prudent._extras import require
from prudent.cli.options import debug, output, quiet, seed
from prudent.cli.output import check_writable, progress, say, show
from prudent.errors import StoreError
from prudent.experiments import store
from prudent.experiments.launch import SHIPPED, LaunchOptions, Overview, launch
from prudent.experiments.store import states
from prudent.experiments.sweep import read_sweep


@click.command()
@output(default="runs/demo", help="Directory for the runs.")
@seed
@quiet
@debug
def demo(output: str, seed: int) -> None:
    """Train NPE, NRE, CalNRE and the recommended estimator on SLCP and compare them.

    \b
    Examples:
      prudent demo
      prudent demo -o runs/other --seed 1
    """
    require("pandas", "report", "reports")
    require("matplotlib", "report", "figures")
    root = Path(output)
    plan = read_sweep(SHIPPED / "demo.toml", [f"seed={seed}"])
    plan = dataclasses.replace(plan, source="demo.toml")
    say(
        f"{len(plan.configs)} runs: NPE, NRE, CalNRE and the recommended estimator with the same "
        f"settings on 1,024 simulations of SLCP, measured on {plan.configs[0].num_test:,} new "
        "ones. About 3 minutes on 2 cores; finished runs are kept."
    )
    check_writable(root)
    found = states(plan.configs, root)
    ended = launch(Overview(plan, root, LaunchOptions(workers=2), found), progress()).found
    if failed := [one for one in ended if one.state != "done"]:
        details = store.unfinished_path(root / failed[0].config.identity) / store.ERROR
        raise StoreError(
            f"{len(failed)} of {len(ended)} runs failed, the first with: {failed[0].note} "
            f"Details: {details}. Finished runs are kept."
        )
    finished = [store.read(root / config.identity) for config in plan.configs]
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
