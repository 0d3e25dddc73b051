"""The scalars of a diagnosis, which runs store under their names."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from prudent.datasets.pairs import Pairs
from prudent.diagnostics.expected_coverage import Coverage, Measurement, metric
from prudent.diagnostics.registry import Result
from prudent.diagnostics.verdict import Curve


def _of_curve(name: str) -> metric[float]:
    """A scalar that the coverage curve has under the same name."""
    return metric(vars(Coverage)[name].__doc__, lambda d: getattr(d.coverage, name))


@dataclass(frozen=True)
class Scalars:
    """The fields of a diagnosis, which its subclass explains, and what is computed from them."""

    coverage: Coverage
    measurement: Measurement
    pairs: Pairs
    log_prior_density: Tensor
    num_excluded: int = 0
    results: Mapping[str, Result] = field(default_factory=dict)
    out_of_fold: bool = False
    agreement: Mapping[str, Any] = field(default_factory=dict)
    strays: str = ""

    auc = _of_curve("auc")
    auc_error = _of_curve("auc_error")
    calibration_error = _of_curve("calibration_error")
    conservativeness_error = _of_curve("conservativeness_error")
    worst_shortfall = _of_curve("worst_shortfall")
    worst_excess = _of_curve("worst_excess")
    shortfall_bound = metric(
        "The most that coverage may fall short of any level, with 95 % probability; pairs that "
        "are not resolved count as not covered.",
        lambda d: d._counts.most_short,
    )
    log_posterior = metric(
        "The mean normalized log-density of the truth; minus infinity if it is zero for any pair. "
        "It is that of the posterior inside the prior's support; of a foreign flow its own, "
        "without a correction for leakage. For a ratio it is over the pairs that are resolved, as "
        "its normalization is not known elsewhere.",
        lambda d: _mean(d._log_density)[0],
    )
    log_posterior_error = metric(
        "The standard error of the log posterior.", lambda d: _mean(d._log_density)[1]
    )
    log_posterior_finite = metric(
        "The mean log-density of the truth over the pairs where the density is not zero.",
        lambda d: _mean(d._log_density[d._log_density > -torch.inf])[0],
    )
    log_prior = metric(
        "The mean log-density of the prior: what an estimator that ignores x would reach.",
        lambda d: float(d.log_prior_density.mean()),
    )
    information_gain = metric(
        "The log posterior minus the log prior, in nats.", lambda d: _mean(d._gain)[0]
    )
    information_gain_error = metric(
        "The standard error of the information gain, over pairs of differences.",
        lambda d: _mean(d._gain)[1],
    )
    log_normalization = metric(
        "The mean log of the integral of a ratio times the prior, 0 if it is normalized; None for "
        "a flow, which is normalized by construction.",
        lambda d: None if d.measurement.normalized else _mean(d._log_norm)[0],
    )
    log_normalization_error = metric(
        "The standard error of the log normalization.",
        lambda d: None if d.measurement.normalized else _mean(d._log_norm)[1],
    )
    leakage = metric(
        "The mass of the flow outside the prior's support, which is cut off. On the grid it is "
        "what the cells do not add up to, right to about 0.01.",
        lambda d: (
            max(0.0, float(1 - d._log_norm.exp().mean())) if d.measurement.normalized else 0.0
        ),
    )
    draws_gap = metric(
        "The mean log-density of draws minus that of the density, in nats; None if not compared.",
        lambda d: d.agreement.get("draws_gap"),
    )
    draws_p_value = metric(
        "The p-value of draws that are those of the density.",
        lambda d: d.agreement.get("draws_p_value"),
    )
    density_integral = metric(
        "The integral of a density that claims to be normalized, where its draws are: of those "
        "within four standard errors, the one nearest to 1.",
        lambda d: d.agreement.get("density_integral"),
    )
    region_volume = metric(
        "The share of the prior's mass inside the 90 % region, mean over pairs: with a uniform "
        "prior, its volume in units of the box. The prior itself has 0.9.",
        lambda d: float(d._known(d.measurement.volume).mean()),
    )
    posterior_bias = metric(
        "The mean of posterior mean minus truth, per parameter, in its units.",
        lambda d: tuple(_mean(column)[0] for column in d._bias.unbind(1)),
    )
    posterior_bias_error = metric(
        "The standard errors of the posterior bias.",
        lambda d: tuple(_mean(column)[1] for column in d._bias.unbind(1)),
    )
    posterior_variance = metric(
        "The mean posterior variance, per parameter, in its units squared.",
        lambda d: tuple(d._known(d.measurement.variance).mean(dim=0).tolist()),
    )
    effective_size = metric(
        "The number of points of equal weight that carry a posterior, draws or parts of the grid, "
        "mean over pairs.",
        lambda d: float(d.measurement.effective_size[d.measurement.valid].mean()),
    )
    num_unresolved = metric(
        "The number of test pairs whose posterior is not resolved: its effective size is below "
        "100, or it has ridges too thin for the grid. They count against safety in the verdict.",
        lambda d: int((d.measurement.valid & ~d.measurement.resolved).sum()),
    )
    num_pairs = metric("The number of test pairs.", lambda d: len(d.pairs))
    num_invalid = metric(
        "The number of test pairs whose density was NaN or infinite, at the truth or elsewhere: "
        "they count as not covered, and are part of no other number.",
        lambda d: int((~d.measurement.valid).sum()),
    )
    num_zero_density = metric(
        "The number of test pairs whose density was zero at the truth.",
        lambda d: int((d._log_density == -torch.inf).sum()),
    )
    computed_by = metric(
        "The way in which coverage was computed: ``grid``, ``samples``, ``importance`` or "
        "``draws``.",
        lambda d: d.measurement.method,
    )

    def _known(self, values: Tensor) -> Tensor:
        """The rows of the pairs that are resolved, in float64."""
        return values[self.measurement.valid & self.measurement.resolved].double()

    @property
    def _settled(self) -> Tensor:
        """Whether the density of each truth is known: if it is normalized, resolved or zero."""
        measured = self.measurement
        zero = measured.log_posterior == -torch.inf
        return measured.valid & (measured.resolved | measured.normalized | zero)

    @property
    def _log_density(self) -> Tensor:
        return self.measurement.log_posterior[self._settled].double()

    @property
    def _gain(self) -> Tensor:
        return self._log_density - self.log_prior_density[self._settled]

    @property
    def _log_norm(self) -> Tensor:
        return self.measurement.log_norm[self._settled].double()

    @property
    def _bias(self) -> Tensor:
        return self._known(self.measurement.mean - self.pairs.theta)

    @property
    def _counts(self) -> Curve:
        curves = self.coverage.curves()
        return Curve.of(curves["levels"], curves["curve"], self.num_pairs, self.num_unresolved)

    @classmethod
    def scalars(cls) -> list[str]:
        """The names of the scalars that every diagnosis has."""
        return [name for name, value in vars(Scalars).items() if isinstance(value, metric)]

    def metrics(self) -> dict[str, Any]:
        """All scalars, ready for JSON: a number that is not finite is None."""
        names = (*self.scalars(), "num_excluded", "strays")
        values = {**self.agreement, **{name: _plain(getattr(self, name)) for name in names}}
        for result in self.results.values():
            values |= result.metrics()
        return values


def _mean(values: Tensor) -> tuple[float, float]:
    """Mean and standard error."""
    if len(values) == 0:
        return math.nan, math.nan
    return float(values.mean()), float(values.std(correction=0) / len(values) ** 0.5)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
