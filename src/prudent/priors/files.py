"""Priors that users write down, with the names and units of their parameters.

A file is one of three: a box, a list of ``[[parameter]]`` tables with a family each, or one family
for all parameters, which may be correlated. Every mistake is told with its place.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributions
from torch.distributions import Distribution

from prudent._settings import Setting
from prudent._tables import Mistakes
from prudent.errors import InputError, PrudentError, one_line, unknown_name
from prudent.priors.checks import JOINT, PARAMETERS, check_prior, from_spec, joined
from prudent.priors.families import Truncated

POSITIVE = {"scale", "rate", "concentration", "concentration0", "concentration1", "df", "alpha"}
BOUNDS = ("low", "high")
# The ways to say how the parameters of a normal vary together.
SPREADS = ("covariance_matrix", "scale_tril", "precision_matrix", "std", "correlation")
EXPECTED = (
    'expected `kind = "box"` with `low` and `high`, `family` with its numbers, or [[parameter]] '
    "tables with a `family` each."
)


class Described(NamedTuple):
    """A prior with the names and units of its parameters, which are empty where nobody said."""

    prior: Any
    names: list[str]
    units: list[str]


def from_table(table: Mapping[str, Any], path: Path | None = None) -> Described:
    """A prior that a user wrote down.

    Args:
        table: ``kind = "box"`` with lists ``low`` and ``high``; or ``family``, such as Normal or
            MultivariateNormal, with lists of its numbers; or a list of ``parameter`` with a
            ``family``, its numbers, a ``name`` and a ``unit`` each, and ``low`` and ``high`` where
            the family is cut; or what :func:`prudent.priors.checks.to_spec` gives. ``names``,
            ``units`` and ``dtype = "float64"`` may be added.
        path: The file it stands in, whose lines are named.

    >>> prior, names, _ = from_table({"kind": "box", "low": [0, 0], "high": [1, 2]})
    >>> prior.event_shape, names
    (torch.Size([2]), ['theta_1', 'theta_2'])
    """
    mistakes = Mistakes(path)
    values = dict(table)
    names, units = values.pop("names", None), values.pop("units", None)
    own = None
    if "class" in values:
        made = _try(mistakes, "class", from_spec, values)
    else:
        made, own = _written(values, mistakes)
    mistakes.refuse()
    dim = _try(mistakes, "", check_prior, made)
    mistakes.refuse()
    rows = own or [{}] * dim
    names = _texts("names", names, [r.get("name", f"theta_{i + 1}") for i, r in enumerate(rows)])
    units = _texts("units", units, [row.get("unit", "") for row in rows])
    if not len(names) == len(units) == dim:
        reason = f"the prior has {dim} parameters, {len(names)} names and {len(units)} units."
        mistakes.add("names" if len(names) != dim else "units", reason)
    if len(set(names)) < len(names):
        mistakes.add("names", f"expected names that differ, got {' '.join(names)}.")
    mistakes.refuse()
    return Described(made, names, units)


def _texts(key: str, given: Any, default: list[Any]) -> list[str]:
    return [str(one) for one in (given if isinstance(given, list) else default)]


def _try(mistakes: Mistakes, place: str, function: Any, *arguments: Any) -> Any:
    """What a function returns; whatever it raises for wrong numbers is a mistake."""
    try:
        return function(*arguments)
    except (PrudentError, ValueError, RuntimeError, TypeError, KeyError, AttributeError) as error:
        mistakes.add(place, f"not a prior: {one_line(error)}")
        return None


def _written(
    values: dict[str, Any], mistakes: Mistakes
) -> tuple[Any, list[dict[str, Any]] | None]:
    """A prior in the words of a user, and the rows of its parameters if there are some."""
    dtype = values.pop("dtype", "float32")
    if dtype not in ("float32", "float64"):
        mistakes.add("dtype", f"`dtype` is {dtype!r}; expected float32 or float64.")
        dtype = "float32"
    if "parameter" in values:
        rows = values.pop("parameter")
        _refuse_others("", values, (), mistakes)
        if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
            mistakes.add("parameter", f"not a prior; {EXPECTED}")
            return None, None
        places = [f"parameter[{index}]." for index in range(len(rows))]
        return _product(rows, places, dtype, mistakes), rows
    kind, family = values.pop("kind", None), values.pop("family", None)
    if kind not in (None, "box") or (kind is None) == (family is None):
        wrong = "not a prior" if kind is None else f"unknown kind `{kind}`"
        mistakes.add("kind" if kind is not None else "", f"{wrong}; {EXPECTED}")
        return None, None
    if family in JOINT:
        return _joint(family, values, dtype, mistakes), None
    rows = _rows(family or "Uniform", values, mistakes)
    return _product(rows, [""] * len(rows), dtype, mistakes) if rows else None, None


def _rows(family: str, values: Mapping[str, Any], mistakes: Mistakes) -> list[dict[str, Any]]:
    """Lists of numbers as one table for each parameter."""
    if family not in PARAMETERS:
        mistakes.add("family", str(unknown_name("family", family, {**PARAMETERS, **JOINT})))
        return []
    _refuse_others("", values, _keys(family), mistakes)
    for key in PARAMETERS[family]:
        if key not in values:
            mistakes.add("", f"`{key}` is missing.")
    for key, value in values.items():
        if not isinstance(value, list) or not value:
            reason = f"`{key}` is {value!r}; expected a list with a number for each parameter."
            mistakes.add(key, reason)
    if mistakes.found:
        return []
    if len({len(value) for value in values.values()}) > 1:
        counts = ", ".join(f"{len(value)} in `{key}`" for key, value in values.items())
        mistakes.add("", f"lists of different lengths: {counts}.")
        return []
    columns = zip(*values.values(), strict=True)
    return [{"family": family, **dict(zip(values, row, strict=True))} for row in columns]


def _keys(family: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*PARAMETERS.get(family, ()), *BOUNDS)))


def _refuse_others(
    place: str, values: Mapping[str, Any], known: Sequence[str], mistakes: Mistakes
) -> None:
    for key in values:
        if key not in known:
            every = known or ("parameter", "names", "units", "dtype")
            mistakes.add(place + key, str(unknown_name("key", key, every)))


def _product(
    rows: Sequence[Mapping[str, Any]], places: Sequence[str], dtype: str, mistakes: Mistakes
) -> Distribution | None:
    """Independent parameters."""
    factors = [_factor(*one, dtype, mistakes) for one in zip(rows, places, strict=True)]
    return None if mistakes.found or None in factors else joined(factors)


def _factor(row: Mapping[str, Any], place: str, dtype: str, mistakes: Mistakes) -> Any:
    """The distribution of one parameter."""
    family = row.get("family")
    if not isinstance(family, str) or family not in PARAMETERS:
        hint = f"{family} is a family of several parameters." if family in JOINT else ""
        wrong = "`family` is missing." if family is None else None
        mistakes.add(
            f"{place}family" if wrong is None else place.rstrip("."),
            wrong or str(unknown_name("family", family, PARAMETERS, hint)),
        )
        return None
    before = len(mistakes.found)
    _refuse_others(place, row, ("name", "unit", "family", *_keys(family)), mistakes)
    numbers = {key: _number(row, key, place, dtype, mistakes) for key in PARAMETERS[family]}
    cut = {key: row[key] for key in BOUNDS if key in row and key not in PARAMETERS[family]}
    for key, value in cut.items():
        mistakes.try_to(place + key, Setting(key, (float,)).check, _finite(value))
    if len(mistakes.found) > before:
        return None
    ends = [_single(numbers[key], dtype) for key in BOUNDS if key in numbers]
    if len(ends) == 2 and not ends[0] < ends[1]:
        reason = f"low {row['low']} is not below high {row['high']} in {dtype}."
        mistakes.add(f"{place}low", reason)
        return None
    spec = {"class": family, "dtype": dtype, "parameters": numbers}
    made = _try(mistakes, f"{place}family", from_spec, spec)
    if made is None or not cut:
        return made
    return mistakes.try_to(place + max(cut), lambda: Truncated(made, **cut))


def _finite(value: Any) -> Any:
    """A bound; where it is infinite, any number, as the check of numbers refuses infinity."""
    return 0.0 if isinstance(value, float) and math.isinf(value) else value


def _single(value: float, dtype: str) -> float:
    return float(torch.tensor(value, dtype=getattr(torch, dtype)))


def _number(row: Mapping[str, Any], key: str, place: str, dtype: str, mistakes: Mistakes) -> float:
    """A number of a family, which the type holds."""
    if key not in row:
        mistakes.add(place.rstrip("."), f"`{key}` is missing.")
        return math.nan
    above = 0.0 if key in POSITIVE else None
    found = mistakes.try_to(place + key, Setting(key, (float,), above=above).check, row[key])
    if found is None:
        return math.nan
    single = _single(found, dtype)
    if not math.isfinite(single) or (found != 0 and single == 0):
        reason = f'`{key}` is {found:g}, which {dtype} does not hold; add dtype = "float64".'
        mistakes.add(place + key, reason)
    return float(found)


def _joint(family: str, values: dict[str, Any], dtype: str, mistakes: Mistakes) -> Any:
    """A distribution of several parameters that vary together."""
    normal = family == "MultivariateNormal"
    for key in (one for one in BOUNDS if one in values):
        mistakes.add(key, f"a {family} cannot be cut; only [[parameter]] tables and box are.")
    values = {key: value for key, value in values.items() if key not in BOUNDS}
    _refuse_others("", values, ("loc", *SPREADS) if normal else JOINT[family], mistakes)
    tensors = {
        key: mistakes.try_to(key, _numbers, key, value, dtype)
        for key, value in values.items()
        if key in (*JOINT[family], *SPREADS)
    }
    if (needed := JOINT[family][0]) not in values:
        mistakes.add("", f"`{needed}` is missing.")
    if normal and not mistakes.found:
        for key in tensors:
            mistakes.try_to(key, _check_spread, key, tensors)
        tensors = mistakes.try_to("", _correlated, tensors)
    if mistakes.found:
        return None
    made = getattr(distributions, family)
    return _try(mistakes, "family", lambda: made(**tensors, validate_args=True))


def _check_spread(key: str, tensors: Mapping[str, Any]) -> None:
    """Refuse numbers of a normal that do not fit the others, or that no normal has."""
    value, dim = tensors[key], len(tensors["loc"])
    if value.shape != (dim,) * value.ndim:
        raise InputError(f"got shape {tuple(value.shape)} for {dim} parameters in `loc`.")
    if key == "std" and not bool((value > 0).all()):
        raise InputError("expected numbers > 0.")
    if key == "correlation" and not bool((value.diagonal() == 1).all()):
        raise InputError("expected 1 on the diagonal; variances go to `std` or a covariance.")
    if value.ndim == 1 or key == "scale_tril":
        return
    if not bool((value == value.T).all()):
        raise InputError("expected a symmetric table.")
    if torch.linalg.cholesky_ex(value).info:
        raise InputError("no parameters vary like this; the table must be positive definite.")


def _correlated(tensors: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a normal; spreads and correlations are a covariance."""
    given = set(tensors) - {"loc"}
    if given == {"std", "correlation"}:
        std = tensors.pop("std")
        covariance = std[:, None] * tensors.pop("correlation") * std
        return {**tensors, "covariance_matrix": covariance}
    if len(given) == 1 and not given & {"std", "correlation"}:
        return tensors
    raise InputError(
        "a normal needs one of `covariance_matrix`, `scale_tril` and `precision_matrix`, or `std` "
        f"with `correlation`; got {' '.join(sorted(given)) or 'none'}."
    )


def _numbers(key: str, value: Any, dtype: str) -> Any:
    try:
        found = torch.tensor(value, dtype=getattr(torch, dtype))
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"expected lists of numbers: {one_line(error)}") from error
    sides = 2 if key not in ("loc", "std", "concentration") else 1
    if found.ndim != sides or not bool(found.isfinite().all()):
        raise InputError(f"expected {'a square table' if sides == 2 else 'a list'} of numbers.")
    return found
