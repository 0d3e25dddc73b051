"""Is this posterior honest? One call, one answer."""

import contextlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
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
from prudent.diagnostics.expected_coverage import Measurement, measure
from prudent.diagnostics.ranks import PointRanks
from prudent.diagnostics.registry import DIAGNOSTICS, Evidence
from prudent.diagnostics.scalars import Scalars
from prudent.diagnostics.verdict import Verdict, band, judge
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


@dataclass(frozen=True)
class Diagnosis(Scalars):
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

    @property
    def verdict(self) -> Verdict:
        """The verdict on the coverage curve; its text is a sentence."""
        metrics = self.metrics()
        if self.out_of_fold:
            metrics["pairs"] = "out-of-fold pairs"
        return judge(**self.coverage.curves(), num_pairs=self.num_pairs, metrics=metrics)

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
    _check_estimator(estimator)
    pairs, strays = to_judge(estimator, theta, x)
    if num_excluded := pairs.num_invalid:
        warnings.warn(
            f"left out {num_excluded:,} of {num_excluded + len(pairs):,} test pairs: their "
            "observations hold NaN or infinity, where no posterior is defined.",
            stacklevel=2,
        )
    levels = None if levels is None else _checked_levels(levels)
    prior = log_density(estimator.prior, pairs.theta).double()
    ranks = PointRanks(estimator.prior, pairs, names, seed) if rows else None
    measured = measure(estimator, pairs, method, seed=seed, progress=progress, witness=ranks)
    _refuse_broken(measured)
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


def _check_estimator(estimator: object) -> None:
    if lacking := [name for name in ("prior", "normalized") if not hasattr(estimator, name)]:
        raise InputError(
            f"expected an estimator, got {type(estimator).__name__} without "
            f"{' and '.join(f'`{name}`' for name in lacking)}; make one of a model of sbi, lampe, "
            "zuko, nflows or BayesFlow, or of functions: prudent.adapt(model, prior)."
        )


def _checked_levels(levels: Any) -> Tensor:
    found = float32("levels", levels)
    if found.ndim != 1 or len(found) == 0 or not bool(((found > 0) & (found < 1)).all()):
        raise InputError("expected `levels` as a list of numbers between 0 and 1.")
    return found


def _refuse_broken(measured: Measurement) -> None:
    if not bool(measured.valid.any()):
        raise InputError(
            f"the density of all {len(measured.valid):,} test pairs is NaN or infinite: the "
            "estimator is broken. Train it again with a lower learning rate."
        )


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
