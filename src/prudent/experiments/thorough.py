"""What a thorough run keeps beside coverage: curves of SBC and TARP, and one posterior to look at.

Everything is rows of plain numbers, so that reports need no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from prudent._randomness import seeded
from prudent.contracts import Estimator
from prudent.diagnostics.rank_tests import RankTests
from prudent.estimators.priors import log_prior
from prudent.problems import Problem

__all__ = ["details"]

NUM_DRAWS = 1000
NUM_CANDIDATES = 100_000


def details(
    ranks: RankTests, estimator: Estimator, problem: Problem, theta: Tensor, x: Tensor, seed: int
) -> dict[str, Any]:
    """The contents of ``thorough.json``.

    Args:
        ranks: The tests.
        estimator: Whose posterior is drawn from.
        problem: Which may know the exact posterior.
        theta: Test parameters (N, D), of which the first with a finite observation is drawn.
        x: The observations simulated from them ``(N, *x_shape)``.
        seed: Of the draws.
    """
    first = int(x.flatten(1).isfinite().all(1).int().argmax())
    theta, x = theta[first : first + 1], x[first : first + 1]
    with seeded(seed, "portrait"):
        drawn = {"truth": theta, "posterior": estimator(x).sample((NUM_DRAWS,))[:, 0]}
    if problem.log_posterior is not None:
        drawn["exact"] = _exact(problem, x, seed)
    draws = [
        {"kind": kind, "parameter": name, "values": _plain(column)}
        for kind, values in drawn.items()
        for name, column in zip(problem.parameter_names, values.unbind(1), strict=True)
    ]
    return {"ranks": [*_sbc(ranks), *_tarp(ranks)], "draws": draws}


def _sbc(ranks: RankTests) -> Iterator[dict[str, Any]]:
    sbc = ranks.sbc
    for name, difference, p_value in zip(
        sbc.ranks.names, sbc.difference, sbc.adjusted, strict=True
    ):
        yield {
            "test": "sbc",
            "parameter": name,
            "levels": _plain(sbc.points),
            "values": _plain(difference),
            "lower": _plain(sbc.lower),
            "upper": _plain(sbc.upper),
            "p_value": float(p_value),
        }


def _tarp(ranks: RankTests) -> Iterator[dict[str, Any]]:
    tarp = ranks.tarp
    yield {
        "test": "tarp",
        "parameter": "all",
        "levels": _plain(tarp.levels),
        "values": _plain(tarp.coverage),
        "lower": _plain(tarp.uniform_lower),
        "upper": _plain(tarp.uniform_upper),
        "p_value": tarp.p_value,
    }


def _exact(problem: Problem, x: Tensor, seed: int) -> Tensor:
    """Draws from the exact posterior, resampled from the prior (NUM_DRAWS, D)."""
    assert problem.log_posterior is not None
    with seeded(seed, "exact"):
        theta = problem.prior.sample((NUM_CANDIDATES, 1))
        log_weight = problem.log_posterior(theta, x)[:, 0] - log_prior(problem.prior, theta[:, 0])
        chosen = torch.multinomial(log_weight.double().softmax(0), NUM_DRAWS, replacement=True)
    return theta[chosen, 0]


def _plain(values: Tensor) -> list[float]:
    """Six digits are enough to draw, and half the bytes."""
    return [float(f"{value:.6g}") for value in values.flatten().tolist()]
