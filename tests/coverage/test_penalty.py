"""The penalty against closed forms, a soft sort, an independent derivation, and misuse."""

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, Uniform

from prudent.coverage import CoveragePenalty, Even, Nominal, alpha, penalty
from prudent.coverage.figures import evaluation
from prudent.errors import InputError
from prudent.problems.gaussian import exact_posterior, problem


def isotonic_soft_sort(values):
    """Blondel et al. (2020), quadratic regularisation of strength 1, ascending, in plain torch.

    The descending sort of v projects z = (n, ..., 1) on the permutahedron of v: z minus the best
    decreasing fit of z - w, with w the values in descending order. The fit by pooling adjacent
    violators averages blocks, so autograd gives the gradient.
    """
    order = values.argsort(descending=True)
    ranked = values[order]
    target = torch.arange(len(values), 0, -1, dtype=values.dtype)
    blocks = []
    for gap in target - ranked:
        blocks.append([gap])
        while len(blocks) > 1 and _mean(blocks[-2]) < _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    fit = torch.cat([torch.stack(block).mean().expand(len(block)) for block in blocks])
    merged = sum(len(block) > 1 for block in blocks)
    return (target - fit).flip(0), merged


def _mean(block):
    return float(torch.stack(block).detach().mean())


def penalty_by_soft_sort(values, sort):
    level = torch.arange(1, len(values) + 1, dtype=values.dtype) / len(values)
    return (level - sort(values)).relu().square().mean()


def value_and_gradient(function, values):
    values = values.clone().requires_grad_()
    result = function(values)
    return result.detach(), torch.autograd.grad(result, values)[0]


@pytest.mark.parametrize("seed", range(5))
def test_hard_sort_equals_isotonic_soft_sort(seed):
    torch.manual_seed(seed)
    values = torch.rand(128, dtype=torch.float64) ** (0.5 + seed / 2)
    hard = value_and_gradient(penalty, values)
    soft = value_and_gradient(
        lambda v: penalty_by_soft_sort(v, lambda u: isotonic_soft_sort(u)[0]), values
    )
    torch.testing.assert_close(hard[0], soft[0], rtol=0, atol=1e-4)
    torch.testing.assert_close(hard[1], soft[1], rtol=0, atol=1e-6)


def test_the_soft_sort_of_the_tests_does_soften():
    """Negative control: outside [0, 1] neighbours merge and the two sorts differ."""
    torch.manual_seed(0)
    values = 200 * torch.rand(64, dtype=torch.float64)
    softened, merged = isotonic_soft_sort(values)
    assert merged > 0
    assert (softened - values.sort().values).abs().max() > 0.1


