"""The prior inside an estimator: checked, evaluated safely, and stored as plain numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributions
from torch.distributions import Distribution, Independent, Uniform, constraints

from prudent._randomness import seeded
from prudent._settings import whole
from prudent.contracts import Prior
from prudent.coverage.proposals import log_density, trial_draws
from prudent.coverage.proposals import support_bounds as support_bounds
from prudent.errors import InputError, StoreError, one_line

# The density of the prior, safe at any theta, is that of the penalty's draws.
log_prior = log_density

# Draws and bins that show the density of one parameter of a prior, where it has no formula.
NUM_DRAWS, NUM_BINS = 2**17, 40

# Parameters that rebuild each distribution; only these are read from files.
PARAMETERS = {
    "Uniform": ("low", "high"),
    "Normal": ("loc", "scale"),
    "LogNormal": ("loc", "scale"),
    "MultivariateNormal": ("loc", "scale_tril"),
    "Beta": ("concentration1", "concentration0"),
    "Gamma": ("concentration", "rate"),
    "Exponential": ("rate",),
    "HalfNormal": ("scale",),
    "StudentT": ("df", "loc", "scale"),
    "Laplace": ("loc", "scale"),
    "Dirichlet": ("concentration",),
}


class Product(Distribution):
    """Independent parameters, each a distribution of one number from a family of its own."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, factors: Sequence[Distribution]) -> None:
        self.factors = list(factors)
        super().__init__(event_shape=torch.Size([len(self.factors)]), validate_args=False)

    @property
    def support(self) -> Any:
        """The product of the supports."""
        parts: list[Any] = [factor.support for factor in self.factors]
        joined: Any = constraints.cat(parts, dim=-1, lengths=[1] * len(parts))
        return constraints.independent(joined, 1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw ``theta`` ``(*sample_shape, D)``."""
        return torch.stack([factor.sample(sample_shape) for factor in self.factors], dim=-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of ``theta`` (..., D), as (...)."""
        columns = zip(self.factors, value.split(1, dim=-1), strict=True)
        parts = [log_prior(Independent(f.expand((1,)), 1), column) for f, column in columns]
        return torch.stack(parts).sum(dim=0)


def check_prior(prior: Any, role: str = "prior") -> int:
    """Refuse what cannot serve as a prior or proposal; return its number of parameters."""
    draws = trial_draws(prior, role)
    if draws.device.type != "cpu":
        raise InputError(
            f"the {role} draws on {draws.device}; make it on the CPU. Its draws and densities "
            "move to the networks' device by themselves."
        )
    return draws.shape[1]


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
    name = type(prior).__name__
    if name not in PARAMETERS or type(prior) is not getattr(distributions, name):
        return None
    parameters = {key: getattr(prior, key) for key in PARAMETERS[name]}
    dtype = str(next(iter(parameters.values())).dtype).removeprefix("torch.")
    values = {key: value.tolist() for key, value in parameters.items()}
    return {"class": name, "dtype": dtype, "parameters": values}


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
    if name not in PARAMETERS or spec.get("dtype", "float32") not in ("float32", "float64"):
        raise StoreError(f"the file names a prior `{name}`; known: {' '.join(PARAMETERS)}.")
    dtype = torch.float64 if spec.get("dtype") == "float64" else torch.float32
    values = {key: torch.tensor(spec["parameters"][key], dtype=dtype) for key in PARAMETERS[name]}
    rebuilt: Distribution = getattr(distributions, name)(**values)
    return rebuilt


def from_table(table: Mapping[str, Any]) -> tuple[Distribution, list[str], list[str]]:
    """A prior that a user wrote down, with the names and units of its parameters.

    Args:
        table: ``kind = "box"`` with ``low`` and ``high``; or a list of ``parameter`` with a
            ``family``, such as Normal, its numbers and a ``name``; or what :func:`to_spec` gives.
            ``names`` and ``units`` may be added.

    >>> prior, names, _ = from_table({"kind": "box", "low": [0, 0], "high": [1, 2]})
    >>> prior.event_shape, names
    (torch.Size([2]), ['theta_1', 'theta_2'])
    """
    values = dict(table)
    names, units = values.pop("names", None), values.pop("units", None)
    try:
        rows = values.get("parameter", [])
        if values.get("kind") == "box":
            sides = zip(values["low"], values["high"], strict=True)
            rows = [{"family": "Uniform", "low": low, "high": high} for low, high in sides]
        names = names or [row.get("name", f"theta_{i + 1}") for i, row in enumerate(rows)]
        units = units or [row.get("unit", "") for row in rows]
        prior = from_spec(values) if "class" in values else _product(rows)
        dim = check_prior(prior)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, StoreError) as error:
        raise InputError(
            f'not a prior: {one_line(error)} Expected `kind = "box"` with `low` and `high`, or '
            "[[parameter]] tables with a `family` and its numbers."
        ) from error
    names = [str(name) for name in names or (f"theta_{i + 1}" for i in range(dim))]
    units = [str(unit) for unit in units or [""] * dim]
    if not len(names) == len(units) == dim:
        raise InputError(
            f"the prior has {dim} parameters, {len(names)} names and {len(units)} units."
        )
    return prior, names, units


def _product(rows: Sequence[Mapping[str, Any]]) -> Distribution:
    """Independent parameters; of one family they are one torch distribution."""
    families = {row["family"] for row in rows}
    for row in rows:
        known = PARAMETERS.get(row["family"], row)
        if unknown := set(row) - {"name", "unit", "family", *known}:
            raise ValueError(f"{row['family']} has no `{min(unknown)}`.")
        if row["family"] != "Uniform":
            continue
        low, high = (torch.tensor(float(row[key])) for key in ("low", "high"))
        if not bool(low < high):
            raise ValueError(f"low {row['low']} is not below high {row['high']} in float32.")
    if len(families) != 1:
        return Product([from_spec({"class": row["family"], "parameters": row}) for row in rows])
    (name,) = families
    columns = {key: [float(row[key]) for row in rows] for key in PARAMETERS.get(name, ())}
    return Independent(from_spec({"class": name, "parameters": columns}), 1)


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
        value = log_prior(Independent(one.expand((1,)), 1), torch.as_tensor(points)[:, None])
        return value.exp().numpy()
    with seeded(0, "prior"):
        draws = prior.sample((NUM_DRAWS,))[:, index].double().numpy()
    counts, edges = np.histogram(draws, NUM_BINS, (points[0], points[-1]))
    heights = counts / (NUM_DRAWS * (edges[1] - edges[0]))
    return np.interp(points, (edges[1:] + edges[:-1]) / 2, heights)
