"""What a thorough run keeps beside coverage: its diagnostics, and one posterior to look at.

Everything is records of plain numbers, so that reports need no model.
"""

from typing import Any

import torch
from torch import Tensor

from prudent._randomness import seeded
from prudent.contracts import Estimator
from prudent.diagnostics import Diagnosis
from prudent.diagnostics.sbc import plain
from prudent.estimators.priors import log_prior
from prudent.problems import Problem

NUM_DRAWS = 1000
NUM_CANDIDATES = 100_000


def details(
    diagnosis: Diagnosis, estimator: Estimator, problem: Problem, seed: int
) -> dict[str, Any]:
    """The contents of ``thorough.json``.

    Args:
        diagnosis: A thorough diagnosis. The posterior of its first test pair is drawn from.
        estimator: The estimator that was diagnosed.
        problem: Its problem, which may know the exact posterior.
        seed: The seed of the draws.
    """
    theta, x = diagnosis.pairs.theta[:1], diagnosis.pairs.x[:1]
    with seeded(seed, "portrait"):
        drawn = {"truth": theta, "posterior": estimator(x).sample((NUM_DRAWS,))[:, 0]}
    if problem.log_posterior is not None:
        drawn["exact"] = _exact(problem, x, seed)
    draws = [
        {"kind": kind, "parameter": name, **plain({"values": column})}
        for kind, values in drawn.items()
        for name, column in zip(problem.parameter_names, values.unbind(1), strict=True)
    ]
    results = {name: result.rows() for name, result in diagnosis.results.items()}
    return {"diagnostics": results, "draws": draws}


def _exact(problem: Problem, x: Tensor, seed: int) -> Tensor:
    """Draws from the exact posterior, resampled from the prior (NUM_DRAWS, D)."""
    assert problem.log_posterior is not None
    with seeded(seed, "exact"):
        theta = problem.prior.sample((NUM_CANDIDATES, 1))
        log_weight = problem.log_posterior(theta, x)[:, 0] - log_prior(problem.prior, theta[:, 0])
        chosen = torch.multinomial(log_weight.double().softmax(0), NUM_DRAWS, replacement=True)
    return theta[chosen, 0]
