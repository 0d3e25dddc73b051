"""The prior inside an estimator: checked, evaluated safely, and stored as plain numbers."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributions
from torch.distributions import (
    Distribution,
    Independent,
    MixtureSameFamily,
    Uniform,
    transforms,
)

from prudent._randomness import seeded
from prudent._settings import whole
from prudent.contracts import Prior
from prudent.errors import InputError, StoreError
from prudent.priors import density
from prudent.priors.families import LogUniform, Product, RowPrior, Scipy, Truncated

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
# Families of scipy, of which files hold the names.
SCIPY = frozenset(
    "arcsine argus beta betaprime burr12 cauchy chi chi2 cosine expon exponnorm f gamma "
    "genextreme gengamma genpareto gumbel_l gumbel_r halfcauchy halflogistic halfnorm "
    "invgamma invgauss johnsonsu laplace logistic loglaplace lognorm loguniform maxwell "
    "nakagami norm norminvgauss pareto powerlaw rayleigh reciprocal rice skewnorm t trapezoid "
    "triang truncexpon truncnorm uniform wald weibull_max weibull_min".split()
)
# Distributions that are made of others, and the names under which they have them.
NESTED = {
    "Independent": "base_dist",
    "Truncated": "base",
    "MixtureSameFamily": "component_distribution",
    "TransformedDistribution": "base_dist",
}
# The same of distributions of several numbers.
JOINT = {"MultivariateNormal": ("loc", "scale_tril"), "Dirichlet": ("concentration",)}
CLASSES: dict[str, Any] = {"LogUniform": LogUniform, "Truncated": Truncated}
for one in {*PARAMETERS, *JOINT, *NESTED} - {*CLASSES}:
    CLASSES[one] = getattr(distributions, one)


def check_prior(prior: Any, role: str = "prior") -> int:
    """Refuse what cannot serve as a prior or proposal; return its number of parameters."""
    draws = density.trial_draws(prior, role)
    if draws.device.type != "cpu":
        raise InputError(
            f"the {role} draws on {draws.device}; make it on the CPU. Its draws and densities "
            "move to the networks' device by themselves."
        )
    density.support_of(prior, draws.shape[1])
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
    double = density.trial_draws(prior, "prior").dtype == torch.float64
    return torch.float64 if double else torch.float32


def dtype_for(estimator: Any) -> torch.dtype:
    """The type of theta that an estimator takes, or float64 for an array of draws in its place.

    An estimator of another library, which does not say, takes float32.
    """
    dtype = getattr(estimator, "dtype", None) if callable(estimator) else torch.float64
    return torch.float64 if dtype == torch.float64 else torch.float32


def to_spec(prior: Any) -> dict[str, Any] | None:
    """The prior as JSON, or None if it is not made of known distributions."""
    inner, parts = density.made_of(prior)
    if inner is not None:
        return to_spec(inner)
    if isinstance(parts, list):
        factors = [_one(to_spec(part), part) for part in parts]
        return None if None in factors else {"class": "Product", "factors": factors}
    if type(prior) is Scipy:
        parameters = {"numbers": list(prior.numbers), "named": prior.named}
        found = {"class": "Scipy", "family": prior.name, "dtype": _name_of(prior.dtype)}
        return {**found, **parameters} if prior.name in SCIPY else None
    name = "Independent" if density.is_independent(prior) else _family(prior)
    if not name:
        return None
    if name in NESTED:
        base = to_spec(getattr(prior, NESTED[name]))
        return None if base is None else _nested({"class": name, "base": base}, prior)
    numbers = {key: getattr(prior, key) for key in {**PARAMETERS, **JOINT}[name]}
    dtype = _name_of(next(iter(numbers.values())).dtype)
    values = {key: value.tolist() for key, value in numbers.items()}
    return {"class": name, "dtype": dtype, "parameters": values}


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _one(spec: dict[str, Any] | None, part: Distribution) -> dict[str, Any] | None:
    """The specification of a part of a prior, which may be written as a batch of one."""
    if spec is None or part.event_shape or not part.batch_shape:
        return spec
    return {"class": "Independent", "base": spec, "dims": len(part.batch_shape)}


def _nested(found: dict[str, Any], prior: Any) -> dict[str, Any] | None:
    """What a prior adds to the specification of the one that it is made of."""
    if isinstance(prior, Independent):
        return {**found, "dims": prior.reinterpreted_batch_ndims}
    if isinstance(prior, Truncated):
        ends = {"low": prior.low, "high": prior.high}
        return found | {key: end if math.isfinite(end) else None for key, end in ends.items()}
    if isinstance(prior, MixtureSameFamily):
        logits = prior.mixture_distribution.logits
        return {**found, "dtype": _name_of(logits.dtype), "logits": logits.tolist()}
    # The exponential of a uniform number is log-uniform.
    base, moves = prior.base_dist, [type(move) for move in prior.transforms]
    if type(base) is not Uniform or moves != [transforms.ExpTransform]:
        return None
    return to_spec(LogUniform(base.low.exp(), base.high.exp()))


def _family(prior: Any) -> str:
    """The name of its class, unless that is of others, who may mean something else by it."""
    name = type(prior).__name__
    return name if type(prior) is CLASSES.get(name) else ""


def from_spec(spec: Mapping[str, Any]) -> Distribution:
    """The distribution that a specification describes.

    >>> from torch.distributions import Normal
    >>> prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> from_spec(to_spec(prior))
    Independent(Normal(loc: torch.Size([2]), scale: torch.Size([2])), 1)
    """
    name, known = spec.get("class"), {**PARAMETERS, **JOINT}
    dtype = torch.float64 if spec.get("dtype") == "float64" else torch.float32
    if name == "Product":
        return Product([from_spec(factor) for factor in spec["factors"]])
    if name == "Scipy" and spec["family"] in SCIPY:
        named = {str(key): float(value) for key, value in spec["named"].items()}
        return Scipy(spec["family"], dtype, *map(float, spec["numbers"]), **named)
    base: Any = from_spec(spec["base"]) if "base" in spec else None
    if name == "Independent":
        return Independent(base, whole("dims", spec["dims"], 0))
    if name == "MixtureSameFamily":
        weights = distributions.Categorical(logits=torch.tensor(spec["logits"], dtype=dtype))
        return MixtureSameFamily(weights, base, validate_args=False)
    if name == "Truncated":
        ends = {key: spec[key] for key in ("low", "high") if spec[key] is not None}
        return Truncated(base, **{k: float(v) for k, v in ends.items()})
    if name not in known or spec.get("dtype", "float32") not in ("float32", "float64"):
        raise StoreError(f"the file names a prior `{name}`; known: {' '.join(known)}.")
    values = {key: torch.tensor(spec["parameters"][key], dtype=dtype) for key in known[name]}
    rebuilt: Distribution = CLASSES[name](**values)
    return rebuilt


def joined(factors: Sequence[Distribution]) -> Distribution:
    """Independent parameters; of one family of torch they are one distribution of torch."""
    names = {_family(factor) for factor in factors}
    if len(factors) == 1 and factors[0].event_shape:
        return factors[0]
    if len(names) > 1 or not names <= {*PARAMETERS} or any(one.batch_shape for one in factors):
        return Product(factors)
    keys = PARAMETERS[name := names.pop()]
    columns = {key: torch.stack([getattr(one, key) for one in factors]) for key in keys}
    return Independent(CLASSES[name](**columns), 1)


def support_box(prior: Prior) -> Distribution:
    """The uniform distribution on the smallest box that holds the prior's support."""
    bounds = density.support_bounds(prior, check_prior(prior))
    if bounds is None:
        raise InputError(
            'proposal="box" needs a prior with bounds; this one has none. Use "prior", or pass a '
            "distribution that covers it."
        )
    return Independent(Uniform(*bounds), 1)


def marginal_density(prior: Any, index: int, points: NDArray[np.float64]) -> Any:
    """The prior density of one parameter at ascending points (P,), by draws if need be."""
    base: Any = getattr(prior, "base_dist", None)
    one: Any = None
    names = PARAMETERS.get(_family(base), ())
    if type(prior) is Product and not any(one.event_shape for one in prior.factors):
        one = prior.factors[index]
    elif names and density.is_independent(prior) and base.batch_shape == prior.event_shape:
        one = type(base)(**{name: getattr(base, name)[index] for name in names})
    if one is not None:
        value = density.log_density(
            Independent(one.expand((1,)), 1), torch.as_tensor(points)[:, None]
        )
        return value.exp().numpy()
    with seeded(0, "prior"):
        draws = prior.sample((NUM_DRAWS,))[:, index].double().numpy()
    counts, edges = np.histogram(draws, NUM_BINS, (points[0], points[-1]))
    heights = counts / (NUM_DRAWS * (edges[1] - edges[0]))
    return np.interp(points, (edges[1:] + edges[:-1]) / 2, heights)
