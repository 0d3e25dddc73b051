"""Two passes give the gradient of one, and a share of a batch that of the whole."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal, Uniform

import prudent
from prudent.coverage import CoveragePenalty, Sometimes, alpha, penalty
from prudent.coverage.passes import MOST_ACTIVE, Passes, active_entries
from prudent.training.objectives import bce, nll, weighted_sum

PRIOR = Independent(Uniform(-3 * torch.ones(2), 3 * torch.ones(2)), 1)
PRIOR_64 = Independent(Uniform(-3 * torch.ones(2).double(), 3 * torch.ones(2).double()), 1)


def pairs(number=96, seed=0):
    random = torch.Generator().manual_seed(seed)
    theta = 6 * torch.rand(number, 2, generator=random) - 3
    return theta, theta + 0.5 * torch.randn(number, 2, generator=random)


def too_sure():
    """Pairs with more noise than an estimator was trained for, which is over-confident then."""
    theta, x = pairs()
    return theta, x + 1.5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(2))


def trained(method, epochs, prior=PRIOR):
    """An estimator that has trained for some epochs, back in training mode."""
    theta, x = pairs(480, seed=1)
    return prudent.fit(
        theta, x, prior, method=method, epochs=epochs, hidden=[32, 32], averaging=0.0,
        progress=False,
    ).train()  # fmt: skip


def one_pass(posterior, theta, term, seed):
    """The penalty as it is defined, written down plainly: one graph through all densities."""
    torch.manual_seed(seed)
    draws = term.proposal.source.sample((term.num_samples, len(theta)))
    log_prob = posterior.log_prob(torch.cat((theta.unsqueeze(0), draws)))
    log_weight = log_prob[1:] - term.proposal.source.log_prob(draws)
    alphas = alpha(log_prob[0], log_prob[1:], log_weight, indicator=term.indicator)
    return penalty(alphas, target=term.target)


def gradients(model, value):
    found = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    return [torch.zeros(1) if one is None else one for one in found]


def largest_error(found, expected):
    """Of all weights, but for those whose gradient is zero to rounding, as that of a last bias."""
    whole = torch.cat([one.flatten() for one in expected]).norm()
    return max(
        (
            float((one - other).norm() / other.norm())
            for one, other in zip(found, expected, strict=True)
            if other.norm() > 1e-5 * whole
        ),
        default=0.0,
    )


@pytest.mark.slow
@pytest.mark.parametrize("target", ["conservative", "calibrated"])
@pytest.mark.parametrize("epochs", [1, 15])
@pytest.mark.parametrize("method", ["nre", "npe"])
def test_two_passes_have_the_gradient_of_one(method, epochs, target):
    model, (theta, x) = trained(method, epochs), too_sure()
    term = CoveragePenalty(PRIOR, 16, target)
    torch.manual_seed(7)
    value = term(model(x), theta)
    expected = one_pass(model(x), theta, term, 7)
    assert value.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-9)
    assert epochs == 1 or expected.item() > 1e-4  # there is something to compare
    error = largest_error(gradients(model, value), gradients(model, expected))
    assert error <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["nre", "npe"])
def test_without_a_tolerance_nothing_is_lost_but_rounding(method):
    theta, x = (values.double() for values in too_sure())
    model = trained(method, 6, PRIOR_64).double()
    term = CoveragePenalty(PRIOR_64, 16, tolerance=0.0)
    torch.manual_seed(7)
    found = gradients(model, term(model(x), theta))
    expected = gradients(model, one_pass(model(x), theta, term, 7))
    assert largest_error(found, expected) <= 1e-8
    # The comparison can fail: a tenth of the gradient left out is seen.
    rough = CoveragePenalty(PRIOR_64, 16, tolerance=0.1)
    torch.manual_seed(7)
    assert largest_error(gradients(model, rough(model(x), theta)), expected) > 1e-3


@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("num_samples", [4, 64])
@pytest.mark.parametrize("target", ["conservative", "calibrated"])
@pytest.mark.parametrize("method", ["nre", "npe"])
def test_evaluated_beside_the_loss_the_gradient_is_that_of_each_alone(
    models, method, target, num_samples, fraction
):
    """In the first step, which makes two passes, and in the next, which may make one."""
    (theta, x), model = (values.double() for values in too_sure()), models[method]
    loss = {"nre": bce, "npe": nll}[method]
    beside, alone = (
        Sometimes(CoveragePenalty(PRIOR_64, num_samples, target, tolerance=0.0), fraction)
        for _ in range(2)
    )
    together = weighted_sum((1.0, loss), (5.0, beside))
    for seed in range(3):
        torch.manual_seed(seed)
        found = together(model(x), theta)
        torch.manual_seed(seed)
        expected = loss(model(x), theta) + 5.0 * alone(model(x), theta)
        assert found.item() == pytest.approx(expected.item(), rel=1e-10)
        error = largest_error(gradients(model, found), gradients(model, expected))
        assert error <= 1e-8
    assert beside.term.passes.active.isfinite()


@pytest.fixture(scope="module")
def models():
    """A ratio and a flow in double precision, in training mode."""
    return {method: trained(method, 3, PRIOR_64).double() for method in ("nre", "npe")}


@pytest.mark.parametrize("loss", [nll, bce])
def test_a_step_evaluates_each_row_once(loss):
    """With a graph: the points of the loss, and the draws that matter."""

    class Ratio(Counting):
        def rows(self, index):
            return Ratio(self.log_width, self.x[index], self.counts)

        def log_prob_and_ratio(self, theta):
            log_prob = self.log_prob(theta)
            return log_prob, log_prob

    theta, x = pairs()
    log_width = torch.tensor(-0.6, requires_grad=True)
    term = CoveragePenalty(PRIOR, 16)
    objective = weighted_sum((1.0, loss), (5.0, term))
    own = len(theta) * (2 if loss is bce else 1)
    counts = {"graph": 0, "plain": 0}
    objective(Ratio(log_width, x, counts), theta).backward()
    assert counts["plain"] == 17 * len(theta)
    assert own < counts["graph"] < own + 0.5 * counts["plain"]
    term.passes.active.fill_(1.0)
    counts.update(graph=0, plain=0)
    objective(Ratio(log_width, x, counts), theta).backward()
    assert counts == {"graph": own + 16 * len(theta), "plain": 0}


def test_a_loss_of_ratios_needs_no_posterior_that_tells_both_at_once():
    class Ratio(Counting):
        def log_ratio(self, theta):
            return self.log_prob(theta)

    theta, x = pairs()
    log_width = torch.tensor(-0.6, requires_grad=True)
    objective = weighted_sum((1.0, bce), (5.0, CoveragePenalty(PRIOR, 16)))
    objective(Ratio(log_width, x, Counter()), theta).backward()
    assert log_width.grad.isfinite()


@pytest.mark.parametrize("kind", ["looks", "forgets"])
def test_a_loss_is_not_evaluated_beside_draws_that_change_it(kind):
    make = {"looks": LooksAtItsBatch, "forgets": Forgetful}[kind]
    theta, x = pairs()
    log_width = torch.tensor(-0.6, requires_grad=True)
    term = CoveragePenalty(PRIOR, 16)
    objective = weighted_sum((1.0, nll), (5.0, term))
    for _ in range(2):
        counts = {"graph": 0, "plain": 0}
        posterior = make(log_width, x, counts)
        torch.manual_seed(3)
        found = objective.evaluate(posterior, theta)["nll"].value
        if kind == "looks":
            torch.testing.assert_close(found, nll(make(log_width, x, counts.copy()), theta))
    assert term.passes.active.isinf()
    assert counts == {"graph": 18 * len(theta), "plain": 0}


def test_a_term_without_a_graph_takes_none_from_the_loss():
    def baseline(posterior, theta):
        with torch.no_grad():
            return nll(posterior, theta)

    theta, x = pairs()
    log_width = torch.tensor(-0.6, requires_grad=True)
    value = weighted_sum((1.0, nll), (1.0, baseline))(Counting(log_width, x, Counter()), theta)
    assert value.requires_grad


class Counting:
    """Normal posteriors of one learned width, which count the rows that they evaluate."""

    def __init__(self, log_width, x, counts):
        self.log_width, self.x, self.counts = log_width, x, counts

    def rows(self, index):
        return Counting(self.log_width, self.x[index], self.counts)

    def log_prob(self, theta):
        self.counts["graph" if torch.is_grad_enabled() else "plain"] += theta[..., 0].numel()
        return Normal(self.x, self.log_width.exp()).log_prob(theta).sum(-1)


def step(term, log_width, make=Counting):
    theta, x = pairs()
    counts = {"graph": 0, "plain": 0}
    term(make(log_width, x, counts), theta).backward()
    return counts


def test_only_entries_with_a_gradient_are_evaluated_with_a_graph():
    theta, _ = pairs()
    counts = step(CoveragePenalty(PRIOR, 16), torch.tensor(-0.6, requires_grad=True))
    assert counts["plain"] == 17 * len(theta)
    assert 0 < counts["graph"] < 0.5 * counts["plain"]


def test_where_all_entries_have_a_gradient_one_pass_follows():
    theta, _ = pairs()
    log_width = torch.tensor(2.0, requires_grad=True)  # so wide that all draws weigh the same
    term = CoveragePenalty(PRIOR, 16, "calibrated")
    step(term, log_width)
    assert float(term.passes.active) > MOST_ACTIVE
    assert step(term, log_width) == {"graph": 17 * len(theta), "plain": 0}


def test_an_active_share_that_falls_brings_two_passes_back():
    term = CoveragePenalty(PRIOR, 16, "calibrated")
    wide, narrow = (torch.tensor(at, requires_grad=True) for at in (2.0, -2.5))
    for _ in range(2):
        step(term, wide)
    step(term, narrow)  # in one pass, which finds that few matter
    assert step(term, narrow)["plain"] > 0


class LooksAtItsBatch(Counting):
    """Like batch normalization: what a row gives depends on the other rows."""

    def rows(self, index):
        return LooksAtItsBatch(self.log_width, self.x[index], self.counts)

    def log_prob(self, theta):
        return super().log_prob(theta) + self.log_width * theta.std()


class Forgetful(Counting):
    """Like dropout: two evaluations differ."""

    def rows(self, index):
        return Forgetful(self.log_width, self.x[index], self.counts)

    def log_prob(self, theta):
        return super().log_prob(theta) * (1 + 0.5 * torch.rand(()))


def test_a_density_that_looks_at_its_batch_falls_back_to_one_pass():
    log_width = torch.tensor(-0.6, requires_grad=True)
    theta, x = pairs()
    term = CoveragePenalty(PRIOR, 16)
    for _ in range(2):
        posterior = LooksAtItsBatch(log_width, x, {"graph": 0, "plain": 0})
        torch.manual_seed(3)
        (found,) = torch.autograd.grad(term(posterior, theta), log_width)
        (expected,) = torch.autograd.grad(one_pass(posterior, theta, term, 3), log_width)
        torch.testing.assert_close(found, expected)
    assert term.passes.active.isinf()


def test_a_density_that_changes_between_passes_falls_back_to_one_pass():
    theta, _ = pairs()
    term, log_width = CoveragePenalty(PRIOR, 16), torch.tensor(-0.6, requires_grad=True)
    step(term, log_width, Forgetful)
    assert step(term, log_width, Forgetful) == {"graph": 17 * len(theta), "plain": 0}
    assert log_width.grad.isfinite()


def test_dropout_in_a_network_is_noticed():
    class Dropped(Counting):
        layer = nn.Dropout(0.5)

        def rows(self, index):
            return Dropped(self.log_width, self.x[index], self.counts)

        def log_prob(self, theta):
            return self.layer(super().log_prob(theta))

    term = CoveragePenalty(PRIOR, 16)
    step(term, torch.tensor(-0.6, requires_grad=True), Dropped)
    assert term.passes.active.isinf()


def test_entries_are_left_out_by_their_worth():
    gradient = torch.tensor([[3.0, -1.0], [0.0, 1e-4]])
    assert active_entries(gradient, 0.0).tolist() == [[True, True], [False, True]]
    assert active_entries(gradient, 1e-3).tolist() == [[True, True], [False, False]]
    assert active_entries(gradient, 0.3).tolist() == [[True, False], [False, False]]
    assert not active_entries(torch.zeros(3), 0.0).any()


def test_values_that_are_not_finite_reach_the_caller():
    class Broken(Counting):
        def rows(self, index):
            return Broken(self.log_width, self.x[index], self.counts)

        def log_prob(self, theta):
            return super().log_prob(theta) * torch.where(theta[..., 0] > 0, torch.nan, 1.0)

    theta, x = pairs()
    term = CoveragePenalty(PRIOR, 16)
    log_width = torch.tensor(0.0, requires_grad=True)
    assert term(Broken(log_width, x, {"graph": 0, "plain": 0}), theta).isnan()


def test_memory_is_flat_in_the_number_of_draws():
    """No more rows than a chunk are evaluated at a time, and few of them with a graph."""
    largest = {"graph": 0, "plain": 0}

    class Watching(Counting):
        def rows(self, index):
            return Watching(self.log_width, self.x[index], self.counts)

        def log_prob(self, theta):
            kind = "graph" if torch.is_grad_enabled() else "plain"
            largest[kind] = max(largest[kind], theta[..., 0].numel())
            return super().log_prob(theta)

    theta, x = pairs()
    log_width = torch.tensor(-1.5, requires_grad=True)
    CoveragePenalty(PRIOR, 1024)(Watching(log_width, x, {"graph": 0, "plain": 0}), theta)
    assert largest["plain"] <= 4096
    assert largest["graph"] < 0.2 * 1024 * len(theta)


def test_a_module_of_passes_says_nothing_of_a_step_yet():
    assert Passes(0.0).active.isneginf()
