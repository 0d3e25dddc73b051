"""SBC and TARP from one pass of posterior draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prudent._progress import Reporter
from prudent.contracts import Estimator
from prudent.diagnostics.ranks import TestFunction, parameters, posterior_ranks
from prudent.diagnostics.sbc import SBC, sbc_from_ranks
from prudent.diagnostics.tarp import NAME, TARP, ReferenceDistance, tarp_from_ranks

__all__ = ["RankTests", "rank_tests"]


@dataclass(frozen=True)
class RankTests:
    """Both tests of the same draws.

    Args:
        sbc: Of every parameter, of the log-density, and of further functions.
        tarp: Of all parameters at once.
    """

    sbc: SBC
    tarp: TARP

    def __str__(self) -> str:
        return f"SBC: {self.sbc.verdict}\nTARP: {self.tarp.verdict}"

    def __repr__(self) -> str:
        return f"<RankTests: SBC p = {self.sbc.p_value:.2g}, TARP p = {self.tarp.p_value:.2g}>"


def rank_tests(
    estimator: Estimator,
    theta: Any,
    x: Any,
    functions: Mapping[str, TestFunction | str] | None = None,
    *,
    names: Sequence[str] | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    progress: Reporter = None,
) -> RankTests:
    """SBC of the parameters and of the log-density, and TARP.

    Args:
        estimator: Any estimator.
        theta: True parameters (N, D), drawn from the prior.
        x: The observations simulated from them (N, ...).
        functions: Tested by SBC as well; see :func:`prudent.diagnostics.ranks.posterior_ranks`.
        names: D names of the parameters.
        num_samples: Draws per pair, L; by default 1,000, and 100 for ratio estimators.
        seed: Of draws, ties and reference points.
        progress: See :class:`prudent._progress.Progress`.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> estimator = prudent.fit(*problem.draw(256, 0), problem.prior, method="npe", epochs=2)
    >>> rank_tests(estimator, *problem.draw(100, 1), num_samples=50).sbc.ranks.names
    ('theta_1', 'theta_2', 'log_prob')
    """
    tested: dict[str, TestFunction | str] = {
        **parameters(torch.as_tensor(theta).shape[-1], names),
        "log_prob": "log_prob",
        **(functions or {}),
    }
    ranks = posterior_ranks(
        estimator,
        theta,
        x,
        {**tested, NAME: ReferenceDistance(estimator.prior, seed=seed)},
        num_samples=num_samples,
        seed=seed,
        progress=progress,
    )
    return RankTests(sbc_from_ranks(ranks.select(list(tested))), tarp_from_ranks(ranks, seed=seed))
