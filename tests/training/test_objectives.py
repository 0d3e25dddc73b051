"""Losses against their formulae, on fixed log ratios."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal

from prudent.coverage import CoveragePenalty
from prudent.training import balance, bce, nll, weighted_sum


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
    terms = objective.evaluate(table, THETA).values
    assert set(terms) == {"bce", "balance"}
    expected = 2 * terms["bce"] + 100 * terms["balance"]
    torch.testing.assert_close(objective(table, THETA), expected)


def test_names_of_terms():
    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    assert repr(weighted_sum((1.0, nll), (5.0, CoveragePenalty(prior)))) == "1 nll + 5 coverage"
