r"""The distance of the alphas from uniform, as a term of a training objective.

Sort the alphas of a batch. The i-th of N should be near i/N; the differences

.. math:: e_i = i/N - \alpha_{(i)}

are positive where the posterior is over-confident, and the paper's Algorithm 1 is their mean
square. The *calibrated* target punishes both signs; the *conservative* one only positive
differences, :math:`\max(e_i, 0)`, and so accepts posteriors that are too wide.

The *direct* computation takes the other axis: at fixed levels a, the fraction of alphas up to a
should be a, :math:`e_k = F_N(a_k) - a_k`, where the count is a straight-through step.

Instead of their mean square, the differences can be reduced to their mean size or to the largest.
"""

import torch
from torch import Tensor

from prudent._choices import COMPUTATIONS, DISTANCES, LEVELS, TARGETS
from prudent.coverage.relaxations import straight_through
from prudent.errors import InputError, unknown_name


def penalty(
    alpha: Tensor,
    *,
    target: str | float = "conservative",
    computation: str = "sort",
    levels: str | Tensor = "upper",
    distance: str = "squared",
) -> Tensor:
    r"""The distance of the alphas from uniform (Algorithm 1).

    Args:
        alpha: One value in [0, 1] per pair, (N,).
        target: ``"conservative"``, ``"calibrated"``, or a number c in [0, 1] for the blend
            (1 - c) * conservative + c * calibrated.
        computation: ``"sort"`` compares the sorted alphas with the levels; ``"direct"`` compares
            the empirical distribution function at the levels.
        levels: ``"upper"`` for i/N, as in the paper, or ``"mean"`` for i/(N+1), the expectation
            of the i-th of N sorted uniform numbers. For ``"direct"`` also a tensor of levels.
        distance: ``"squared"`` for the mean square, as in the paper, ``"absolute"`` for the mean
            size or ``"supremum"`` for the largest of the differences.

    Returns:
        A scalar; 0 is best.

    >>> uniform = torch.tensor([0.75, 0.25, 0.5, 1.0])
    >>> float(penalty(uniform, target="calibrated"))
    0.0
    >>> float(penalty(uniform / 2)), float(penalty(uniform.sqrt()))
    (0.1171875, 0.0)
    """
    if not isinstance(alpha, Tensor) or not alpha.is_floating_point() or alpha.ndim != 1:
        came = f"{alpha.dtype} {tuple(alpha.shape)}" if isinstance(alpha, Tensor) else type(alpha)
        raise InputError(f"expected `alpha` as a floating-point tensor of shape (N,), got {came}.")
    if alpha.shape[0] == 0:
        raise InputError("expected at least one alpha, got an empty tensor.")
    blend = _check(target, computation, levels, distance)
    grid = _grid(levels, alpha)
    if computation == "sort":
        # Many alphas are exactly 0; a stable sort gives each of them a defined gradient.
        excess = grid - alpha.sort(stable=True).values
    else:
        counted = (alpha <= grid[:, None]).to(alpha.dtype)
        excess = straight_through(counted, grid[:, None] - alpha).mean(dim=1) - grid
        excess = excess.masked_fill(alpha.isnan().any(), torch.nan)
    if blend == 1:
        return _reduce(excess, distance)
    conservative = _reduce(excess.relu(), distance)
    return conservative.lerp(_reduce(excess, distance), blend) if blend else conservative


def _reduce(excess: Tensor, distance: str) -> Tensor:
    if distance == "squared":
        return excess.square().mean()
    return excess.abs().mean() if distance == "absolute" else excess.abs().max()


def _check(target: str | float, computation: str, levels: str | Tensor, distance: str) -> float:
    """Refuse what :func:`penalty` does not know; return the weight of the calibrated target."""
    choices = [("computation", computation, COMPUTATIONS), ("distance", distance, DISTANCES)]
    if not isinstance(levels, Tensor):
        choices.append(("levels", levels, LEVELS))
    elif computation == "sort" or levels.ndim != 1 or len(levels) == 0:
        raise InputError(
            "`levels` as a tensor must be one-dimensional and goes with "
            f'computation="direct"; got shape {tuple(levels.shape)} with "{computation}".'
        )
    for kind, name, known in choices:
        if name not in known:
            raise unknown_name(kind, name, known)
    if isinstance(target, str):
        if target not in TARGETS:
            raise unknown_name("target", target, TARGETS, "Or a number in [0, 1].")
        return TARGETS[target]
    if isinstance(target, bool) or not 0 <= target <= 1:
        raise InputError(
            f"`target` is {target!r}; expected `conservative`, `calibrated` or a number in [0, 1] "
            "between the two."
        )
    return float(target)


def _grid(levels: str | Tensor, alpha: Tensor) -> Tensor:
    """The levels that the sorted alphas are compared with."""
    if isinstance(levels, Tensor):
        return levels.to(alpha)
    number = alpha.shape[0]
    index = torch.arange(1, number + 1, dtype=alpha.dtype, device=alpha.device)
    return index / (number if levels == "upper" else number + 1)
