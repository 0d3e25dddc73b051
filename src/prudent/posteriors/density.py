"""What can be computed and drawn for the posteriors of N observations, whatever they come from.

A :class:`Density` takes theta of the right type, shape and device; what users call,
:class:`prudent.posteriors.posterior.Posterior`, converts and checks. Parts
(:mod:`prudent.posteriors.parts`) are densities made of others. What a density is and can do stands
in its :class:`Facts`, and whoever can choose a way chooses by them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prudent._randomness import seeded
from prudent.contracts import Prior
from prudent.errors import InputError
from prudent.estimators.importance import SamplingReport
from prudent.estimators.sampling import weighted
from prudent.priors.density import log_density


@dataclass(frozen=True)
class Facts:
    """What a density is and can do.

    Args:
        lacks: If there are draws and no density, the sentence that says so, where ``{}`` stands
            for what is missing.
        ratio: Whether it is known by its ratio to the prior, up to a constant for each
            observation. Then it has ``log_ratio`` and draws by weights.
        noise: Whether it turns standard normal noise of the caller's into draws.
        divided: What a density had to be divided by: ``"none"``; ``"cut"``, the mass inside the
            prior's support of a density on the whole space; or ``"pool"``, some integral.
        slow: Whether the density takes much longer than a draw.
        inside: Whether there is no mass outside the prior's support.
        overhead: The draws whose evaluation takes as long as a call of the network.
    """

    lacks: str = ""
    ratio: bool = False
    noise: bool = False
    divided: str = "none"
    slow: bool = False
    inside: bool = True
    overhead: float = 120.0

    @property
    def density(self) -> bool:
        """Whether there is a density, and not draws alone."""
        return not self.lacks


class Density:
    """The densities of the posteriors of N observations; a base class.

    A subclass has ``rows``, ``log_prob`` or ``log_ratio``, and ``sample``. One that is known
    up to a constant has ``candidates`` in place of ``sample``, and is normalized by
    :class:`prudent.posteriors.normalized.Normalized`.

    Args:
        prior: The prior.
        dim: The number of parameters.
        like: An empty tensor of the type of theta, on its device, with N rows.
        facts: What the density is and can do.
    """

    # The integral is a mean of weights in at least and at most so many rounds of draws, until its
    # relative error is this small. If weights are shares between zero and one, draws are taken for
    # independent, otherwise only rounds, as the draws of a round are even.
    rounds: tuple[int, int] = (1, 16)
    tolerance: float = 0.01
    shares: bool = True

    def __init__(self, prior: Prior, dim: int, like: Tensor, facts: Facts) -> None:
        self.prior, self.dim, self.like, self.facts = prior, dim, like, facts

    def __len__(self) -> int:
        return len(self.like)

    def rows(self, index: Tensor | slice) -> "Density":
        """The densities of some observations; nothing is embedded again."""
        raise NotImplementedError

    def log_prob(self, theta: Tensor) -> Tensor:
        """The log-density of theta (..., N, D), (..., N)."""
        raise NotImplementedError

    def log_ratio(self, theta: Tensor) -> Tensor:
        """The log of posterior over prior at theta (..., N, D), (..., N)."""
        known = log_density(self.prior, theta)
        return (self.log_prob(theta) - known).masked_fill(known == -torch.inf, 0.0)

    def sample(self, shape: tuple[int, ...]) -> Tensor:
        """Draws ``(*shape, N, D)``, without a gradient."""
        return self.draw(shape)[0]

    def draw(self, shape: tuple[int, ...], **how: Any) -> tuple[Tensor, SamplingReport | None]:
        """Draws ``(*shape, N, D)``, and what they are worth, if that is to be told."""
        if self.facts.ratio:
            return weighted(self, self.prior, shape, like=self.like, **how)
        return self.sample(shape), None

    def sample_and_log_prob(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Draws and their log-density."""
        theta = self.sample(shape)
        return theta, self.log_prob(theta)

    def rsample(self, shape: tuple[int, ...]) -> Tensor:
        """Draws as a function of the weights of a network."""
        raise InputError("these posteriors have no draws with a gradient; use other draws.")

    def from_noise(self, noise: Tensor, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal noise (L, N, D), times a spread, as draws.

        Returns:
            The draws (L, N, D), their log-density, and that of what drew them, (L, N) each.
        """
        raise NotImplementedError

    def widened(self, theta: Tensor, spread: float) -> tuple[Tensor, Tensor]:
        """The log-densities of theta, and those of the draws that noise times a spread makes."""
        raise NotImplementedError

    def undivided(self) -> "Density":
        """The same without a search for a constant that may differ between observations."""
        return self

    def candidates(self, number: int) -> tuple[Tensor, Tensor]:
        """Draws (number, N, D), and the log of the probability with which to keep each.

        That is the quotient of this density and another one, which is normalized, is nowhere
        less, and makes the draws.
        """
        raise NotImplementedError

    def log_weights(self, index: int) -> Tensor:
        """Log weights (L, N) whose mean has the integral as its expectation, one round of them."""
        with seeded(index, "mass"):
            return self.candidates(2048)[1]

    def share_kept(self, log_integral: Callable[[], Tensor]) -> Tensor:
        """The share of candidates of each observation that is expected to be kept, (N,)."""
        return log_integral().exp().cpu()

    def leftover(self, number: int) -> tuple[Tensor, Tensor]:
        """Draws (number, N, D) where hardly any candidate is kept, and what they are worth."""
        draws, report = weighted(self, self.prior, (number,), like=self.like)
        return draws, report.effective_sample_size


def facts_of(posterior: Any) -> Facts:
    """The facts of any posterior: of one that does not say, by the methods that it has."""
    known = getattr(posterior, "facts", None)
    if isinstance(known, Facts):
        return known
    dense = callable(getattr(posterior, "log_prob", None))
    return Facts(
        lacks="" if dense else f"{type(posterior).__name__} has no `log_prob`, and so no {{}}.",
        noise=hasattr(posterior, "from_noise"),
        slow=hasattr(posterior, "slow_density"),
    )


def undivided(posterior: Any) -> Any:
    """Posteriors without a search for what their densities must be divided by, if there is one."""
    known = isinstance(getattr(posterior, "facts", None), Facts)
    return posterior.unnormalized() if known else posterior


def wider(log_prob: Tensor, noise: Tensor, spread: float) -> Tensor:
    """The log-density of draws of standard normal noise (..., D) that was multiplied by a spread.

    Args:
        log_prob: The log-density of the draws if the noise were not wider, (...).
        noise: The noise before it was multiplied.
        spread: The factor.
    """
    wide = spread * noise
    size = (wide.square() - noise.square()).sum(dim=-1) / 2
    return log_prob + size.to(log_prob) - noise.shape[-1] * math.log(spread)
