"""The eight tasks of the public benchmark sbibm: priors and simulators, written anew.

With the seeds that sbibm stores, seven of them repeat its observations, so the order of the
random numbers is sbibm's, as is the small term that it adds to the covariances of SLCP. The eighth
is SIR: torch draws binomial numbers in another way today than when its observations were made.

Differential equations are solved by Runge and Kutta's method. With steps a quarter as long shares
of SIR change by 2e-7 at most, and logs of Lotka-Volterra's populations by 5e-5 in all but one of
1,000 draws of the prior, where the noise is 0.1.
"""

import numpy as np
import torch
from torch.distributions import Independent, LogNormal, MultivariateNormal, Normal

from prudent import problems
from prudent.problems.problem import Problem, box

VARIANCE = 0.1  # of prior and noise of the linear Gaussians
JITTER = 1e-6
PEOPLE, ASKED = 1e6, 1000
NUM_BINS, NUM_LAGS = 100, 9


def gaussian_mixture():
    def simulate(theta, generator):
        wide = torch.rand(len(theta), 1, generator=generator, dtype=torch.float64) < 0.5
        return theta + torch.where(wide, 1.0, 0.1) * torch.randn(theta.shape, generator=generator)

    return box([-10.0] * 2, [10.0] * 2), simulate, 2


def slcp():
    def simulate(theta, generator):
        noise = torch.randn(len(theta), 4, 2, generator=generator).double()
        mean, scale = theta[:, None, :2].double(), theta[:, None, 2:4].double().square()
        variance = scale.square() + JITTER
        first = variance[..., 0].sqrt()
        slope = theta[:, 4:].double().tanh() * scale.prod(dim=-1) / first
        rest = (variance[..., 1] - slope.square()).sqrt()
        mixed = torch.stack((first * noise[..., 0],
                             slope * noise[..., 0] + rest * noise[..., 1]), dim=-1)  # fmt: skip
        return (mean + mixed).flatten(1).float()

    return box([-3.0] * 5, [3.0] * 5), simulate, 8


def shifted(theta, generator):
    return theta + VARIANCE**0.5 * torch.randn(theta.shape, generator=generator)


def gaussian_linear():
    scale = torch.full((10,), VARIANCE**0.5)
    return Independent(Normal(torch.zeros(10), scale), 1), shifted, 10


def gaussian_linear_uniform():
    return box([-1.0] * 10, [1.0] * 10), shifted, 10


def design_matrix():
    """One, and the stimulus of this and of the eight bins before, (100, 10)."""
    stimulus = torch.from_numpy(np.random.RandomState(42).randn(NUM_BINS).astype(np.float32))
    lagged = torch.zeros(NUM_BINS, NUM_LAGS)
    for lag in range(NUM_LAGS):
        lagged[lag:, lag] = stimulus[: NUM_BINS - lag]
    return torch.cat((torch.ones(NUM_BINS, 1), lagged), dim=1)


def bernoulli_glm():
    step = torch.eye(NUM_LAGS) - torch.diag(torch.ones(NUM_LAGS - 1), -1)
    smooth = step @ step + (torch.arange(NUM_LAGS) / NUM_LAGS).sqrt().diag()
    precision = torch.block_diag(torch.tensor(0.5), smooth.T @ smooth)
    design = design_matrix()

    def simulate(theta, generator):
        uniform = torch.rand(len(theta), NUM_BINS, generator=generator)
        return (uniform < (theta @ design.T).sigmoid()).float() @ design

    return MultivariateNormal(torch.zeros(10), precision_matrix=precision), simulate, 10


def integrate(slope, state, step, every, number):
    """Follow a differential equation with fixed steps, and keep the state after each ``every``.

    Args:
        slope: A function from the state (K, N) to its derivative.
        state: The state at the beginning.
        step: The length of a step.
        every: Steps between the states that are kept.
        number: The number of states that are kept, the first one included.

    Returns:
        The states (number, K, N).
    """
    kept = [state]
    for _ in range(number - 1):
        for _ in range(every):
            first = slope(state)
            second = slope(state + step / 2 * first)
            third = slope(state + step / 2 * second)
            state = state + step / 6 * (first + 2 * (second + third) + slope(state + step * third))
        kept.append(state)
    return torch.stack(kept)


def infected(theta, step=0.05):
    """The share of people who are ill after 0, 17, ..., 153 days, (N, 10)."""
    contact, recovery = theta.double().unbind(1)

    def slope(state):
        ill = contact * state[0] * state[1]
        return torch.stack((-ill, ill - recovery * state[1]))

    start = torch.tensor([[1 - 1 / PEOPLE], [1 / PEOPLE]], dtype=torch.float64)
    path = integrate(slope, start.repeat(1, len(theta)), step, round(17 / step), 10)
    return path[:, 1].T.clamp(0, 1)


def sir():
    def simulate(theta, generator):
        share = infected(theta).float()
        return torch.binomial(torch.full_like(share, ASKED), share, generator=generator)

    prior = LogNormal(torch.tensor([0.4, 0.125]).log(), torch.tensor([0.5, 0.2]))
    return Independent(prior, 1), simulate, 10


def populations(theta, step=0.005):
    """The numbers of prey after 0, 2.1, ..., 18.9 days, then those of predators, (N, 20)."""
    growth, eaten, death, gain = theta.double().unbind(1)

    def slope(state):
        prey, predators = state
        return torch.stack(((growth - eaten * predators) * prey,
                            (gain * prey - death) * predators))  # fmt: skip

    start = torch.tensor([[30.0], [1.0]], dtype=torch.float64)
    path = integrate(slope, start.repeat(1, len(theta)), step, round(2.1 / step), 10)
    return path.permute(2, 1, 0).flatten(1)


def lotka_volterra():
    def simulate(theta, generator):
        center = populations(theta).clamp(1e-10, 1e4).log().float()
        return (center + 0.1 * torch.randn(center.shape, generator=generator)).exp()

    prior = LogNormal(torch.tensor([-0.125, -3.0] * 2), torch.full((4,), 0.5))
    return Independent(prior, 1), simulate, 20


def two_moons():
    own = problems.get("two_moons")
    return own.prior, own.simulator, 2


MAKERS = (two_moons, gaussian_mixture, sir, slcp, lotka_volterra, gaussian_linear,
          gaussian_linear_uniform, bernoulli_glm)  # fmt: skip
NAMES = tuple(maker.__name__ for maker in MAKERS)


def task(name):
    """A task as a problem."""
    prior, simulate, size = MAKERS[NAMES.index(name)]()
    labels = tuple(f"theta_{index + 1}" for index in range(prior.event_shape[0]))
    return Problem(f"sbibm_{name}", prior, simulate, (size,), labels)
