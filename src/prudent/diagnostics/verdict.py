r"""What a coverage curve says, no stronger than the number of test pairs allows.

The coverage curve is an empirical distribution function, so the Dvoretzky-Kiefer-Wolfowitz
inequality bounds its error at all levels at once: with 95 % probability it stays within
:math:`\sqrt{\ln(2 / 0.05) / 2N}` of the truth. A shortfall or excess beyond that is real.

Where the posterior of a pair could not be resolved, its alpha could be anything. So pairs that
are not resolved count against safety: a posterior is called conservative or calibrated only if it
would be, had none of them been covered, and over-confident only if it would be, had all been.

The prior is calibrated too, and useless. A calibrated posterior whose log-density at the truth is
not above the prior's, by more than the error of that difference, is called uninformative.

Everything here is plain numbers, so that stored runs are judged without torch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

# The kinds of posteriors that are known not to be over-confident.
TRUSTED = ("calibrated", "conservative", "uninformative")
ERROR_RATE = 0.05
NORMAL_95 = 1.959964
# With a wider margin than this, "calibrated within" would say nothing.
WIDEST_MARGIN = 0.05
# Nats by which float32 can be wrong: less is no gain.
NO_GAIN = 1e-3


@dataclass(frozen=True)
class Verdict:
    """A judgement of a coverage curve.

    Args:
        kind: One of ``over-confident``, ``conservative``, ``calibrated``, ``uninformative``,
            ``not enough test pairs`` and ``cannot be measured``.
        evidence: The numbers that the judgement rests on.
        text: Kind and evidence as one sentence.
    """

    kind: str
    evidence: str
    text: str

    @classmethod
    def of(cls, kind: str, evidence: str, between: str = ": ") -> Self:
        """The verdict whose sentence is its kind followed by its evidence."""
        return cls(kind, evidence, f"{kind}{between}{evidence}")

    @property
    def trusted(self) -> bool:
        """Whether the posterior is known not to be over-confident."""
        return self.kind in TRUSTED

    def __str__(self) -> str:
        return self.text


def margin(num_pairs: int, num_curves: int = 1) -> float:
    """The distance that no curve of calibrated posteriors exceeds, with 95 % probability.

    Args:
        num_pairs: The number of test pairs of each curve.
        num_curves: The number of curves that have to stay within the distance at once.

    >>> round(margin(2000), 3)
    0.03
    """
    return math.sqrt(math.log(2 * num_curves / ERROR_RATE) / (2 * num_pairs))


def in_words(level: float, share: float, half: float) -> str:
    """The coverage of one level, with half the width of its interval, in words."""
    measured = f"{100 * share:.0f} ± {max(1, round(100 * half))} %"
    return f"{100 * level:.0f} % regions contain the truth {measured} of the time"


def judge(
    levels: Sequence[float],
    curve: Sequence[float],
    lower: Sequence[float],
    upper: Sequence[float],
    *,
    num_pairs: int,
    metrics: Mapping[str, Any] | None = None,
) -> Verdict:
    """Judge a coverage curve.

    Args:
        levels: The credibility levels.
        curve: The coverage at each level.
        lower: The lower end of the interval of each point.
        upper: The upper end of the interval of each point.
        num_pairs: The number of test pairs.
        metrics: The scalars of the diagnosis or of the stored run. Without them nothing is called
            uninformative, and all pairs count as resolved. A text ``pairs`` among them says what
            the pairs are, if not test pairs.

    >>> print(judge([0.5, 0.9], [0.4, 0.8], [0.38, 0.78], [0.42, 0.82], num_pairs=2000))
    over-confident: 90 % regions contain the truth 80 ± 2 % of the time (2,000 test pairs)
    """
    tolerance, metrics = margin(num_pairs), metrics or {}
    unresolved = int(metrics.get("num_unresolved") or 0)
    doubt = unresolved / num_pairs
    # To six digits, as they are stored, so that a run and its stored form are judged alike.
    short = [round(level - share, 6) for level, share in zip(levels, curve, strict=True)]
    shortfall, excess = max(0.0, *short), max(0.0, *(-value for value in short))
    index = min(range(len(short)), key=lambda place: abs(levels[place] - 0.9))
    if short[index] - doubt <= tolerance < shortfall - doubt:
        index = short.index(shortfall)
    half = max(upper[index] - curve[index], curve[index] - lower[index])
    known = f"{num_pairs:,} {metrics.get('pairs', 'test pairs')}"
    if metrics.get("computed_by") == "draws":
        known += "; by draws alone, which miss what a density shows"
    measured = f"{in_words(levels[index], curve[index], half)} ({known})"
    if shortfall - doubt > tolerance:
        if excess - doubt <= tolerance:
            return Verdict.of("over-confident", measured)
        sides = f"(short by {shortfall:.2f}) and conservative at others (above by {excess:.2f})"
        return Verdict.of("over-confident", f"at some levels {sides}: {measured}", " ")
    if unresolved and shortfall + doubt > tolerance:
        low, high = (min(1.0, max(0.0, curve[index] + sign * doubt)) for sign in (-1, 1))
        between = f"{100 * levels[index]:.0f} % regions contain the truth {100 * low:.0f} to"
        return Verdict.of(
            "cannot be measured",
            f"this way: {unresolved:,} of {num_pairs:,} posteriors are not resolved, so {between} "
            f"{100 * high:.0f} % of the time; use an estimator that draws by itself, such as npe",
            " ",
        )
    if excess > tolerance:
        worst = f"worst shortfall {shortfall:.2f} (chance explains {tolerance + doubt:.2f})"
        return Verdict.of("conservative", f"{worst}, {measured}")
    if tolerance > WIDEST_MARGIN:
        return Verdict.of("not enough test pairs", f"to tell: {measured}; use 1,000 or more", " ")
    within = f"within ± {tolerance + doubt:.2f} at all levels"
    if nothing := _uninformative(metrics):
        return Verdict.of("uninformative", f"{nothing}; calibrated {within}")
    return Verdict.of("calibrated", f"{within}: {measured}", " ")


def _uninformative(metrics: Mapping[str, Any]) -> str | None:
    """The words for a posterior that says no more than the prior, or None if it does."""
    posterior, prior = metrics.get("log_posterior"), metrics.get("log_prior")
    # Runs stored by earlier versions know the two means, but not the error of their difference.
    error = metrics.get("information_gain_error")
    error = metrics.get("log_posterior_error") if error is None else error
    if posterior is None or prior is None or error is None:
        return None
    # The means may be over different pairs, where some are not resolved; the gain is not.
    gain = metrics.get("information_gain")
    if (posterior - prior if gain is None else gain) > NORMAL_95 * error + NO_GAIN:
        return None
    return f"it says no more than the prior (log posterior {posterior:z.2f}, prior {prior:z.2f})"
