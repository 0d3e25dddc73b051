"""The prior inside an estimator: checked, evaluated safely, and stored as plain numbers."""

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributions
from torch.distributions import Distribution, Independent, Uniform

from prudent._randomness import seeded
from prudent._settings import whole
from prudent.contracts import Prior
from prudent.errors import InputError, StoreError
from prudent.priors.density import log_density, support_bounds, support_of, trial_draws
from prudent.priors.families import LogUniform, Product, RowPrior, Truncated

# Draws and bins that show the density of one parameter of a prior, where it has no formula.
NUM_DRAWS, NUM_BINS = 2**17, 40

# Parameters that rebuild each distribution of one number; only these are read from files.
PARAMETERS = {
    "Uniform": ("low", "high"),
    "Normal": ("loc", "scale"),
    "LogNormal": ("loc", "scale"),
    "Beta": ("concentration1", "concentration0"),
    "Gamma": ("concentration", "rate"),
    "Exponential": ("rate",),
    "HalfNormal": ("scale",),
    "StudentT": ("df", "loc", "scale"),
    "Laplace": ("loc", "scale"),
    "Cauchy": ("loc", "scale"),
    "HalfCauchy": ("scale",),
    "Gumbel": ("loc", "scale"),
    "Weibull": ("scale", "concentration"),
    "Pareto": ("scale", "alpha"),
    "Chi2": ("df",),
    "InverseGamma": ("concentration", "rate"),
    "Kumaraswamy": ("concentration1", "concentration0"),
    "LogUniform": ("low", "high"),
}
# The same of distributions of several numbers.
JOINT = {"MultivariateNormal": ("loc", "scale_tril"), "Dirichlet": ("concentration",)}


def check_prior(prior: Any, role: str = "prior") -> int:
    """Refuse what cannot serve as a prior or proposal; return its number of parameters."""
    draws = trial_draws(prior, role)
    if draws.device.type != "cpu":
        raise InputError(
            f"the {role} draws on {draws.device}; make it on the CPU. Its draws and densities "
            "move to the networks' device by themselves."
        )
    region = support_of(prior, draws.shape[1])
    if getattr(region.declared, "is_discrete", False):
        raise InputError(f"the {role} ({type(prior).__name__}) is of whole numbers, not of reals.")
    return draws.shape[1]


def of_any_shape(prior: Prior, dim: int) -> Prior:
    """The prior, with draws and densities of theta of any shape (..., D)."""
    with seeded(0, "prior"), contextlib.suppress(Exception):  # whatever its own checks raise
        draws = prior.sample(torch.Size((2, 3)))
        if draws.shape == (2, 3, dim) and prior.log_prob(draws).shape == (2, 3):
            return prior
    return RowPrior(prior, dim)


def dtype_of(prior: Prior) -> torch.dtype:
    """The type of theta, of its draws and of log-densities: float64 if the prior draws that."""
    double = trial_draws(prior, "prior").dtype == torch.float64
    return torch.float64 if double else torch.float32


def dtype_for(estimator: Any) -> torch.dtype:
    """The type of theta that an estimator takes, or float64 for an array of draws in its place.

    An estimator of another library, which does not say, takes float32.
    """
    dtype = getattr(estimator, "dtype", None) if callable(estimator) else torch.float64
    return torch.float64 if dtype == torch.float64 else torch.float32


def to_spec(prior: Any) -> dict[str, Any] | None:
    """The prior as JSON, or None if it is not one of the known torch distributions."""
    if isinstance(prior, Independent):
        base = to_spec(prior.base_dist)
        dims = prior.reinterpreted_batch_ndims
        return None if base is None else {"class": "Independent", "base": base, "dims": dims}
    if isinstance(prior, Product):
        factors = [to_spec(factor) for factor in prior.factors]
        return None if None in factors else {"class": "Product", "factors": factors}
    if isinstance(prior, Truncated):
        base = to_spec(prior.base)
        ends = {"low": prior.low, "high": prior.high}
        found = {key: value if math.isfinite(value) else None for key, value in ends.items()}
        return None if base is None else {"class": "Truncated", "base": base, **found}
    name = type(prior).__name__
    if name not in {**PARAMETERS, **JOINT} or type(prior) is not _class(name):
        return None
    parameters = {key: getattr(prior, key) for key in {**PARAMETERS, **JOINT}[name]}
    dtype = str(next(iter(parameters.values())).dtype).removeprefix("torch.")
    values = {key: value.tolist() for key, value in parameters.items()}
    return {"class": name, "dtype": dtype, "parameters": values}


def _class(name: str) -> Any:
    return LogUniform if name == "LogUniform" else getattr(distributions, name)


def from_spec(spec: Mapping[str, Any]) -> Distribution:
    """The distribution that a specification describes.

    >>> from torch.distributions import Normal
    >>> prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> from_spec(to_spec(prior))
    Independent(Normal(loc: torch.Size([2]), scale: torch.Size([2])), 1)
    """
    name = spec.get("class")
    if name == "Independent":
        return Independent(from_spec(spec["base"]), whole("dims", spec["dims"], 0))
    if name == "Product":
        return Product([from_spec(factor) for factor in spec["factors"]])
    if name == "Truncated":
        ends = {key: spec[key] for key in ("low", "high") if spec[key] is not None}
        return Truncated(from_spec(spec["base"]), **{k: float(v) for k, v in ends.items()})
    known = {**PARAMETERS, **JOINT}
    if name not in known or spec.get("dtype", "float32") not in ("float32", "float64"):
        raise StoreError(f"the file names a prior `{name}`; known: {' '.join(known)}.")
    dtype = torch.float64 if spec.get("dtype") == "float64" else torch.float32
    values = {key: torch.tensor(spec["parameters"][key], dtype=dtype) for key in known[name]}
    rebuilt: Distribution = _class(name)(**values)
    return rebuilt


def support_box(prior: Prior) -> Distribution:
    """The uniform distribution on the smallest box that holds the prior's support."""
    bounds = support_bounds(prior, check_prior(prior))
    if bounds is None:
        raise InputError(
            'proposal="box" needs a prior with bounds; this one has none. Use "prior", or pass a '
            "distribution that covers it."
        )
    return Independent(Uniform(*bounds), 1)


def marginal_density(prior: Prior, index: int, points: NDArray[np.float64]) -> Any:
    """The prior density of one parameter at ascending points (P,), by draws if need be."""
    base: Any = getattr(prior, "base_dist", None)
    one: Any = None
    if isinstance(prior, Product):
        one = prior.factors[index]
    elif isinstance(prior, Independent) and type(base).__name__ in PARAMETERS:
        names = PARAMETERS[type(base).__name__]
        if base.batch_shape == prior.event_shape:
            one = type(base)(**{name: getattr(base, name)[index] for name in names})
    if one is not None:
        value = log_density(Independent(one.expand((1,)), 1), torch.as_tensor(points)[:, None])
        return value.exp().numpy()
    with seeded(0, "prior"):
        draws = prior.sample((NUM_DRAWS,))[:, index].double().numpy()
    counts, edges = np.histogram(draws, NUM_BINS, (points[0], points[-1]))
    heights = counts / (NUM_DRAWS * (edges[1] - edges[0]))
    return np.interp(points, (edges[1:] + edges[:-1]) / 2, heights)
