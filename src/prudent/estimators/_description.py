"""An estimator in words: what it is, what it was trained on, and what is known of its honesty."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from prudent.priors.checks import to_spec
from prudent.priors.density import made_of

NOT_MEASURED = "not measured; test the estimator with prudent.diagnose"


class Described:
    """What describes itself by names and values; a mixin."""

    def _rows(self) -> list[tuple[str, str]]:
        raise NotImplementedError

    def summary(self) -> str:
        """What the estimator is and can do, and the verdict about it, for reading."""
        return text(type(self).__name__, self._rows())

    def _repr_html_(self) -> str:
        return page(type(self).__name__, self._rows())


def verdict_of(estimator: Any) -> str:
    """What a diagnosis said of an estimator, or that there was none."""
    known = getattr(estimator, "info", {}).get("verdict")
    inner = getattr(estimator, "out_of_fold", None)
    if known is None and inner is not None:
        known = f"at least this cautious: {inner.verdict}"
    return known or NOT_MEASURED


def unjudged(estimator: Any) -> dict[str, Any]:
    """What is known of an estimator, for one made of it: a verdict is that of its posteriors."""
    known = getattr(estimator, "info", {})
    return {name: value for name, value in known.items() if name != "verdict"}


def known(estimator: Any) -> list[tuple[str, str]]:
    """What every estimator can say, as names and values for readers."""
    names = estimator.info.get("parameter_names")
    names = names or [f"theta_{i + 1}" for i in range(estimator.dim)]
    shape = estimator.x_shape
    return [
        ("verdict", verdict_of(estimator)),
        ("parameters", ", ".join(map(str, names))),
        ("x", "of any shape" if shape is None else str(tuple(shape))),
        ("prior", prior_name(estimator.prior)),
    ]


def rows(estimator: Any) -> list[tuple[str, str]]:
    """Names and values of an estimator of ours, for readers."""
    info, members = estimator.info, getattr(estimator, "members", [estimator])
    weights = sum(parameter.numel() for parameter in estimator.parameters())
    found = [
        *known(estimator),
        ("method", str(info.get("method", "not trained"))),
        ("networks", f"{len(members)} with {weights:,} weights in all"),
        ("device", str(next(estimator.parameters()).device)),
    ]
    if getattr(estimator, "temperature", 1.0) != 1.0:
        found.append(("temperature", f"{float(estimator.temperature):.3g}"))
    if getattr(estimator, "floor", 0.0):
        found.append(("prior's share", f"{100 * estimator.floor:.3g} %"))
    if epochs := len(estimator.history):
        found.append(("epochs", f"{epochs:,}"))
    if info.get("num_simulations"):
        left_out = f", {info['num_invalid']:,} of them left out" if info.get("num_invalid") else ""
        found.append(("simulations", f"{info['num_simulations']:,}{left_out}"))
    return found


def prior_name(prior: Any) -> str:
    """The families of a prior, such as ``Uniform, LogUniform``."""
    return _families(to_spec(prior)) or type(made_of(prior)[0] or prior).__name__


def _families(spec: Mapping[str, Any] | None) -> str:
    if spec is None:
        return ""
    if spec["class"] == "Product":
        return ", ".join(map(_families, spec["factors"]))
    if spec["class"] == "Truncated":
        return f"{_families(spec['base'])} (cut)"
    return _families(spec["base"]) if spec["class"] == "Independent" else str(spec["class"])


def text(title: str, described: Sequence[tuple[str, str]], width: int = 14) -> str:
    """A description for a terminal."""
    return "\n".join([title, *(f"  {name:<{width}}{value}" for name, value in described)])


def page(title: str, described: Sequence[tuple[str, str]]) -> str:
    """A description for a notebook."""
    cells = (
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
        for name, value in described
    )
    return f"<p><strong>{html.escape(title)}</strong></p><table>{''.join(cells)}</table>"
