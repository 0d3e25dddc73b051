"""Tables of finished runs, with the same rounding everywhere."""

from collections.abc import Sequence

from prudent.experiments.store import Run
from prudent.reports.numbers import number

COLUMNS = (
    "problem",
    "method",
    "budget",
    "seed",
    "AUC",
    "worst shortfall",
    "log posterior",
    "log prior",
    "test pairs",
    "train",
)


def rows(runs: Sequence[Run]) -> list[list[str]]:
    """One row of text per run; a number that was not finite shows as a dash."""
    return [
        [
            run.config.problem,
            run.config.method,
            f"{run.config.budget:,}",
            str(run.config.seed),
            number(run.metrics.get("auc"), "+.3f"),
            number(run.metrics.get("worst_shortfall"), ".3f"),
            f"{number(run.metrics.get('log_posterior'), '.2f')} ± "
            f"{number(run.metrics.get('log_posterior_error'), '.2f')}",
            number(run.metrics.get("log_prior"), ".2f"),
            f"{run.metrics['num_pairs']:,}",
            number(run.timing["seconds"]["train"], "s"),
        ]
        for run in runs
    ]


def text(runs: Sequence[Run], width: int = 100) -> str:
    """A table for the terminal; columns drop from the right until it fits."""
    table = [list(COLUMNS), *rows(runs)]
    sizes = [max(len(row[i]) for row in table) for i in range(len(COLUMNS))]
    shown = len(COLUMNS)
    while shown > 1 and sum(sizes[:shown]) + 2 * (shown - 1) > width:
        shown -= 1
    lines = [
        "  ".join(
            cell.ljust(size) if i < 2 else cell.rjust(size)
            for i, (cell, size) in enumerate(zip(row[:shown], sizes, strict=False))
        ).rstrip()
        for row in table
    ]
    return "\n".join(lines)
