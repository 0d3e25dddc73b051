"""From an observation in a file to an answer: its posterior, a verdict, and draws on disk."""

import csv
import io
import math
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prudent._arrays import MOST_AT_ONCE
from prudent._files import write_atomic
from prudent.datasets.readers import names_in, read_array
from prudent.diagnostics.verdict import Verdict
from prudent.errors import DataError, InputError
from prudent.estimators.summaries import Summaries, to_arviz
from prudent.experiments import store
from prudent.loading import load
from prudent.recalibration.conformal import Conformal

NOT_MEASURED = (
    "not measured: a model file does not tell on which pairs it was tested. Name the directory of "
    "its run, or test it with prudent.diagnose."
)
DOUBT = "the intervals below may be too narrow; do not rely on them before the verdict is better."


@dataclass(frozen=True, eq=False)
class Answer:
    """The posterior of one observation, and what is known of the estimator that made it.

    Args:
        posterior: The posterior.
        verdict: The verdict of the run, or by pairs that members did not see, or None.
        x: The observation, ``(1, *x_shape)``.
        name: What the observation is called in a report.
    """

    posterior: Summaries
    verdict: Verdict | None
    x: Tensor
    name: str = "my observation"

    @property
    def judged(self) -> str:
        """The verdict as text, or why there is none."""
        return str(self.verdict or NOT_MEASURED)

    def warnings(self) -> list[str]:
        """The warnings to read before the numbers."""
        doubt = [DOUBT] if self.verdict is None or not self.verdict.trusted else []
        return [*doubt, *self.posterior.notes()]

    def facts(self) -> dict[str, Any]:
        """The answer in plain JSON."""
        verdict = None if self.verdict is None else str(self.verdict)
        told = {"verdict": verdict, "near": self.posterior.near, "warnings": self.warnings()}
        return {**told, "summary": self.posterior.records()}

    def __str__(self) -> str:
        lines = [f"Verdict: {self.judged}"]
        lines += [f"Near this observation: {self.posterior.near}"] if self.posterior.near else []
        lines += [f"Warning: {text}" for text in self.warnings()]
        return "\n".join([*lines, "", self.posterior.text()])


def answer(
    path: Path, observation: str, *, x: str | None = None, row: int | None = None
) -> Answer:
    """The answer of a run or a model to an observation in a file.

    Args:
        path: The directory of a run, or the file of a model.
        observation: The file; see :func:`prudent.datasets.readers.read_array`.
        x: The name of the array in the file.
        row: The number of the observation, from 0, if the file holds several.
    """
    run = store.finished(path) if path.is_dir() else None
    verdict = None if run is None else run.verdict
    if run is not None and x is None:
        x = names_in(observation, run.arrays(), {"x": None})["x"]
    found = read_array(observation, "x", x)
    estimator: Any = load(path)
    inner = estimator.inner if isinstance(estimator, Conformal) else estimator
    if verdict is None and getattr(estimator, "out_of_fold", None) is not None:
        verdict = estimator.out_of_fold.verdict
    chosen = torch.from_numpy(_one(found, inner.x_shape, row, observation)).float()
    name = Path(observation).name + ("" if row is None else f", row {row}")
    return Answer(estimator(chosen), verdict, chosen, name)


def _one(
    found: NDArray[np.float64], shape: tuple[int, ...], row: int | None, file: str
) -> NDArray[np.float64]:
    """The chosen observation ``(1, *shape)`` of an array of one or several."""
    if found.shape[1:] != shape:
        size = math.prod(shape)
        # Tables of numbers have a row or a column for an observation, whatever its shape.
        if found.size != size and (found.ndim != 2 or found.shape[1] != size):
            sides = ", ".join(map(str, ("N", *shape)))
            raise DataError(
                f"expected an observation of shape {shape} in {file}, or several ({sides}); got "
                f"{found.shape}."
            )
        found = found.reshape(-1, *shape)
    if row is None and len(found) != 1:
        raise InputError(
            f"{file} holds {len(found):,} observations; choose one with --row, from 0 to "
            f"{len(found) - 1:,}."
        )
    row = row or 0
    if not 0 <= row < len(found):
        raise InputError(f"`row` is {row}; {file} holds rows 0 to {len(found) - 1:,}.")
    return found[row : row + 1]


def truth_of(file: str, name: str | None, row: int | None, names: Sequence[str]) -> Any:
    """The true parameters (D,) in a file, in the row of the observation."""
    return _one(read_array(file, "theta", name), (len(names),), row, file)[0]


def _as_text(name: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name


def write_draws(found: Answer, path: Path, num_samples: int, seed: int) -> list[str]:
    """Draw from the posterior of an answer into a file, ``.npz``, ``.csv`` or ``.nc``.

    Returns:
        What the reader should know about these draws.
    """
    posterior, ending = found.posterior, path.suffix.lower()
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        draws = posterior.sample(num_samples, seed=seed)
        parts = [posterior.log_prob(part)[:, 0].cpu() for part in draws.split(MOST_AT_ONCE)]
    log_prob = torch.cat(parts).numpy()
    theta, buffer = draws[:, 0].cpu(), io.BytesIO()
    if ending == ".npz":
        names = np.array(posterior.names)
        x = found.x.numpy()[0]
        values = {"theta": theta.numpy(), "log_prob": log_prob, "x": x}
        np.savez(buffer, **values, names=names, verdict=np.array(found.judged))
        data = buffer.getvalue()
    elif ending == ".csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*map(_as_text, posterior.names), "log_prob"])
        writer.writerows(np.column_stack([theta.numpy(), log_prob]).tolist())
        data = text.getvalue().encode()
    else:
        facts = {"notes": " ".join(found.warnings()), "verdict": found.judged}
        exported = to_arviz("posterior", theta, posterior.names, facts)
        with tempfile.TemporaryDirectory() as place:
            exported.to_netcdf(str(Path(place, "draws.nc")))
            data = Path(place, "draws.nc").read_bytes()
    write_atomic(path, data)
    return [str(one.message) for one in caught]
