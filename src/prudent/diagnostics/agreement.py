"""Whether the draws and the density of a posterior belong together.

Coverage is judged by one of the two, and people use both. So for some test pairs draws are made as
people make them. Half of them become kernels of a proposal g; the others are compared with the
density q, in two ways that are exact for any q and g:

- A Metropolis step with proposals of g leaves draws of q what they are: the log-density goes up as
  often as down, on average and for each pair. This needs no normalization.
- The mean of q / (q + g) over g is that of g / (q + g) over q. If not, the factor that makes it so
  is the integral of q where its draws are (bridge sampling, Meng and Wong 1996).
"""

import math
from typing import Any

import torch
from torch import Tensor

from prudent._randomness import seeded
from prudent._students import Students
from prudent.contracts import Estimator, Prior
from prudent.datasets import Pairs
from prudent.diagnostics._bands import TINIEST
from prudent.diagnostics.expected_coverage import Measurement
from prudent.posteriors.density import facts_of, undivided
from prudent.priors.density import log_density

# Pairs, draws in each half, and widths of kernels, in turn.
NUM_PAIRS, NUM_DRAWS, WIDTHS = 32, 64, (1.0, 0.3, 0.1)
# Every diagnosis asks, so that alarms must be rare; the least error is for proposals that hardly
# meet the density. What is forgiven: draws without density, and the log of the integral.
ERROR_RATE, NUM_ERRORS, LEAST_ERROR = 1e-4, 4.0, 0.005
MOST_LOST, MOST_OFF = 0.05, 0.1


@torch.no_grad()
def agreement(
    estimator: Estimator, pairs: Pairs, measured: Measurement, seed: int
) -> dict[str, Any]:
    """The scalars of the comparison, and what is wrong in words; nothing without both."""
    rows = (measured.valid & measured.resolved).nonzero().squeeze(1)
    rows = rows[:: max(1, len(rows) // NUM_PAIRS)][:NUM_PAIRS]
    if len(rows) == 0 or measured.method == "draws":  # a slow density does not judge
        return {}
    posterior: Any = estimator(pairs.x[rows])
    mass = (
        measured.log_norm[rows].double().exp() if estimator.normalized else torch.ones(len(rows))
    )
    facts = facts_of(posterior)
    if facts.ratio or not hasattr(posterior, "sample"):  # a ratio draws by its density
        least = float(mass.mean() - NUM_ERRORS * mass.std(correction=0) / len(rows) ** 0.5)
        high = {"disagreement": f"the density integrates to {least:.3g}, not to 1"}
        return {"density_integral": least, **high} if least > 1 + MOST_OFF else {}
    with seeded(seed, "agreement"):
        log_prob, log_weight, inside = _weighted(posterior, estimator.prior, pairs.theta[rows])
    gap, p_value = _gap(log_prob, log_weight)
    whole = estimator.normalized and facts.divided != "pool"
    integral, told = _integral(log_weight, inside) if whole else None, None
    lost = float((log_prob[0] == -torch.inf).double().mean() - (1 - mass.clamp(max=1)).mean())
    if lost > MOST_LOST:
        told = f"draws and density disagree: {100 * lost:.0f} % of draws lie where there is none"
    elif p_value < ERROR_RATE:
        told = f"draws and density disagree: the log-density of draws is off by {gap:+.2f} nats"
    elif integral is not None and abs(math.log(integral)) > MOST_OFF:
        told = f"the density integrates to {integral:.3g}, not to 1, where its draws are"
    scalars = {"draws_gap": gap, "draws_p_value": p_value, "density_integral": integral}
    return {**scalars, "disagreement": told}


def _weighted(posterior: Any, prior: Prior, truth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The log-density at draws and proposals and their log-weights, (2, L, N); what is inside."""
    draws = posterior.sample((2 * NUM_DRAWS,)).to(truth)
    known = draws.isfinite().all(dim=-1) & (log_density(prior, draws.nan_to_num()) > -torch.inf)
    tested, copied = torch.where(known.unsqueeze(-1), draws, truth).split(NUM_DRAWS)
    kernels = _kernels(copied.double())
    proposed = kernels.sample(NUM_DRAWS).to(truth)
    inside = torch.stack((known[:NUM_DRAWS], log_density(prior, proposed) > -torch.inf))
    theta = torch.where(inside.unsqueeze(-1), torch.stack((tested, proposed)), truth).flatten(0, 1)
    if facts_of(posterior).divided == "pool":  # whose integral takes long to find
        posterior = undivided(posterior)
    value = posterior.log_prob(theta).cpu().double().nan_to_num(*[-torch.inf] * 3)
    value = value.unflatten(0, (2, -1)).masked_fill(~inside, -torch.inf)
    return value, value - kernels.log_prob(theta.double()).unflatten(0, (2, -1)), inside[0]


def _kernels(draws: Tensor) -> Students:
    """Kernels of several widths, one around each of some draws (L, N, D)."""
    number, dim = len(draws), draws.shape[-1]
    spread = torch.diag_embed(draws.std(dim=0).clamp(min=1e-30)).unsqueeze(0)
    start = Students(draws.mean(dim=0, keepdim=True), spread)
    even = torch.zeros_like(draws[..., 0])
    factor = start.fitted(start.standardized(draws), even[None], torch.ones_like(even[:1])).factor
    width = torch.tensor(WIDTHS).repeat(number)[:number].to(draws) * number ** (-1 / (dim + 4))
    return Students(draws, width[:, None, None, None] * factor)


def _gap(log_prob: Tensor, log_weight: Tensor) -> tuple[float, float]:
    """The mean log-density of draws minus that of the density, and the p-value of none."""
    (draw, proposal), (before, after) = log_prob, log_weight
    nowhere = draw == -torch.inf
    # Each draw may move to each proposal.
    step = (after - before[:, None]).clamp(max=0).exp() * (proposal - draw[:, None]).sign()
    step = step.masked_fill(nowhere[:, None], 0.0)
    total = step.mean(dim=(0, 1))
    variance = (step.mean(dim=0).square() + step.mean(dim=1).square()).mean(dim=0) / NUM_DRAWS
    each = total.square() / variance.clamp(min=TINIEST)
    average = total.sum().square() / variance.sum().clamp(min=TINIEST)
    halves = torch.tensor([1.0, len(each)]).double() / 2
    p_values = torch.special.gammaincc(halves, torch.stack((average, each.sum())) / 2)
    own = (after.softmax(dim=0) * proposal.nan_to_num(neginf=0.0)).sum(dim=0)
    gap = (draw.masked_fill(nowhere, torch.nan).nanmean(dim=0) - own).nanmean()
    return float(gap.nan_to_num()), min(1.0, 2 * float(p_values.min().clamp(min=TINIEST)))


def _integral(log_weight: Tensor, inside: Tensor) -> float:
    """The integral of the density that is nearest to one, of those that the errors allow."""

    def errors(log_factor: float) -> float:  # by which a factor is above the integral
        here = (log_factor - log_weight[0]).sigmoid() * inside
        there = (log_weight[1] - log_factor).sigmoid()
        variance = (here.var(dim=0) + there.var(dim=0)).mean() / here.numel()
        return float((here.mean() - there.mean()) / (variance + LEAST_ERROR**2).sqrt())

    bound, low, high = min(max(errors(0.0), -NUM_ERRORS), NUM_ERRORS), -100.0, 100.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if errors(middle) < bound else (low, middle)
    return math.exp(low)
