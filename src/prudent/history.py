"""What happened in each epoch of a training."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
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

    def plot(self) -> Any:
        """The training curves, one panel per quantity that changed, as a matplotlib figure."""
        if not self:
            raise InputError("the history is empty; only a trained estimator has training curves.")
        require("matplotlib", "report", "figures")
        from prudent import _plots

        return _plots.training_curves(self, PANELS)

    def __repr__(self) -> str:
        best = [row for row in self if row.get("validation_loss") is not None]
        if not best:
            return f"<History: {len(self)} epochs>"
        row = min(best, key=lambda row: float(row["validation_loss"]))
        return (
            f"<History: {len(self)} epochs, best validation loss {row['validation_loss']:.4g} "
            f"in epoch {row.get('epoch')}>"
        )


def finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with None in place of every number that is not finite."""
    lost = [name for name, v in row.items() if isinstance(v, float) and not math.isfinite(v)]
    return {**row, **dict.fromkeys(lost)}
