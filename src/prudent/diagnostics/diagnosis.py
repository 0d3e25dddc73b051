"""Is this posterior honest? One call, one answer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prudent._extras import require
from prudent._progress import Reporter
from prudent.contracts import Estimator
from prudent.datasets import Pairs
from prudent.diagnostics import scalars
from prudent.diagnostics.expected_coverage import (
    Coverage,
    Measurement,
    expected_coverage,
    measure,
)
from prudent.diagnostics.local_coverage import LocalCoverage, local_coverage
from prudent.diagnostics.rank_tests import RankTests, rank_tests
from prudent.diagnostics.ranks import finite_pairs
from prudent.diagnostics.verdict import Verdict, judge
from prudent.errors import InputError
from prudent.estimators.priors import log_prior

__all__ = ["Diagnosis", "diagnose"]

# A tree finds regions in observations of at most so many numbers.
MOST_FEATURES = 100


@dataclass(frozen=True)
class Diagnosis:
    """What test pairs say about an estimator.

    Args:
        coverage: The coverage curve with its interval.
        auc: Mean of coverage minus level: positive is conservative, negative over-confident.
        auc_error: Its standard error.
        calibration_error: Mean distance of coverage from level.
        conservativeness_error: Mean of what coverage falls short of level.
        worst_shortfall: The most that coverage falls short of any level.
        worst_excess: The most that it exceeds any level.
        log_posterior: Mean normalised log-density of the truth; minus infinity if it is zero for
            any pair. For a flow this is its own density, without a correction for leakage.
        log_posterior_error: Its standard error.
        log_posterior_finite: The same mean over the pairs whose density is not zero.
        log_prior: The same mean for the prior: what an estimator that ignores x would reach.
        information_gain: Log posterior minus log prior, in nats.
        information_gain_error: Its standard error, over pairs of differences.
        log_normalization: Mean log of the integral of a ratio times the prior, 0 if the ratio is
            normalised; None for a flow, which is by construction.
        log_normalization_error: Its standard error.
        leakage: Posterior mass outside the prior's support, where coverage does not look. On the
            grid it is what the cells do not add up to, right to about 0.01.
        region_volume: The share of the prior's mass inside the 90 % region, mean over pairs: with
            a uniform prior, its volume in units of the box. The prior itself has 0.9.
        posterior_bias: Mean of posterior mean minus truth, per parameter, in its units.
        posterior_bias_error: The standard errors of these.
        posterior_variance: Mean posterior variance, per parameter, in its units squared.
        effective_size: Points of equal weight that carry a posterior, mean over pairs: draws, or
            parts of the grid.
        num_unresolved: Test pairs for which that is below 100, or whose posterior has ridges too
            thin for the grid: alpha is rough there.
        num_pairs: Test pairs.
        num_invalid: Test pairs whose density was NaN or infinite, at the truth or elsewhere: they
            count as not covered, and are part of no other number.
        num_zero_density: Test pairs whose density was zero at the truth.
        num_excluded: Pairs left out because x held NaN or infinity; not among the test pairs.
        computed_by: How coverage was computed: ``grid``, ``samples`` or ``importance``.
        ranks: SBC and TARP, if asked for.
        local: Coverage by region of x, if asked for.
    """

    coverage: Coverage
    auc: float
    auc_error: float
    calibration_error: float
    conservativeness_error: float
    worst_shortfall: float
    worst_excess: float
    log_posterior: float
    log_posterior_error: float
    log_posterior_finite: float
    log_prior: float
    information_gain: float
    information_gain_error: float
    log_normalization: float | None
    log_normalization_error: float | None
    leakage: float
    region_volume: float
    posterior_bias: tuple[float, ...]
    posterior_bias_error: tuple[float, ...]
    posterior_variance: tuple[float, ...]
    effective_size: float
    num_unresolved: int
    num_pairs: int
    num_invalid: int
    num_zero_density: int
    num_excluded: int
    computed_by: str
    ranks: RankTests | None = None
    local: LocalCoverage | None = None

    @property
    def verdict(self) -> Verdict:
        """What the coverage curve says; its text is a sentence."""
        curves, number = self.coverage.curves(), self.coverage.num_pairs
        return judge(**curves, num_pairs=number, metrics=self.metrics())

    def metrics(self) -> dict[str, Any]:
        """All scalars, ready for JSON: a number that is not finite is None."""
        tables = ("coverage", "ranks", "local")
        names = [name for name in self.__dataclass_fields__ if name not in tables]
        values = {name: _plain(getattr(self, name)) for name in names}
        if self.ranks is not None:
            values |= {
                "sbc_p_value": self.ranks.sbc.p_value,
                "sbc_worst": self.ranks.sbc.worst,
                "tarp_p_value": self.ranks.tarp.p_value,
            }
        if self.local is not None:
            values |= {"local_p_value": self.local.p_same, "num_wrong": len(self.local.wrong)}
        return values

    def plot(self) -> Any:
        """The coverage curve, and SBC and TARP if asked for, as a matplotlib figure."""
        require("matplotlib", "report", "figures")
        from prudent import _plots

        curves = {} if self.ranks is None else _curves(self.ranks)
        return _plots.diagnosis(self.verdict.text, self.coverage.curves(), self.num_pairs, curves)

    def __str__(self) -> str:
        rows = [
            ("coverage AUC", f"{self.auc:+.3f} ± {self.auc_error:.3f}"),
            ("worst shortfall", f"{self.worst_shortfall:.3f}"),
            ("worst excess", f"{self.worst_excess:.3f}"),
            ("log posterior", self._log_posterior()),
            ("log prior", f"{self.log_prior:.2f}"),
            ("90 % region", f"{100 * self.region_volume:.2g} % of the prior"),
        ]
        if self.log_normalization is not None and self.log_normalization_error is not None:
            error = f"{self.log_normalization:+.2f} ± {self.log_normalization_error:.2f}"
            rows.append(("log normalisation", f"{error}, removed"))
        if self.leakage > 0.01:
            rows.append(("leakage", f"{100 * self.leakage:.1f} % outside the prior, cut off"))
        rows.append(("computed by", self._computed_by()))
        counts = [
            ("pairs with density NaN", self.num_invalid, "counted as not covered"),
            ("pairs with x not finite", self.num_excluded, "left out"),
        ]
        rows += [(name, f"{number:,}, {what}") for name, number, what in counts if number]
        if self.ranks is not None:
            rows += [("SBC", self.ranks.sbc.verdict), ("TARP", self.ranks.tarp.verdict)]
        if self.local is not None:
            rows.append(("by region", self.local.verdict))
        return "\n".join([self.verdict.text, *(f"  {name:<24}{value}" for name, value in rows)])

    def _log_posterior(self) -> str:
        if self.num_zero_density == 0:
            return f"{self.log_posterior:.2f} ± {self.log_posterior_error:.2f}"
        return (
            f"-inf: density zero at {self.num_zero_density:,} truths; "
            f"{self.log_posterior_finite:.2f} at the others"
        )

    def _computed_by(self) -> str:
        unit = "parts" if self.computed_by == "grid" else "draws"
        text = f"{self.computed_by}, worth {self.effective_size:,.0f} {unit} a pair"
        if self.num_unresolved:
            text += f"; too few, so rough, for {self.num_unresolved:,} pairs"
        return text

    def __repr__(self) -> str:
        return f"<Diagnosis: {self.verdict}>"


def diagnose(
    estimator: Estimator,
    theta: Any,
    x: Any,
    *,
    levels: Any = None,
    method: str = "auto",
    thorough: bool = False,
    names: Sequence[str] | None = None,
    seed: int = 0,
    progress: Reporter = None,
) -> Diagnosis:
    """Measure coverage and log posterior on pairs that training never saw.

    Args:
        estimator: From :func:`prudent.fit` or :func:`prudent.load`.
        theta: True parameters (N, D), drawn from the prior.
        x: The observations simulated from them (N, ...). Those that hold NaN or infinity are left
            out, counted, and warned about.
        levels: Credibility levels in (0, 1); the default is 0.05, 0.10, ..., 0.95.
        method: How to compute coverage: ``auto``, ``grid``, ``samples`` or ``importance``.
        thorough: Also test the ranks of every parameter (SBC), the distance to random points
            (TARP), and coverage by region of x, which says where a posterior is wrong. Takes
            draws from every posterior and scikit-learn.
        names: D names of the parameters, for these tests.
        seed: Of the draws.
        progress: None for a bar on terminals, True or False.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> estimator = prudent.fit(*problem.draw(256, 0), problem.prior, method="npe", epochs=2)
    >>> diagnose(estimator, *problem.draw(200, 1)).num_pairs
    200
    """
    if thorough:
        require("sklearn", "distances", "thorough diagnoses")
    pairs, num_excluded = finite_pairs(theta, x)
    if num_excluded:
        warnings.warn(
            f"left out {num_excluded:,} of {num_excluded + len(pairs):,} test pairs: their "
            "observations hold NaN or infinity, where no posterior is defined.",
            stacklevel=2,
        )
    if levels is not None:
        levels = torch.as_tensor(levels, dtype=torch.float32)
        if levels.ndim != 1 or len(levels) == 0 or not bool(((levels > 0) & (levels < 1)).all()):
            raise InputError("expected `levels` as a list of numbers between 0 and 1.")
    prior = log_prior(estimator.prior, pairs.theta).double()
    if number := int((prior == -torch.inf).sum()):
        raise InputError(
            f"{number:,} of {len(pairs):,} rows of `theta` lie outside the prior; coverage is "
            "defined for parameters drawn from it. Was the estimator given another prior?"
        )
    measured = measure(estimator, pairs, method, seed=seed, progress=progress)
    values = measured.log_posterior
    valid = ~(measured.alpha.isnan() | values.isnan() | (values == torch.inf))
    if not bool(valid.any()):
        raise InputError(
            f"the density of all {len(pairs):,} test pairs is NaN or infinite: the estimator is "
            "broken. Train it again with a lower learning rate."
        )
    coverage = expected_coverage(measured.alpha.masked_fill(~valid, torch.nan), levels)
    further: dict[str, Any] = {}
    if thorough:
        further["ranks"] = rank_tests(
            estimator, pairs.theta, pairs.x, names=names, seed=seed, progress=progress
        )
        further["local"] = _local(measured, pairs, names, seed)
    return Diagnosis(
        coverage=coverage,
        auc=scalars.auc(coverage),
        auc_error=scalars.auc_error(coverage),
        calibration_error=scalars.calibration_error(coverage),
        conservativeness_error=scalars.conservativeness_error(coverage),
        worst_shortfall=scalars.worst_shortfall(coverage),
        worst_excess=scalars.worst_excess(coverage),
        log_prior=float(prior.mean()),
        num_pairs=len(pairs),
        num_invalid=int((~valid).sum()),
        num_excluded=num_excluded,
        computed_by=measured.method,
        **further,
        **_densities(values[valid].double(), prior[valid]),
        **_posteriors(measured, pairs, valid, normalized=estimator.normalized),
    )


def _local(
    measured: Measurement, pairs: Pairs, names: Sequence[str] | None, seed: int
) -> LocalCoverage:
    """Coverage by region of x; where x is large, of the posterior mean, which x determines."""
    if pairs.x[0].numel() <= MOST_FEATURES:
        return local_coverage(measured.alpha, pairs.x, seed=seed)
    dim = pairs.theta.shape[1]
    labels = [f"theta_{index + 1}" for index in range(dim)] if names is None else names
    means = [f"posterior mean of {label}" for label in labels]
    return local_coverage(measured.alpha, measured.mean, names=means, seed=seed)


def _densities(log_posterior: Tensor, log_prior: Tensor) -> dict[str, Any]:
    """What the densities at the truths say."""
    positive = log_posterior > -torch.inf
    mean, error = _mean(log_posterior)
    gain, gain_error = _mean(log_posterior - log_prior)
    return {
        "log_posterior": mean,
        "log_posterior_error": error,
        "log_posterior_finite": _mean(log_posterior[positive])[0],
        "information_gain": gain,
        "information_gain_error": gain_error,
        "num_zero_density": int((~positive).sum()),
    }


def _posteriors(
    measured: Measurement, pairs: Pairs, valid: Tensor, *, normalized: bool
) -> dict[str, Any]:
    """What the posteriors look like, over valid pairs."""
    log_norm = measured.log_norm[valid].double()
    norm, norm_error = (None, None) if normalized else _mean(log_norm)
    leakage = max(0.0, float(1 - log_norm.exp().mean())) if normalized else 0.0
    bias = (measured.mean - pairs.theta)[valid].double()
    spread = [_mean(column) for column in bias.unbind(1)]
    return {
        "log_normalization": norm,
        "log_normalization_error": norm_error,
        "leakage": leakage,
        "region_volume": float(measured.volume[valid].double().mean()),
        "posterior_bias": tuple(mean for mean, _ in spread),
        "posterior_bias_error": tuple(error for _, error in spread),
        "posterior_variance": tuple(measured.variance[valid].double().mean(dim=0).tolist()),
        "effective_size": float(measured.effective_size[valid].mean()),
        "num_unresolved": int((~measured.resolved[valid]).sum()),
    }


def _mean(values: Tensor) -> tuple[float, float]:
    """Mean and standard error."""
    if len(values) == 0:
        return math.nan, math.nan
    return float(values.mean()), float(values.std(correction=0) / len(values) ** 0.5)


def _curves(ranks: RankTests) -> dict[str, list[dict[str, Any]]]:
    sbc, tarp = ranks.sbc, ranks.tarp
    band = {"level": sbc.points, "lower": sbc.lower, "upper": sbc.upper}
    lines = [
        {"parameter": name, "value": values, "p_value": float(p_value), **band}
        for name, values, p_value in zip(
            sbc.ranks.names, sbc.difference, sbc.adjusted, strict=True
        )
    ]
    band = {"level": tarp.levels, "lower": tarp.uniform_lower, "upper": tarp.uniform_upper}
    whole = {"parameter": "all", "value": tarp.coverage, "p_value": tarp.p_value, **band}
    return {"sbc": lines, "tarp": [whole]}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
