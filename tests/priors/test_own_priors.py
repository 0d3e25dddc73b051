"""Priors of others: what looks like a known one is judged by its own density, and not stored."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.distributions import (
    Categorical,
    Dirichlet,
    Distribution,
    Independent,
    MixtureSameFamily,
    Normal,
    Uniform,
)

from prudent import priors
from prudent._randomness import seeded
from prudent.coverage import Even
from prudent.coverage.proposals import even_if_possible
from prudent.errors import InputError
from prudent.priors import density
from prudent.priors.checks import joined, to_spec
from prudent.priors.density import log_density, support_of
from prudent.priors.given import as_prior
from prudent.priors.support import leaks

ZERO, ONE = torch.zeros(2), torch.ones(2)


class Ordered(Distribution):
    """Two normals with a < b, kept under a name that sbi and we use for something else."""

    arg_constraints = {}  # noqa: RUF012

    def __init__(self, name):
        self.normal = Independent(Normal(ZERO, ONE), 1)
        parts = [Normal(ZERO[:1], ONE[:1]), Normal(ZERO[:1], ONE[:1])]
        setattr(self, name, self.normal if name == "prior" else parts)
        super().__init__(event_shape=torch.Size([2]), validate_args=False)

    def sample(self, sample_shape=()):
        return self.normal.sample(sample_shape).sort(dim=-1).values

    def log_prob(self, theta):
        value = self.normal.log_prob(theta) + np.log(2)
        return value.masked_fill(theta[..., 0] >= theta[..., 1], -torch.inf)


@pytest.mark.parametrize("name", ["dists", "factors", "prior"])
def test_a_prior_that_has_others_in_it_keeps_its_own_density(name):
    prior = as_prior(Ordered(name)).prior
    theta = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert log_density(prior, theta).isfinite().tolist() == [False, True]
    assert leaks(prior, 2)
    assert to_spec(prior) is None
    assert to_spec(as_prior([prior]).prior) is None
    # Of our own wrapper it is that of what it holds.
    assert to_spec(priors.families.RowPrior(Independent(Normal(ZERO, ONE), 1), 2)) is not None


class Half(Independent):
    """A half-normal, made of a normal."""

    def sample(self, sample_shape=()):
        return super().sample(sample_shape).abs()

    def log_prob(self, value):
        inside = (value >= 0).all(dim=-1)
        return (super().log_prob(value) + 2 * np.log(2)).masked_fill(~inside, -torch.inf)


class Triangle(Uniform):
    """A number with a density of its own, whose quantiles are still those of torch's."""

    def sample(self, sample_shape=()):
        return super().sample(sample_shape).sqrt()

    def log_prob(self, value):
        return super().log_prob(value) + (2 * value).log()


Own = type("Uniform", (Triangle,), {})


@pytest.mark.parametrize(
    "prior", [Half(Normal(ZERO, ONE), 1), Independent(Own(ZERO, ONE, validate_args=False), 1)]
)
def test_a_subclass_is_not_what_it_was_made_of(prior):
    with pytest.raises(InputError, match="quantiles"):
        Even(prior)
    assert even_if_possible(prior) is prior
    assert to_spec(prior) is None
    assert support_of(prior, 2).low.tolist() == [0, 0]
    assert even_if_possible(Independent(Normal(ZERO, ONE), 1)) is not prior


def test_families_of_others_are_not_joined_as_those_of_torch():
    own = Own(torch.tensor(0.0), torch.tensor(1.0), validate_args=False)
    prior = joined([own, own])
    theta = torch.tensor([[0.25, 0.5]])
    assert float(log_density(prior, theta)) == pytest.approx(np.log(0.5), abs=1e-5)
    assert to_spec(prior) is None


def boxes(low, high, weights):
    parts = Independent(Uniform(torch.tensor(low), torch.tensor(high), validate_args=False), 1)
    return MixtureSameFamily(Categorical(torch.tensor(weights)), parts, validate_args=False)


def test_a_rare_box_of_a_mixture_belongs_to_it():
    prior = boxes([[0.0, 0.0], [5.0, 5.0]], [[1.0, 1.0], [6.0, 6.0]], [0.9995, 0.0005])
    region = support_of(prior, 2)
    assert (region.low.tolist(), region.high.tolist()) == ([0, 0], [6, 6])
    assert not region.filled
    with seeded(0):
        assert log_density(prior, prior.sample((20_000,))).isfinite().all()
    # Those that reach the same ends fill them; two that reach them together leave corners.
    assert not leaks(boxes([[0.0, 0.0]] * 2, [[1.0, 6.0]] * 2, [0.5, 0.5]), 2)
    assert leaks(boxes([[0.0, 0.0], [0.0, 0.0]], [[1.0, 6.0], [6.0, 1.0]], [0.5, 0.5]), 2)


class Drawn(Distribution):
    """A prior of which nothing is known but draws and densities."""

    arg_constraints = {}  # noqa: RUF012

    def __init__(self, sample, log_prob):
        self.draw, self.density, self.asked = sample, log_prob, []
        super().__init__(event_shape=torch.Size([2]), validate_args=False)

    def sample(self, sample_shape=()):
        self.asked.append(tuple(sample_shape))
        return self.draw(torch.Size(sample_shape))

    def log_prob(self, theta):
        return self.density(theta)


def test_draws_beyond_the_ends_that_were_found_are_seen():
    prior = boxes([[0.0, 0.0], [5.0, 5.0]], [[1.0, 1.0], [6.0, 6.0]], [0.9995, 0.0005])
    unknown = Drawn(prior.sample, prior.log_prob)
    assert leaks(unknown, 2)
    with seeded(0):
        assert log_density(unknown, unknown.sample((20_000,))).isfinite().all()