def test_hard_sort_equals_torchsort():
    torchsort = pytest.importorskip("torchsort", reason="torchsort needs a compiler to install")
    torch.manual_seed(0)
    values = torch.rand(128)
    hard = value_and_gradient(penalty, values)
    soft = value_and_gradient(
        lambda v: penalty_by_soft_sort(v, lambda u: torchsort.soft_sort(u[None])[0]), values
    )
    torch.testing.assert_close(hard[0], soft[0], rtol=0, atol=1e-4)
    torch.testing.assert_close(hard[1], soft[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("levels", ["upper", "mean"])
@pytest.mark.parametrize("blend", [0.0, 0.3, 1.0])
def test_gradient_by_hand(levels, blend):
    """d/d alpha_(k) of the mean square is -2/N times the difference, rectified or not."""
    torch.manual_seed(1)
    values = torch.rand(40, dtype=torch.float64) ** 1.5
    _, gradient = value_and_gradient(lambda v: penalty(v, target=blend, levels=levels), values)
    number = len(values)
    expected = torch.zeros_like(values)
    for rank, index in enumerate(values.argsort().tolist(), start=1):
        gap = rank / (number if levels == "upper" else number + 1) - float(values[index])
        expected[index] = -2 / number * ((1 - blend) * max(gap, 0.0) + blend * gap)
    torch.testing.assert_close(gradient, expected)


def test_direct_computation_by_hand():
    """At each level: share of alphas up to it, minus it; every alpha is pushed up by the sum."""
    torch.manual_seed(1)
    values, grid = torch.rand(40, dtype=torch.float64) ** 2, torch.tensor([0.1, 0.4, 0.9]).double()
    value, gradient = value_and_gradient(
        lambda v: penalty(v, computation="direct", levels=grid), values
    )
    gaps = [max((values <= level).double().mean().item() - level.item(), 0.0) for level in grid]
    assert value.item() == pytest.approx(sum(gap**2 for gap in gaps) / 3)
    expected = -2 / 3 * sum(gaps) / len(values)
    torch.testing.assert_close(gradient, torch.full_like(values, expected))


@pytest.mark.parametrize("computation", ["sort", "direct"])
def test_targets(computation):
    """Conservative accepts what is too wide; calibrated does not; the blend lies between."""
    level = (torch.arange(200) + 0.5) / 200
    wide, narrow = level.sqrt(), level.square()

    def value(values, target):
        return float(penalty(values, target=target, computation=computation))

    assert value(wide, "conservative") < 1e-5 < 0.01 < value(wide, "calibrated")
    assert value(narrow, "conservative") > 0.01
    assert value(narrow, "conservative") == pytest.approx(value(narrow, "calibrated"), rel=0.01)
    blended = 0.7 * value(wide, 0.0) + 0.3 * value(wide, 1.0)
    assert value(wide, 0.3) == pytest.approx(blended)
    # The authors' code does not punish over-confidence at 0.5; ours must.
    assert value(narrow, 0.5) > 0.01


def test_sort_and_direct_measure_the_same_distance():
    torch.manual_seed(0)
    values = torch.rand(2000) ** 2
    by_sort = float(penalty(values, target="calibrated"))
    direct = float(penalty(values, target="calibrated", computation="direct"))
    # Both approach the integral of (sqrt(a) - a)^2 resp. (u - u^2)^2: 1/30 on either axis.
    assert by_sort == pytest.approx(1 / 30, rel=0.15)
    assert direct == pytest.approx(1 / 30, rel=0.15)


@pytest.mark.slow
def test_the_exact_posterior_is_at_the_sampling_floor():
    """Uniform alphas of N pairs have a calibrated penalty of 1/(6N) on average, from below."""
    torch.manual_seed(0)
    number, repeats = 128, 400
    values = {}
    for widen in (0.7, 1.0, 1.4):
        theta, x = problem(dim=2).draw(number * repeats, 3)
        posterior = exact_posterior(x, widen)
        draws = posterior.sample((512,))
        alphas = alpha(posterior.log_prob(theta), posterior.log_prob(draws), indicator="hard")
        parts = alphas.reshape(repeats, number)
        values[widen] = {
            target: sum(float(penalty(p, target=target, levels="mean")) for p in parts) / repeats
            for target in ("calibrated", "conservative")
        }
    floor = 1 / (6 * number)
    assert values[1.0]["calibrated"] == pytest.approx(floor, rel=0.2)
    assert values[1.0]["conservative"] == pytest.approx(floor / 2, rel=0.25)
    assert values[0.7]["conservative"] > 5 * floor
    assert values[1.4]["conservative"] < 0.1 * floor
    assert values[1.4]["calibrated"] > 5 * floor


@pytest.mark.parametrize("computation", ["sort", "direct"])
@pytest.mark.parametrize("values", [[0.0], [1.0], [0.0] * 9, [1.0] * 9, [0.0, 1.0, 0.0]])
def test_degenerate_alphas_stay_finite(values, computation):
    value, gradient = value_and_gradient(
        lambda v: penalty(v, computation=computation), torch.tensor(values)
    )
    assert value.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("computation", ["sort", "direct"])
def test_nan_never_passes_silently(computation):
    assert penalty(torch.tensor([0.5, torch.nan]), computation=computation).isnan()


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (torch.rand(3), {"target": "conservativ"}, "Did you mean `conservative`"),
        (torch.rand(3), {"target": 1.5}, "1.5"),
        (torch.rand(3), {"target": True}, "True"),
        (torch.rand(3), {"computation": "sorting"}, "Did you mean `sort`"),
        (torch.rand(3), {"levels": "uper"}, "Did you mean `upper`"),
        (torch.rand(3), {"levels": torch.rand(2)}, 'computation="direct"'),
        (torch.rand(3, 2), {}, "(3, 2)"),
        (torch.ones(3).long(), {}, "int64"),
        (torch.rand(0), {}, "empty"),
        ([0.5], {}, "list"),
    ],
)
def test_misuse_is_named(values, options, message):
    with pytest.raises(InputError) as error:
        penalty(values, **options)
    assert message in str(error.value)


