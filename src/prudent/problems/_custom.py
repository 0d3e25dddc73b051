"""A user's own simulator as a problem.

A simulator is any function of theta. It may take a batch or a single theta, numpy arrays or
tensors, and draw its randomness from a ``generator`` (torch) or ``rng`` (numpy) argument if it has
one, otherwise from the global generators, which are seeded for the call and then restored.
"""

import importlib
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from prudent._arrays import float32
from prudent._randomness import numpy_seeded, seeded
from prudent.errors import InputError, one_line
from prudent.problems.problem import Problem


def custom(
    simulator: Callable[..., Any],
    prior: Distribution,
    *,
    name: str = "custom",
    parameter_names: Sequence[str] | None = None,
    batched: bool | None = None,
) -> Problem:
    """Make a problem of a simulator and a prior.

    Args:
        simulator: ``theta -> x``, for a batch (N, D) or for one theta (D,).
        prior: A torch distribution with event_shape (D,).
        name: The name in listings, from which seeds are derived as well.
        parameter_names: D names for plots; the default numbers them.
        batched: Whether the simulator takes batches; None tries, with a few draws of the prior.

    >>> from torch.distributions import Independent, Uniform
    >>> prior = Independent(Uniform(torch.zeros(2), torch.ones(2)), 1)
    >>> problem = custom(lambda theta, rng: theta[0] + rng.normal(size=3), prior)
    >>> problem.x_shape
    (3,)
    """
    if not isinstance(prior, Distribution) or len(prior.event_shape) != 1 or prior.batch_shape:
        raise InputError(
            "expected a prior as a torch distribution with event_shape (D,) and no batch_shape, "
            f"got {type(prior).__name__}; wrap it in torch.distributions.Independent(prior, 1)."
        )
    dim = prior.event_shape[0]
    names = tuple(parameter_names or (f"theta_{i + 1}" for i in range(dim)))
    if len(names) != dim:
        raise InputError(f"expected {dim} parameter names, got {len(names)}: {', '.join(names)}.")
    call = _calls(simulator)
    with seeded(0, "trial"):
        theta = prior.sample((3,))
    trial = torch.Generator().manual_seed(0)
    failures: list[str] = []
    for take_batch in (True, False) if batched is None else (batched,):
        for as_numpy in (False, True):
            run = _batch(call, as_numpy=as_numpy, take_batch=take_batch)
            try:
                with warnings.catch_warnings():
                    # Numpy takes tensors for a while still, but complains.
                    warnings.simplefilter("error", DeprecationWarning)
                    # Two sizes: an x of two numbers could pass for a batch of two.
                    x = run(theta[:2], trial)
                    if take_batch:
                        run(theta, trial)
            except Exception as error:
                failures.append(one_line(error))
                continue
            return Problem(name, prior, run, tuple(x.shape[1:]), names)
    raise InputError(
        f"the simulator failed on draws from the prior, as a batch and one by one, with "
        f"tensors and with arrays. The last reason: {failures[-1]}"
    )


def from_reference(reference: str) -> Problem:
    """The problem that ``module:attribute`` names: a Problem, or a function that makes one."""
    found = import_attribute(reference)
    problem = found() if callable(found) and not isinstance(found, Problem) else found
    if not isinstance(problem, Problem):
        raise InputError(
            f"`{reference}` is a {type(problem).__name__}; expected a Problem, such as "
            "prudent.problems.custom(simulator, prior) makes."
        )
    return problem


def import_attribute(reference: str) -> Any:
    """What ``module:attribute`` names."""
    module, _, attribute = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise InputError(
            f"cannot import `{module}` of `{reference}`: {error}. Run from its directory, or "
            "install it."
        ) from error
    except AttributeError as error:
        raise InputError(f"`{module}` has no attribute `{attribute}`.") from error


def _calls(simulator: Callable[..., Any]) -> Callable[[Any, torch.Generator], Any]:
    """The simulator with its randomness fixed by a generator."""
    try:
        parameters = set(inspect.signature(simulator).parameters)
    except (TypeError, ValueError):
        parameters = set()

    def call(theta: Any, generator: torch.Generator) -> Any:
        if "generator" in parameters:
            return simulator(theta, generator=generator)
        seed = int(torch.randint(2**31, (), generator=generator))
        if "rng" in parameters:
            return simulator(theta, rng=np.random.default_rng(seed))
        with seeded(seed), numpy_seeded(seed):
            return simulator(theta)

    return call


def _batch(
    call: Callable[[Any, torch.Generator], Any], *, as_numpy: bool, take_batch: bool
) -> Callable[[Tensor, torch.Generator], Tensor]:
    """A batched simulator on tensors, whatever the call takes."""

    def convert(theta: Tensor) -> Any:
        return theta.double().numpy() if as_numpy else theta.clone()

    def simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
        if take_batch:
            x = float32("x", call(convert(theta), generator)).clone()
            if x.ndim == 0 or len(x) != len(theta):
                raise InputError(f"a batch of {len(theta)} theta gave x of shape {tuple(x.shape)}")
        else:
            rows = [call(convert(row), generator) for row in theta]
            x = torch.stack([float32("x", row) for row in rows])
        return x.unsqueeze(-1) if x.ndim == 1 else x

    return simulate
