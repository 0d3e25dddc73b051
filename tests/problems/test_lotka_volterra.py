import math

import numpy
import pytest
import torch
from references import agreement
from references import lotka_volterra as plain

from prudent._randomness import generator
from prudent.problems import lotka_volterra

PROBLEM = lotka_volterra.problem()
EQUAL = (0.0, 0.0, 0.0, 0.0)
OSCILLATING = (-4.0, 1.0, 0.0, -4.0)
# The exact means of (predators, prey) after 100, 500 and 1001 events, from `plain.exact_law`,
# which needs a quarter of a minute for 1001. The facts page has (42, 106), (30, 173), (61, 223).
OSCILLATING_MEANS = ((40.2059, 104.8976), (28.9682, 178.4277), (61.7700, 231.3132))
OSCILLATING_PAGE = ((42, 106), (30, 173), (61, 223))
EVENTS = (100, 500, 1001)


def chain(log_rates, num, seed=0):
    rates = torch.tensor(log_rates).repeat(num, 1)
    return lotka_volterra.simulate_chain(rates, generator(seed, "lotka_volterra", log_rates))


def summaries(x):
    """Both populations after 100, 300 and 1001 events, and the events before extinction."""
    x = numpy.asarray(x)
    alive = (x.sum(-1) > 0).sum(1, keepdims=True)
    return numpy.concatenate((x[:, 99], x[:, 299], x[:, 1000], alive), axis=1)


def test_problem():
    theta, x = PROBLEM.draw(3, seed=0)
    assert theta.shape == (3, 2)
    assert x.shape == (3, 1001, 2)
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    assert PROBLEM.prior.log_prob(torch.zeros(2)) == pytest.approx(-3.2189, abs=5e-5)
    assert bool(PROBLEM.prior.support.check(torch.tensor([1.000005, -4.0])))
    assert PROBLEM.log_posterior is None
    assert lotka_volterra.simulate(theta[:0], generator(0)).shape == (0, 1001, 2)
    assert PROBLEM.simulate(theta.double(), generator(0)).dtype == torch.float32


def test_one_event_changes_one_population_by_one_until_extinction():
    x = PROBLEM.draw(3_000, seed=1)[1]
    start = torch.tensor(lotka_volterra.START).expand(len(x), 1, 2)
    change = torch.diff(torch.cat((start, x), dim=1), dim=1).abs().sum(-1)
    before = torch.cat((start, x), dim=1)[:, :-1].sum(-1)
    assert torch.equal(change, (before > 0).float())
    assert bool((x >= 0).all())
    # Both cases occur: 71 % of the paths die out.
    assert 0.6 < float((x[:, -1].sum(-1) == 0).float().mean()) < 0.8


@pytest.mark.parametrize("common", [0.0, -3.9, 0.9])
def test_equal_rates(common):
    x = chain((common,) * 4, 4_000)
    law = plain.exact_law(EQUAL, 100)
    predators, prey = numpy.indices(law.shape)
    for i, exact in enumerate(((law * predators).sum(), (law * prey).sum())):
        # 5 standard errors; the facts page gives (99, 52), 1 covers its rounding.
        error = float(x[:, 99, i].std()) / math.sqrt(len(x))
        assert abs(float(x[:, 99, i].mean()) - exact) < 5 * error
        assert abs(float(x[:, 99, i].mean()) - (99, 52)[i]) < 5 * error + 1
    # Exactly, 5 paths in a million are alive; among 4,000 three would have probability 1e-6.
    assert int((x[:, 499].sum(-1) > 0).sum()) < 3


def test_means_against_exact_sums():
    x = chain(OSCILLATING, 4_000)
    for event, exact, page in zip(EVENTS, OSCILLATING_MEANS, OSCILLATING_PAGE, strict=True):
        at_event = x[:, event - 1]
        spread = at_event.std(0)
        # 5 standard errors of 4,000 paths.
        assert bool(
            ((at_event.mean(0) - torch.tensor(exact)).abs() < 5 * spread / 4_000**0.5).all()
        )
        # The page's figures are rounded and come from few paths: 4 standard errors of 50.
        gap = (at_event.mean(0) - torch.tensor(page)).abs()
        assert bool((gap < 4 * spread / 50**0.5 + 0.5).all())


@pytest.mark.parametrize("log_rates", [OSCILLATING, (-3.0, 0.5, 0.8, -2.5)])
def test_law_after_100_events(log_rates):
    x = chain(log_rates, 8_000, seed=1)[:, 99]

    def largest_gap(rates):
        law = plain.exact_law(rates, 100)
        gaps = []
        for axis in range(2):
            exact = law.sum(1 - axis)
            found = numpy.bincount(x[:, axis].long().numpy(), minlength=len(exact)) / len(x)
            gaps.append(numpy.abs((found - exact).cumsum()).max())
        return max(gaps)

    assert largest_gap(log_rates) < agreement.critical(len(x))
    # Negative control: each rate 15 % too large in turn must be noticed.
    for i in range(4):
        wrong = numpy.array(log_rates)
        wrong[i] += math.log(1.15)
        assert largest_gap(wrong) > agreement.critical(len(x)), i


def test_fixed_rates_agree_with_the_plain_loop():
    log_rates = (-3.5, 0.5, 0.8, -3.0)
    rng = numpy.random.default_rng(3)
    reference = summaries([plain.simulate_rates(log_rates, rng) for _ in range(600)])
    assert agreement.worst_ratio(summaries(chain(log_rates, 4_000)), reference) < 1
    # Negative control: one prey rate 20 % too large.
    wrong = (-3.5, 0.5, 0.8 + math.log(1.2), -3.0)
    assert agreement.worst_ratio(summaries(chain(wrong, 4_000)), reference) > 1


@pytest.mark.parametrize("theta", [(-4.0, 1.0), (-1.5, 0.5), (-3.0, -1.0)])
def test_agrees_with_the_plain_loop(theta):
    reference = summaries(agreement.simulate_many(plain.simulate_one, theta, 600, seed=4))

    def ratio(value):
        rows = torch.tensor(value).repeat(4_000, 1)
        x = lotka_volterra.simulate(rows, generator(4, "agreement"))
        return agreement.worst_ratio(summaries(x), reference)

    assert ratio(theta) < 1
    # Negative control: predators are born half as fast.
    assert ratio((theta[0] - math.log(2), theta[1])) > 1


def test_blocks_change_nothing(monkeypatch):
    theta = PROBLEM.draw(50, seed=2)[0]
    whole = PROBLEM.simulate(theta, generator(0))
    monkeypatch.setattr(lotka_volterra, "BLOCK", 7)
    assert torch.equal(PROBLEM.simulate(theta, generator(0)), whole)


def test_rates_too_small_for_the_shortcut():
    with pytest.raises(AssertionError):
        chain((0.0, 0.0, 0.0, -12.0), 1)
