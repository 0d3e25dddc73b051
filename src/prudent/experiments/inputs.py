"""The pairs of a run: simulated for it, shared by a sweep, or read from files."""

import contextlib
import logging
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from prudent import problems
from prudent._files import canonical_json, sha256
from prudent.datasets import Data, Pairs, Store, read
from prudent.datasets.pairs import refuse_non_finite
from prudent.datasets.provenance import checked, distinct, refuse_seen, remembered
from prudent.datasets.readers import FileRows, open_rows
from prudent.datasets.simulate import draw_pairs, new_pairs, simulate
from prudent.datasets.streaming import OnDisk
from prudent.errors import DataError, InputError, StoreError, printable
from prudent.experiments.config import LACKS_PRIOR, RunConfig
from prudent.fitting import networks_of, note_constant, untrained
from prudent.priors.checks import check_prior, dtype_of, to_spec
from prudent.priors.files import Described
from prudent.priors.given import as_prior
from prudent.problems import Problem
from prudent.training import methods

# Where there are no test pairs, so many rows or this share of them are held out.
HELD_OUT = 2000
HELD_OUT_SHARE = 5

logger = logging.getLogger("prudent")


@dataclass(frozen=True)
class Inputs:
    """The pairs of a run.

    The ``source`` is the name of a file, of which ``num_held_out`` rows were held out for testing;
    ``given`` are the options of the command that say what is read, names of arrays included.
    """

    problem: Problem
    training: Data
    test: Pairs
    source: str = "simulated"
    num_held_out: int = 0
    given: dict[str, str] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The description of the pairs that a run stores as ``data.json``."""
        training = self.training
        return {
            "source": self.source,
            "given": self.given,
            "sha256": training.digest(),
            "num_simulations": len(training) + training.num_invalid,
            "parameter_names": list(self.problem.parameter_names),
            "x_shape": list(self.problem.x_shape),
        }

    def rehearse(self, config: RunConfig) -> None:
        """Refuse what a run would refuse of these pairs, and tell what it would tell."""
        prior, names = self.problem.prior, self.problem.parameter_names
        note_constant(self.training)
        data, _ = checked(self.training, prior, names)
        checked(self.test, prior, names)
        options, family = config.training, methods.get(config.method).family
        split, _ = data.split(options.validation_fraction, config.seed)
        options.pairs_per_step(len(split))
        untrained(family, prior, split, networks_of(self.problem, family, options.networks), 0)


def simulated(config: RunConfig, root: Path, num_simulations: int | None) -> Inputs:
    """The pairs of a run that simulates its own, or shares them with the others in ``root``.

    The shared store has room for ``num_simulations``, the largest budget in the sweep for the
    problem and seed; None keeps no simulations on disk.
    """
    problem = problems.get(config.problem)
    # Without its file nobody could tell whether a simulator has changed.
    can_change = ":" in config.problem and not config.source
    if num_simulations is None or can_change or find_spec("zarr") is None:
        training: Data = draw_pairs(problem, config.budget, config.seed)
    else:
        training = _shared(problem, config, root, max(num_simulations, config.budget))
    # Last, as a simulator that always fails is told with its reason by those before.
    test = new_pairs(problem, config.num_test, config.seed)
    return Inputs(problem, training, test)


def _shared(problem: Problem, config: RunConfig, root: Path, number: int) -> Data:
    """The pairs from a store that all runs of a sweep share; whoever needs a chunk first makes it.

    The store is a convenience. Where it cannot be used, the run simulates the same pairs itself.
    """
    digest = f"-{config.source}" if config.source else ""
    name = f"{_file_name(config.problem)}-{config.seed}-{number}{digest}.zarr"
    path, budget = root / ".simulations" / name, config.budget
    try:
        store = simulate(problem, number, path, seed=config.seed, stop=budget, progress=False)
        return read(store, budget=budget)
    except (StoreError, InputError) as error:
        if isinstance(error, DataError):
            raise
        logger.warning("%s This run simulates for itself; delete %s.", error, path)
        return draw_pairs(problem, budget, config.seed)


def from_files(
    data: str,
    *,
    problem: str | None = None,
    prior: str | None = None,
    test_data: str | None = None,
    theta: str | None = None,
    x: str | None = None,
    budget: int | None = None,
    num_test: int = 2000,
    seed: int = 0,
) -> tuple[Inputs, dict[str, Any]]:
    """The pairs of a run from files, and the settings of the run that follow from them.

    A store knows the problem it comes from; other data need a ``prior``: a problem's name, a file
    or ``module:attribute``. Without ``test_data``, a registered problem simulates ``num_test``
    pairs to test on; without one the last rows of the data are held out.
    """
    with contextlib.chdir(os.curdir):  # a prior is code of the user
        described = None if prior is None else _prior(prior)
        dtype = dtype_of(described.prior) if described else torch.float32
    names = described.names if described else []
    rows = open_rows(data, theta, x, dtype, names)
    if isinstance(rows, FileRows):
        found = ", ".join(f"{role} is {' '.join(own)}" for role, own in rows.names.items())
        logger.info("%s: %s.", data, printable(found))
    if problem is None and isinstance(rows, Store) and rows.problem in problems.names():
        problem = rows.problem
    with contextlib.chdir(os.curdir):
        known = _described(rows, problem, described, Path(data).stem)
    pairs, held = None, 0
    if test_data is not None:
        pairs = pairs_to_test(test_data, theta, x, dtype=dtype, parameters=names)
    elif problem is None:
        held = min(HELD_OUT, len(rows) // HELD_OUT_SHARE)
    least = HELD_OUT_SHARE if problem is None and pairs is None else 2
    if len(rows) < least:
        raise DataError(f"{data} has {len(rows):,} of the simulations; expected {least} or more.")
    available = len(rows) - held
    if budget is not None and budget > available:
        raise InputError(
            f"`budget` is {budget:,}, but {data} has {available:,} simulations to train on"
            + (f", and {held:,} held out for testing." if held else ".")
        )
    with warnings.catch_warnings(action="ignore"):  # they are told below
        training = read(rows, budget=budget or available, invalid="exclude")
    if number := training.num_invalid:
        logger.warning("%s of %s simulations are not finite in float32.", f"{number:,}", data)
    training = distinct(training)  # copies of test pairs are not there by chance
    if problem is None and pairs is None:
        held_out = rows.read(available, len(rows))
        pairs = Pairs.among(held_out[0], held_out[1], held_out[2] == 0)
        refuse_non_finite("theta", pairs.theta)
    digests = [training.digest()]
    if pairs is None:
        test = new_pairs(known, num_test, seed)
    else:
        test, num_test = pairs, len(pairs)
        digests.append(pairs.digest())
        refuse_seen(remembered(training), pairs)
    facts = {
        "problem": problem or f"file:{known.name}",
        "budget": budget or available,
        "num_test": num_test,
        "data": sha256(canonical_json(digests)),
    }
    if prior is not None or problem is None:
        spec = {"prior": to_spec(known.prior) or prior, "names": known.parameter_names}
        facts["prior"] = canonical_json(spec).decode()
    read_from = {"data": data, "test_data": test_data, "prior": prior}
    given = {name: _public(text) for name, text in read_from.items() if text is not None}
    if isinstance(rows, FileRows):
        given |= {role: ",".join(own) for role, own in rows.names.items()}
    return Inputs(known, training, test, Path(data).name, held, given), facts


def _public(path: str) -> str:
    """A path without what it tells about a machine."""
    place = Path(path)
    return place.name if place.is_absolute() or ".." in place.parts else path


def pairs_to_test(
    data: str,
    theta: str | None,
    x: str | None,
    *,
    number: int | None = None,
    dtype: torch.dtype = torch.float32,
    parameters: Sequence[str] = (),
) -> Pairs:
    """The pairs of a file to test on; those with NaN or infinity in x are left out."""
    rows = open_rows(data, theta, x, dtype, parameters)
    with warnings.catch_warnings(action="ignore"):  # the diagnosis tells them
        pairs = read(rows, budget=number, stream=False, invalid="exclude")
    assert isinstance(pairs, Pairs)
    return pairs


def _prior(text: str) -> Described:
    """The prior that a user names: a TOML or JSON file, a problem, or ``module:attribute``."""
    if text.endswith((".toml", ".json")):
        return as_prior(text)
    made: Any = problems.import_attribute(text) if ":" in text else problems.get(text)
    known = as_prior(made.prior if isinstance(made, Problem) else made)
    check_prior(known.prior)
    if not isinstance(made, Problem):
        return known
    return Described(known.prior, list(made.parameter_names), list(made.units))


def _described(rows: OnDisk, problem: str | None, prior: Described | None, stem: str) -> Problem:
    """The problem of some data: a known one, or one that has a prior but no simulator."""
    known = None if problem is None else problems.get(problem)
    if known is not None and (known.dim, known.x_shape) != (rows.dim, rows.x_shape):
        raise DataError(
            f"{rows.path} has {rows.dim} parameters and x of shape {rows.x_shape}; "
            f"`{problem}` has {known.dim} and {known.x_shape}."
        )
    if known is not None and prior is None:
        return known
    if prior is None:
        raise InputError(f"{rows.path} {LACKS_PRIOR}")
    if (dim := check_prior(prior.prior)) != rows.dim:
        swapped = " Swapped theta and x? Name them with --theta NAME --x NAME."
        raise DataError(
            f"{rows.path} has {rows.dim} parameters, the prior has {dim}."
            + (swapped if rows.x_shape == (dim,) else "")
        )
    names = prior.names
    if not names and isinstance(rows, Store):
        names = rows.attributes["parameter_names"]
    return Problem(
        problem or _file_name(stem) or "data",
        prior.prior,
        _no_simulator,
        rows.x_shape,
        tuple(names or (f"theta_{i + 1}" for i in range(dim))),
        tuple(prior.units),
        known.networks if known is not None else {},
    )


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]", "_", text)


def _no_simulator(theta: Tensor, generator: torch.Generator) -> NoReturn:
    raise InputError("the pairs came from a file; there is no simulator to make others.")
