"""Is this posterior honest? One call, one answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from prudent.contracts import Estimator
from prudent.datasets import Pairs
from prudent.diagnostics import scalars
from prudent.diagnostics.expected_coverage import Coverage, expected_coverage, measure
from prudent.diagnostics.verdict import verdict
from prudent.errors import InputError
from prudent.progress import Reporter

__all__ = ["Diagnosis", "diagnose"]


@dataclass(frozen=True)
class Diagnosis:
    """What test pairs say about an estimator.

    Args:
        coverage: The coverage curve with its interval.
        auc: Mean of coverage minus level: positive is conservative, negative over-confident.
        calibration_error: Mean distance of coverage from level.
        conservativeness_error: Mean of what coverage falls short of level.
        worst_shortfall: The most that coverage falls short of any level.
        worst_excess: The most that it exceeds any level.
        log_posterior: Mean normalised log-density of the truth.
        log_posterior_error: Its standard error.
        log_prior: The same mean for the prior: what an estimator that ignores x would reach.
        num_pairs: Test pairs.
        num_invalid: Test pairs whose density was NaN: they count as not covered, and are not part
            of the log posterior.
        method: How coverage was computed.
    """

    coverage: Coverage
    auc: float
    calibration_error: float
    conservativeness_error: float
    worst_shortfall: float
    worst_excess: float
    log_posterior: float
    log_posterior_error: float
    log_prior: float
    num_pairs: int
    num_invalid: int
    method: str

    @property
    def verdict(self) -> str:
        """The coverage curve in words."""
        return verdict(self.coverage)

    def metrics(self) -> dict[str, Any]:
        """All scalars, ready for JSON: a number that is not finite is None."""
        names = [name for name in self.__dataclass_fields__ if name != "coverage"]
        values = {name: getattr(self, name) for name in names}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }

    def __str__(self) -> str:
        rows = [
            ("coverage AUC", f"{self.auc:+.3f}"),
            ("worst shortfall", f"{self.worst_shortfall:.3f}"),
            ("worst excess", f"{self.worst_excess:.3f}"),
            ("log posterior", f"{self.log_posterior:.2f} ± {self.log_posterior_error:.2f}"),
            ("log prior", f"{self.log_prior:.2f}"),
        ]
        if self.num_invalid:
            rows.append(("pairs with density NaN", f"{self.num_invalid:,}"))
        return "\n".join([self.verdict, *(f"  {name:<24}{value}" for name, value in rows)])

    def __repr__(self) -> str:
        return f"<Diagnosis: {self.verdict}>"


def diagnose(
    estimator: Estimator,
    theta: Any,
    x: Any,
    *,
    levels: Any = None,
    method: str = "auto",
    seed: int = 0,
    progress: Reporter = None,
) -> Diagnosis:
    """Measure coverage and log posterior on pairs that training never saw.

    Args:
        estimator: From :func:`prudent.fit` or :func:`prudent.load`.
        theta: True parameters (N, D).
        x: The observations simulated from them (N, ...).
        levels: Credibility levels in (0, 1); the default is 0.05, 0.10, ..., 0.95.
        method: How to compute coverage: ``auto``, ``grid``, ``samples`` or ``importance``.
        seed: Of the draws.
        progress: None for a bar on terminals, True or False.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> estimator = prudent.fit(*problem.draw(256, 0), problem.prior, method="npe", epochs=2)
    >>> diagnose(estimator, *problem.draw(200, 1)).num_pairs
    200
    """
    pairs = Pairs.of(theta, x)
    if levels is not None:
        levels = torch.as_tensor(levels, dtype=torch.float32)
        if levels.ndim != 1 or len(levels) == 0 or not bool(((levels > 0) & (levels < 1)).all()):
            raise InputError("expected `levels` as a list of numbers between 0 and 1.")
    measured = measure(estimator, pairs, method, seed=seed, progress=progress)
    valid = ~(measured.alpha.isnan() | measured.log_posterior.isnan())
    if not bool(valid.any()):
        raise InputError(
            f"the density of all {len(pairs):,} test pairs is NaN: the estimator is broken. "
            "Train it again with a lower learning rate."
        )
    log_posterior = measured.log_posterior[valid].double()
    coverage = expected_coverage(measured.alpha, levels)
    return Diagnosis(
        coverage=coverage,
        auc=scalars.auc(coverage),
        calibration_error=scalars.calibration_error(coverage),
        conservativeness_error=scalars.conservativeness_error(coverage),
        worst_shortfall=scalars.worst_shortfall(coverage),
        worst_excess=scalars.worst_excess(coverage),
        log_posterior=float(log_posterior.mean()),
        log_posterior_error=float(log_posterior.std(correction=0) / len(log_posterior) ** 0.5),
        log_prior=float(estimator.prior.log_prob(pairs.theta).double().mean()),
        num_pairs=len(pairs),
        num_invalid=int((~valid).sum()),
        method=measured.method,
    )
