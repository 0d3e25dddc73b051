"""A problem: a name, a prior, a simulator, and the shapes between them.

Anybody's simulator becomes one by :func:`custom`. It may take a batch or a single theta, numpy
arrays or tensors, and draw its randomness from a ``generator`` (torch) or ``rng`` (numpy) argument
if it has one, otherwise from the global generators, which are seeded for the call and then
restored.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from prudent._arrays import as_tensor, float32
from prudent._randomness import generator, numpy_seeded, seeded
from prudent._settings import whole
from prudent.errors import DataError, InputError, one_line
from prudent.priors.density import log_density
from prudent.priors.families import box as box
from prudent.priors.given import as_prior

Simulator = Callable[[Tensor, torch.Generator], Tensor]
# Arrays: a cached tensor would carry the grad mode of the first call into later ones.
_rule = cache(np.polynomial.legendre.leggauss)


def gauss_legendre(lower: Tensor, upper: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights ``(num_nodes, *shape)`` on the intervals [lower, upper], in float64.

    Polynomials up to degree 2 num_nodes - 1 are exact. An empty interval has weights 0.

    >>> node, weight = gauss_legendre(torch.tensor(0.0), torch.tensor(3.0), 4)
    >>> round(float((weight * node**2).sum()), 12)
    9.0
    """
    lower, upper = torch.broadcast_tensors(lower.double(), upper.double())
    node, weight = (torch.tensor(part).view(-1, *[1] * lower.ndim) for part in _rule(num_nodes))
    half = (upper - lower) / 2
    return lower + half * (node + 1), half * weight


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
    simulator: Simulator = field(repr=False)
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

    def simulate(self, theta: Any, generator: torch.Generator) -> Tensor:
        """Observations ``(N, *x_shape)`` in float32, one for each row of ``theta`` (N, D).

        The rows must lie inside the prior's support. The same state of the generator, which is
        one of the CPU, gives the same observations.
        """
        if not isinstance(theta, Tensor) or theta.dtype != torch.float32:
            with seeded(0):
                theta = as_tensor("theta", theta, self.prior.sample().dtype)
        if theta.ndim != 2 or theta.shape[1] != self.dim:
            raise DataError(
                f"expected `theta` of shape (N, {self.dim}) for problem `{self.name}`, "
                f"got {tuple(theta.shape)}."
            )
        inside = log_density(self.prior, theta) > -torch.inf
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
        number = whole("num_simulations", num_simulations, 0)
        with seeded(seed, self.name, stream, "prior"):
            theta = self.prior.sample((number,))
        return theta, self.simulate(theta, generator(seed, self.name, stream, "simulator"))


def custom(
    simulator: Callable[..., Any],
    prior: Any,
    *,
    name: str = "custom",
    parameter_names: Sequence[str] | None = None,
    batched: bool | None = None,
) -> Problem:
    """Make a problem of a simulator and a prior.

    Args:
        simulator: ``theta -> x``, for a batch (N, D) or for one theta (D,).
        prior: The distribution of theta, as :func:`prudent.fit` takes it.
        name: The name in listings, from which seeds are derived as well.
        parameter_names: D names for plots; by default those of the prior, or numbers.
        batched: Whether the simulator takes batches; None tries, with a few draws of the prior.

    >>> prior = box([0.0, 0.0], [1.0, 1.0])
    >>> problem = custom(lambda theta, rng: theta[0] + rng.normal(size=3), prior)
    >>> problem.x_shape
    (3,)
    """
    prior, named, units = as_prior(prior)
    if not isinstance(prior, Distribution) or len(prior.event_shape) != 1 or prior.batch_shape:
        raise InputError(
            "expected a prior as a torch distribution with event_shape (D,) and no batch_shape, "
            f"got {type(prior).__name__}; wrap it in torch.distributions.Independent(prior, 1)."
        )
    dim = prior.event_shape[0]
    names = tuple(parameter_names or named or (f"theta_{i + 1}" for i in range(dim)))
    if len(names) != dim:
        raise InputError(f"expected {dim} parameter names, got {len(names)}: {', '.join(names)}.")
    with seeded(0, "trial"):
        theta = prior.sample((3,))
    trial = torch.Generator().manual_seed(0)
    batches = (True, False) if batched is None else (batched,)
    reason = ""
    for take_batch, as_numpy in product(batches, (False, True)):
        run = _batched(simulator, as_numpy=as_numpy, take_batch=take_batch)
        try:
            with warnings.catch_warnings():
                # Numpy takes tensors for a while still, but complains.
                warnings.simplefilter("error", DeprecationWarning)
                # Two sizes: an x of two numbers could pass for a batch of two.
                x = run(theta[:2], trial)
                if take_batch:
                    run(theta, trial)
        except Exception as error:
            reason = one_line(error)
        else:
            return Problem(name, prior, run, tuple(x.shape[1:]), names, tuple(units))
    raise InputError(
        "the simulator failed on draws from the prior, as a batch and one by one, with tensors "
        f"and with arrays. The last reason: {reason}"
    )


def _batched(simulator: Callable[..., Any], *, as_numpy: bool, take_batch: bool) -> Simulator:
    """The simulator of a problem, made of one that may take arrays or a single theta."""
    try:
        parameters = set(inspect.signature(simulator).parameters)
    except (TypeError, ValueError):
        parameters = set()

    def call(theta: Tensor, generator: torch.Generator) -> Any:
        given = theta.double().numpy() if as_numpy else theta.clone()
        if "generator" in parameters:
            return simulator(given, generator=generator)
        seed = int(torch.randint(2**31, (), generator=generator))
        if "rng" in parameters:
            return simulator(given, rng=np.random.default_rng(seed))
        with seeded(seed), numpy_seeded(seed):
            return simulator(given)

    def simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
        if take_batch:
            x = float32("x", call(theta, generator)).clone()
            if x.ndim == 0 or len(x) != len(theta):
                raise InputError(f"a batch of {len(theta)} theta gave x of shape {tuple(x.shape)}")
        else:
            x = torch.stack([float32("x", call(row, generator)) for row in theta])
        return x.unsqueeze(-1) if x.ndim == 1 else x

    return simulate
