"""A diagnosis as a picture, for notebooks; reports draw theirs from stored results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prudent._extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from prudent.diagnostics.diagnosis import Diagnosis

__all__ = ["picture"]

BAND: dict[str, Any] = {"color": "0.85", "linewidth": 0, "zorder": 0}


def picture(diagnosis: Diagnosis) -> Figure:
    """Coverage with its interval; after a thorough diagnosis SBC and TARP beside it."""
    require("matplotlib", "report", "figures")
    from matplotlib.figure import Figure

    curves = {"sbc": _sbc, "tarp": _tarp}
    drawn = [name for name in curves if name in diagnosis.results]
    columns = 1 + len(drawn)
    figure = Figure(figsize=(3.4 * columns, 3.6), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    _coverage(axes[0], diagnosis)
    for axis, name in zip(axes[1:], drawn, strict=True):
        curves[name](axis, diagnosis.results[name])
    figure.suptitle(diagnosis.verdict.kind)
    return figure


def _coverage(axis: Any, diagnosis: Diagnosis) -> None:
    curve = diagnosis.coverage
    axis.plot([0, 1], [0, 1], color="0.4", linewidth=0.8)
    axis.fill_between([0, 1], [0, 1], 0, color="0.95", linewidth=0, zorder=0)
    axis.fill_between(curve.levels, curve.lower, curve.upper, alpha=0.3, linewidth=0)
    axis.plot(curve.levels, curve.curve, marker=".")
    axis.text(0.97, 0.03, "over-confident", ha="right", style="italic", color="0.35")
    axis.text(0.03, 0.93, "cautious", style="italic", color="0.35")
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="credibility level")
    axis.set(ylabel="share of truths inside", title=f"{diagnosis.num_pairs:,} test pairs")


def _sbc(axis: Any, sbc: Any) -> None:
    axis.fill_between(sbc.points, sbc.lower, sbc.upper, **BAND)
    for name, difference in zip(sbc.ranks.names, sbc.difference, strict=True):
        axis.plot(sbc.points, difference, label=name)
    axis.set(xlabel="rank of the truth / draws", ylabel="ECDF − uniform")
    axis.set_title(f"SBC, p = {sbc.p_value:.2g}")
    axis.legend(frameon=False, fontsize="small")


def _tarp(axis: Any, tarp: Any) -> None:
    axis.fill_between(tarp.levels, tarp.uniform_lower, tarp.uniform_upper, **BAND)
    axis.plot(tarp.levels, tarp.coverage)
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="credibility of the ball")
    axis.set(ylabel="share of truths inside", title=f"TARP, p = {tarp.p_value:.2g}")
