r"""Draws where a narrow posterior is, for densities that cannot draw.

Draws of the prior say nothing about a narrow posterior q that none of them meets. The nominal
:math:`\theta_i` is a draw of the true posterior, so that :class:`Nominal` looks around it. The
score :math:`g_i = \nabla \log q(\theta_i \mid x_i)` leads from there to the bulk of q: a normal
q of precision P has its mean at :math:`\theta_i + P^{-1} g_i`. The scores of a batch give one P
for all pairs, :math:`E[g g^\top]`, and their differences near that mean one P for each pair.
"""

import math
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from prudent._settings import whole
from prudent._students import Students
from prudent.contracts import Posterior, Prior
from prudent.coverage.alpha import effective_size
from prudent.coverage.proposals import Draws, evaluated, over
from prudent.errors import InputError
from prudent.priors.density import log_density, trial_draws

# Components of Nominal: about the pair's own estimate of the posterior's mean, about the batch's,
# about the nominal at each of the scales (in units of the prior's spread), and the prior.
SCALES = (1.5, 0.5, 0.15, 0.05, 0.015)
SHARES = (3, 2, *(1 for _ in SCALES), 6)
# The factor by which estimated widths are widened.
WIDEN = 1.2
# The step of the differences of scores, and the farthest step to a mean, in posterior widths.
DIFFERENCE, FARTHEST = 0.3, 3.0
# Scores beyond this many per spread belong to no width that floating-point numbers resolve.
STEEPEST = 1e6


