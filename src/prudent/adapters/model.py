"""What a model of another library can do, in one form for all of them.

Every function takes all observations of a batch at once: theta is (L, N, D), and the features
(N, ...) are what ``embed`` makes of the observations (N, ...), once for each batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from prudent.contracts import Prior

Density = Callable[[Tensor, Tensor], Any]


@dataclass(frozen=True)
class Model:
    """The abilities of a model; at least one of ``log_prob``, ``log_ratio``, ``sample`` is there.

    Args:
        name: What it is, in words.
        log_prob: The log-density of theta (L, N, D) given features, (L, N).
        log_ratio: The log of posterior over prior, up to a constant per observation, (L, N).
        sample: The function from a number L and features to draws (L, N, D).
        from_noise: The function from standard normal noise (L, N, D) and features to draws
            (L, N, D) and their log-density (L, N), both with a gradient.
        embed: The function from observations (N, ...) to features (N, ...).
        networks: The modules whose weights are trained.
        prior: The prior that the model carries, if any.
        x_shape: The shape of one observation, if the model knows.
        slow: Whether its density takes much longer than a draw.
        inside: Whether its draws are all inside the prior's support.
        remedy: What to do for a density, where there is none.
        members: Models of which this one is the weighted average, all with a density that draws or
            all with a ratio; functions are theirs.
        weights: The weights of the members (K,), which add up to one.
    """

    name: str
    log_prob: Density | None = None
    log_ratio: Density | None = None
    sample: Callable[[int, Tensor], Any] | None = None
    from_noise: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    embed: Callable[[Tensor], Tensor] | None = None
    networks: Sequence[nn.Module] = ()
    prior: Prior | None = None
    x_shape: tuple[int, ...] | None = None
    slow: bool = False
    inside: bool = False
    remedy: str = "Pass a function `log_prob(theta, x)` to have one."
    members: "Sequence[Model]" = ()
    weights: Tensor | None = None

    @property
    def is_ratio(self) -> bool:
        """Whether its density is known up to a constant for each observation."""
        if self.members:
            return self.members[0].is_ratio
        return self.log_ratio is not None or self.sample is None

    @property
    def has_density(self) -> bool:
        """Whether there is a density at all, and not draws alone."""
        if self.members:
            return self.members[0].has_density
        return self.log_prob is not None or self.log_ratio is not None

    def parameters(self) -> list[nn.Parameter]:
        """The weights of all networks."""
        return [weight for network in self.networks for weight in network.parameters()]


def rows_for(features: Tensor, number: int) -> Tensor:
    """Features (N, ...) for each of L draws, flat: (L * N, ...)."""
    return features.expand(number, *features.shape).flatten(0, 1)
