"""Is this posterior honest? One call, one answer."""

import contextlib
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch
from torch import Tensor

from prudent._arrays import float32
from prudent._extras import require
from prudent._files import dump_tensors, load_tensors, write_atomic
from prudent._progress import Reporter
from prudent.contracts import Estimator
from prudent.datasets.pairs import Pairs
from prudent.datasets.provenance import to_judge
from prudent.diagnostics.agreement import agreement
from prudent.diagnostics.expected_coverage import (
    Coverage,
    Measurement,
    measure,
    metric,
)
from prudent.diagnostics.ranks import PointRanks
from prudent.diagnostics.registry import DIAGNOSTICS, Evidence, Result
from prudent.diagnostics.verdict import Curve, Verdict, band, judge
from prudent.errors import InputError, StoreError, one_line
from prudent.estimators._description import page, text
from prudent.estimators.base import Saved
from prudent.estimators.nearby import Nearby
from prudent.estimators.summaries import to_arviz
from prudent.priors.density import log_density

NO_DENSITY = "no log posterior, no volume; a posterior as wide as the prior passes"
# Draws from each posterior that is judged in parts.
PARTS_DRAWS = 160
# The format of the files of diagnoses.
FORMAT = 1


@dataclass(frozen=True)
class StoredResult:
    """The result of a diagnostic as a file keeps it."""

    verdict: str
    scalars: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]

    def metrics(self) -> dict[str, Any]:
        """The scalars."""
        return dict(self.scalars)

    def rows(self) -> list[dict[str, Any]]:
        """The records."""
        return [dict(record) for record in self.records]


def _of_curve(name: str) -> metric[float]:
    """A scalar that the coverage curve has under the same name."""
    return metric(vars(Coverage)[name].__doc__, lambda d: getattr(d.coverage, name))


