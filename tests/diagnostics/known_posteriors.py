"""Estimators whose posterior is known in closed form, exact or wrong on purpose, for the tests."""

import math

import torch
from torch.distributions import Independent, Normal, Uniform

import prudent
from prudent.diagnostics import Ranks
from prudent.priors.density import log_density as log_prior
from prudent.problems import slcp
from prudent.problems.gaussian import NOISE

LOW, HIGH = -4.0, 4.0
SPREAD = NOISE / (1 + NOISE**2) ** 0.5


class Known:
    """An estimator made of a function from x to anything with ``sample`` or ``log_prob``."""

    def __init__(self, make, prior, *, normalized=True, log_scale=0.0):
        self.make, self.prior, self.normalized = make, prior, normalized
        self.log_scale = log_scale

    def __call__(self, x):
        return _Scaled(self.make(x), self.log_scale) if self.log_scale else self.make(x)


class _Scaled:
    """A posterior whose density is multiplied by a constant."""

    def __init__(self, posterior, log_scale):
        self.posterior, self.log_scale, self.sample = posterior, log_scale, posterior.sample

    def log_prob(self, theta):
        return self.posterior.log_prob(theta) + self.log_scale


class _Density:
    """Something with a density and no draws."""

    def __init__(self, log_density, x):
        self.log_density, self.x = log_density, x

    def log_prob(self, theta):
        return self.log_density(theta, self.x)


def density(log_density, prior, **options):
    """An estimator made of a function of theta (..., N, D) and x, up to a constant."""
    return Known(lambda x: _Density(log_density, x), prior, normalized=False, **options)


def box(dim):
    return Independent(Uniform(torch.full((dim,), LOW), torch.full((dim,), HIGH)), 1)


def gaussian(*, dim=2, widen=1.0, shift=0.0, **options):
    """The exact posterior of `gaussian`, widened, and shifted by so many standard deviations."""

    def make(x):
        centre = x / (1 + NOISE**2) + shift * SPREAD
        return Independent(Normal(centre, torch.full_like(x, widen * SPREAD)), 1)

    return Known(make, prudent.problems.get("gaussian", dim=dim).prior, **options)


def boxed(*, dim=2, widen=1.0, shift=0.0, **options):
    """The same likelihood under a uniform prior so wide that the posterior is N(x, NOISE^2)."""

    def make(x):
        return Independent(Normal(x + shift * NOISE, torch.full_like(x, widen * NOISE)), 1)

    return Known(make, box(dim), **options)


