"""Priors as people have them: by name, one after the other, in files, from scipy and sbi."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributions import (
    Dirichlet,
    Distribution,
    Independent,
    MultivariateNormal,
    TransformedDistribution,
)

from prudent.errors import InputError
from prudent.priors.checks import from_spec, joined, to_spec
from prudent.priors.families import Scipy, Truncated
from prudent.priors.files import Described, from_table, read_prior

# A number that varies by less than this share of its size is of float64.
NARROW = 1e-4


def as_prior(value: Any) -> Described:
    """A prior of whatever serves as one, with the names and units of its parameters if it has any.

    Args:
        value: A torch distribution; a frozen distribution of scipy; a list of distributions of one
            number each, of both; what sbi joins of those; or the path of a TOML or JSON file.

    >>> from torch.distributions import Normal, Uniform
    >>> as_prior([Uniform(0.0, 1.0), Normal(0.0, 1.0)]).prior.event_shape
    torch.Size([2])
    """
    if isinstance(value, str | os.PathLike):
        return read_prior(Path(value))
    if isinstance(value, list | tuple):
        value = independent(*value)
    elif _is_scipy(value):
        value = joined(_of_scipy(value))
    elif hasattr(value, "dists") or _is_transformed(value):  # in a form that can be saved
        spec = to_spec(value)
        value = value if spec is None else from_spec(spec)
    names, units = (list(getattr(value, key, ())) for key in ("parameter_names", "units"))
    return Described(value, names, units)


def independent(*factors: Any, **named: Any) -> Distribution:
    """Independent parameters, by name or one after the other.

    Args:
        *factors: Distributions of one number each: of torch, of :mod:`prudent.priors`, or frozen
            ones of scipy. A distribution of several numbers is one factor of as many parameters.
        **named: Distributions with the names of the parameters, which a training takes over.

    >>> from torch.distributions import Normal
    >>> from prudent.priors import LogUniform
    >>> prior = independent(rate=LogUniform(0.1, 10.0), mass=Normal(0.0, 1.0))
    >>> prior.parameter_names, prior.sample((5,)).shape
    (['rate', 'mass'], torch.Size([5, 2]))
    """
    if not factors and not named:
        raise InputError("a prior needs a parameter: independent(rate=Normal(0.0, 1.0)).")
    parts: list[Distribution] = []
    names: list[str] = []
    for name, factor in [*((None, one) for one in factors), *named.items()]:
        found = _factors(factor)
        number = sum(one.event_shape.numel() for one in found)
        places = [""] if number == 1 else [f"_{index + 1}" for index in range(number)]
        names += [f"theta_{len(names) + 1}" if name is None else name + p for p in places]
        parts += found
    prior = joined(parts)
    if named:
        prior.parameter_names = names  # type: ignore[attr-defined]
    return prior


def truncated(
    base: Distribution, low: float = -float("inf"), high: float = float("inf")
) -> Distribution:
    """A distribution of one number, cut to what lies between two bounds or above or below one.

    >>> from torch.distributions import Normal
    >>> truncated(Normal(0.0, 1.0), low=0.0).log_prob(torch.tensor([-1.0, 1.0])).exp()
    tensor([0.0000, 0.4839])
    """
    return Truncated(base, low, high)


def correlated(loc: Any, std: Any, correlation: Any) -> Distribution:
    """Normal parameters that vary together.

    Args:
        loc: The D means.
        std: The D standard deviations.
        correlation: The matrix (D, D) of correlations.

    >>> correlated([0.0, 1.0], [1.0, 2.0], [[1.0, 0.5], [0.5, 1.0]]).covariance_matrix
    tensor([[1., 1.],
            [1., 4.]])
    """
    numbers = {"loc": loc, "std": std, "correlation": correlation}
    lists = {key: np.asarray(value, dtype=float).tolist() for key, value in numbers.items()}
    made: Distribution = from_table({"family": "MultivariateNormal", **lists}).prior
    return made


def from_file(path: str | os.PathLike[str]) -> Distribution:
    """The prior in a TOML or JSON file, which knows the names and units of its parameters."""
    found = read_prior(Path(path))
    found.prior.parameter_names, found.prior.units = found.names, found.units
    made: Distribution = found.prior
    return made


def _factors(value: Any) -> list[Distribution]:
    """A distribution as factors of a product."""
    if _is_scipy(value):
        return _of_scipy(value)
    if not isinstance(value, Distribution):
        raise InputError(
            f"expected a distribution of torch or scipy for each parameter, got a "
            f"{type(value).__name__}: {str(value)[:60]}."
        )
    if value.batch_shape.numel() > 1 or len(value.event_shape) > 1:
        raise InputError(
            f"a factor has batch_shape {tuple(value.batch_shape)} and event_shape "
            f"{tuple(value.event_shape)}; expected one number. Pass its parts one by one, or "
            "torch.distributions.Independent(factor, 1)."
        )
    if value.batch_shape:
        value = Independent(value, len(value.batch_shape))
    elif hasattr(value, "dists") or _is_transformed(value):
        value = as_prior(value).prior
    return [value]


def _is_transformed(value: Any) -> bool:
    while isinstance(value, Independent):
        value = value.base_dist
    return type(value) is TransformedDistribution


def _is_scipy(value: Any) -> bool:
    return type(value).__module__.startswith("scipy.stats")


def _of_scipy(value: Any) -> list[Distribution]:
    """A frozen distribution of scipy; one of several numbers is as many factors."""
    kind = type(value).__name__
    if kind == "multivariate_normal_frozen":
        mean, spread = torch.tensor(value.mean).float(), torch.tensor(value.cov).float()
        return [MultivariateNormal(mean, spread)]
    if kind == "dirichlet_frozen":
        return [Dirichlet(torch.tensor(value.alpha).float())]
    family = getattr(value, "dist", None)
    if family is None or not hasattr(family, "_pdf"):
        raise InputError(
            f"{kind} of scipy cannot serve as a prior; expected a frozen continuous distribution, "
            "such as scipy.stats.beta(2, 3)."
        )
    low, middle, high = (np.asarray(value.ppf(share)) for share in (0.25, 0.5, 0.75))
    narrow = bool((high - low < NARROW * np.abs(middle)).any())
    dtype = torch.float64 if narrow else torch.float32
    numbers = np.broadcast_arrays(*value.args, *value.kwds.values())
    rows = np.stack(numbers, axis=-1).reshape(-1, len(numbers)).tolist() if numbers else [[]]
    count = len(value.args)
    return [
        Scipy(family.name, dtype, *row[:count], **dict(zip(value.kwds, row[count:], strict=True)))
        for row in rows
    ]