@dataclass(frozen=True)
class Diagnosis:
    """A diagnosis of an estimator by test pairs.

    Its scalars are attributes, and :meth:`metrics` lists them all.

    Args:
        coverage: The coverage curve with its interval.
        measurement: What was measured for each pair.
        pairs: The test pairs.
        log_prior_density: The log-density of the prior at each truth, (N,).
        num_excluded: The number of pairs left out because x held NaN or infinity; they are not
            among the test pairs.
        results: The results of a thorough diagnosis, by the names of
            :data:`prudent.diagnostics.registry.DIAGNOSTICS`.
        out_of_fold: Whether the pairs are those of a training, each judged by members that did not
            see it, and not test pairs. The pool of all members is usually more cautious than that.
        agreement: What the comparison of draws and density says, if there are both.
        strays: How theta differs from draws of the prior, in words; empty if it does not.
    """

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

    @property
    def verdict(self) -> Verdict:
        """The verdict on the coverage curve; its text is a sentence."""
        metrics = self.metrics()
        if self.out_of_fold:
            metrics["pairs"] = "out-of-fold pairs"
        return judge(**self.coverage.curves(), num_pairs=self.num_pairs, metrics=metrics)

    @classmethod
    def scalars(cls) -> list[str]:
        """The names of the scalars that every diagnosis has."""
        return [name for name, value in vars(Diagnosis).items() if isinstance(value, metric)]

    def metrics(self) -> dict[str, Any]:
        """All scalars, ready for JSON: a number that is not finite is None."""
        names = (*self.scalars(), "num_excluded", "strays")
        values = {**self.agreement, **{name: _plain(getattr(self, name)) for name in names}}
        for result in self.results.values():
            values |= result.metrics()
        return values

    def tensors(self) -> dict[str, Tensor]:
        """The numbers of the pairs, without x, of which :meth:`of` makes the diagnosis."""
        columns = {k: v for k, v in vars(self.measurement).items() if isinstance(v, Tensor)}
        columns |= {"levels": self.coverage.levels, "log_prior_density": self.log_prior_density}
        return {"theta": self.pairs.theta, "index": self.pairs.row_numbers, **columns}

    def settings(self) -> dict[str, Any]:
        """The rest of what :meth:`of` needs, in plain JSON."""
        return {
            "method": self.measurement.method,
            "normalized": self.measurement.normalized,
            "num_excluded": self.num_excluded,
            "out_of_fold": self.out_of_fold,
            "agreement": self.agreement,
            "strays": self.strays,
            "results": [  # in their order
                (name, one.verdict, one.metrics(), one.rows())
                for name, one in self.results.items()
            ],
        }

    @classmethod
    def of(cls, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """The diagnosis that a file holds; its pairs have no x."""
        columns = {field.name: tensors[field.name] for field in fields(Measurement)[2:]}
        measured = Measurement(settings["method"], settings["normalized"], **columns)
        theta, index = tensors["theta"], tensors["index"]
        return cls(
            measured.coverage(tensors["levels"]),
            measured,
            Pairs(theta, theta[:, :0], index),
            tensors["log_prior_density"],
            settings["num_excluded"],
            {name: StoredResult(*one) for name, *one in settings["results"]},
            settings["out_of_fold"],
            settings["agreement"],
            settings["strays"],
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the diagnosis, without x, to one safetensors file; :meth:`load` reads it."""
        write_atomic(path, dump_tensors({"format": FORMAT, **self.settings()}, self.tensors()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a diagnosis that :meth:`save` wrote; its pairs have no x."""
        settings, tensors = load_tensors(path, FORMAT, "Restore it or diagnose again.")
        try:
            return cls.of(settings, tensors)
        except (KeyError, TypeError, AttributeError, RuntimeError, IndexError) as error:
            reason = one_line(error).rstrip(".")
            raise StoreError(f"{path} does not hold a sound diagnosis: {reason}.") from error

    def plot(self) -> Any:
        """The coverage curve, after a thorough diagnosis with SBC and TARP, as a figure."""
        require("matplotlib", "report", "figures")
        from prudent import _plots

        tests = {name: result.rows() for name, result in self.results.items()}
        levels, curve, number = self._counts.levels, self._counts.counts, self.num_pairs
        bands = {number: (levels, *band(number, tuple(levels)))}
        return _plots.diagnosis(self._headline, (levels, curve / number), bands, tests)

    def to_arviz(self) -> Any:
        """The ranks of a thorough diagnosis for ArviZ, in the group ``prior_sbc``.

        ``theta`` holds, for each test pair and function, how many of the attribute ``ndraws``
        posterior draws lie below the truth; the functions are the coordinate ``parameter``.
        """
        found: Any = self.results.get("sbc")
        if found is None:
            raise InputError("there are no ranks; ask for them with diagnose(..., thorough=True).")
        ranks = found.ranks
        facts = {"ndraws": ranks.num_samples, "verdict": str(self.verdict), "notes": ranks.caveats}
        return to_arviz("prior_sbc", ranks.ranks.T, ranks.names, facts)

    @property
    def _headline(self) -> str:
        return ("at least this cautious: " if self.out_of_fold else "") + self.verdict.text

    def _rows(self) -> list[tuple[str, str]]:
        """Names and values for readers; a number that rounds to zero has no sign."""
        log_posterior = f"{self.log_posterior:z.2f} ± {self.log_posterior_error:.2f}"
        if number := self.num_zero_density:
            others = f"{self.log_posterior_finite:z.2f} at the others"
            log_posterior = f"-inf: density zero at {number:,} truths; {others}"
        rows = [
            ("coverage AUC", f"{self.auc:+z.3f} ± {self.auc_error:.3f}"),
            (
                "worst shortfall",
                f"{self.worst_shortfall:z.3f}, at most {self.shortfall_bound:.3f} (95 % sure)",
            ),
            ("worst excess", f"{self.worst_excess:z.3f}"),
        ]
        if self.measurement.has_density:
            rows.append(("log posterior", log_posterior))
        else:
            rows.append(("no density, draws alone", NO_DENSITY))
        rows.append(("log prior", f"{self.log_prior:z.2f}"))
        if self.computed_by != "draws":
            rows.append(("90 % region", f"{100 * self.region_volume:.2g} % of the prior"))
        if self.log_normalization is not None:
            error = f"{self.log_normalization:+z.2f} ± {self.log_normalization_error:.2f}"
            rows.append(("log normalisation", f"{error}, removed"))
        if self.leakage > 0.01:
            rows.append(("leakage", f"{100 * self.leakage:.1f} % outside the prior, cut off"))
        unit = "parts" if self.computed_by == "grid" else "draws"
        way = f"{self.computed_by}, worth {self.effective_size:,.0f} {unit} a pair"
        if self.computed_by == "draws":
            way += ", whose regions see less than densities do"
        rough = f"; {self.num_unresolved:,} not resolved, which counts against safety"
        rows.append(("computed by", way + rough if self.num_unresolved else way))
        if self.agreement:
            told = self.agreement["disagreement"] or f"agree (p = {self.draws_p_value:.2g})"
            rows.append(("draws and density", told.removeprefix("draws and density ")))
        elif self.computed_by == "draws" and self.measurement.has_density:
            rows.append(("draws and density", "not compared, as the density is slow"))
        if self.num_invalid:
            rows.append(
                ("pairs with density NaN", f"{self.num_invalid:,}, counted as not covered")
            )
        if self.num_excluded:
            rows.append(("pairs with x not finite", f"{self.num_excluded:,}, left out"))
        titles = {name: row.title for name, row in DIAGNOSTICS.items()}
        found = [(titles.get(name, name), one.verdict) for name, one in self.results.items()]
        return rows + found

    def __str__(self) -> str:
        return text(self._headline, self._rows(), width=24)

    def _repr_html_(self) -> str:
        """The verdict and the numbers, for notebooks."""
        return page(self._headline, self._rows())

    def __repr__(self) -> str:
        return f"<Diagnosis: {self.verdict}>"


def diagnose(
    estimator: Estimator,
    theta: Any,
    x: Any = None,
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
        estimator: An estimator from :func:`prudent.fit`, :func:`prudent.load` or
            :func:`prudent.adapt`, or any object with ``prior`` and ``normalized`` that maps x to
            a posterior with ``log_prob`` and ``sample``, or with ``sample`` alone.
        theta: True parameters (N, D), drawn from the prior, which is tested. Or, with x left out,
            :class:`~prudent.datasets.Pairs`.
        x: The observations simulated from them (N, ...). Those that hold NaN or infinity, and
            pairs that repeat another, are left out, counted, and warned about; pairs that trained
            the estimator are refused.
        levels: Credibility levels in (0, 1); the default is 0.01, 0.02, ..., 0.99.
        method: The way to compute coverage: ``auto``, ``grid``, ``samples``, ``importance`` or
            ``draws``.
        thorough: Also run all registered diagnostics: the ranks of every parameter (SBC), the
            distance to random points (TARP), and coverage by region of x, which says where a
            posterior is wrong. Takes draws from every posterior and scikit-learn.
        names: The D names of the parameters, for these diagnostics; by default those that the
            estimator knows.
        seed: The seed of all draws.
        progress: None for a bar on terminals, True or False.

    Returns:
        The diagnosis. Its verdict is also kept in the ``info`` of the estimator, if it has one, to
        be saved with it and shown with its posteriors.

    >>> import prudent
    >>> problem = prudent.problems.get("gaussian")
    >>> estimator = prudent.fit(*problem.draw(256, 0), problem.prior, method="npe", epochs=2)
    >>> diagnose(estimator, *problem.draw(200, 1)).num_pairs
    200
    """
    rows = DIAGNOSTICS.values() if thorough else ()
    info = getattr(estimator, "info", None)
    if names is None and isinstance(info, dict):
        names = info.get("parameter_names")
    for needed in (row.needs for row in rows if row.needs is not None):
        require(*needed, "thorough diagnoses")
    if lacking := [name for name in ("prior", "normalized") if not hasattr(estimator, name)]:
        raise InputError(
            f"expected an estimator, got {type(estimator).__name__} without "
            f"{' and '.join(f'`{name}`' for name in lacking)}; make one of a model of sbi, lampe, "
            "zuko, nflows or BayesFlow, or of functions: prudent.adapt(model, prior)."
        )
    pairs, strays = to_judge(estimator, theta, x)
    if num_excluded := pairs.num_invalid:
        warnings.warn(
            f"left out {num_excluded:,} of {num_excluded + len(pairs):,} test pairs: their "
            "observations hold NaN or infinity, where no posterior is defined.",
            stacklevel=2,
        )
    if levels is not None:
        levels = float32("levels", levels)
        if levels.ndim != 1 or len(levels) == 0 or not bool(((levels > 0) & (levels < 1)).all()):
            raise InputError("expected `levels` as a list of numbers between 0 and 1.")
    prior = log_density(estimator.prior, pairs.theta).double()
    ranks = PointRanks(estimator.prior, pairs, names, seed) if rows else None
    measured = measure(estimator, pairs, method, seed=seed, progress=progress, witness=ranks)
    if not bool(measured.valid.any()):
        raise InputError(
            f"the density of all {len(pairs):,} test pairs is NaN or infinite: the estimator is "
            "broken. Train it again with a lower learning rate."
        )
    coverage = measured.coverage(levels)
    results = {}
    if ranks is not None:
        evidence = Evidence(measured, ranks.judged(measured), pairs, names, seed)
        results = {row.name: row.function(evidence) for row in rows}
    alike = agreement(estimator, pairs, measured, seed)
    more: dict[str, Any] = {"agreement": alike, "strays": strays}
    found = Diagnosis(coverage, measured, pairs, prior, num_excluded, results, **more)
    if isinstance(info, dict):
        # In a record of its own, as estimators may share theirs; some take none.
        with contextlib.suppress(AttributeError):
            estimator.info = {**info, "verdict": str(found.verdict)}  # type: ignore[attr-defined]
    if isinstance(estimator, Saved):
        test = None if strays else estimator.novelty
        estimator.nearby = Nearby.of(test, estimator.observations(pairs.x), measured.alpha)
    return found


def diagnose_parts(parts: Sequence[tuple[Estimator, Pairs]], *, seed: int = 0) -> Diagnosis:
    """Judge members of a cross-fitted ensemble, each by the pairs that it did not train on.

    Args:
        parts: The members and their pairs, of which each is in one part.
        seed: The seed of draws.

    Returns:
        The diagnosis of all pairs together, in the order of the training pairs.
    """
    measured = [
        measure(member, pairs, seed=seed, progress=False, num_draws=PARTS_DRAWS)
        for member, pairs in parts
    ]
    numbers = torch.cat([pairs.row_numbers for _, pairs in parts])
    order = numbers.argsort()
    joined = Measurement.join(measured).rows(order)
    theta, x = (torch.cat([getattr(p, name) for _, p in parts])[order] for name in ("theta", "x"))
    known, pairs = log_density(parts[0][0].prior, theta).double(), Pairs(theta, x, numbers[order])
    return Diagnosis(joined.coverage(), joined, pairs, known, out_of_fold=True)


def _mean(values: Tensor) -> tuple[float, float]:
    """Mean and standard error."""
    if len(values) == 0:
        return math.nan, math.nan
    return float(values.mean()), float(values.std(correction=0) / len(values) ** 0.5)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
