"""Every option does what it says, and refuses what it cannot do."""

import pytest
import torch
from torch.distributions import Beta, Independent, Normal, StudentT, Uniform

import prudent
from prudent import fit
from prudent.coverage import CoveragePenalty, Sometimes, penalty
from prudent.errors import InputError
from prudent.priors.checks import support_box
from prudent.training import Options, methods
from prudent.training.options import PRESETS

PROBLEM = prudent.problems.get("gaussian")
MOONS = prudent.problems.get("two_moons")
THETA, X = PROBLEM.draw(160, 0)
SMALL = {"hidden": [8], "epochs": 2, "batch_size": 32, "progress": False}
WIDE = Independent(StudentT(5 * torch.ones(2), torch.zeros(2), 2 * torch.ones(2)), 1)
NARROW = Independent(Uniform(-torch.ones(2), torch.ones(2)), 1)


@pytest.mark.parametrize(
    "options",
    [
        {"proposal": "model"},
        {"proposal": "model-rsample"},
        {"proposal": WIDE},
        {"target": "calibrated"},
        {"target": 0.3},
        {"indicator": "density"},
        {"computation": "direct"},
        {"levels": "mean"},
        {"distance": "absolute"},
        {"distance": "supremum"},
        {"fraction": 0.5},
        {"num_samples": 1},
        {"weight": 0.0},
        {"clip_norm": 0.1},
    ],
    ids=lambda value: "-".join(str(v)[:12] for v in value.values()),
)
def test_every_option_changes_the_result(options):
    plain = fit(THETA, X, PROBLEM.prior, method="calnpe", **SMALL)
    other = fit(THETA, X, PROBLEM.prior, method="calnpe", **SMALL, **options)
    states = plain.state_dict(), other.state_dict()
    assert any(not torch.equal(states[0][name], states[1][name]) for name in states[0])
    name, value = next(iter(options.items()))
    recorded = other.info["options"][name]
    assert recorded == value if value is not WIDE else recorded["class"] == "Independent"


@pytest.mark.parametrize("method", methods.names())
def test_a_box_proposal_on_a_box_prior_is_the_prior(method):
    theta, x = MOONS.draw(160, 0)
    options = {"method": method, **SMALL}
    prior = fit(theta, x, MOONS.prior, proposal="prior", **options)
    boxed = fit(theta, x, MOONS.prior, proposal="box", **options)
    assert all(torch.equal(v, boxed.state_dict()[k]) for k, v in prior.state_dict().items())


def test_the_box_of_a_bounded_prior():
    prior = Independent(Beta(2 * torch.ones(3), 5 * torch.ones(3)), 1)
    box = support_box(prior)
    assert torch.equal(box.base_dist.low, torch.zeros(3))
    assert torch.equal(box.base_dist.high, torch.ones(3))
    low = torch.tensor([-1.0, 2.0])
    box = support_box(Independent(Uniform(low, low + 1), 1))
    assert torch.equal(box.base_dist.low, low)


