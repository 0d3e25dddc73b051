"""``prudent problems``."""

import click

from prudent import problems
from prudent.cli.options import as_json, debug
from prudent.cli.output import emit, show


@click.command(name="problems")
@as_json
@debug
def list_problems() -> None:
    """List the built-in problems.

    \b
    Examples:
      prudent problems
      prudent problems --json
    """
    if emit("problems", {"problems": problems.DESCRIPTIONS}):
        return
    width = max(map(len, problems.names()))
    for name in problems.names():
        show(f"{name:<{width}}  {problems.DESCRIPTIONS[name]}")
