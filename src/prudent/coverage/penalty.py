r"""The distance of the alphas from uniform, as a term of a training objective.

Sort the alphas of a batch. The i-th of N should be near i/N; the differences

.. math:: e_i = i/N - \alpha_{(i)}

are positive where the posterior is over-confident, and the paper's Algorithm 1 is their mean
square. The *calibrated* target punishes both signs; the *conservative* one only positive
differences, :math:`\max(e_i, 0)`, and so accepts posteriors that are too wide.

The *direct* computation takes the other axis: at fixed levels a, the fraction of alphas up to a
should be a, :math:`e_k = F_N(a_k) - a_k`, where the count is a straight-through step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from prudent.coverage.ranks import alpha
from prudent.coverage.relaxations import INDICATORS, straight_through
from prudent.errors import InputError, unknown_name

__all__ = ["CoveragePenalty", "penalty"]

TARGETS = {"conservative": 0.0, "calibrated": 1.0}
COMPUTATIONS = ("sort", "direct")
LEVELS = ("upper", "mean")


class _LogProb(Protocol):
    def log_prob(self, theta: Tensor) -> Tensor: ...


def penalty(
    alpha: Tensor,
    *,
    target: str | float = "conservative",
    computation: str = "sort",
    levels: str | Tensor = "upper",
) -> Tensor:
    r"""The mean squared distance of the alphas from uniform (Algorithm 1).

    Args:
        alpha: One value in [0, 1] per pair, (N,).
        target: ``"conservative"``, ``"calibrated"``, or a number c in [0, 1] for the blend
            (1 - c) * conservative + c * calibrated.
        computation: ``"sort"`` compares the sorted alphas with the levels; ``"direct"`` compares
            the empirical distribution function at the levels.
        levels: ``"upper"`` for i/N, as in the paper, or ``"mean"`` for i/(N+1), the expectation
            of the i-th of N sorted uniform numbers. For ``"direct"`` also a tensor of levels.

    Returns:
        A scalar; 0 is best.

    >>> uniform = torch.tensor([0.75, 0.25, 0.5, 1.0])
    >>> float(penalty(uniform, target="calibrated"))
    0.0
    >>> float(penalty(uniform / 2)), float(penalty(uniform.sqrt()))
    (0.1171875, 0.0)
    """
    blend = _blend(target)
    if computation not in COMPUTATIONS:
        raise unknown_name("computation", computation, COMPUTATIONS)
    if not isinstance(alpha, Tensor) or not alpha.is_floating_point() or alpha.ndim != 1:
        came = f"{alpha.dtype} {tuple(alpha.shape)}" if isinstance(alpha, Tensor) else type(alpha)
        raise InputError(f"expected `alpha` as a floating-point tensor of shape (N,), got {came}.")
    if alpha.shape[0] == 0:
        raise InputError("expected at least one alpha, got an empty tensor.")
    grid = _levels(levels, alpha, computation)
    if computation == "sort":
        # Many alphas are exactly 0; a stable sort gives each of them a defined gradient.
        excess = grid - alpha.sort(stable=True).values
    else:
        counted = (alpha <= grid[:, None]).to(alpha.dtype)
        excess = straight_through(counted, grid[:, None] - alpha).mean(dim=1) - grid
        excess = excess.masked_fill(alpha.isnan().any(), torch.nan)
    conservative = excess.relu().square().mean()
    calibrated = excess.square().mean()
    return (1 - blend) * conservative + blend * calibrated


def _blend(target: str | float) -> float:
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


def _levels(levels: str | Tensor, alpha: Tensor, computation: str) -> Tensor:
    if isinstance(levels, Tensor):
        if computation != "direct" or levels.ndim != 1 or len(levels) == 0:
            raise InputError(
                "`levels` as a tensor must be one-dimensional and goes with "
                f'computation="direct"; got shape {tuple(levels.shape)} with "{computation}".'
            )
        return levels.to(alpha)
    if levels not in LEVELS:
        raise unknown_name("levels", levels, LEVELS)
    number = alpha.shape[0]
    index = torch.arange(1, number + 1, dtype=alpha.dtype, device=alpha.device)
    return index / (number if levels == "upper" else number + 1)


class CoveragePenalty(nn.Module):
    r"""A coverage penalty for any conditional density, to add to any loss.

    >>> from torch.distributions import Independent, Normal, Uniform
    >>> prior = Independent(Uniform(-torch.ones(2), torch.ones(2)), 1)
    >>> penalty = CoveragePenalty(prior, num_samples=16)
    >>> posterior = Independent(Normal(torch.zeros(8, 2), torch.ones(8, 2)), 1)
    >>> penalty(posterior, prior.sample((8,))).shape
    torch.Size([])

    Args:
        proposal: Where the draws come from: a torch distribution over theta, usually the prior
            (the paper); an object with ``sample_and_log_prob(shape)``; or ``"model"`` for
            ``posterior.sample``. It must cover the support of the posterior.
        num_samples: Draws per pair, L.
        target: ``"conservative"``, ``"calibrated"``, or a number in [0, 1] between the two.
        indicator: See :func:`prudent.coverage.alpha`.
        computation: See :func:`prudent.coverage.penalty`.
        levels: See :func:`prudent.coverage.penalty`.
        midpoint: See :func:`prudent.coverage.alpha`.
    """

    def __init__(
        self,
        proposal: Any,
        num_samples: int = 16,
        target: str | float = "conservative",
        *,
        indicator: str = "log",
        computation: str = "sort",
        levels: str | Tensor = "upper",
        midpoint: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(num_samples, int) or num_samples < 1:
            raise InputError(f"`num_samples` is {num_samples!r}; expected a whole number >= 1.")
        if indicator not in INDICATORS:
            raise unknown_name("indicator", indicator, INDICATORS)
        _check_proposal(proposal)
        # Settings that cannot work are refused here, not in the first training step.
        penalty(torch.ones(1), target=target, computation=computation, levels=levels)
        self.proposal = proposal
        self.num_samples = num_samples
        self.target = target
        self.indicator = indicator
        self.computation = computation
        self.levels = levels
        self.midpoint = midpoint

    @classmethod
    def paper(
        cls, prior: Any, num_samples: int = 16, target: str | float = "conservative"
    ) -> Self:
        """Algorithm 1 to the letter: density-space indicator, draws from the prior, i/N."""
        return cls(
            prior, num_samples, target, indicator="density", computation="sort", levels="upper"
        )

    def forward(self, posterior: _LogProb, theta: Tensor) -> Tensor:
        """The penalty of a batch.

        Args:
            posterior: The posteriors of N observations; ``log_prob`` maps (..., N, D) to (..., N).
            theta: The nominal parameters (N, D).
        """
        return penalty(
            self.alpha(posterior, theta),
            target=self.target,
            computation=self.computation,
            levels=self.levels,
        )

    def alpha(self, posterior: _LogProb, theta: Tensor) -> Tensor:
        """The alphas of a batch, (N,)."""
        if theta.ndim != 2:
            raise InputError(f"expected `theta` of shape (N, D), got {tuple(theta.shape)}.")
        draws, log_proposal = self._draw(posterior, theta)
        # One call for the nominal and all draws: the posterior is evaluated once per step.
        log_prob = posterior.log_prob(torch.cat((theta.unsqueeze(0), draws)))
        expected = (self.num_samples + 1, len(theta))
        if log_prob.shape != expected:
            raise InputError(
                f"expected `posterior.log_prob` to map {(*expected, theta.shape[1])} to "
                f"{expected}, got {tuple(log_prob.shape)}. Is it conditioned on the "
                f"{len(theta)} observations of this batch?"
            )
        nominal, sample = log_prob[0], log_prob[1:]
        if log_proposal is None:
            log_proposal = sample.detach()
        return alpha(
            nominal,
            sample,
            sample - log_proposal.to(sample),
            indicator=self.indicator,
            midpoint=self.midpoint,
        )

    @torch.no_grad()
    def _draw(self, posterior: Any, theta: Tensor) -> tuple[Tensor, Tensor | None]:
        """L draws for each pair, (L, N, D), and their log-density under the proposal."""
        if isinstance(self.proposal, str):
            draws, log_proposal = posterior.sample((self.num_samples,)), None
        elif hasattr(self.proposal, "sample_and_log_prob"):
            shape: Sequence[int] = (self.num_samples, len(theta))
            draws, log_proposal = self.proposal.sample_and_log_prob(shape)
        else:
            draws = self.proposal.sample((self.num_samples, len(theta)))
            log_proposal = self.proposal.log_prob(draws)
        if draws.shape != (self.num_samples, *theta.shape):
            raise InputError(
                f"expected the proposal to draw {(self.num_samples, *theta.shape)} to match "
                f"`theta` {tuple(theta.shape)}, got {tuple(draws.shape)}. A distribution over D "
                "parameters needs event_shape (D,): wrap it in torch.distributions.Independent."
            )
        return draws.to(theta), log_proposal

    def extra_repr(self) -> str:
        """The settings, for ``print``."""
        return f"num_samples={self.num_samples}, target={self.target}, indicator={self.indicator}"


def _check_proposal(proposal: Any) -> None:
    if isinstance(proposal, str):
        if proposal != "model":
            raise unknown_name("proposal", proposal, ["model"], "Or pass a torch distribution.")
    elif isinstance(proposal, Distribution):
        if proposal.batch_shape or len(proposal.event_shape) != 1:
            raise InputError(
                "expected a proposal with event_shape (D,) and no batch_shape, got event_shape "
                f"{tuple(proposal.event_shape)} and batch_shape {tuple(proposal.batch_shape)}. "
                "Wrap it: torch.distributions.Independent(proposal, 1)."
            )
    elif not hasattr(proposal, "sample_and_log_prob"):
        missing = [name for name in ("sample", "log_prob") if not hasattr(proposal, name)]
        if missing:
            raise InputError(
                f"the proposal ({type(proposal).__name__}) has no `{'`, `'.join(missing)}`; "
                "pass a torch distribution, the prior for instance."
            )
