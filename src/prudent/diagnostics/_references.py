"""The distance to a random point, which TARP ranks."""

from collections.abc import Callable

import torch
from torch import Tensor

from prudent._randomness import seeded
from prudent.contracts import Prior
from prudent.errors import InputError, unknown_name

KINDS = ("prior", "uniform")
NUM_PRIOR_DRAWS = 4096

References = str | Callable[[Tensor], Tensor]


class ReferenceDistance:
    """The distance to a random point for each pair: a test function for ``posterior_ranks``.

    Args:
        prior: The prior, whose standard deviations scale the distances.
        references: ``prior`` draws the points from the prior, ``uniform`` from the box that holds
            some thousand prior draws; a function maps x (N, ...) to points (N, D). The points
            must not depend on theta.
        scale: Standard deviations (D,), if not those of the prior.
        seed: The seed of the draws that measure the prior.

    >>> from torch.distributions import Independent, Normal
    >>> prior = Independent(Normal(torch.zeros(2), torch.tensor([1.0, 100.0])), 1)
    >>> distance = ReferenceDistance(prior, lambda x: torch.zeros(len(x), 2), torch.tensor([1, 2]))
    >>> distance(torch.tensor([[[3.0, 8.0]]]), torch.zeros(1, 1))
    tensor([[5.]])
    """

    def __init__(
        self,
        prior: Prior | None,
        references: References = "prior",
        scale: Tensor | None = None,
        seed: int = 0,
    ) -> None:
        if prior is None:
            raise InputError(
                "TARP measures distances in units of the prior's spread, and the estimator has no "
                "prior; set its attribute `prior`, or pass a ReferenceDistance(prior)."
            )
        if isinstance(references, str) and references not in KINDS:
            raise unknown_name("kind of reference points", references, KINDS)
        self.prior, self.references = prior, references
        with seeded(seed, "tarp prior"):
            draws = prior.sample((NUM_PRIOR_DRAWS,))
        self.low, self.high = draws.amin(dim=0), draws.amax(dim=0)
        self.scale = draws.std(dim=0) if scale is None else scale
        if not bool((self.scale.isfinite() & (self.scale > 0)).all()):
            raise InputError(f"`scale` is {self.scale.tolist()}; expected positive numbers.")

    def points(self, x: Tensor) -> Tensor:
        """One reference point for each row of x, (N, D)."""
        if callable(self.references):
            return self.references(x)
        if self.references == "prior":
            return self.prior.sample((len(x),))
        return self.low + (self.high - self.low) * torch.rand(len(x), len(self.low))

    def __call__(self, theta: Tensor, x: Tensor) -> Tensor:
        """The distance of each ``theta`` (..., N, D) from the point of its row, (..., N)."""
        reference = self.points(x)
        if reference.shape != theta.shape[-2:]:
            raise InputError(
                f"expected reference points of shape {tuple(theta.shape[-2:])}, "
                f"got {tuple(reference.shape)}."
            )
        distance: Tensor = torch.linalg.vector_norm((theta - reference) / self.scale, dim=-1)
        return distance
