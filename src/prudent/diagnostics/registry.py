"""The table of the diagnostics of a thorough diagnosis.

:func:`prudent.diagnose` runs every row and keeps its result; a thorough run stores the scalars and
the records of the result under the name of the row, and ``load_results(...).table(name)`` gives
the records back. So a new diagnostic is a function in a file of its own, a row here and, if it is
to be drawn, a figure.

>>> list(DIAGNOSTICS)
['sbc', 'tarp', 'local_coverage']
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prudent.datasets import Pairs
from prudent.diagnostics.expected_coverage import Measurement
from prudent.diagnostics.local_coverage import LocalCoverage, local_coverage
from prudent.diagnostics.ranks import Ranks, parameters
from prudent.diagnostics.sbc import sbc
from prudent.diagnostics.tarp import tarp

# A tree finds regions in observations of at most so many numbers.
MOST_FEATURES = 100


@dataclass(frozen=True)
class Evidence:
    """What is known of the test pairs when the diagnostics run.

    Args:
        measurement: Alpha, log posterior and moments of each pair.
        ranks: The ranks of the truths among posterior draws.
        pairs: The test pairs.
        names: The D names of the parameters, or None.
        seed: The seed of whatever a diagnostic draws.
    """

    measurement: Measurement
    ranks: Ranks
    pairs: Pairs
    names: Sequence[str] | None
    seed: int


class Result(Protocol):
    """What a diagnostic returns."""

    @property
    def verdict(self) -> str:
        """The result in one line."""

    def metrics(self) -> dict[str, Any]:
        """The scalars, by names that no other diagnostic uses, ready for JSON."""

    def rows(self) -> list[dict[str, Any]]:
        """The records to store, ready for JSON; lists in a record are columns of equal length."""


@dataclass(frozen=True)
class Diagnostic:
    """A row of the table.

    Args:
        name: The name of the diagnostic and of its table of results.
        title: The words before its verdict.
        function: The function from the evidence to the result.
        figure: The name of its figure in :mod:`prudent.reports.figures`, if it has one.
        needs: The module and the extra of a library that it needs, if any.
    """

    name: str
    title: str
    function: Callable[[Evidence], Result]
    figure: str | None = None
    needs: tuple[str, str] | None = None


def _by_region(evidence: Evidence) -> LocalCoverage:
    """Coverage by region of x; where x is large, of the posterior mean, which x determines."""
    alpha, means, x = evidence.measurement.alpha, evidence.measurement.mean, evidence.pairs.x
    if x[0].numel() <= MOST_FEATURES:
        return local_coverage(alpha, x, seed=evidence.seed)
    names = [f"posterior mean of {name}" for name in parameters(means.shape[1], evidence.names)]
    return local_coverage(alpha, means, names=names, seed=evidence.seed)


_ROWS = (
    Diagnostic("sbc", "SBC", lambda evidence: sbc(evidence.ranks), "sbc"),
    Diagnostic("tarp", "TARP", lambda evidence: tarp(evidence.ranks, seed=evidence.seed), "tarp"),
    Diagnostic("local_coverage", "by region", _by_region, needs=("sklearn", "distances")),
)
DIAGNOSTICS = {row.name: row for row in _ROWS}
