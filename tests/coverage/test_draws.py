"""Alpha from draws alone: exactly uniform for exact draws, and what it rejects."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal

from prudent.coverage import CoveragePenalty, sample_alpha
from prudent.coverage.draws import pool_scores
from prudent.errors import InputError

NUM_PAIRS = 4000
# Chi-square on 16 degrees of freedom exceeds this in 1 of 10,000 cases.
FAR = 44.0


def one_mode(*shape):
    return torch.randn(shape)


def many_modes(*shape):
    """Two modes in each parameter, twenty of their widths apart."""
    return 10 * (2 * torch.randint(0, 2, shape) - 1) + torch.randn(shape)


def heavy_tails(*shape):
    return torch.distributions.StudentT(1.5).sample(shape)


def chi_square(alphas, num_samples):
    """The distance of the counts of 0, 1/L, ..., 1 from those of uniform ones."""
    counts = torch.bincount((num_samples * alphas).round().long(), minlength=num_samples + 1)
    expected = len(alphas) / (num_samples + 1)
    return float(((counts - expected).square() / expected).sum())


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("shape", [one_mode, many_modes, heavy_tails])
@pytest.mark.parametrize("num_samples", [2, 5, 16])
def test_exact_draws_have_uniform_alphas_for_any_number_of_draws(num_samples, shape, dim):
    torch.manual_seed(num_samples + dim)
    theta, draws = shape(NUM_PAIRS, dim), shape(num_samples, NUM_PAIRS, dim)
    alphas = sample_alpha(theta, draws)
    assert set((num_samples * alphas).tolist()) <= set(range(num_samples + 1))
    assert chi_square(alphas, num_samples) < FAR


@pytest.mark.parametrize("shape", [one_mode, many_modes])
@pytest.mark.parametrize("dim", [1, 2])
def test_narrow_draws_are_rejected_also_within_each_mode(dim, shape):
    torch.manual_seed(0)
    theta, draws = shape(NUM_PAIRS, dim), shape(16, NUM_PAIRS, dim)
    modes = torch.where(draws.abs() > 5, 10 * draws.sign(), 0) if shape is many_modes else 0
    narrow = sample_alpha(theta, modes + 0.7 * (draws - modes))
    wide = sample_alpha(theta, modes + 1.4 * (draws - modes))
    assert chi_square(narrow, 16) > 2 * FAR
    assert narrow.mean() < 0.46
    assert wide.mean() > 0.53
    # Others than the draws of this observation: shifted.
    assert chi_square(sample_alpha(theta, draws + 1.0), 16) > 2 * FAR


def test_plain_distances_would_not_see_narrow_modes():
    """Why the score has a logarithm."""
    torch.manual_seed(0)
    theta, draws = many_modes(NUM_PAIRS, 2), many_modes(16, NUM_PAIRS, 2)
    modes = 10 * draws.sign()
    pool = torch.cat((theta[None], modes + 0.7 * (draws - modes))).transpose(0, 1)
    scores = -torch.cdist(pool, pool).sum(dim=2)
    plain = (scores[:, 1:] < scores[:, :1]).float().mean(dim=1)
    assert plain.mean() > 0.48
    assert sample_alpha(theta, modes + 0.7 * (draws - modes)).mean() < 0.46


def surrogate(theta, draws, unit):
    """What alpha is declared to follow, in units that are held fixed."""
    pool = torch.cat((theta.unsqueeze(0), draws)) / unit
    squared = (pool.unsqueeze(0) - pool.unsqueeze(1)).square().sum(-1)
    scores = -(squared + 1e-4).log().sum(dim=0) / (2 * len(draws))
    return scores[0] - scores[1:].mean(dim=0)


def test_the_gradient_is_that_of_the_declared_surrogate():
    torch.manual_seed(0)
    theta, draws = torch.randn(3, 2).double(), torch.randn(5, 3, 2).double()
    draws.requires_grad_()
    (gradient,) = torch.autograd.grad(sample_alpha(theta, draws).sum(), draws)
    fixed = draws.detach()
    unit = torch.cat((theta.unsqueeze(0), fixed)).std(dim=0, correction=0)
    for place in [(0, 0, 0), (4, 2, 1), (2, 1, 0)]:
        step = torch.zeros_like(fixed)
        step[place] = 1e-6
        ends = [surrogate(theta, fixed + sign * step, unit).sum() for sign in (1, -1)]
        assert float(gradient[place]) == pytest.approx(float(ends[0] - ends[1]) / 2e-6, abs=1e-6)


def test_units_change_nothing():
    torch.manual_seed(0)
    theta, draws = torch.randn(200, 3).double(), torch.randn(16, 200, 3).double()
    unit, origin = torch.tensor([1e-6, 1.0, 1e5]).double(), torch.tensor([0.0, 40.0, -1e6])
    there = pool_scores(theta * unit + origin, draws * unit + origin)
    torch.testing.assert_close(there, pool_scores(theta, draws), atol=1e-6, rtol=0)


def test_degenerate_draws():
    """A model that always says the same is over-confident; NaN is not hidden."""
    theta, point = torch.randn(50, 2), torch.zeros(8, 50, 2)
    point.requires_grad_()
    alphas = sample_alpha(theta, point)
    assert float(alphas.detach().max()) == 0
    (gradient,) = torch.autograd.grad(alphas.sum(), point)
    assert bool(gradient.isfinite().all())
    assert sample_alpha(torch.zeros(3, 2), torch.zeros(4, 3, 2)).tolist() == [0.0] * 3
    broken = torch.randn(8, 50, 2)
    broken[2, 7, 1] = torch.nan
    assert sample_alpha(theta, broken).isnan().nonzero().flatten().tolist() == [7]
    for draws in (torch.zeros(50, 2), torch.zeros(8, 49, 2), torch.zeros(1, 50, 2)):
        with pytest.raises(InputError, match=r"shape \(L, N, D\)"):
            sample_alpha(theta, draws)


class Drawing:
    """A posterior with draws that can be differentiated, and nothing else."""

    def __init__(self, scale):
        self.scale = scale

    def rsample(self, shape=()):
        return self.scale * torch.randn(*shape, 2000, 2)


def test_the_penalty_sees_narrow_draws_and_makes_them_wider():
    penalty = CoveragePenalty("draws", num_samples=16, target="calibrated")
    torch.manual_seed(0)
    theta = torch.randn(2000, 2)
    exact, narrow = (float(penalty(Drawing(scale), theta)) for scale in (1.0, 0.6))
    assert exact < 0.003 < 0.02 < narrow
    for start, sign in ((0.6, -1), (1.6, 1)):
        scale = torch.tensor(start, requires_grad=True)
        penalty(Drawing(scale), theta).backward()
        assert math.copysign(1, float(scale.grad)) == sign


def test_the_penalty_needs_draws_with_a_gradient():
    class Drawn:
        sample = log_prob = None

    with pytest.raises(InputError, match='"draws" needs `rsample`'):
        CoveragePenalty("draws")(Drawn(), torch.zeros(4, 2))
    posterior = Independent(Normal(torch.zeros(4, 2), torch.ones(4, 2)), 1)
    assert CoveragePenalty("draws")(posterior, torch.zeros(4, 2)).isfinite()
