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

from functools import partial
from math import floor
from typing import Any, Self

import torch
from torch import Tensor, nn

from prudent._choices import COMPUTATIONS, DISTANCES, INDICATORS, LEVELS, TARGETS
from prudent._settings import whole
from prudent.contracts import Evaluation, PerPair, Posterior
from prudent.coverage.alpha import alpha, effective_size
from prudent.coverage.draws import pool_scores
from prudent.coverage.passes import Passes
from prudent.coverage.proposals import Draws, check_proposal, draw, evaluated
from prudent.coverage.relaxations import straight_through
from prudent.coverage.sharing import Step
from prudent.errors import InputError, unknown_name

# The seed of the shares by which alphas are moved, which are no user's draws.
SEED = 20_261


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


def largest_gap(alpha: Tensor, num_samples: int) -> Tensor:
    r"""The most that coverage falls short of any level, from alphas (N,) by L draws.

    The region of credibility :math:`\ell` holds the truth where :math:`\alpha \ge 1 - \ell`, so
    coverage is short by :math:`F_N(a) - a` at :math:`a = 1 - \ell`, and most so at an alpha. The
    truth of an exact posterior is below all draws as often as between any two: each alpha is moved
    by a random share of such a place, always the same.

    >>> ranks = torch.arange(1000.0) % 5  # among four draws
    >>> bool(largest_gap(ranks / 4, 4) < 0.05 < 0.2 < largest_gap(ranks**3 / 64, 4))
    True
    """
    uniform = torch.rand(len(alpha), generator=torch.Generator().manual_seed(SEED)).to(alpha)
    alpha = (num_samples * alpha + uniform) / (num_samples + 1)
    return (_grid("upper", alpha) - alpha.sort().values).max().clamp(min=0)


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
            (the paper), or :class:`~prudent.coverage.Even` draws of it; an object with
            ``sample_and_log_prob(shape)``; ``"model"`` for
            ``posterior.sample``, with the gradient through the weights; ``"model-rsample"`` for
            ``posterior.rsample``, with the gradient through the draws; ``"draws"`` for the same
            without any density, by :func:`prudent.coverage.sample_alpha`; or
            :class:`~prudent.coverage.Nominal` for narrow posteriors that cannot draw.
            It must cover the support of the posterior.
        num_samples: The number of draws for each pair, L.
        target: ``"conservative"``, ``"calibrated"``, or a number in [0, 1] between the two.
        indicator: The surrogate of the comparison; see :func:`prudent.coverage.alpha`.
        computation: The axis of the comparison; see :func:`prudent.coverage.penalty`.
        levels: The levels that the alphas are compared with; see the same function.
        distance: The reduction of the differences to one number; see the same function.
        fraction: The share of calls to look at: with 1/3 every third, where the penalty then
            counts three times, so that the gradient has the same expectation. The other calls
            return 0 at no cost. In evaluation mode every call counts once.
        midpoint: Whether draws of exactly equal density count half.
        tolerance: The share of the gradient that may be left out to save time. See
            :mod:`prudent.coverage.passes`.
    """

    # How often the penalty was called in training, for ``fraction``.
    calls: Tensor

    def __init__(
        self,
        proposal: Any,
        num_samples: int = 16,
        target: str | float = "conservative",
        *,
        indicator: str = "log",
        computation: str = "sort",
        levels: str | Tensor = "upper",
        distance: str = "squared",
        fraction: float = 1.0,
        midpoint: bool = False,
        tolerance: float = 5e-5,
    ) -> None:
        super().__init__()
        whole("num_samples", num_samples, 1)
        if indicator not in INDICATORS:
            raise unknown_name("indicator", indicator, INDICATORS)
        if isinstance(fraction, bool) or not 0 < fraction <= 1:
            raise InputError(f"`fraction` is {fraction!r}; expected a number in (0, 1].")
        check_proposal(proposal)
        self.proposal = proposal
        self.num_samples = num_samples
        self.target = target
        self.indicator = indicator
        self.fraction = fraction
        self.midpoint = midpoint
        self.passes = Passes(tolerance)
        self.register_buffer("calls", torch.tensor(0))
        self.penalty = partial(
            penalty, target=target, computation=computation, levels=levels, distance=distance
        )
        self.penalty(torch.ones(1))  # refuses settings that are unknown, before the first step

    @classmethod
    def paper(
        cls, prior: Any, num_samples: int = 16, target: str | float = "conservative"
    ) -> Self:
        """Algorithm 1 to the letter: density-space indicator, draws from the prior, i/N."""
        return cls(
            prior,
            num_samples,
            target,
            indicator="density",
            computation="sort",
            levels="upper",
            tolerance=0.0,
        )

    def forward(self, posterior: Posterior, theta: Tensor) -> Tensor:
        """The penalty of a batch.

        Args:
            posterior: The posteriors of N observations; ``log_prob`` maps (..., N, D) to (..., N),
                and with proposal ``"draws"`` there need be none.
            theta: The nominal parameters (N, D).
        """
        found = self.evaluate(posterior, theta)
        return found.value * found.factor

    def evaluate(self, posterior: Posterior, theta: Tensor) -> Evaluation:
        """The penalty of a batch, with ``effective_samples`` and ``shortfall`` as its figures.

        The arguments are those of :meth:`forward`. The value is that of this batch, whatever the
        ``fraction``, which makes its factor.
        """
        if not isinstance(theta, Tensor) or theta.ndim != 2 or len(theta) == 0:
            came = tuple(theta.shape) if isinstance(theta, Tensor) else type(theta).__name__
            raise InputError(f"expected `theta` as a tensor of shape (N, D), N >= 1, got {came}.")
        if not self._due():
            nothing = theta.new_zeros((), requires_grad=torch.is_grad_enabled())
            return Evaluation(nothing, factor=0.0)
        step = Step.of(posterior, theta)
        if not step.takes_draws:  # the penalty evaluates its draws alone
            step = Step(posterior, theta)
        drawn = draw(self.proposal, posterior, self.num_samples, theta)
        if self.proposal == "draws":
            value, alphas, worth = self._compare(pool_scores(theta, drawn.theta), drawn)
        else:
            points = torch.cat((theta.unsqueeze(0), drawn.theta))
            compare = partial(self._compare, drawn=drawn)
            if points.requires_grad:
                value, alphas, worth = compare(evaluated(posterior, points))
            else:
                value, alphas, worth = self.passes(posterior, points, compare, step)
        figures: dict[str, Tensor | PerPair] = {
            "effective_samples": worth.mean(),
            "shortfall": PerPair(alphas, partial(largest_gap, num_samples=self.num_samples)),
        }
        return Evaluation(value, figures, 1 / self.fraction if self.training else 1.0)

    def _due(self) -> bool:
        """Whether to look at this batch; the first is, and then as many as ``fraction`` says."""
        if not self.training or self.fraction == 1:
            return True
        now = int(self.calls)
        self.calls += 1
        # Due is who makes their number grow; a product of floats may be an ulp below its integer.
        before, after = (floor(call * self.fraction + 1e-9) for call in (now - 1, now))
        return before < after

    def _compare(self, log_prob: Tensor, drawn: Draws) -> tuple[Tensor, Tensor, Tensor]:
        """The penalty, the alphas (N,) and the worth of the draws, (N,), the last two detached.

        The log-densities (L + 1, N) are those of the nominal parameters, first, and of the draws.
        """
        nominal, sample = log_prob[0], log_prob[1:]
        if self.proposal in ("draws", "model-rsample"):
            log_weight = torch.zeros_like(sample)
        else:
            # The model's own draws weigh the same, but their weights still have a gradient.
            known = drawn.log_proposal
            log_weight = sample - (sample.detach() if known is None else known.to(sample))
        alphas = alpha(
            nominal, sample, log_weight, indicator=self.indicator, midpoint=self.midpoint
        )
        worth = drawn.worth
        if worth is None:
            # Weights that are all zero are worth one draw.
            worth = effective_size(log_weight.detach().softmax(dim=0)).nan_to_num(nan=1.0)
        return self.penalty(alphas), alphas.detach(), worth

    def extra_repr(self) -> str:
        """The settings, for ``print``."""
        return f"num_samples={self.num_samples}, target={self.target}, indicator={self.indicator}"
