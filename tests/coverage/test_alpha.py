"""alpha against closed forms, hand derivations, and every degenerate input."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Independent, Normal

from prudent.coverage import alpha
from prudent.errors import InputError
from prudent.problems.gaussian import NOISE, exact_posterior, problem

INDICATORS = ["log", "density", "hard"]


def gaussian_alphas(widen, *, num_pairs=4000, num_samples=4000, proposal="model", seed=0):
    """Hard alphas of an exact (widen = 1), too wide or too narrow posterior, d = 2."""
    torch.manual_seed(seed)
    theta, x = problem(dim=2).draw(num_pairs, seed)
    posterior = exact_posterior(x, widen)
    if proposal == "model":
        draws, log_weight = posterior.sample((num_samples,)), None
    else:
        other = Independent(Normal(torch.tensor([0.3, -0.2]), torch.tensor([1.5, 1.2])), 1)
        draws = other.sample((num_samples, num_pairs))
        log_weight = posterior.log_prob(draws) - other.log_prob(draws)
    values = alpha(
        posterior.log_prob(theta), posterior.log_prob(draws), log_weight, indicator="hard"
    )
    return theta, x, values


def closed_form(theta, x, widen):
    """In two dimensions the mass beyond radius r of N(m, s^2 I) is exp(-r^2 / 2 s^2)."""
    shrink = 1 / (1 + NOISE**2)
    variance = (widen * NOISE) ** 2 * shrink
    return (-(theta - shrink * x).square().sum(1) / (2 * variance)).exp()


@pytest.mark.parametrize("widen", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("proposal", ["model", "other"])
def test_hard_alpha_equals_the_closed_form(widen, proposal):
    theta, x, values = gaussian_alphas(widen, num_pairs=500, proposal=proposal)
    error = values - closed_form(theta, x, widen)
    # Binomial error with 4,000 draws is at most 0.008; a wider proposal costs a factor.
    assert error.abs().mean() < (0.008 if proposal == "model" else 0.05)
    assert abs(float(error.mean())) < 0.004


def test_a_proposal_density_left_out_is_noticed():
    """Negative control: weights without 1/I, as in the authors' code, miss the closed form."""
    torch.manual_seed(0)
    theta, x = problem(dim=2).draw(500, 0)
    posterior = exact_posterior(x, 2.0)
    other = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    draws = other.sample((4000, 500))
    log_q = posterior.log_prob(draws)
    right = alpha(posterior.log_prob(theta), log_q, log_q - other.log_prob(draws))
    wrong = alpha(posterior.log_prob(theta), log_q, log_q)
    truth = closed_form(theta, x, 2.0)
    assert abs(float((right - truth).mean())) < 0.01
    assert abs(float((wrong - truth).mean())) > 0.03


def test_exact_is_uniform_wide_dominates_narrow_is_dominated():
    number = 4000
    # Kolmogorov's bound at error rate 1e-4.
    bound = math.sqrt(math.log(2 / 1e-4) / (2 * number))
    level = (torch.arange(number) + 1) / number
    gap = {w: level - gaussian_alphas(w)[2].sort().values for w in (0.8, 1.0, 1.25)}
    assert gap[1.0].abs().max() < bound
    assert gap[1.25].max() < bound
    assert gap[1.25].min() < -2 * bound
    assert gap[0.8].min() > -bound
    assert gap[0.8].max() > 2 * bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_of_the_log_surrogate(dtype):
    """By hand: d alpha / d log q = 1, d / d log q_j = -w_j, d / d log w_j = w_j (s_j - alpha)."""
    torch.manual_seed(0)
    log_prob = torch.randn(7, dtype=dtype, requires_grad=True)
    sample = torch.randn(5, 7, dtype=dtype, requires_grad=True)
    log_weight = torch.randn(5, 7, dtype=dtype, requires_grad=True)
    incoming = torch.randn(7, dtype=dtype)
    value = alpha(log_prob, sample, log_weight)
    value.backward(incoming)
    weight = log_weight.detach().exp() / log_weight.detach().exp().sum(0)
    step = (sample.detach() < log_prob.detach()).to(dtype)
    expected = (weight * step).sum(0)
    torch.testing.assert_close(value.detach(), expected)
    torch.testing.assert_close(log_prob.grad, incoming)
    torch.testing.assert_close(sample.grad, -weight * incoming)
    torch.testing.assert_close(log_weight.grad, weight * (step - expected) * incoming)


def test_gradient_of_the_density_surrogate():
    """By hand: as above, times the densities; a large incoming gradient is clipped to one."""
    torch.manual_seed(0)
    log_prob = torch.randn(7, dtype=torch.float64, requires_grad=True)
    sample = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    incoming = 5 * torch.randn(7, dtype=torch.float64)
    alpha(log_prob, sample, indicator="density").backward(incoming)
    per_draw = (incoming / 5).expand(5, 7).clamp(-1, 1)
    assert (incoming.abs() > 5).any()
    torch.testing.assert_close(log_prob.grad, per_draw.sum(0) * log_prob.detach().exp())
    torch.testing.assert_close(sample.grad, -per_draw * sample.detach().exp())


def test_hard_has_no_gradient():
    log_prob = torch.zeros(3, requires_grad=True)
    assert not alpha(
        log_prob, torch.randn(4, 3), torch.randn(4, 3), indicator="hard"
    ).requires_grad