def boxed_pairs(number, dim=2, seed=0):
    """Truths far from the edges, where that posterior is exact."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(number, dim, generator=generator) - 1
    return x + NOISE * torch.randn(number, dim, generator=generator), x


def normal_alpha(theta, centre, scale):
    """The mass of an isotropic normal that is less dense than theta: a chi-square tail."""
    squared = ((theta - centre) / scale).square().sum(-1).double()
    return torch.special.gammaincc(torch.tensor(theta.shape[-1] / 2.0).double(), squared / 2)


def wrong(name, widen=1.0, shift=0.0):
    """The exact posterior of a problem on a box, wrong on purpose.

    Its density to the power 1 / widen^2, which multiplies the width of a normal by ``widen``; and
    moved by ``shift`` along the first parameter.
    """
    problem = prudent.problems.get(name)

    def wrong_density(theta, x):
        moved = theta - shift * torch.eye(problem.dim)[0]
        value = problem.log_posterior(moved, x) / widen**2
        return value + log_prior(problem.prior, theta)

    return density(wrong_density, problem.prior)


def two_modes(theta, x):
    """Log-density of a broad mode and of one a sixth as wide, which a coarse grid cannot see."""
    far = -((theta - x) ** 2).sum(-1) / 2 / 0.5**2 - theta.shape[-1] * math.log(0.5)
    near = -((theta - x - 1.3) ** 2).sum(-1) / 2 / 0.08**2 - theta.shape[-1] * math.log(0.08)
    return torch.logaddexp(far, near)


def prior_as_posterior(problem):
    """The posterior that ignores x."""
    return Known(lambda x: problem.prior.expand((len(x),)), problem.prior)


class WeinbergGrid:
    """Draws from the exact posterior of `weinberg`, or from a power of it, on a fine grid."""

    def __init__(self, x, power=1.0, cells=256):
        self.problem, self.x, self.power = prudent.problems.get("weinberg"), x, power
        self.side = (2.0 - 0.25) / cells
        centres = 0.25 + self.side * (torch.arange(cells) + 0.5)
        theta = centres[:, None, None].expand(-1, len(x), 1)
        self.mass = (power * self.problem.log_posterior(theta, x)).softmax(0)
        self.centres = centres

    def sample(self, shape=()):
        chosen = torch.multinomial(self.mass.T, torch.Size(shape).numel(), replacement=True).T
        centre = self.centres[chosen]
        return (centre + self.side * (torch.rand(centre.shape) - 0.5)).unsqueeze(-1)

    def log_prob(self, theta):
        return self.power * self.problem.log_posterior(theta, self.x)


def weinberg(power=1.0):
    return Known(lambda x: WeinbergGrid(x, power), prudent.problems.get("weinberg").prior)


class SlcpTable:
    """The same for `slcp`.

    In log(A / theta_1^2) and log(B / theta_2^2) the likelihood depends on x through the sample
    correlation alone, and is as wide for all of them: one table serves every observation.
    """

    low, high, cells, slices = -3.0, 2.3, 64, 161

    def __init__(self, power=1.0):
        side = (self.high - self.low) / self.cells
        self.edges = self.low + side * torch.arange(self.cells + 1, dtype=torch.float64)
        middle = self.edges[:-1] + side / 2
        self.warped = torch.linspace(-4.0, 4.0, self.slices, dtype=torch.float64)
        first, second, k = torch.meshgrid(
            middle.exp(), middle.exp(), self.warped.tanh(), indexing="ij"
        )
        flat = [part.flatten() for part in (first, second, k)]
        integral = torch.cat(
            [
                slcp.log_latent_integral(*parts, 16)
                for parts in zip(*(part.split(2**14) for part in flat), strict=True)
            ]
        ).view(self.cells, self.cells, self.slices)
        # theta^-8 from the density, theta from the change of variables.
        jacobian = 3.5 * (middle[:, None] + middle[None])
        self.log_mass = (power * (integral + jacobian[..., None])).flatten(0, 1).T.contiguous()

    def __call__(self, x):
        return _SlcpPosterior(self, x)


class _SlcpPosterior:
    def __init__(self, table, x):
        self.table = table
        self.x, (self.root, k) = x, slcp.summarize(x)
        at = (k.clamp(-0.9993, 0.9993).atanh() + 4) / 8 * (table.slices - 1)
        left = at.floor().long().clamp(0, table.slices - 2)
        log_mass = torch.lerp(
            table.log_mass[left], table.log_mass[left + 1], (at - left).unsqueeze(-1)
        )
        edge = (self.root / 9).log()[..., None]  # (N, 2, 1)
        self.lower = torch.maximum(table.edges[:-1], edge)
        room = (table.edges[1:] - self.lower).clamp_min(0)
        inside = (room[:, 0, :, None] * room[:, 1, None, :]).flatten(1)
        self.cumulative = (log_mass.exp() * inside).cumsum(1)

    def sample(self, shape=()):
        number, table = torch.Size(shape).numel(), self.table
        level = torch.rand(len(self.x), number, dtype=torch.float64) * self.cumulative[:, -1:]
        cell = torch.searchsorted(self.cumulative, level, right=True)
        cell = cell.clamp_max(table.cells**2 - 1)
        parts = []
        for axis, index in enumerate((cell // table.cells, cell % table.cells)):
            lower = self.lower[:, axis].gather(1, index)
            place = lower + (table.edges[index + 1] - lower) * torch.rand(index.shape)
            size = (self.root[:, axis, None] / place.exp()).sqrt().clamp_max(3.0)
            parts.append(size * (2 * torch.randint(2, size.shape) - 1))
        return torch.stack(parts, dim=-1).transpose(0, 1).float()

    def log_prob(self, theta):
        return prudent.problems.get("slcp").log_posterior(theta, self.x)


def slcp_exact(power=1.0):
    return Known(SlcpTable(power), prudent.problems.get("slcp").prior)


class Resampled:
    """Draws by resampling a few prior draws."""

    def __init__(self, exact, prior, num_rows, num_candidates):
        self.candidates = prior.sample((num_candidates, num_rows))
        log_ratio = exact.log_prob(self.candidates) - prior.log_prob(self.candidates)
        self.weight = log_ratio.softmax(0)
        self.log_prob = exact.log_prob

    def sample(self, shape=()):
        chosen = torch.multinomial(self.weight.T, torch.Size(shape).numel(), replacement=True).T
        dim = self.candidates.shape[-1]
        return self.candidates.gather(0, chosen.unsqueeze(-1).expand(-1, -1, dim))


def resampled(num_candidates, dim=2):
    exact = gaussian(dim=dim)
    return Known(lambda x: Resampled(exact(x), exact.prior, len(x), num_candidates), exact.prior)


def groups(ranks, size):
    """Repetitions: the ranks of so many pairs at a time."""
    for start in range(0, ranks.num_pairs - size + 1, size):
        part = ranks.ranks[:, start : start + size]
        yield Ranks(ranks.names, part, ranks.num_samples, {}, 0.0, 0.0)


def share(flags):
    """How many of some flags are set."""
    values = [float(flag) for flag in flags]
    assert not any(math.isnan(value) for value in values)
    return sum(values) / len(values)