class Nominal:
    r"""Draws near the nominal parameters, for posteriors that cannot draw from themselves.

    For each of L draws some candidates come from a mixture: Student distributions about the
    posterior's mean as the scores tell it, others about the nominal on scales from wide to narrow,
    and the prior. They are evaluated without a gradient, and L of them are drawn again by their
    importance weights. Where scores are missing or not finite, the other components remain.

    Args:
        prior: The prior, whose spread is the unit of the scales.
        candidates: The number of candidates for each draw. More see more of a posterior with
            several modes, at the price of as many evaluations.

    >>> from torch.distributions import Independent, Normal
    >>> prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> posterior = Independent(Normal(torch.zeros(8, 2), torch.full((8, 2), 0.01)), 1)
    >>> Nominal(prior).draw(posterior, 16, posterior.sample()).theta.shape
    torch.Size([16, 8, 2])
    """

    def __init__(self, prior: Prior, candidates: int = 4) -> None:
        trial_draws(prior, "prior")
        self.prior = prior
        self.candidates = whole("candidates", candidates, 1)
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(0)
            draws = prior.sample((4096,))
        # Half the width of the central 68 %, as heavy tails may have no standard deviation.
        low, high = draws.quantile(draws.new_tensor([0.16, 0.84]), dim=0)
        self.spread = ((high - low) / 2).clamp(min=torch.finfo(draws.dtype).tiny)

    @torch.no_grad()
    def draw(self, posterior: Posterior, num_samples: int, theta: Tensor) -> Draws:
        """Draws of the posterior as well as the candidates allow, for theta (N, D)."""
        if len(self.spread) != theta.shape[1]:
            raise InputError(
                f"the prior draws {len(self.spread)} parameters, but `theta` has shape "
                f"{tuple(theta.shape)}."
            )
        drawn, log_proposal = self._propose(posterior, num_samples * self.candidates, theta)
        log_prob = evaluated(posterior, drawn)
        log_weight = (log_prob - log_proposal).nan_to_num(-torch.inf, -torch.inf, -torch.inf)
        nowhere = log_weight.isneginf().all(dim=0)
        weight = log_weight.masked_fill(nowhere, 0.0).softmax(dim=0)
        index = _resample(weight, num_samples)
        # Where the density is zero at all candidates, their weights stay zero instead of NaN.
        log_prob = log_prob.gather(0, index).nan_to_num(0.0, 0.0, 0.0)
        chosen = drawn.gather(0, index.unsqueeze(-1).expand(-1, *theta.shape))
        worth = effective_size(weight).masked_fill(nowhere, 1.0).clamp(max=num_samples)
        return Draws(chosen, over(log_prob), worth=worth)

    def _propose(self, posterior: Posterior, number: int, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The candidates, and the log-density of the mixture that they come from."""
        spread = self.spread.to(theta)
        widths = theta.new_tensor(SCALES)[:, None].expand(-1, theta.shape[1])
        around = Students.around(torch.zeros_like(theta), widths)
        clouds = [
            *_near_mean(posterior, theta, spread),
            *(Students(*(part[at : at + 1] for part in around)) for at in range(len(SCALES))),
        ]
        edges = [round(number * part / sum(SHARES)) for part in accumulate(SHARES, initial=0)]
        *counts, rest = (last - first for first, last in pairwise(edges))
        local = [cloud.sample(count) for cloud, count in zip(clouds, counts, strict=True)]
        wide = self.prior.sample((rest, len(theta))).to(theta)
        drawn = torch.cat((theta + torch.cat(local) * spread, wide))
        # The density of the mixture per spread of the prior, in the end per unit of theta.
        volume, standard = spread.log().sum(), (drawn - theta) / spread
        parts = [cloud.log_prob(standard) for cloud in clouds]
        parts.append(log_density(self.prior, drawn) + volume)
        shares = theta.new_tensor([*counts, rest]) / number
        mixed = (torch.stack(parts) + shares.log()[:, None, None]).logsumexp(dim=0)
        return drawn, mixed - volume


def _near_mean(posterior: Posterior, theta: Tensor, spread: Tensor) -> tuple[Students, Students]:
    """Students about the posterior's mean by the precision of the pair, and that of the batch."""
    score = _clean(_score(posterior, theta.unsqueeze(0))[0] * spread)
    common = (score.T @ score / len(score)).expand(len(score), -1, -1)
    batch = _stepped(torch.zeros_like(score), score, common)
    # At the mean so far, and a little ahead of it along each parameter.
    step = DIFFERENCE * common[0].diagonal().clamp(min=1.0).rsqrt()
    ahead = torch.cat((torch.zeros_like(step).unsqueeze(0), step.diag())).unsqueeze(1)
    found = _score(posterior, theta + (batch.mean + ahead) * spread) * spread
    precision = ((found[0] - found[1:]) / step[:, None, None]).transpose(0, 1)
    precision = (precision + precision.mT) / 2
    usable = (precision.abs() < STEEPEST**2).all(dim=-1).all(dim=-1)
    precision = torch.where(usable[:, None, None], precision, common)
    return _stepped(batch.mean[0], _clean(found[0]), precision), batch


def _score(posterior: Posterior, theta: Tensor) -> Tensor:
    """The gradient of the log-density at theta (L, N, D); zero if there is none."""
    with torch.enable_grad():
        theta = theta.detach().clone().requires_grad_()
        log_prob = evaluated(posterior, theta)
        if not log_prob.requires_grad:
            return torch.zeros_like(theta)
        return torch.autograd.grad(log_prob.sum(), theta)[0]


def _clean(score: Tensor) -> Tensor:
    """Scores (N, D) within bounds, zero for pairs where one is not finite."""
    finite = score.isfinite().all(dim=-1, keepdim=True)
    return torch.where(finite, score.clamp(-STEEPEST, STEEPEST), 0.0)


def _stepped(start: Tensor, score: Tensor, precision: Tensor) -> Students:
    """Students about the mean that the score and precision at the start, (N, D), point to."""
    curvature, axes = torch.linalg.eigh(precision)
    # Between modes the curvature is negative, but its size still tells the width.
    width = curvature.abs().clamp(min=1.0).rsqrt()
    step = torch.einsum("nd,ndk->nk", score, axes) * width
    farthest = FARTHEST * math.sqrt(score.shape[1])
    step = step * (farthest / step.norm(dim=-1, keepdim=True).clamp(min=farthest))
    mean = start + torch.einsum("nk,ndk->nd", step * width, axes)
    # The factor of the covariance without squares, which single precision has no digits for.
    lower = torch.linalg.qr((axes * width.unsqueeze(1)).mT).R.mT
    sign = lower.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return Students(mean.unsqueeze(0), (WIDEN * sign * lower).unsqueeze(0))


def _resample(weight: Tensor, number: int) -> Tensor:
    """Indices (number, N) of candidates by their weights, (M, N), as even as chance allows."""
    at = weight.new_empty(1, weight.shape[1]).uniform_().expand(number, -1)
    at = (at + torch.arange(number, device=at.device).unsqueeze(1)) / number
    index = torch.searchsorted(weight.cumsum(dim=0).T.contiguous(), at.T.contiguous()).T
    # Rounding may leave the sum of the weights below one.
    return index.clamp(max=len(weight) - 1)