BOX = Independent(Uniform(-4 * torch.ones(2), 4 * torch.ones(2)), 1)


def transcription_of_algorithm_1(posterior, theta, prior, num_samples):
    """The paper's Algorithm 1 with rectifier, line by line, straight-through by hand."""
    alphas = []
    draws = prior.sample((num_samples, len(theta)))
    nominal = posterior.log_prob(theta).exp()
    drawn = torch.stack([posterior.log_prob(draw).exp() for draw in draws])
    importance = torch.stack([prior.log_prob(draw).exp() for draw in draws])
    for i in range(len(theta)):
        top, bottom = 0.0, 0.0
        for j in range(num_samples):
            surrogate = nominal[i] - drawn[j, i]
            step = (drawn[j, i] < nominal[i]).float() + surrogate - surrogate.detach()
            top = top + drawn[j, i] / importance[j, i] * step
            bottom = bottom + drawn[j, i] / importance[j, i]
        alphas.append(top / bottom)
    ordered = torch.stack(sorted(alphas, key=lambda value: float(value.detach())))
    level = torch.arange(1, len(theta) + 1) / len(theta)
    return (level - ordered).relu().square().mean()


@pytest.mark.parametrize(
    "prior", [BOX, MultivariateNormal(torch.zeros(2), torch.tensor([[2.0, 0.5], [0.5, 1.0]]))]
)
def test_paper_equals_a_transcription_of_algorithm_1(prior):
    torch.manual_seed(0)
    theta, x = torch.randn(24, 2), torch.randn(24, 2)
    results = []
    for method in ("module", "transcription"):
        scale = torch.tensor([0.2, -0.4], requires_grad=True)
        posterior = Independent(Normal(0.8 * x, scale.exp().expand(24, 2)), 1)
        torch.manual_seed(1)
        if method == "module":
            value = CoveragePenalty.paper(prior, num_samples=8)(posterior, theta)
        else:
            value = transcription_of_algorithm_1(posterior, theta, prior, 8)
        results.append((value.detach(), torch.autograd.grad(value, scale)[0]))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=1e-5)
    assert results[0][1].abs().max() > 1e-4


class Counted:
    """A posterior that counts its evaluations."""

    def __init__(self, posterior):
        self.posterior, self.calls = posterior, 0

    def log_prob(self, theta):
        self.calls += 1
        return self.posterior.log_prob(theta)

    def sample(self, shape):
        return self.posterior.sample(shape)


class Shifted:
    """A proposal of the third kind: draws and their log-density in one call."""

    def sample_and_log_prob(self, shape):
        other = Independent(Normal(torch.full((2,), 0.2), torch.full((2,), 1.3)), 1)
        draws = other.sample(shape)
        return draws, other.log_prob(draws)


@pytest.mark.parametrize("proposal", [problem().prior, Shifted(), "model"])
@pytest.mark.parametrize("indicator", ["log", "density"])
def test_module_sees_over_confidence_with_any_proposal(proposal, indicator):
    theta, x = problem().draw(2000, 0)
    torch.manual_seed(0)
    module = CoveragePenalty(proposal, num_samples=256, indicator=indicator)
    values = {}
    for widen in (0.5, 1.0, 2.0):
        posterior = Counted(exact_posterior(x, widen))
        values[widen] = float(module(posterior, theta).detach())
        assert posterior.calls == 1
    assert values[0.5] > 0.02
    assert values[1.0] < 1e-3
    assert values[2.0] < 1e-4


@pytest.mark.parametrize("proposal", [problem().prior, "model"])
def test_a_gradient_step_makes_a_narrow_posterior_wider(proposal):
    theta, x = problem().draw(512, 0)
    torch.manual_seed(0)
    log_scale = torch.tensor(-0.7, requires_grad=True)
    posterior = Independent(Normal(0.8 * x, (log_scale.exp() * 0.45).expand(512, 2)), 1)
    CoveragePenalty(proposal, num_samples=64)(posterior, theta).backward()
    assert log_scale.grad < -1e-3


