"""TARP on posteriors whose truth is known, with good references and blind ones."""

import numpy as np
import pytest
import torch
from known_posteriors import (
    Known,
    gaussian,
    groups,
    prior_as_posterior,
    share,
    slcp_exact,
    weinberg,
)
from torch.distributions import Independent, Normal

import prudent
from prudent.diagnostics import Ranks, ReferenceDistance, parameters, posterior_ranks, sbc, tarp
from prudent.errors import InputError

OTHERS = {"slcp": slcp_exact, "weinberg": weinberg}


def near(x):
    """Reference points that follow x, for `gaussian`."""
    return x + torch.randn_like(x)


def pairs(dim, number, seed=0):
    return prudent.problems.get("gaussian", dim=dim).draw(number, seed)


def run(estimator, data, num_samples=48, **references):
    """One pass for several kinds of references."""
    kinds = {"prior": "prior", "uniform": "uniform", **references}
    functions = {name: ReferenceDistance(estimator.prior, kind) for name, kind in kinds.items()}
    return posterior_ranks(estimator, *data, functions, num_samples=num_samples, progress=False)


def balls(estimator, data, *references, num_samples=99, **options):
    """TARP with one kind of references."""
    functions = {"tarp": ReferenceDistance(estimator.prior, *references, **options)}
    return tarp(
        posterior_ranks(estimator, *data, functions, num_samples=num_samples, progress=False)
    )


def rejections(ranks, size):
    """By function, the share of repetitions with p < 0.05; p as in TARP, without its bands."""
    results = [sbc(part).p_values < 0.05 for part in groups(ranks, size)]
    return dict(zip(ranks.names, torch.stack(results).double().mean(0).tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 5, 10])
def test_size_on_exact_posteriors(dim):
    """500 repetitions of 60 pairs, whatever the references."""
    ranks = run(gaussian(dim=dim), pairs(dim, 500 * 60), near=near)
    for name, rate in rejections(ranks, 60).items():
        assert 0.03 <= rate <= 0.07, name


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 5, 10])
def test_power_on_wrong_posteriors(dim):
    """1,000 pairs for a width, 2,000 for a shift of one standard deviation."""
    for options, size in (({"widen": 0.8}, 1000), ({"widen": 1.25}, 1000), ({"shift": 1.0}, 2000)):
        ranks = run(gaussian(dim=dim, **options), pairs(dim, 40 * size), near=near)
        for name, rate in rejections(ranks, size).items():
            assert rate >= 0.95, (name, options)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_size_and_power_on_benchmarks(name):
    """SBC and TARP in one pass: size in 500 repetitions of 20 pairs, power in 10 of 1,000.

    A power of the density stands for narrow and wide. Mirror-image modes hide most of a width
    from the ranks of slcp's parameters, not from those of their sizes; and balls see less of it.
    """
    problem = prudent.problems.get(name)

    def ranks(power, number):
        estimator = OTHERS[name](power)
        functions = {
            **parameters(problem.dim),
            "size": lambda theta, x: theta[..., 0].abs(),
            "uniform": ReferenceDistance(estimator.prior, "uniform"),
        }
        data = problem.draw(number, 0)
        return posterior_ranks(estimator, *data, functions, num_samples=28, progress=False)

    rates = list(rejections(ranks(1.0, 500 * 20), 20).values())
    assert 0.03 <= sum(rates) / len(rates) <= 0.07
    assert max(rates) <= 0.07
    for power in (1 / 0.8**2, 1 / 1.25**2):
        assert rejections(ranks(power, 10 * 1000), 1000)["size"] >= 0.95, power
    assert rejections(ranks(3.0, 10 * 1000), 1000)["uniform"] >= 0.95


def test_references_that_ignore_x_cannot_tell_the_prior():
    """The documented trap, and references that see it."""
    problem = prudent.problems.get("gaussian")
    ranks = run(prior_as_posterior(problem), pairs(2, 100 * 200), near=near)
    rates = rejections(ranks, 200)
    assert rates["prior"] <= 0.1
    assert rates["uniform"] <= 0.1
    assert rates["near"] >= 0.95


def test_a_small_shift_is_seen_late():
    """What SBC sees at once, half a standard deviation, balls on both sides nearly cancel."""
    data = pairs(1, 40 * 200)
    estimator = gaussian(dim=1, shift=0.5)
    rates = rejections(run(estimator, data), 200)
    assert rates["prior"] < 0.6
    ranks = posterior_ranks(estimator, *data, parameters(1), num_samples=48, progress=False)
    assert share(sbc(part).p_value < 0.05 for part in groups(ranks, 200)) >= 0.95


def test_units_do_not_matter():
    """Measuring one parameter in thousandths changes no rank."""
    unit = torch.tensor([1.0, 1000.0])
    theta, x = pairs(2, 500)

    class Scaled:
        def __init__(self, data):
            self.exact = gaussian()(data)

        def sample(self, shape):
            return unit * self.exact.sample(shape)

    prior = Independent(Normal(torch.zeros(2), unit), 1)
    one = balls(gaussian(), (theta, x))
    other = balls(Known(Scaled, prior), (unit * theta, x))
    assert torch.equal(one.ranks.ranks, other.ranks.ranks)
    raw = balls(Known(Scaled, prior), (unit * theta, x), scale=torch.ones(2))
    assert not torch.equal(one.ranks.ranks, raw.ranks.ranks)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no defect seen"),
        ({"widen": 0.6}, "not calibrated: the distance is too narrow or shifted"),
        ({"widen": 1.6}, "not calibrated: the distance is too wide"),
        ({"shift": 1.5}, "the distance is too narrow or shifted"),
    ],
)
def test_verdicts(options, words):
    result = balls(gaussian(**options), pairs(2, 1500))
    assert words in result.verdict
    assert result.p_value == float(sbc(result.ranks, ["tarp"]).p_values)
    assert repr(result) == f"<TARP: {result.verdict}>"
    inside = (result.coverage >= result.uniform_lower) & (result.coverage <= result.uniform_upper)
    assert bool(inside.all()) != bool(options)


