r"""Distributions that priors need and torch does not have."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Uniform, constraints
from torch.distributions.utils import broadcast_all

from prudent._arrays import as_tensor
from prudent._extras import require
from prudent.errors import InputError, shortened
from prudent.priors.density import between, log_density, stated

#: The least mass of a family that may be left between bounds: less cannot be drawn accurately.
LEAST_MASS = 1e-6
#: The same where the family is drawn until enough of it lies between the bounds.
LEAST_REJECTED = 1e-3
NO_CONSTRAINTS: dict[str, Any] = {}


def box(low: Any, high: Any) -> Distribution:
    """The uniform distribution on a box, as one event of ``len(low)`` parameters.

    It is of float32, and of float64 if the bounds are arrays or tensors of that.

    >>> box([0.0, 0.0], [1.0, 2.0]).event_shape
    torch.Size([2])
    """
    found = [getattr(bound, "dtype", None) for bound in (low, high)]
    double = any(str(dtype).endswith("float64") for dtype in found)
    dtype = torch.float64 if double else torch.float32
    least, most = as_tensor("low", low, dtype), as_tensor("high", high, dtype)
    if least.ndim != 1 or least.shape != most.shape or not bool((least < most).all()):
        raise InputError(
            f"expected `low` below `high`, of one shape (D,), got {shortened(low)} and "
            f"{shortened(high)} in {str(dtype).removeprefix('torch.')}."
            + ("" if double else " If that has too few digits, use float64: np.array(low), ...")
        )
    return Independent(Uniform(least, most), 1)


class LogUniform(Distribution):
    r"""A positive number whose logarithm is uniform: :math:`p(\theta) \propto 1 / \theta`.

    >>> LogUniform(torch.tensor(1.0), torch.tensor(100.0)).cdf(torch.tensor(10.0))
    tensor(0.5000)
    """

    arg_constraints: ClassVar[dict[str, Any]] = {
        "low": constraints.positive,
        "high": constraints.positive,
    }

    def __init__(self, low: Any, high: Any) -> None:
        self.low, self.high = broadcast_all(low, high)
        if not bool(((self.low > 0) & (self.low < self.high)).all()):
            raise InputError("a log-uniform needs bounds with 0 < low < high.")
        super().__init__(self.low.shape, validate_args=False)

    @property
    def support(self) -> Any:
        """The closed interval between the bounds."""
        return constraints.interval(self.low, self.high)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "LogUniform":
        """The same distribution for a larger batch."""
        return LogUniform(self.low.expand(batch_shape), self.high.expand(batch_shape))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw ``(*sample_shape, *batch_shape)``."""
        shape = self._extended_shape(torch.Size(sample_shape))
        return self.icdf(torch.rand(shape, dtype=self.low.dtype))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density."""
        inside = (value >= self.low) & (value <= self.high)
        density = -value.clamp(min=self.low).log() - (self.high / self.low).log().log()
        return density.masked_fill(~inside, -torch.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """The mass below."""
        within = value.clamp(self.low, self.high)
        return (within / self.low).log() / (self.high / self.low).log()

    def icdf(self, value: Tensor) -> Tensor:
        """The quantile."""
        return torch.lerp(self.low.log(), self.high.log(), value).exp().clamp(self.low, self.high)


class Truncated(Distribution):
    """One number of a family between bounds, of which one may be infinite.

    Where torch does not know the quantiles of the family, it is drawn until enough lie inside.

    Args:
        base: The distribution of one number, with ``cdf``.
        low: The lower bound.
        high: The upper bound.
    """

    arg_constraints: ClassVar[dict[str, Any]] = NO_CONSTRAINTS

    def __init__(self, base: Any, low: float = -math.inf, high: float = math.inf) -> None:
        self.base = base
        first = float(getattr(base.support, "lower_bound", -math.inf))
        last = float(getattr(base.support, "upper_bound", math.inf))
        self.low, self.high = max(low, first), min(high, last)
        if not self.low < self.high:
            raise InputError(f"no {type(base).__name__} lies between {low:g} and {high:g}.")
        self._double = type(base)(
            **{name: getattr(base, name).double() for name in base.arg_constraints}
        )
        name, least = type(base).__name__, LEAST_MASS
        try:
            self._below = self._mass(self.low) if self.low > first else 0.0
            self._inside = (self._mass(self.high) if self.high < last else 1.0) - self._below
        except NotImplementedError as error:
            raise InputError(
                f"a {name} cannot be cut: torch does not know its cumulative distribution. Choose "
                "another family."
            ) from error
        self._has_quantiles = True
        try:
            self._middle = self._quantile(torch.tensor(0.5, dtype=torch.float64))
        except NotImplementedError:  # Gamma and its like, which begin at zero
            self._has_quantiles, least = False, LEAST_REJECTED
            self._middle = torch.tensor((self.low + min(self.high, self.low + 2.0)) / 2)
        if not self._inside > least:
            raise InputError(
                f"less than {least:g} of the {name} lies between {low:g} and {high:g}; choose "
                "other bounds or another family."
            )
        super().__init__(base.batch_shape, validate_args=False)

    def _mass(self, end: float) -> float:
        """The mass of the family below an end."""
        return float(self._double.cdf(torch.tensor(end, dtype=torch.float64)))

    def _quantile(self, share: Tensor) -> Tensor:
        """The number below which a share of the mass inside lies, in float64."""
        found: Tensor = self._double.icdf(self._below + self._inside * share)
        return found.clamp(self.low, self.high)

    @property
    def support(self) -> Any:
        """The interval or half-line between the bounds."""
        if self.high == math.inf:
            return constraints.greater_than_eq(self.low)
        if self.low == -math.inf:
            return constraints.less_than(self.high)
        return constraints.interval(self.low, self.high)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Truncated":
        """The same distribution for a larger batch."""
        return Truncated(self.base.expand(batch_shape), self.low, self.high)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw ``(*sample_shape, *batch_shape)``."""
        shape = self._extended_shape(torch.Size(sample_shape))
        if self._has_quantiles:
            draws = self._quantile(torch.rand(shape, dtype=torch.float64))
        else:
            draws = self._rejected(shape.numel()).reshape(shape)
        return draws.to(getattr(self.base, min(self.base.arg_constraints)).dtype)

    def _rejected(self, number: int) -> Tensor:
        """So many draws of the family that lie between the bounds."""
        found = torch.empty(0, dtype=torch.float64)
        while (left := number - len(found)) > 0:
            draws = self._double.sample((min(2**20, int(1.1 * left / self._inside) + 16),))
            draws = draws.flatten()
            found = torch.cat((found, draws[(draws >= self.low) & (draws <= self.high)]))
        return found[:number]

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density."""
        inside = (value >= self.low) & (value <= self.high) & self.base.support.check(value)
        density: Tensor = self.base.log_prob(torch.where(inside, value, self._middle.to(value)))
        return (density - math.log(self._inside)).masked_fill(~inside, -torch.inf)


class Scipy(Distribution):
    """A number of a family of scipy, which is imported only here.

    Args:
        name: The name of the family in ``scipy.stats``.
        dtype: The type of draws, ``float32`` or ``float64``.
        *numbers: The parameters in the order of scipy.
        **named: Parameters by their names, such as ``loc`` and ``scale``.
    """

    arg_constraints: ClassVar[dict[str, Any]] = NO_CONSTRAINTS

    def __init__(self, name: str, dtype: torch.dtype, *numbers: float, **named: float) -> None:
        stats = require("scipy.stats", "scipy", "priors of scipy")
        self.name, self.dtype, self.numbers, self.named = name, dtype, numbers, named
        self.frozen = getattr(stats, name)(*numbers, **named)
        low, high = self.ends = torch.tensor(self.frozen.support()).to(dtype)
        if not bool(low < high):
            raise InputError(f"scipy.stats.{name} cannot be made of {numbers or named}.")
        super().__init__(validate_args=False)

    @property
    def support(self) -> Any:
        """The numbers between the ends, as the type of draws has them."""
        return between(*self.ends)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Scipy":
        """The same distribution for a larger batch."""
        other = Scipy(self.name, self.dtype, *self.numbers, **self.named)
        other._batch_shape = torch.Size(batch_shape)
        return other

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw ``(*sample_shape, *batch_shape)``."""
        share = torch.rand(self._extended_shape(torch.Size(sample_shape)), dtype=torch.float64)
        drawn = torch.as_tensor(self.frozen.ppf(share.numpy()), dtype=self.dtype)
        return drawn.clamp(*self.ends.nextafter(self.ends.flip(0)))  # there may be no density

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density."""
        found = self.frozen.logpdf(value.detach().double().numpy())
        return torch.as_tensor(found, dtype=value.dtype)


class Product(Distribution):
    """Independent parameters from families of their own; some may vary together.

    Args:
        factors: Distributions of one number, or of several that are no shares of a whole.
    """

    arg_constraints: ClassVar[dict[str, Any]] = NO_CONSTRAINTS

    def __init__(self, factors: Sequence[Distribution]) -> None:
        self.factors = list(factors)
        if len(factors) > 1 and any(stated(one) is constraints.simplex for one in factors):
            raise InputError("shares of a whole cannot stand beside other parameters yet.")
        self.lengths = [one.event_shape.numel() for one in self.factors]
        self._rows: list[Distribution] = [
            one if one.event_shape else Independent(one.expand((1,)), 1) for one in self.factors
        ]
        super().__init__(event_shape=torch.Size([sum(self.lengths)]), validate_args=False)

    @property
    def support(self) -> Any:
        """The product of the supports."""
        parts: list[Any] = [one.support for one in self.factors]
        # Of several numbers that are on a line each, the constraint is one on each.
        parts = [getattr(part, "base_constraint", part) for part in parts]
        return constraints.independent(constraints.cat(parts, -1, self.lengths), 1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw ``theta`` ``(*sample_shape, D)``."""
        return torch.cat([one.sample(sample_shape) for one in self._rows], dim=-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of ``theta`` (..., D), as (...)."""
        columns = zip(self._rows, value.split(self.lengths, dim=-1), strict=True)
        return torch.stack([log_density(one, column) for one, column in columns]).sum(dim=0)


class RowPrior(Distribution):
    """A prior that takes and draws rows (N, D) alone, as sbi's ``MultipleIndependent`` does.

    Args:
        prior: The prior.
        dim: Its number of parameters.
    """

    arg_constraints: ClassVar[dict[str, Any]] = NO_CONSTRAINTS

    def __init__(self, prior: Any, dim: int) -> None:
        self.prior = prior
        super().__init__(event_shape=torch.Size([dim]), validate_args=False)

    @property
    def support(self) -> Any:
        """The support of the prior."""
        return self.prior.support

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw ``(*sample_shape, D)``."""
        shape = torch.Size(sample_shape)
        draws: Tensor = self.prior.sample(torch.Size((shape.numel(),)))
        return draws.reshape(*shape, *self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density at theta (..., D), as (...)."""
        found: Tensor = self.prior.log_prob(value.reshape(-1, *self.event_shape))
        return found.reshape(value.shape[:-1])