def test_same_random_state_same_value_and_global_state_is_the_only_source():
    theta, x = problem().draw(64, 0)
    module = CoveragePenalty(problem().prior)
    values = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        values.append(float(module(exact_posterior(x, 0.5), theta)))
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize(
    ("proposal", "options", "message"),
    [
        (Uniform(torch.zeros(2), torch.ones(2)), {}, "Independent(proposal, 1)"),
        (object(), {}, "`sample`, `log_prob`"),
        ("modle", {}, "Did you mean `model`"),
        (BOX, {"num_samples": 0}, "num_samples"),
        (BOX, {"num_samples": 1.5}, "num_samples"),
        (BOX, {"target": "calibratd"}, "Did you mean `calibrated`"),
        (BOX, {"indicator": "logs"}, "Did you mean `log`"),
        (BOX, {"computation": "x"}, "computation"),
    ],
)
def test_settings_are_checked_at_once(proposal, options, message):
    with pytest.raises(InputError) as error:
        CoveragePenalty(proposal, **options)
    assert message in str(error.value)


def test_posterior_of_another_batch_is_named():
    with pytest.raises(InputError, match="conditioned on the 3 observations"):
        CoveragePenalty(BOX)(Normal(torch.zeros(3, 2), 1.0), torch.zeros(3, 2))


def test_proposal_of_another_dimension_is_named():
    posterior = Independent(Normal(torch.zeros(3, 1), 1.0), 1)
    with pytest.raises(InputError, match="to match `theta`"):
        CoveragePenalty(BOX)(posterior, torch.zeros(3, 1))
    with pytest.raises(InputError, match="shape \\(N, D\\)"):
        CoveragePenalty(BOX)(posterior, torch.zeros(3))


# Tracing a custom gradient makes torch warn about itself.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("indicator", ["log", "density", "hard"])
@pytest.mark.parametrize("computation", ["sort", "direct"])
def test_compiles_without_a_graph_break(indicator, computation):
    def value(log_prob, sample):
        alphas = alpha(log_prob, sample, sample, indicator=indicator)
        return penalty(alphas, computation=computation)

    compiled = torch.compile(value, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    leaves = [torch.randn(32, requires_grad=True), torch.randn(8, 32, requires_grad=True)]
    plain, fast = value(*leaves), compiled(*leaves)
    torch.testing.assert_close(plain, fast)
    if indicator != "hard":
        torch.testing.assert_close(
            torch.autograd.grad(plain, leaves), torch.autograd.grad(fast, leaves)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_and_device_follow_the_input(dtype):
    values = torch.rand(5, dtype=dtype)
    assert penalty(values).dtype == dtype
    assert alpha(values, values.expand(3, 5)).dtype == dtype
    # The meta device computes shapes only: nothing may be created on another device on the way.
    log_prob, sample = torch.empty(5, device="meta"), torch.empty(3, 5, device="meta")
    result = penalty(alpha(log_prob, sample, sample), computation="direct")
    assert result.device.type == "meta"


class Widened:
    """The exact posterior of the Gaussian problem, and others of another width."""

    def __init__(self, x, widen):
        exact = exact_posterior(x).base_dist
        normal = Independent(Normal(exact.loc, widen * exact.scale), 1)
        self.log_prob, self.sample, self.rsample = normal.log_prob, normal.sample, normal.rsample


@pytest.mark.parametrize("number", [4, 16])
@pytest.mark.parametrize("proposal", ["prior", "even", "model", "nominal", "draws"])
def test_the_shortfall_of_an_exact_posterior_is_near_zero(proposal, number):
    """As many truths lie below all draws as between any two, which is no shortfall."""
    gaussian = problem()
    made = {
        "prior": gaussian.prior,
        "even": Even(gaussian.prior),
        "nominal": Nominal(gaussian.prior),
    }
    penalty = CoveragePenalty(made.get(proposal, proposal), num_samples=number).eval()
    theta, x = gaussian.draw(4000, 5)

    def shortfall(widen):
        torch.manual_seed(0)
        with torch.no_grad():
            found = evaluation(penalty, Widened(x, widen), theta).figures["shortfall"]
        state = torch.get_rng_state()
        value = float(found.reduce(found.values))
        assert float(found.reduce(found.values)) == value
        assert torch.equal(torch.get_rng_state(), state)
        return value

    # Of 4,000 exact alphas chance explains 0.02; draws of the prior, worth few, add as much.
    assert shortfall(1.0) < 0.04
    assert shortfall(0.5) > 0.07