class NoDensity:
    def sample(self, shape=()):
        return torch.zeros(*shape, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"proposal": "pryor"}, "Did you mean `prior`"),
        ({"proposal": "box"}, "needs a prior with bounds"),
        ({"proposal": NARROW}, "no density at"),
        ({"proposal": NoDensity()}, "the proposal (NoDensity) has no `log_prob`"),
        ({"proposal": Normal(torch.zeros(2), torch.ones(2))}, "expected a proposal over D"),
        (
            {"proposal": Independent(Normal(torch.zeros(3), torch.ones(3)), 1)},
            "draws 3 parameters, the prior 2",
        ),
        ({"method": "calnre", "proposal": "model"}, "a ratio cannot draw from itself"),
        ({"method": "calnre", "transforms": 2}, "calnre has no flow"),
        ({"transforms": 0}, "`transforms` is 0"),
        ({"distance": "square"}, "Did you mean `squared`"),
        ({"batch_size": 1000}, "only 128 pairs"),
        ({"preset": "papr"}, "Did you mean `paper`"),
        ({"device": "cuda:99"}, "available: cpu"),
        ({"device": "abacus"}, "available: cpu"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_mistakes_are_named_in_one_line(change, message):
    arguments = {"method": "calnpe", **SMALL, **change}
    with pytest.raises(InputError) as raised:
        fit(THETA, X, PROBLEM.prior, **arguments)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_paper_in_one_word():
    """Every option that the paper speaks of is set, whatever our defaults become."""
    objective = methods.get("calnre").objective(MOONS.prior, Options.of("paper"))
    sometimes, theirs = objective.objectives["coverage"], CoveragePenalty.paper(MOONS.prior)
    ours = sometimes.term
    assert sometimes.fraction == 1
    assert ours.penalty.keywords == theirs.penalty.keywords
    assert ours.alpha.keywords == theirs.alpha.keywords
    assert ours.proposal.source == theirs.proposal.source
    fields = "num_samples target indicator".split()
    for name in fields:
        assert getattr(ours, name) == getattr(theirs, name), name
    ours_alone = {"members", "ensemble", "validation_fraction"}
    ours_alone |= {"repetitions", "pool", "recalibrate"}
    assert set(PRESETS["paper"]) == set(Options().to_dict()) - ours_alone
    assert Options.of("paper", epochs=3).epochs == 3
    estimator = fit(THETA, X, PROBLEM.prior, method="calnpe", preset="paper", **SMALL)
    assert estimator.info["options"]["indicator"] == "density"


def test_distances_by_hand():
    values = torch.tensor([0.1, 0.2, 0.9, 0.6], dtype=torch.float64)
    excess = torch.tensor([0.25 - 0.1, 0.5 - 0.2, 0.75 - 0.6, 1.0 - 0.9]).double()
    assert (excess > 0).all()
    higher = values.clone()
    higher[0] = 0.45
    shifted = torch.tensor([0.25 - 0.2, 0.5 - 0.45, 0.75 - 0.6, 1.0 - 0.9]).double()
    both = {"distance": "absolute", "target": "calibrated"}
    assert float(penalty(values, distance="absolute")) == pytest.approx(float(excess.mean()))
    assert float(penalty(values, distance="supremum")) == pytest.approx(float(excess.max()))
    assert float(penalty(higher, **both)) == pytest.approx(float(shifted.mean()))
    low = torch.tensor([0.5, 1.0])  # e = 0 and 0: nothing to punish
    assert float(penalty(low, distance="supremum", target="calibrated")) == 0
    wide = torch.tensor([0.9, 1.0])  # e = -0.4 and 0
    assert float(penalty(wide, distance="supremum")) == 0
    assert float(penalty(wide, distance="supremum", target="calibrated")) == pytest.approx(0.4)
    assert penalty(torch.tensor([0.5, torch.nan]), distance="supremum").isnan()


def test_the_loss_is_the_weighted_sum_of_its_terms():
    options = {**SMALL, "epochs": 3, "fraction": 1.0}
    estimator = fit(THETA, X, PROBLEM.prior, method="calnpe", **options)
    for row in estimator.history:
        assert row["loss"] == pytest.approx(row["nll"] + 5 * row["coverage"], rel=1e-5)
        total = row["validation_nll"] + 5 * row["validation_coverage"]
        assert row["validation_loss"] == pytest.approx(total, rel=1e-5)


def test_a_warm_up_is_refused():
    with pytest.raises(InputError, match="warmup_epochs"):
        Options(warmup_epochs=10)


class Counting:
    """A posterior that notes how many pairs it was asked about."""

    def __init__(self, x, seen):
        self.x, self.seen = x, seen

    def log_prob(self, theta):
        self.seen.append(theta.shape[1])
        return -((theta - self.x) ** 2).sum(-1)

    def rows(self, index):
        return Counting(self.x[index], self.seen)


@pytest.mark.parametrize(
    ("fraction", "looked"),
    [(1.0, [0, 1, 2, 3, 4, 5]), (0.5, [0, 2, 4]), (1 / 3, [0, 3]), (0.4, [0, 3, 5]), (0.1, [0])],
)
def test_a_fraction_of_the_calls_in_training_and_all_of_them_in_evaluation(fraction, looked):
    term = Sometimes(CoveragePenalty(PROBLEM.prior, num_samples=4), fraction)
    whole = CoveragePenalty(PROBLEM.prior, num_samples=4)
    seen = []
    posterior = Counting(X[:40], seen)
    for call in range(6):
        torch.manual_seed(call)
        expected = whole(posterior, THETA[:40]) / fraction if call in looked else 0.0
        seen.clear()
        torch.manual_seed(call)
        assert term(posterior, THETA[:40]).item() == pytest.approx(float(expected))
        assert bool(seen) == (call in looked)
    term.eval()
    for _ in range(2):
        torch.manual_seed(0)
        found = term(posterior, THETA[:40])
        torch.manual_seed(0)
        assert found == whole.eval()(posterior, THETA[:40]) > 0


def test_long_runs_look_at_the_share_that_was_asked_for():
    for fraction in (0.3, 0.7, 1 / 7, 0.123):
        term = Sometimes(CoveragePenalty(PROBLEM.prior), fraction)
        assert sum(term._due() for _ in range(2000)) == pytest.approx(2000 * fraction, abs=1)


def test_a_call_that_is_left_out_can_be_trained_on_and_is_not_in_the_history():
    term = Sometimes(CoveragePenalty(PROBLEM.prior, num_samples=4), 0.25)
    posterior = Independent(Normal(X[:40], torch.ones(40, 2)), 1)
    first, second = (term.evaluate(posterior, THETA[:40]) for _ in range(2))
    assert (first.factor, second.factor) == (4, 0)
    assert first.figures
    assert not second.figures
    term(posterior, THETA[:40]).backward()
    options = {"epochs": 4, "batch_size": 64, "hidden": [8], "progress": False}
    found = prudent.fit(
        THETA[:80], X[:80], PROBLEM.prior, method="calnre", fraction=0.25, **options
    )
    # One step an epoch.
    assert [row["coverage"] is None for row in found.history] == [False, True, True, True]
    assert all(row["validation_coverage"] is not None for row in found.history)


def test_effective_draws_of_the_penalty_by_hand():
    torch.manual_seed(0)
    posterior = Independent(Normal(0.8 * X[:9], torch.full((9, 2), 0.4)), 1)
    term = CoveragePenalty(PROBLEM.prior, num_samples=32)
    torch.manual_seed(1)
    term(posterior, THETA[:9])
    torch.manual_seed(1)
    draws = PROBLEM.prior.sample((32, 9))
    weight = (posterior.log_prob(draws) - PROBLEM.prior.log_prob(draws)).double().exp()
    expected = (weight.sum(0) ** 2 / (weight**2).sum(0)).mean()
    assert float(term.seen.figures()["effective_samples"]) == pytest.approx(
        float(expected), rel=1e-4
    )
    rsample = CoveragePenalty("model-rsample", num_samples=32)
    rsample(posterior, THETA[:9])
    assert float(rsample.seen.figures()["effective_samples"]) == pytest.approx(32)


def test_early_stopping_stops_and_keeps_the_best():
    options = {**SMALL, "epochs": 200, "learning_rate": 0.05, "patience": 5}
    estimator = fit(THETA, X, PROBLEM.prior, method="npe", **options)
    losses = estimator.history.column("validation_loss")
    best = losses.index(min(losses)) + 1
    assert len(losses) == best + 5 < 200


def test_reparametrised_draws_push_in_the_same_direction():
    """Both gradients of the model's own draws widen a posterior that is too narrow."""
    torch.manual_seed(0)
    theta, x = PROBLEM.draw(512, 0)
    for proposal in ("model", "model-rsample"):
        width = torch.tensor(-1.5, requires_grad=True)
        posterior = Independent(Normal(0.8 * x, width.exp().expand(512, 2)), 1)
        value = CoveragePenalty(proposal, num_samples=64)(posterior, theta)
        value.backward()
        assert width.grad < 0, proposal


def test_a_method_may_be_written_as_in_figures():
    pretty, plain = (
        fit(THETA, X, PROBLEM.prior, method=name, **SMALL) for name in ("CalNPE", "calnpe")
    )
    assert pretty.info == plain.info
    state = plain.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in pretty.state_dict().items())
