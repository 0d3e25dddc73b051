r"""Draws from the prior times a ratio for one observation, by the emcee ensemble sampler.

Walkers start from prior draws chosen by weight and move by differential evolution. A step of size
one along the difference of two walkers carries a third from mode to mode; the usual
:math:`2.38 / \sqrt{2 D}` explores within.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from prudent._extras import require
from prudent.contracts import Prior
from prudent.coverage.alpha import effective_size
from prudent.errors import InputError
from prudent.estimators.importance import Ratio, SamplingReport, log_ratio, zero_at_all
from prudent.priors.density import log_density

# Prior draws, among which the walkers start.
NUM_CANDIDATES = 8192
# Walkers of the ensemble, and at least so many per parameter.
NUM_WALKERS, WALKERS_PER_PARAMETER = 64, 8
# Steps grow by half from the first number to the second; the first half is burn-in.
FIRST_STEPS, MAX_STEPS = 400, 12_800
# Autocorrelation times that a chain must last. With 64 walkers the time is then known to 12 %.
LONG_ENOUGH = 25


def chain(
    posterior: Ratio, prior: Prior, number: int, like: Tensor | None
) -> tuple[Tensor, SamplingReport]:
    """Draw ``(number, 1, D)`` by a chain; arguments as of `sampling.draw`."""
    require("emcee", "mcmc", "chains")
    import emcee

    if len(posterior) != 1:
        raise InputError(
            f'method="mcmc" samples one observation, got {len(posterior):,}. Sample them one by '
            'one with posterior.rows(slice(i, i + 1)), or use method="importance".'
        )
    theta = prior.sample((NUM_CANDIDATES, 1))
    start = _walkers(theta[:, 0], log_ratio(posterior, theta, like)[:, 0])

    def target(points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        theta = torch.from_numpy(points).to(start)
        value = log_density(prior, theta)
        inside = value > -torch.inf
        if bool(inside.any()):
            ratio = log_ratio(posterior, theta[inside].unsqueeze(1), like)[:, 0]
            value = value.index_put((inside,), value[inside] + ratio.to(value))
        return value.double().cpu().numpy()

    # Not emcee's snooker move, which samples another distribution up to 3.1.6 (its pull request
    # 531), nor its stretch move, which hardly ever changes modes.
    moves = [emcee.moves.DEMove(), emcee.moves.DEMove(gamma0=1.0)]
    sampler = emcee.EnsembleSampler(*start.shape, target, moves=moves, vectorize=True)
    # The wrapper that emcee puts around it prints every exception, Ctrl-C included.
    sampler.log_prob_fn = target
    random = np.random.RandomState(int(torch.randint(2**31, ())))
    state = emcee.State(start.double().numpy(), random_state=random.get_state())
    steps = FIRST_STEPS
    while True:
        # Distinct prior draws span what the prior spans, be it a simplex: no check is needed.
        state = sampler.run_mcmc(state, steps - sampler.iteration, skip_initial_state_check=True)
        kept = torch.from_numpy(sampler.get_chain(discard=steps // 2))
        states, tau = kept.flatten(0, 1), autocorrelation_time(kept)
        wanted = max(LONG_ENOUGH * tau, number * tau / len(start))
        if len(kept) >= wanted or steps == MAX_STEPS:
            break
        steps = min(3 * steps // 2, MAX_STEPS)
    chosen = torch.randperm(len(states))[:number]
    if number > len(states):
        chosen = torch.randint(len(states), (number,))
    report = SamplingReport(
        method="mcmc",
        num_samples=number,
        effective_sample_size=torch.tensor([len(states) / tau]),
        acceptance=float(sampler.acceptance_fraction.mean()),
        num_steps=len(kept),
        autocorrelation_time=tau,
    )
    return states[chosen].unsqueeze(1).to(start), report


def _walkers(theta: Tensor, value: Tensor) -> Tensor:
    """Distinct prior draws (W, D) by weight; weights are flattened until enough of them count."""
    number = max(NUM_WALKERS, WALKERS_PER_PARAMETER * theta.shape[1])
    positive = int((value > -torch.inf).sum())
    if positive == 0:
        raise InputError(zero_at_all(len(theta)))
    if positive < 2 * number:
        raise InputError(
            f"the posterior is zero at all but {positive} of {len(theta):,} prior draws; a "
            f'chain starts from at least {2 * number}. Use method="importance".'
        )
    log_weight = value.double()
    while effective_size(log_weight.softmax(0)) < number:
        log_weight = log_weight / 2
    return theta[torch.multinomial(log_weight.softmax(0), number).to(theta.device)]


def autocorrelation_time(chain: Tensor) -> float:
    """The integrated autocorrelation time of ``chain`` (steps, walkers, D), the largest of D.

    Deviations are from the mean of all walkers. From its own mean, as in emcee, a walker that
    never leaves one of several modes would look as if it mixed well. The sum over lags stops at
    five times itself (Sokal).
    """
    steps = len(chain)
    deviation = chain - chain.mean(dim=(0, 1))
    spectrum = torch.fft.rfft(deviation, n=2 * steps, dim=0).abs().square()
    covariance = torch.fft.irfft(spectrum, dim=0)[:steps].mean(1)
    tau = 2 * (covariance / covariance[0].clamp_min(1e-300)).cumsum(0) - 1
    beyond = torch.arange(steps).unsqueeze(1) >= 5 * tau
    beyond[-1] = True
    return max(1.0, float(tau.gather(0, beyond.int().argmax(0, keepdim=True)).max()))
