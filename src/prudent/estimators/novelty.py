r"""Whether an observation is like the simulations, by a test whose rate of false alarms is exact.

A network answers anything, also what is unlike all it was trained on, and nothing about its answer
shows that. So some simulations are kept with the model. Half of them are reference points; the
score of an observation is its mean distance from the nearest of these. The other half says which
scores simulations have: of n scores and that of an observation, each is equally likely to be the
largest if the observation is a simulation like them, whatever their distribution, so that

.. math:: p = \frac{1 + \#\{s_i \geq s\}}{n + 1}

is at most :data:`RATE` in that share of simulations. Distances are those of the principal
components of x, each in units of its spread, and of what these leave of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from prudent._randomness import generator
from prudent.estimators._standardize import Standardize

# The share of simulations that are called far away.
RATE = 0.01
NAMES = ("location", "scale", "mean", "axes", "leftover", "points", "scores")
# Simulations that are kept at most, and those below which nothing can be said.
MOST_KEPT, LEAST_KEPT = 2000, 40
NUM_COMPONENTS, NUM_NEIGHBORS = 32, 5
# Distances beyond this many spreads are all the same.
FARTHEST = 1e6
# The least spread of a component, in units of the largest.
LEAST_SPREAD = 1e-3


class Novelty:
    """A test of whether observations are like simulations.

    Args:
        tensors: The ``location``, ``scale`` and ``mean`` of x, the ``axes`` (C, F) of its
            components, orthogonal and divided by the components' spreads, the spread of what is
            ``leftover``, the reference ``points`` (M, C + 1), and the ``scores`` (n,) of
            simulations not among them.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = {name: tensors[name] for name in NAMES}
        location = self.tensors["location"]
        self.standardize = Standardize(tuple(location.shape))
        self.standardize.location.copy_(location)
        self.standardize.scale.copy_(self.tensors["scale"])
        # Squares of axes whose spread is next to nothing are more than float32 holds.
        axes = self.tensors["axes"].double()
        self._inverse = (axes / axes.square().sum(dim=1, keepdim=True)).float()

    @classmethod
    @torch.no_grad()
    def of(cls, x: Tensor, seed: int = 0) -> Self | None:
        """The test that simulations x (N, ...) make, or None if there are too few."""
        if len(x) < LEAST_KEPT:
            return None
        order = torch.randperm(len(x), generator=generator(seed, "novelty"))
        reference, others = x[order[:MOST_KEPT]].float().tensor_split(2)
        # As for networks: components of a vector differ in kind, the pixels of an image do not.
        standardize = Standardize(tuple(x.shape[1:]) if x.ndim == 2 else ())
        standardize.adapt(reference)
        flat = standardize(reference).flatten(1).clamp(-FARTHEST, FARTHEST)
        mean = flat.mean(dim=0)
        number = min(NUM_COMPONENTS, flat.shape[1], len(flat) // 4)
        _, spread, axes = torch.linalg.svd(flat - mean, full_matrices=False)
        spread = spread.clamp(min=LEAST_SPREAD * float(spread[0]) + 1e-30) / math.sqrt(len(flat))
        rest = (flat - mean) - (flat - mean) @ axes[:number].T @ axes[:number]
        tensors = {
            "location": standardize.location,
            "scale": standardize.scale,
            "mean": mean,
            "axes": (axes[:number] / spread[:number, None]).contiguous(),
            "leftover": rest.square().sum(dim=1).mean().sqrt().clamp(min=LEAST_SPREAD),
            "points": torch.empty(0),
            "scores": torch.empty(0),
        }
        test = cls(tensors)
        test.tensors["points"] = test.components(reference)
        test.tensors["scores"] = test.score(others).sort().values
        return test

    def components(self, x: Tensor) -> Tensor:
        """The components of x (N, ...), and the size of what they leave, (N, C + 1)."""
        flat = self.standardize(x.float().cpu()).flatten(1).clamp(-FARTHEST, FARTHEST)
        flat = flat - self.tensors["mean"]
        known = flat @ self.tensors["axes"].T
        rest = (flat - known @ self._inverse).square().sum(dim=1, keepdim=True).sqrt()
        return torch.cat((known, rest / self.tensors["leftover"]), dim=1)

    @torch.no_grad()
    def score(self, x: Tensor) -> Tensor:
        """The mean distance of x (N, ...) from the nearest reference points, (N,)."""
        distance = torch.cdist(self.components(x), self.tensors["points"])
        number = min(NUM_NEIGHBORS, distance.shape[1])
        return distance.topk(number, dim=1, largest=False).values.mean(dim=1)

    def p_value(self, x: Tensor) -> Tensor:
        """The share of simulations that are as far from the others as x (N, ...) is, (N,)."""
        scores = self.tensors["scores"]
        below = torch.searchsorted(scores, self.score(x))
        return (1 + len(scores) - below) / (len(scores) + 1)

    @property
    def rate(self) -> float:
        """The share of simulations that the test calls far away; less cannot be told with few."""
        return max(RATE, 1 / (len(self.tensors["scores"]) + 1))


@dataclass(frozen=True, eq=False)
class Observed:
    """Observations that are compared with the simulations when somebody asks.

    Args:
        test: The test.
        x: The observations, of which some are meant.
        place: The numbers of those that are meant, (N,).
    """

    test: Novelty
    x: Tensor
    place: Tensor

    @classmethod
    def of(cls, test: Novelty, x: Tensor) -> Self:
        """All of x (N, ...), as it is now: its owner may fill it anew."""
        return cls(test, x.detach().clone(), torch.arange(len(x)))

    def rows(self, index: Tensor | slice) -> Self:
        """Some of the observations; nothing is copied."""
        chosen = index.cpu() if isinstance(index, Tensor) else index
        return replace(self, place=self.place[chosen])

    def components(self) -> Tensor:
        """What simulations are compared in, (N, C)."""
        return self.test.components(self.x[self.place])

    def p_value(self) -> Tensor:
        """The share of simulations that are as far from the others as each of these is, (N,)."""
        return self.test.p_value(self.x[self.place])
