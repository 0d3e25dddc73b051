"""Several estimators as one: the pool of their posteriors (:mod:`prudent.posteriors.parts`)."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from prudent._settings import positive
from prudent.contracts import Prior
from prudent.errors import InputError
from prudent.estimators.base import NeuralEstimator, Saved, check_floor
from prudent.history import History
from prudent.posteriors.density import Density
from prudent.posteriors.parts import pooled

# The names of the tensors of an out-of-fold diagnosis begin with this.
OUT_OF_FOLD = "out_of_fold."


class Ensemble(Saved):
    """The pool of estimators of one kind, itself an estimator.

    Args:
        members: The estimators, with the same prior and shapes.
        fold: For cross-fitted members, the member that did not train on each pair, (N,).
        temperature: The number by which the log of posterior over prior is divided; see
            :func:`prudent.recalibrate`.
        floor: The share of the prior in the pool, at least 0 and below 1, for flows.

    Attributes:
        history: The rows of all members, each with its ``member``; saved without times.
        info: The record of the training, in plain JSON; saved with the ensemble.
        out_of_fold: The diagnosis of cross-fitted members by the pairs that they did not train on,
            None without; saved with the ensemble.
    """

    kind = "ensemble"
    fold: Tensor | None

    def __init__(
        self,
        members: Sequence[NeuralEstimator],
        fold: Tensor | None = None,
        temperature: float = 1.0,
        floor: float = 0.0,
    ) -> None:
        super().__init__()
        self.temperature = positive("temperature", temperature)
        if not members:
            raise InputError("an ensemble needs at least one member.")
        if any(member.is_warm for member in members):
            raise InputError(
                "expected members at temperature one; pool them first: Ensemble(members, "
                "temperature=...)."
            )
        shapes = {(member.kind, member.dim, member.x_shape) for member in members}
        if len(shapes) > 1:
            raise InputError(
                f"expected members of one kind and shape, got {sorted(shapes)}: (kind, number of "
                "parameters, shape of x)."
            )
        places = {str(weight.device) for member in members for weight in member.parameters()}
        if len(places) > 1:
            raise InputError(
                f"expected members on one device, got {' and '.join(sorted(places))}; move them: "
                "member.to(device)."
            )
        self.members = nn.ModuleList(members)
        self.training = any(member.training for member in members)
        self.register_buffer("fold", fold)
        first = members[0]
        self.prior: Prior = first.prior
        self.dim, self.x_shape, self.normalized = first.dim, first.x_shape, first.normalized
        self.floor = check_floor(floor, normalized=self.normalized)
        self.dtype = first.dtype
        rows = ((index, row) for index, member in enumerate(members) for row in member.history)
        self.history = History({"member": index, **row} for index, row in rows)
        self.info = {}

    def __len__(self) -> int:
        return len(self.members)

    def observations(self, x: Any) -> Tensor:
        """Observations as a tensor ``(N, *x_shape)``."""
        return next(iter(self)).observations(x)

    def __iter__(self) -> Iterator[NeuralEstimator]:
        return iter(self.members)  # type: ignore[arg-type]

    def density(self, x: Tensor) -> Density:
        """The densities given observations that were checked; the pool is cut as a whole."""
        return pooled([member.plain(x) for member in self], self.temperature, self.floor)

    def describe(self) -> dict[str, Any]:
        """The networks of the members in plain JSON, without their weights, and how they fare."""
        members = [member.describe() for member in self]
        own: dict[str, Any] = {name: getattr(self, name) for name in ("temperature", "floor")}
        if self.out_of_fold is not None:
            own["out_of_fold"] = self.out_of_fold.settings()
        return {"kind": self.kind, **own, "members": members}

    def more_tensors(self) -> dict[str, Tensor]:
        """What every estimator has, and the out-of-fold diagnosis."""
        found = {} if self.out_of_fold is None else self.out_of_fold.tensors()
        own = {OUT_OF_FOLD + name: value for name, value in found.items()}
        return {**super().more_tensors(), **own}

    def __repr__(self) -> str:
        method = self.info.get("method", self.members[0].kind)
        return f"<Ensemble of {len(self)} {method}: theta ({self.dim},), x {self.x_shape}>"
