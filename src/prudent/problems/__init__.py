"""Benchmark problems: a prior and a simulator each.

The registry holds names and one line of description; a problem is imported when it is asked for,
so that listing them costs nothing.

>>> problem = get("slcp")
>>> theta, x = problem.draw(3, seed=0)
>>> theta.shape, x.shape
(torch.Size([3, 2]), torch.Size([3, 8]))
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prudent._files import sha256
from prudent._lazy import attach
from prudent.errors import InputError, PrudentError, one_line, unknown_name

if TYPE_CHECKING:
    from prudent.priors.families import box as box
    from prudent.problems.problem import Problem as Problem
    from prudent.problems.problem import custom as custom

DESCRIPTIONS = {
    "gaussian": "conjugate Gaussian with a known posterior, any dimension",
    "gravitational_waves": "masses of two black holes from the strain in two detectors",
    "gravitational_waves_pycbc": "the same with PyCBC and LALSuite; needs the extra gw",
    "lotka_volterra": "two rates of a predator and prey chain, 1,001 events",
    "mg1": "three rates of a queue from quantiles of its departures, heavy tails",
    "slcp": "four draws of a bivariate normal, four mirror-image modes",
    "spatial_sir": "infection and recovery on a 50 x 50 lattice",
    "two_moons": "two crescents with a known posterior",
    "weinberg": "one factor of an electron-positron collision, 20 angles",
}

__getattr__, __dir__, __all__ = attach(
    __name__, "DESCRIPTIONS", "check", "get", "names", "source_digest"
)


def names() -> list[str]:
    """The registered problems, in alphabetical order."""
    return sorted(DESCRIPTIONS)


def check(name: str) -> None:
    """Refuse an unknown name without importing anything.

    A problem of one's own, ``module:attribute``, is code: it is imported when it runs.
    """
    if ":" not in name and name not in DESCRIPTIONS:
        raise unknown_name("problem", name, DESCRIPTIONS, "Your own: module:attribute.")


def get(name: str, **options: Any) -> Problem:
    """The problem of that name.

    Args:
        name: One of :func:`names`, or ``module:attribute`` for one of your own, which is imported.
        **options: Passed to the problem, such as ``dim`` for ``gaussian``.
    """
    check(name)
    if ":" not in name:
        registered: Problem = importlib.import_module(f"{__name__}.{name}").problem(**options)
        return registered
    from prudent.problems.problem import Problem

    found = import_attribute(name)
    with _foreign(name):
        made = found() if callable(found) and not isinstance(found, Problem) else found
    if not isinstance(made, Problem):
        raise InputError(
            f"`{name}` is a {type(made).__name__}; expected a Problem, such as "
            "prudent.problems.custom(simulator, prior) makes."
        )
    return made


def import_attribute(reference: str) -> Any:
    """The object that ``module:attribute`` names."""
    module, _, attribute = reference.partition(":")
    with _foreign(reference):
        try:
            return getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            raise InputError(
                f"cannot import `{module}` of `{reference}`: {one_line(error)}. Run from its "
                "directory, or install it."
            ) from error
        except AttributeError as error:
            raise InputError(f"`{module}` has no attribute `{attribute}`.") from error


@contextlib.contextmanager
def _foreign(name: str) -> Iterator[None]:
    """Run the code of a user: whatever it raises is its mistake, and the directory stays."""
    try:
        with contextlib.chdir(os.curdir):
            yield
    except (PrudentError, KeyboardInterrupt):
        raise
    except BaseException as error:
        reason = one_line(error).rstrip(".")
        raise InputError(f"`{name}` cannot be made; it raises {reason}.") from error


def source_digest(name: str) -> str:
    """Sixteen hexadecimal digits of the file that defines ``module:attribute``, not imported.

    A run remembers them, so that results of a simulator that has changed are not taken for those
    of the new one. Modules that the file imports are not looked at. Registered problems, and
    modules that cannot be found, have none.

    >>> source_digest("slcp")
    ''
    >>> len(source_digest("prudent.errors:InputError"))
    16
    """
    module, colon, _ = name.partition(":")
    places: list[str] | None = [os.getcwd(), *sys.path]
    spec = None
    for part in module.split(".") if colon else ():
        # Without the finder's help a parent package would be imported.
        spec = PathFinder.find_spec(part, places)
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if spec is None or spec.origin is None or not spec.has_location:
        return ""
    try:
        return sha256(Path(spec.origin).read_bytes())[:16]
    except OSError:
        return ""
