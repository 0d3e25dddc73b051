"""Priors as people have them: by name, one after the other, in files, from scipy and sbi."""

import os
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributions import Distribution, Independent, TransformedDistribution

from prudent._tables import read_settings
from prudent.errors import InputError
from prudent.priors.checks import from_spec, joined, to_spec
from prudent.priors.density import made_of, trial_draws
from prudent.priors.families import Product, RowPrior, Scipy, Truncated
from prudent.priors.files import Described, from_table

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
        return from_table(read_settings(Path(value)), Path(value))
    if isinstance(value, list) or type(value) is tuple:  # a named tuple may be a prior
        value = independent(*value)
    elif _is_scipy(value):
        value = joined(_of_scipy(value))
    else:
        value = _in_our_form(value)
    names, units = (list(getattr(value, key, ())) for key in ("parameter_names", "units"))
    try:
        weakref.WeakSet((value,))
    except TypeError:  # what is known of a prior is remembered under such
        value = RowPrior(value, trial_draws(value, "prior").shape[1])
    return Described(value, names, units)


def independent(*factors: Any, **named: Any) -> Distribution:
    """Independent parameters, by name or one after the other.

    Args:
        *factors: Distributions of one number each: of torch, of :mod:`prudent.priors`, or frozen
            ones of scipy. One of several numbers, but not of shares, is as many parameters.
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
        first = len(names) + 1
        names += [f"theta_{i}" if name is None else name + p for i, p in enumerate(places, first)]
        parts += found
    if len(set(names)) < len(names):
        raise InputError(f"expected names that differ, got {' '.join(names)}.")
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
    one = isinstance(base, Distribution) and (base.batch_shape + base.event_shape).numel() == 1
    if not one or not base.arg_constraints:
        raise InputError(
            f"a {type(base).__name__} cannot be cut; expected one like Normal(0.0, 1.0)."
        )
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
    return _joint("MultivariateNormal", loc=loc, std=std, correlation=correlation)


def from_file(path: str | os.PathLike[str]) -> Distribution:
    """The prior in a TOML or JSON file, which knows the names and units of its parameters."""
    found = as_prior(Path(path))
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
    dims = len(value.batch_shape)
    return [Independent(value, dims) if dims else _in_our_form(value)]


def _in_our_form(value: Any) -> Any:
    """What sbi joined or torch transformed, in a form that can be saved if there is one."""
    base = value
    while isinstance(base, Independent):
        base = base.base_dist
    ours = made_of(value)[1] is None or isinstance(value, Product)
    spec = None if ours and type(base) is not TransformedDistribution else to_spec(value)
    return value if spec is None else from_spec(spec)


def _is_scipy(value: Any) -> bool:
    return type(value).__module__.startswith("scipy.stats")


def _of_scipy(value: Any) -> list[Distribution]:
    """A frozen distribution of scipy; one of several numbers is as many factors."""
    kind = type(value).__name__
    five = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])[:, None]
    if kind == "multivariate_normal_frozen":
        dtype = _type_of(value.mean + five * value.cov.diagonal() ** 0.5)
        covariance = (value.cov + value.cov.T) / 2  # scipy forgives roundings
        return [_joint("MultivariateNormal", dtype, loc=value.mean, covariance_matrix=covariance)]
    if kind == "dirichlet_frozen":
        dtype = _type_of(value.mean() + five * value.var() ** 0.5)
        return [_joint("Dirichlet", dtype, concentration=value.alpha)]
    family: Any = getattr(value, "dist", None)
    known: Any = getattr(sys.modules["scipy.stats"], str(getattr(family, "name", "")), None)
    other = not hasattr(family, "_pdf") or type(known) is not type(family)
    if other or (known.a, known.b) != (family.a, family.b):
        raise InputError(
            f"{kind} of scipy cannot serve as a prior; expected a frozen continuous distribution "
            "of scipy's own families, such as scipy.stats.beta(2, 3)."
        )
    places = np.broadcast_arrays(*value.support(), *map(value.ppf, (0.25, 0.5, 0.75)))
    dtype = getattr(torch, _type_of(np.sort(places, axis=0)))
    numbers = np.broadcast_arrays(*value.args, *value.kwds.values())
    rows = np.stack(numbers, axis=-1).reshape(-1, len(numbers)).tolist() if numbers else [[]]
    count = len(value.args)
    return [
        Scipy(family.name, dtype, *row[:count], **dict(zip(value.kwds, row[count:], strict=True)))
        for row in rows
    ]


def _joint(family: str, dtype: str = "float32", **numbers: Any) -> Distribution:
    lists = {key: np.asarray(value, dtype=float).tolist() for key, value in numbers.items()}
    made: Distribution = from_table({"family": family, "dtype": dtype, **lists}).prior
    return made


def _type_of(places: Any) -> str:
    """The type that holds an end, the quartiles and the other end of numbers, (5, ...)."""
    with np.errstate(all="ignore"):
        single = places.astype(np.float32)
        narrow = places[3] - places[1] < NARROW * np.abs(places[2])
        lost = ((single == 0) != (places == 0)) | (np.isinf(single) != np.isinf(places))
        together = np.diff(single, axis=0) <= 0
    return "float64" if any(one.any() for one in (narrow, lost, together)) else "float32"
