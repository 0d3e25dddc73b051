r"""Several estimators as one: the average of their posteriors.

For K members the density is :math:`\frac1K \sum_k q_k(\theta \mid x)`, computed as a log-sum-exp
minus :math:`\ln K`. Ratios are averaged in the same way before they meet the prior. Averages of
over-confident members are wider than each of them where the members disagree.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from prudent._arrays import as_shape
from prudent.contracts import Prior, Shape
from prudent.errors import InputError
from prudent.estimators.base import NeuralEstimator, Saved
from prudent.estimators.nre import RatioPosterior
from prudent.estimators.sampling import draw
from prudent.history import History


class EnsemblePosterior(RatioPosterior):
    """The average of the members' posteriors for N observations.

    Attributes:
        sampling: The report of the last :meth:`sample` from ratios, None before.
    """

    def __init__(self, estimator: "Ensemble", parts: Sequence[Any]) -> None:
        super().__init__(estimator, parts[0].features)
        self.parts = parts

    def log_ratio(self, theta: Any) -> Tensor:
        """Log of posterior over prior at ``theta`` (..., N, D), as (..., N)."""
        theta = self._theta(theta)
        return _log_mean([part.log_ratio(theta) for part in self.parts])

    def log_prob(self, theta: Any) -> Tensor:
        """Log-density at ``theta`` (..., N, D), as (..., N); for ratios unnormalized."""
        theta = self._theta(theta)
        if not self.estimator.normalized:
            return super().log_prob(theta)
        return _log_mean([part.log_prob(theta) for part in self.parts])

    def sample(self, sample_shape: Shape | int = (), method: str = "auto") -> Tensor:
        """Draw ``(*sample_shape, N, D)``; for ratios by a ``method`` as of ``sampling.draw``."""
        if not self.estimator.normalized:
            prior = self.estimator.prior
            draws, self.sampling = draw(self, prior, sample_shape, method, like=self._like)
            return draws
        # Each draw comes from a member chosen at random.
        shape = as_shape(sample_shape)
        drawn = torch.stack([part.sample(shape) for part in self.parts])
        choice = torch.randint(len(self.parts), (1, *shape, len(self), 1)).to(drawn.device)
        return drawn.take_along_dim(choice, dim=0).squeeze(0)

    def rows(self, index: Tensor | slice) -> Self:
        """The posteriors of some observations; nothing is embedded again."""
        return type(self)(self.estimator, [part.rows(index) for part in self.parts])


def _log_mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).logsumexp(dim=0) - math.log(len(values))


class Ensemble(Saved):
    """The average of estimators of one kind, itself an estimator.

    Args:
        members: The estimators, with the same prior and shapes.
        fold: For cross-fitted members, the member that did not train on each pair, (N,).
        out_of_fold: The log-density of each pair under that member, (N,): what the ensemble says
            of pairs it has not seen, for later calibration.

    Attributes:
        history: The rows of all members, each with its ``member``; saved without times.
        info: The record of the training, in plain JSON; saved with the ensemble.
    """

    kind = "ensemble"

    def __init__(
        self,
        members: Sequence[NeuralEstimator],
        fold: Tensor | None = None,
        out_of_fold: Tensor | None = None,
    ) -> None:
        super().__init__()
        if not members:
            raise InputError("an ensemble needs at least one member.")
        shapes = {(member.kind, member.dim, member.x_shape) for member in members}
        if len(shapes) > 1:
            raise InputError(
                f"expected members of one kind and shape, got {sorted(shapes)}: (kind, number of "
                "parameters, shape of x)."
            )
        self.members = nn.ModuleList(members)
        self.register_buffer("fold", fold)
        self.register_buffer("out_of_fold", out_of_fold)
        first = members[0]
        self.prior: Prior = first.prior
        self.dim, self.x_shape, self.normalized = first.dim, first.x_shape, first.normalized
        self.dtype = first.dtype
        rows = ((index, row) for index, member in enumerate(members) for row in member.history)
        self.history = History({"member": index, **row} for index, row in rows)
        self.info = {}

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[NeuralEstimator]:
        return iter(self.members)  # type: ignore[arg-type]

    def forward(self, x: Any) -> EnsemblePosterior:
        """The posteriors given ``x`` ``(N, *x_shape)``."""
        return EnsemblePosterior(self, [member(x) for member in self.members])

    def describe(self) -> dict[str, Any]:
        """The networks of the members in plain JSON, without their weights."""
        return {"kind": self.kind, "members": [member.describe() for member in self]}

    def __repr__(self) -> str:
        method = self.info.get("method", self.members[0].kind)
        return f"<Ensemble of {len(self)} {method}: theta ({self.dim},), x {self.x_shape}>"