@pytest.mark.parametrize("widen", [1.0, 0.7])
def test_bootstrap_bands_hold_the_true_curve(widen):
    """95 ± 2 % of 500 curves of 200 pairs, for the exact posterior and for a wrong one."""
    ranks = run(gaussian(widen=widen), pairs(2, 500 * 200), num_samples=20)
    truth = tarp(ranks, "prior").coverage
    held = []
    for seed, part in enumerate(groups(ranks, 200)):
        result = tarp(part, "prior", seed=seed)
        held.append(((result.lower <= truth) & (truth <= result.upper)).all())
    assert 0.93 <= share(held) <= 0.97


def test_the_curve_by_hand():
    ranks = Ranks(("tarp",), torch.tensor([[0, 1, 3, 3]]), 3, {}, 0.0, 0.0)
    result = tarp(ranks)
    assert result.levels.tolist() == [0.25, 0.5, 0.75]
    assert result.coverage.tolist() == [0.25, 0.5, 0.5]
    assert result.area == pytest.approx(-0.25)


def test_misuse_is_named():
    with pytest.raises(InputError, match="Did you mean `prior`"):
        balls(gaussian(), pairs(2, 10), "priors")
    with pytest.raises(InputError, match="expected reference points of shape"):
        balls(gaussian(), pairs(2, 10), lambda x: x[:, :1])
    with pytest.raises(InputError, match="has no prior"):
        balls(Known(gaussian().make, None), pairs(2, 10))
    with pytest.raises(InputError, match="positive numbers"):
        balls(gaussian(), pairs(2, 10), scale=torch.zeros(2))


def fixed_setting(number=500, num_samples=200):
    """Draws, truths and references in the unit square, for everyone."""
    generator = torch.Generator().manual_seed(0)
    theta, x = pairs(2, number)
    exact = gaussian()(x)
    noise = torch.randn(num_samples, number, 2, generator=generator)
    draws = exact.mean + exact.stddev * noise
    references = torch.randn(number, 2, generator=generator)
    distance = (draws - references).norm(dim=-1) < (theta - references).norm(dim=-1)
    # Ranks by hand; ours from the same draws must be the same.
    by_hand = distance.sum(0)

    class Fixed:
        def __init__(self, data):
            self.rows = (x[:, None] == data[None]).all(-1).float().argmax(0)

        def sample(self, shape):
            return draws[:, self.rows]

    def look_up(data):
        return references[(x[:, None] == data[None]).all(-1).float().argmax(0)]

    estimator = Known(Fixed, gaussian().prior)
    ours = balls(estimator, (theta, x), look_up, scale=torch.ones(2), num_samples=num_samples)
    assert torch.equal(ours.ranks.ranks[0], by_hand)
    return ours, draws, theta, references


def shares_below(ours, edges):
    """Our curve at the edges of somebody's histogram of credibilities, ends included."""
    credibility = ours.ranks.ranks[0].double() / ours.ranks.num_samples
    return (credibility[None] <= torch.as_tensor(edges)[:, None] + 1e-6).double().mean(1)


def test_agreement_with_sbi():
    module = pytest.importorskip("sbi.diagnostics.tarp")
    ours, draws, theta, references = fixed_setting()
    curve, levels = module._run_tarp(draws, theta, references, num_bins=37, z_score_theta=False)
    # A credibility on an edge belongs to the bin on its right, but for the last.
    torch.testing.assert_close(
        shares_below(ours, levels)[1:], curve[1:].double(), atol=0.012, rtol=0
    )


def test_agreement_with_the_tarp_package():
    module = pytest.importorskip("tarp")
    ours, draws, theta, references = fixed_setting()
    curve, levels = module.get_tarp_coverage(
        draws.numpy(), theta.numpy(), references=references.numpy(), num_alpha_bins=37
    )
    np.testing.assert_allclose(shares_below(ours, levels)[1:].numpy(), curve[1:], atol=0.012)


def test_a_run_with_sbi_agrees_in_law():
    """Their own draws and references: the curves differ by noise only."""
    module = pytest.importorskip("sbi.diagnostics.tarp")

    class ForSbi:
        def sample_batched(self, shape, x, **options):
            return gaussian(widen=0.6)(x).sample(shape)

    theta, x = pairs(2, 2000)
    torch.manual_seed(0)
    curve, levels = module.run_tarp(
        theta, x, ForSbi(), num_posterior_samples=200, num_bins=20, show_progress_bar=False
    )
    ours = balls(gaussian(widen=0.6), (theta, x), "uniform", num_samples=200)
    assert (shares_below(ours, levels) - curve).abs().max() < 0.05
    assert (levels - curve).abs().max() > 0.06
