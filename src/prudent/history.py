"""The history of a training, a row per epoch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

from prudent._extras import require
from prudent.errors import InputError

PANELS = {
    "loss": "objective",
    "coverage": "coverage penalty",
    "balance": "balance",
    "shortfall": "worst shortfall",
    "effective_samples": "effective draws",
    "gradient_norm": "gradient norm",
    "learning_rate": "learning rate",
}
# Draws that are worth fewer than this say nothing about the posterior.
FEWEST_DRAWS = 2.0
# A penalty that is satisfied, and a shortfall on validation pairs that it should have prevented.
SATISFIED, SHORT = 1e-3, 0.05


class History(list[dict[str, Any]]):
    r"""One row per epoch; the values are ready for JSON, so a number that is not finite is None.

    >>> history = History()
    >>> history.append({"epoch": 1, "loss": float("nan"), "validation_loss": 0.5})
    >>> history
    <History: 1 epochs, best validation loss 0.5 in epoch 1>
    >>> history.to_jsonl()
    '{"epoch": 1, "loss": null, "validation_loss": 0.5}\n'
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        super().__init__(map(finite, rows))

    def append(self, row: Mapping[str, Any]) -> None:
        """Add the row of an epoch."""
        super().append(finite(row))

    def column(self, name: str) -> list[float]:
        """One quantity over the epochs, NaN where it is missing."""
        values = (row.get(name) for row in self)
        return [math.nan if value is None else float(value) for value in values]

    def to_jsonl(self, *, times: bool = True) -> str:
        """JSON lines; without times they are the same for every repetition of a run."""
        rows = self if times else ({k: v for k, v in r.items() if k != "seconds"} for r in self)
        return "".join(json.dumps(row, sort_keys=True, allow_nan=False) + "\n" for row in rows)

    @classmethod
    def from_jsonl(cls, text: str) -> History:
        """The inverse of :meth:`to_jsonl`."""
        return cls(json.loads(line) for line in text.splitlines() if line)

    def notes(self) -> list[str]:
        """Sentences on the coverage penalty itself; mostly none.

        One sentence says that its draws carried no information until the end, another that it is
        satisfied on training pairs while regions fall short on validation pairs. Each is about
        the worst member of an ensemble.

        >>> rows = ({"epoch": epoch, "effective_samples": 4 / epoch} for epoch in range(1, 5))
        >>> History(rows).notes()[0][:63]
        "the penalty's draws carried no information from epoch 3 on (wor"
        """
        numbers = sorted({row.get("member", 0) for row in self})
        members = [
            History(row for row in self if row.get("member", 0) == number) for number in numbers
        ]
        blind = [found for member in members if (found := member._blind())]
        unseen = [gap for member in members if (gap := member._unseen())]
        notes = []
        if blind:
            worth, when = min(blind)
            notes.append(
                f"the penalty's draws carried no information {when} (worth {worth:.1f} of equal "
                f'weight){_of(blind, members)}; use proposal="nominal" for ratios or "model" for '
                "flows."
            )
        if unseen:
            short, coverage = max(unseen)
            notes.append(
                f"the penalty is satisfied on the training pairs ({coverage:.2g}) while regions "
                f"fall short by {short:.2f} on validation pairs{_of(unseen, members)}: average "
                'members (method="prudent") or recalibrate.'
            )
        return notes

    def _blind(self) -> tuple[float, str] | None:
        """The worth of the draws when it was too little to the end or where weights were kept."""
        known = [row for row in self if row.get("effective_samples") is not None]
        few = [*takewhile(lambda row: row["effective_samples"] < FEWEST_DRAWS, reversed(known))]
        if few:
            return float(few[0]["effective_samples"]), f"from epoch {few[-1].get('epoch')} on"
        best = self._best()
        if best in known and best["effective_samples"] < FEWEST_DRAWS:
            return float(best["effective_samples"]), f"in the best epoch, {best.get('epoch')}"
        return None

    def _unseen(self) -> tuple[float, float] | None:
        """The shortfall on validation pairs and the penalty on training pairs, if they differ."""
        best = self._best() or {}
        short, coverage = (best.get(name) for name in ("validation_shortfall", "coverage"))
        # Of an exact posterior, N pairs fall short by as much as this with 5 %.
        number = best.get("validation_pairs")
        chance = math.sqrt(math.log(20) / 2 / number) if number else 0.0
        if short is None or coverage is None or short <= SHORT + chance or coverage >= SATISFIED:
            return None
        return float(short), float(coverage)

    def _best(self) -> dict[str, Any] | None:
        """The row with the least validation loss, whose weights are kept."""
        known = [row for row in self if row.get("validation_loss") is not None]
        return min(known, key=lambda row: float(row["validation_loss"]), default=None)

    def plot(self) -> Any:
        """The training curves, one panel per quantity that changed, as a matplotlib figure."""
        if not self:
            raise InputError("the history is empty; only a trained estimator has training curves.")
        require("matplotlib", "report", "figures")
        from prudent import _plots

        return _plots.training_curves(self, PANELS)

    def __repr__(self) -> str:
        row = self._best()
        if row is None:
            return f"<History: {len(self)} epochs>"
        return (
            f"<History: {len(self)} epochs, best validation loss {row['validation_loss']:.4g} "
            f"in epoch {row.get('epoch')}>"
        )


def _of(found: list[Any], members: list[History]) -> str:
    """The number of members that a note is about, if there are several."""
    return f", in {len(found)} of {len(members)} members" if len(members) > 1 else ""


def finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with None in place of every number that is not finite."""
    lost = [name for name, v in row.items() if isinstance(v, float) and not math.isfinite(v)]
    return {**row, **dict.fromkeys(lost)}