@pytest.mark.parametrize("shift", [-50.0, -8.5, 30.0])
def test_log_indicator_ignores_the_units_of_theta(shift):
    """A change of units shifts every log-density by a constant; the density indicator feels it."""

    def gradients(indicator, offset):
        torch.manual_seed(0)
        log_prob = torch.randn(9, dtype=torch.float64)
        sample = torch.randn(6, 9, dtype=torch.float64)
        leaves = [(v + offset).requires_grad_() for v in (log_prob, sample)]
        value = alpha(leaves[0], leaves[1], leaves[1], indicator=indicator)
        return value, *torch.autograd.grad(value.square().sum(), leaves)

    for before, after in zip(gradients("log", 0.0), gradients("log", shift), strict=True):
        torch.testing.assert_close(before, after, rtol=0, atol=1e-6)
    density = [gradients("density", offset)[1].abs().max() for offset in (0.0, shift)]
    assert max(density) > 5 * min(density)


@pytest.mark.parametrize("indicator", ["log", "density"])
@pytest.mark.parametrize(
    ("log_prob", "sample"),
    [
        pytest.param([-200.0, -300.0], [[-1e4, -2e4], [-1e4, -1e4]], id="all weights underflow"),
        pytest.param([0.0, 0.0], [[-math.inf] * 2, [-math.inf] * 2], id="no weight at all"),
        pytest.param([-math.inf, 0.0], [[-math.inf, -1.0], [-1.0, -2.0]], id="nominal impossible"),
        pytest.param([-5.0, -5.0], [[0.0, 0.0], [1.0, 1.0]], id="alpha 0 everywhere"),
        pytest.param([5.0, 5.0], [[0.0, 0.0], [1.0, 1.0]], id="alpha 1 everywhere"),
        pytest.param([0.0, 1.0], [[0.0, 0.0]], id="one draw"),
        pytest.param([0.0], [[-1.0], [1.0]], id="one pair"),
        pytest.param([0.0], [[0.0]], id="one of each, tied"),
        pytest.param([1e30, -1e30], [[-1e30, 1e30], [1e30, 0.0]], id="extreme"),
    ],
)
def test_degenerate_inputs_stay_finite(indicator, log_prob, sample):
    leaves = [torch.tensor(v, requires_grad=True) for v in (log_prob, sample)]
    value = alpha(leaves[0], leaves[1], leaves[1], indicator=indicator)
    assert value.isfinite().all()
    assert ((value >= 0) & (value <= 1)).all()
    gradients = torch.autograd.grad(value.sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)


numbers = st.one_of(
    st.floats(-1e3, 1e3, width=32),
    st.sampled_from([-math.inf, -1e30, 1e30, 0.0]),
)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.sampled_from(INDICATORS), st.booleans())
def test_always_in_the_unit_interval(data, num_samples, num_pairs, indicator, midpoint):
    def draw(*shape):
        values = [data.draw(numbers) for _ in range(math.prod(shape))]
        return torch.tensor(values, dtype=torch.float32).reshape(shape).requires_grad_()

    log_prob, sample = draw(num_pairs), draw(num_samples, num_pairs)
    value = alpha(log_prob, sample, sample, indicator=indicator, midpoint=midpoint)
    assert ((value >= 0) & (value <= 1)).all()
    if indicator != "hard":
        for gradient in torch.autograd.grad(value.sum(), (log_prob, sample)):
            assert gradient.isfinite().all()


@pytest.mark.parametrize("indicator", INDICATORS)
def test_nan_never_passes_silently(indicator):
    sample = torch.zeros(3, 2)
    assert alpha(torch.tensor([math.nan, 0.0]), sample, indicator=indicator).isnan().tolist() == [
        True,
        False,
    ]
    sample[1, 1] = math.nan
    assert alpha(torch.zeros(2), sample, indicator=indicator).isnan().tolist() == [False, True]


def test_ties_count_nothing_or_half():
    flat = torch.zeros(4, 3)
    assert alpha(torch.zeros(3), flat).tolist() == [0.0] * 3
    assert alpha(torch.zeros(3), flat, midpoint=True).tolist() == [0.5] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(3, 1), torch.zeros(4, 3)), "`log_prob` of shape (N,)"),
        ((torch.zeros(0), torch.zeros(4, 0)), "N >= 1"),
        ((torch.zeros(3), torch.zeros(3, 4)), "Transposed? Draws come first."),
        ((torch.zeros(3), torch.zeros(3)), "(L, 3)"),
        ((torch.zeros(3), torch.zeros(0, 3)), "L >= 1"),
        ((torch.zeros(3), torch.zeros(4, 3), torch.zeros(4, 2)), "`log_weight` of shape (4, 3)"),
        ((torch.zeros(3), torch.zeros(4, 3).double()), "torch.float64"),
        ((torch.zeros(3).long(), torch.zeros(4, 3)), "torch.int64"),
        (([0.0], torch.zeros(4, 1)), "list"),
    ],
)
def test_wrong_shapes_and_types_are_named(arguments, message):
    with pytest.raises(InputError) as error:
        alpha(*arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_indicator():
    with pytest.raises(InputError, match="Did you mean `density`"):
        alpha(torch.zeros(1), torch.zeros(1, 1), indicator="densty")


def test_vmap_over_independent_batches():
    torch.manual_seed(0)
    log_prob, sample = torch.randn(3, 5), torch.randn(3, 4, 5)
    together = torch.vmap(lambda a, b: alpha(a, b, b))(log_prob, sample)
    apart = torch.stack([alpha(a, b, b) for a, b in zip(log_prob, sample, strict=True)])
    torch.testing.assert_close(together, apart)
