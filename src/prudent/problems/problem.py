"""A problem: a name, a prior, a simulator, and the shapes between them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Uniform

from prudent._randomness import generator, seeded
from prudent.errors import DataError


def box(low: list[float], high: list[float]) -> Distribution:
    """The uniform distribution on a box, as one event of ``len(low)`` parameters.

    >>> box([0.0, 0.0], [1.0, 2.0]).event_shape
    torch.Size([2])
    """
    return Independent(Uniform(torch.tensor(low), torch.tensor(high)), 1)


@dataclass(frozen=True)
class Problem:
    """A prior and a batched simulator.

    Args:
        name: The identifier, equal to the module's name.
        prior: A torch distribution with ``event_shape`` (D,).
        simulator: Maps ``theta`` (N, D) and a CPU generator to ``x`` ``(N, *x_shape)``. All its
            randomness comes from the generator.
        x_shape: The shape of one observation.
        parameter_names: D names for plots.
        units: D units for plots, empty where a parameter has none.
        networks: By family, ``nre`` or ``npe``: the paper's ``embedding``, as a specification that
            :func:`prudent.estimators.networks.build` takes, ``hidden`` widths, and ``transforms``
            of a flow. What is missing takes the default. Observations are standardized before they
            are embedded.
        log_posterior: None, or the exact normalized log-density of ``theta``
            (..., N, D) given ``x`` ``(N, *x_shape)``, as (..., N).
    """

    name: str
    prior: Distribution
    simulator: Callable[[Tensor, torch.Generator], Tensor] = field(repr=False)
    x_shape: tuple[int, ...]
    parameter_names: tuple[str, ...]
    units: tuple[str, ...] = ()
    networks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    log_posterior: Callable[[Tensor, Tensor], Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        assert self.prior.event_shape == (len(self.parameter_names),), self.name
        assert len(self.units) in (0, len(self.parameter_names)), self.name

    @property
    def dim(self) -> int:
        """The number of parameters."""
        return len(self.parameter_names)

    def simulate(self, theta: Tensor, generator: torch.Generator) -> Tensor:
        """Simulate one observation for each row of ``theta``.

        Args:
            theta: Parameters (N, D), inside the prior's support.
            generator: A CPU generator; the same state gives the same observations.

        Returns:
            ``x`` ``(N, *x_shape)``, float32.
        """
        if theta.ndim != 2 or theta.shape[1] != self.dim:
            raise DataError(
                f"expected `theta` of shape (N, {self.dim}) for problem `{self.name}`, "
                f"got {tuple(theta.shape)}."
            )
        support = self.prior.support
        assert support is not None, self.name
        # `Independent` cannot check an empty batch.
        inside = support.check(theta) if len(theta) else torch.ones(0, dtype=torch.bool)
        if not bool(inside.all()):
            row = int((~inside).nonzero()[0])
            raise DataError(
                f"{int((~inside).sum()):,} of {len(theta):,} rows of `theta` lie outside the "
                f"prior of `{self.name}`; the first is row {row}: {theta[row].tolist()}. "
                "Draw theta from `problem.prior`."
            )
        with torch.no_grad():
            x = self.simulator(theta, generator)
        assert x.shape == (len(theta), *self.x_shape), (self.name, x.shape)
        return x

    def draw(self, num_simulations: int, seed: int, stream: str = "") -> tuple[Tensor, Tensor]:
        """Draw pairs from the joint distribution.

        Args:
            num_simulations: The number of pairs.
            seed: The same seed and stream give the same pairs.
            stream: A label that separates, say, training pairs from test pairs.

        Returns:
            ``theta`` (num_simulations, D) and ``x`` ``(num_simulations, *x_shape)``.
        """
        with seeded(seed, self.name, stream, "prior"):
            theta = self.prior.sample((num_simulations,))
        return theta, self.simulate(theta, generator(seed, self.name, stream, "simulator"))