def test_what_trial_draws_do_not_show_is_cut_away_all_the_same():
    def log_prob(theta):
        inside = ((theta >= 0) & (theta <= 1)).all(dim=-1) & (theta.sum(dim=-1) > 0.02)
        return torch.where(inside, 0.0, -torch.inf)

    def sample(shape):
        return torch.rand(*shape, 2).clamp(min=0.011)

    prior = Drawn(sample, log_prob)
    assert support_of(prior, 2).filled  # as the trial draws say
    assert leaks(prior, 2)


def test_looking_at_a_prior_leaves_all_streams_where_they_were():
    def sample(shape):
        return torch.as_tensor(np.random.rand(*shape, 2), dtype=torch.float32)

    prior = Drawn(sample, lambda theta: torch.where((theta > 0).all(dim=-1), 0.0, -torch.inf))
    before, torch_before = np.random.get_state()[1:3], torch.random.get_rng_state()
    support_of(prior, 2)
    density.trial_draws(prior, "prior")
    after = np.random.get_state()[1:3]
    assert np.array_equal(before[0], after[0])
    assert before[1] == after[1]
    assert torch.equal(torch.random.get_rng_state(), torch_before)


def test_a_search_leaves_the_generators_of_other_devices(monkeypatch):
    def refused(seed):
        raise AssertionError("torch.manual_seed seeds all devices")

    prior = Drawn(Independent(Normal(ZERO, ONE), 1).sample, lambda theta: -theta.norm(dim=-1))
    monkeypatch.setattr(torch, "manual_seed", refused)
    assert support_of(prior, 2).filled


@dataclass
class Unhashable:
    inner: Any

    def sample(self, sample_shape=()):
        return self.inner.sample(sample_shape)

    def log_prob(self, theta):
        return self.inner.log_prob(theta)


class Tuple(NamedTuple):
    inner: Any
    sample = Unhashable.sample
    log_prob = Unhashable.log_prob


@pytest.mark.parametrize("kind", [Unhashable, Tuple])
def test_the_region_of_any_object_is_found_once(kind):
    normal = Independent(Normal(ZERO, ONE), 1)
    inner = Drawn(normal.sample, normal.log_prob)
    prior = as_prior(kind(inner)).prior
    first = support_of(prior, 2)
    number = len(inner.asked)
    assert support_of(prior, 2) is first
    log_density(prior, ZERO[None])
    assert len(inner.asked) == number


def test_shares_beside_other_parameters_are_refused():
    with pytest.raises(InputError, match="shares of a whole cannot stand beside"):
        priors.independent(Uniform(0.0, 1.0), shape=Dirichlet(torch.ones(3)))
    assert priors.independent(shape=Dirichlet(torch.ones(3))).parameter_names[2] == "shape_3"


def test_names_that_are_the_same_are_refused():
    with pytest.raises(InputError, match="names that differ, got theta_1 theta_1"):
        priors.independent(Normal(0.0, 1.0), theta_1=Normal(0.0, 1.0))


def test_what_cannot_be_cut_is_told():
    stats = pytest.importorskip("scipy.stats")
    mixture = MixtureSameFamily(Categorical(ONE), Normal(ZERO, ONE))
    for base in (Normal(ZERO, ONE), stats.norm(), mixture, Independent(Normal(ZERO, ONE), 1), 7):
        with pytest.raises(InputError, match=f"{type(base).__name__} cannot be cut"):
            priors.truncated(base, low=0.0)


def test_families_of_scipy_are_known_by_more_than_a_name():
    stats = pytest.importorskip("scipy.stats")

    class Ramp(stats.rv_continuous):
        def _pdf(self, x):
            return 2 * x

    others = [
        Ramp(a=0, b=1, name="norm")(),
        Ramp(a=0, b=1)(),
        type(stats.expon)(a=1, b=3, name="expon")(),
        stats.rv_histogram(np.histogram([1.0, 2.0, 3.0]))(),
    ]
    for frozen in others:
        with pytest.raises(InputError, match="own families"):
            as_prior([frozen])
    assert as_prior([stats.expon(), stats.loguniform(1, 2)]).prior.event_shape == (2,)


def test_scipy_priors_have_the_digits_that_they_need():
    stats = pytest.importorskip("scipy.stats")
    narrow = stats.multivariate_normal([1e6, 0.0], np.diag([1e-6, 1.0]))
    shares = stats.dirichlet([1e9, 1e9])
    for frozen in (narrow, shares, [stats.uniform(0, 1e-46)], [stats.norm(0, 1e40)]):
        prior = as_prior(frozen).prior
        with seeded(0):
            draws = prior.sample((100,))
        assert draws.dtype == torch.float64
        assert len(draws[:, 0].unique()) == 100
    wide = [stats.multivariate_normal([0, 1]), stats.dirichlet([1, 2]), [stats.uniform(0, 1)]]
    for frozen in wide:
        assert as_prior(frozen).prior.sample((2,)).dtype == torch.float32
    flat = stats.multivariate_normal([0, 0], [[1, 1], [1, 1]], allow_singular=True)
    with pytest.raises(InputError, match="positive definite"):
        as_prior(flat)


def test_draws_of_scipy_do_not_lie_on_an_end():
    stats = pytest.importorskip("scipy.stats")
    prior = as_prior([stats.gamma(0.02), stats.beta(0.05, 0.05)]).prior
    with seeded(0):
        draws = prior.sample((5000,))
    assert draws.dtype == torch.float32
    assert bool((draws > 0).all())
    assert bool((draws[:, 1] < 1).all())
    assert log_density(prior, draws).isfinite().all()
