"""Losses against their formulae, on fixed log ratios."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal

from prudent.contracts import Evaluation, PerPair, Rows
from prudent.coverage import CoveragePenalty
from prudent.datasets import Pairs
from prudent.estimators import FlowEstimator
from prudent.training import Options, balance, bce, nll, train, weighted_sum


class Table:
    """A posterior whose log ratio is read from a table: theta holds the row, x is the column."""

    def __init__(self, values):
        self.values = values

    def log_ratio(self, theta):
        rows = theta[..., 0].long()
        return self.values[rows, torch.arange(rows.shape[-1])]


@pytest.fixture
def table():
    torch.manual_seed(0)
    return Table(3 * torch.randn(6, 6, dtype=torch.float64))


THETA = torch.arange(6.0)[:, None]


def classifier(value):
    return 1 / (1 + math.exp(-value))


def test_bce_by_hand(table):
    joint = [classifier(float(table.values[i, i])) for i in range(6)]
    marginal = [classifier(float(table.values[i - 1, i])) for i in range(6)]
    expected = -sum(math.log(d) for d in joint) / 6 - sum(math.log(1 - d) for d in marginal) / 6
    assert float(bce(table, THETA)) == pytest.approx(expected)


def test_balance_by_hand(table):
    """Delaunoy et al. (2022): the square of mean d(joint) + mean d(marginal) - 1."""
    joint = [classifier(float(table.values[i, i])) for i in range(6)]
    marginal = [classifier(float(table.values[i - 1, i])) for i in range(6)]
    expected = (sum(joint) / 6 + sum(marginal) / 6 - 1) ** 2
    assert float(balance(table, THETA)) == pytest.approx(expected)


def test_no_marginal_pair_is_a_joint_pair(table):
    """A classifier that knows joint pairs exactly has no loss; a shuffle would give some."""
    table.values = torch.full((6, 6), -60.0) + 120 * torch.eye(6)
    assert float(bce(table, THETA)) < 1e-6


def test_nll_by_hand():
    posterior = Independent(Normal(torch.zeros(3, 2), torch.ones(3, 2)), 1)
    theta = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 2.0]])
    expected = math.log(2 * math.pi) + (0 + 1 + 5) / 2 / 3
    assert float(nll(posterior, theta)) == pytest.approx(expected, rel=1e-6)


def test_weighted_sum(table):
    objective = weighted_sum((2.0, bce), (100.0, balance))
    terms = {name: term.value for name, term in objective.evaluate(table, THETA).items()}
    assert set(terms) == {"bce", "balance"}
    expected = 2 * terms["bce"] + 100 * terms["balance"]
    torch.testing.assert_close(objective(table, THETA), expected)


def test_names_of_terms():
    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    assert repr(weighted_sum((1.0, nll), (5.0, CoveragePenalty(prior)))) == "1 nll + 5 coverage"


PRIOR = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)


def test_a_term_sees_the_posterior_itself():
    """With its length, its abilities and its name, also where terms share what they evaluate."""
    flow = FlowEstimator(PRIOR, 2, (2,), hidden=(4,))(torch.zeros(5, 2))
    seen = []

    def look(posterior, theta):
        assert posterior is flow
        assert isinstance(posterior, Rows)
        assert posterior.facts.noise
        seen.append((len(posterior), len(posterior.x)))
        return posterior.log_prob(theta).mean()

    weighted_sum((1.0, balance), (1.0, look))(flow, torch.zeros(5, 2))
    assert seen == [(5, 5)]


def test_a_term_that_leaves_steps_out_counts_more_in_the_others(table):
    factors = iter((3.0, 0.0))

    def rare(posterior, theta):
        return Evaluation(torch.tensor(2.0), factor=next(factors))

    objective = weighted_sum((1.0, bce), (0.5, rare))
    loss = float(bce(table, THETA))
    assert [float(objective(table, THETA)) - loss for _ in range(2)] == pytest.approx([3.0, 0.0])


class Counting(Table):
    def __init__(self, values):
        super().__init__(values)
        self.calls = []

    def log_ratio(self, theta):
        self.calls.append(tuple(theta.shape))
        return super().log_ratio(theta)

    def rows(self, index):
        return Counting(self.values[:, index])


def test_terms_share_their_log_ratios_where_they_ask_about_the_same_pairs(table):
    posterior = Counting(table.values)
    apart = [float(term(Counting(table.values), THETA)) for term in (bce, balance)]
    found = weighted_sum((1.0, bce), (1.0, balance)).evaluate(posterior, THETA)
    assert [float(term.value) for term in found.values()] == apart
    assert posterior.calls == [(2, 6, 1)]

    def half(posterior, theta):
        return bce(posterior.rows(slice(3)), theta[:3])

    expected = float(half(Counting(table.values), THETA))
    found = weighted_sum((1.0, bce), (1.0, half)).evaluate(Counting(table.values), THETA)
    assert float(found["half"].value) == expected != apart[0]


def test_a_term_that_fails_leaves_nothing_behind(table):
    def fail(posterior, theta):
        raise KeyError

    with pytest.raises(KeyError):
        weighted_sum((1.0, bce), (1.0, fail), pool=THETA[:1])(table, THETA)
    assert float(bce(table, THETA)) == float(bce(Table(table.values), THETA))


def test_a_new_term_reports_figures():
    """Scalars as means over the steps of training, numbers per pair over all validation pairs."""
    torch.manual_seed(0)
    estimator = FlowEstimator(PRIOR, 2, (2,), hidden=(4,))
    theta = PRIOR.sample((64,))
    pairs = Pairs.of(theta, theta + 0.1 * torch.randn(64, 2))

    def squeeze(posterior, theta):
        figures = {"batch": torch.tensor(float(len(theta))), "rows": PerPair(theta[:, 0], len_of)}
        return Evaluation(posterior.log_prob(theta).mean().square(), figures)

    def len_of(values):
        return torch.tensor(len(values))

    objective = weighted_sum((1.0, nll), (0.1, squeeze))
    options = Options(epochs=2, batch_size=16)
    train(estimator, objective, pairs[:48], pairs[48:], options=options, seed=0, progress=False)
    for row in estimator.history:
        assert (row["batch"], row["validation_rows"]) == (16, 16)
        assert row["squeeze"] > 0
        assert not {"rows", "validation_batch"} & set(row)


def test_terms_of_one_kind_are_all_kept():
    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    terms = [CoveragePenalty(prior, target=target) for target in ("conservative", "calibrated")]
    found = weighted_sum((1, nll), (5, terms[0]), (3, terms[1]))
    assert str(found) == "1 nll + 5 coverage + 3 coverage_2"
    assert found.objectives == {"nll": nll, "coverage": terms[0], "coverage_2": terms[1]}
    both = weighted_sum((1.0, lambda *_: torch.tensor(1.0)), (2.0, lambda *_: torch.tensor(10.0)))
    assert float(both(Table(torch.zeros(6, 6)), THETA)) == 21.0
