r"""What is known of coverage near one observation: that of the judged pairs most like it.

A verdict is an average over all observations. The pairs that judged an estimator are kept with it,
each as the alpha of its truth and the components of its x in which simulations are compared
(:mod:`prudent.estimators.novelty`). Of those nearest to an observation, the share whose 90 %
regions hold the truth says what the average hides, as far as so few pairs can tell, and where an
observation is farther from its nearest pairs than nearly all pairs are, they do not speak for it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from prudent._randomness import generator
from prudent.estimators.novelty import Novelty

LEVEL, NUM_NEAREST, MOST_PAIRS = 0.9, 50, 2000
# Fewer pairs than so many times the nearest are no neighborhood.
LEAST_TIMES = 4
# The share of pairs called lonely, and the chance of an alarm where regions are exact.
LONELY, ALARM = 0.05, 0.01
MISS, ODDS = 1 - LEVEL, LEVEL / (1 - LEVEL)


@dataclass(frozen=True, eq=False)
class Nearby:
    """The pairs that judged an estimator.

    Args:
        points: The components of their x, (M, C).
        alphas: The posterior mass of lower density than each truth, (M,).
    """

    points: Tensor
    alphas: Tensor

    @classmethod
    def of(cls, test: Novelty | None, x: Tensor, alphas: Tensor) -> Self | None:
        """The pairs with these x (N, ...) and alphas (N,), or None if they are too few."""
        if test is None or len(x) < LEAST_TIMES * NUM_NEAREST:
            return None
        order = torch.randperm(len(x), generator=generator(0, "nearby"))[:MOST_PAIRS]
        return cls(test.components(x[order]), alphas[order].float().nan_to_num(nan=0.0))

    @classmethod
    def from_tensors(cls, found: Mapping[str, Tensor]) -> Self | None:
        """The pairs that :meth:`tensors` wrote, None if there are none."""
        return cls(found["points"], found["alphas"]) if found else None

    def tensors(self) -> dict[str, Tensor]:
        """What is saved."""
        return {"points": self.points, "alphas": self.alphas}

    @cached_property
    def _radii(self) -> Tensor:
        """The distance of each pair from the last of its nearest, (M,)."""
        distance = torch.cdist(self.points, self.points)
        return distance.kthvalue(NUM_NEAREST + 1, dim=1).values.sort().values

    def words(self, components: Tensor) -> tuple[str, list[str]]:
        """A sentence about coverage near an observation (C,), and warnings, if there are any."""
        distance = torch.cdist(components.unsqueeze(0), self.points).squeeze(0)
        near = distance.topk(NUM_NEAREST, largest=False)
        inside = int((self.alphas[near.indices] >= 1 - LEVEL - 1e-6).sum())
        share = inside / NUM_NEAREST
        half = 1.96 * math.sqrt(max(share * (1 - share), 1 / NUM_NEAREST) / NUM_NEAREST)
        measured = f"{100 * share:.0f} ± {100 * half:.0f} %"
        told = (
            f"{100 * LEVEL:.0f} % regions contain the truth {measured} of the time for the "
            f"{NUM_NEAREST} of {len(self.points):,} judged pairs most like it"
        )
        warnings = []
        lonely = float((self._radii < near.values[-1]).double().mean())
        if lonely > 1 - LONELY:
            warnings.append(
                f"hardly any judged pairs are like the observation: {100 * lonely:.0f} % of them "
                f"are closer to their {NUM_NEAREST} nearest. The verdict does not speak for it."
            )
        fewer = range(inside + 1)
        chance = sum(math.comb(NUM_NEAREST, k) * ODDS**k for k in fewer) * MISS**NUM_NEAREST
        if chance <= ALARM:
            warnings.append(f"near the observation regions fall short (p = {chance:.2g}): {told}.")
        return told, warnings
