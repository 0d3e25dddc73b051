"""Posteriors and trained estimators of sbi, and the penalty in its trainers."""

from unittest.mock import Mock

import pytest
import torch
from peers import BOX, NORMAL, check_alpha, check_gradients, pairs, peer
from torch.distributions import ExpTransform, Normal, TransformedDistribution, Uniform

import prudent
from prudent.diagnostics import parameters, posterior_ranks
from prudent.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")  # those of sbi and what it imports
# Without a tracker of ours it would leave its logs in the working directory.
QUIET = {"tracker": Mock(), "show_progress_bars": False}


def trained(kind, prior=BOX, noise=0.4, number=300, epochs=3, rate=5e-4, **options):
    """A trainer of sbi that has seen some pairs."""
    inference = peer("sbi.inference")
    torch.manual_seed(0)
    trainer = getattr(inference, kind)(prior, **QUIET, **options)
    trainer.append_simulations(*pairs(prior, number, 0, noise))
    trainer.train(max_num_epochs=epochs, learning_rate=rate)
    return trainer


def small(model):
    nets = peer("sbi.neural_nets")
    return nets.posterior_nn(model, hidden_features=8, num_transforms=2)


@pytest.mark.parametrize("model", ["maf", "nsf", "zuko_nsf", "mdn"])
def test_flows(model):
    peer("sbi")
    builder = "mdn" if model == "mdn" else small(model)
    trainer = trained("NPE", density_estimator=builder)
    estimator = trainer._neural_net
    check_gradients(estimator, BOX)

    def log_prob(theta, x):
        return estimator.log_prob(theta[None], x)[0]

    check_alpha(estimator, BOX, log_prob, normalized=True)
    posterior = trainer.build_posterior()
    adapted = prudent.adapt(posterior)
    assert adapted.prior is not None
    theta, x = pairs(BOX, 5, 2)
    with torch.no_grad():
        ours = adapted(x).log_prob(theta)
    theirs = posterior.log_prob_batched(theta[None], x)[0]
    # Both find the mass inside the prior by draws, sbi by 10,000 of them.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.08)
    assert float(adapted(x).sample(500, seed=0).abs().max()) <= 1


@pytest.mark.parametrize("way", ["mcmc", "rejection", "estimator"])
def test_ratios(way):
    trainer = trained("NRE")
    classifier = trainer._neural_net
    model = classifier if way == "estimator" else trainer.build_posterior(sample_with=way)
    check_gradients(model, BOX)
    check_alpha(model, BOX, lambda theta, x: classifier(theta, x), normalized=False)


def test_likelihoods():
    trainer = trained("NLE")
    posterior = trainer.build_posterior()

    def log_ratio(theta, x):
        return trainer._neural_net.log_prob(x[None], condition=theta)[0]

    check_alpha(posterior, BOX, log_ratio, normalized=False)


def test_vector_fields_draw():
    adapted = prudent.adapt(trained("FMPE").build_posterior())
    assert "draws alone" in adapted.abilities
    theta, x = pairs(BOX, 30, 1)
    found = prudent.diagnose(adapted, theta, x, progress=False)
    assert found.computed_by == "draws"


def test_ensembles_are_the_mixture_that_sbi_hands_out():
    inference = peer("sbi.inference")
    members = [trained("NPE", density_estimator=small("maf"), epochs=e) for e in (1, 4)]
    ensemble = inference.EnsemblePosterior([one.build_posterior() for one in members])
    adapted = prudent.adapt(ensemble)
    theta, x = pairs(BOX, 4, 2)
    with torch.no_grad():
        ours = adapted(x).log_prob(theta)
    theirs = [ensemble.log_prob(theta[i : i + 1], x=x[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(ours, torch.cat(theirs), rtol=0, atol=0.08)
    assert adapted(x).sample(20, seed=0).shape == (20, 4, 2)
    ratios = inference.EnsemblePosterior([trained("NRE").build_posterior()] * 2)
    assert not prudent.adapt(ratios).normalized


def test_what_to_pass_instead():
    trainer = trained("FMPE")
    for model in (trainer, trainer._neural_net):
        with pytest.raises(InputError, match="build_posterior"):
            prudent.adapt(model, BOX)


def test_ranks_are_those_of_sbi(monkeypatch):
    diagnostics = peer("sbi.diagnostics")
    posterior = trained("NPE", NORMAL, density_estimator=small("maf")).build_posterior()
    theta, x = pairs(NORMAL, 150, 1)
    draws = prudent.adapt(posterior)(x).sample(120, seed=0)
    monkeypatch.setattr(posterior, "sample_batched", lambda *a, **k: draws)
    theirs, _ = diagnostics.run_sbc(theta, x, posterior, 120, show_progress_bar=False)
    ours = posterior_ranks(draws, theta, x, parameters(2), progress=False)
    assert torch.equal(ours.ranks.T.double(), theirs.double())


@pytest.mark.parametrize(("noise", "kind"), [(0.4, "honest"), (0.2, "over-confident")])
def test_a_posterior_that_is_too_sure_is_called_so(noise, kind):
    """The second flow believes in half of the noise, so that its posteriors are half as wide."""
    flow = {"density_estimator": small("maf"), "epochs": 20, "rate": 1e-2}
    trainer = trained("NPE", NORMAL, noise, number=2000, **flow)
    found = prudent.diagnose(
        prudent.adapt(trainer.build_posterior()), *pairs(NORMAL, 1000, 1), progress=False
    )
    assert (found.verdict.kind == "over-confident") is (kind == "over-confident")


@pytest.mark.parametrize("kind", ["CalNPE", "CalNRE"])
def test_the_penalty_in_the_trainers_of_sbi(kind):
    peer("sbi")
    from prudent.adapters import sbi as ours

    torch.manual_seed(0)
    trainer = getattr(ours, kind)(BOX, weight=7.0, num_samples=8, **QUIET)
    estimator = trainer.append_simulations(*pairs(BOX, 300, 0)).train(max_num_epochs=2)
    assert prudent.adapt(estimator, BOX).normalized is (kind == "CalNPE")
    seen = {}

    def spied(posterior, theta):
        seen["value"] = penalty(posterior, theta)
        return seen["value"]

    penalty = trainer.penalty
    trainer.penalty = Mock(side_effect=spied)
    batch = [*pairs(BOX, 64, 1), torch.ones(64, 1)]
    base = type(trainer).__mro__[2]
    losses = []
    for one in (type(trainer), base):
        torch.manual_seed(1)
        losses.append(one._get_losses(trainer, batch, _loss_args(kind)))
    difference = losses[0] - losses[1]
    torch.testing.assert_close(difference, torch.full_like(difference, 7 * float(seen["value"])))
    losses[0].mean().backward()
    assert all(weight.grad is not None for weight in estimator.parameters())


def _loss_args(kind):
    from sbi.inference.trainers import _contracts as contracts

    if kind == "CalNRE":
        return contracts.LossArgsNRE(num_atoms=2)
    kernel = {"calibration_kernel": lambda x: torch.ones(len(x))}
    return contracts.LossArgsNPE(proposal=None, force_first_round_loss=True, **kernel)


def test_the_penalty_is_for_pairs_from_the_prior():
    peer("sbi")
    from prudent.adapters.sbi import CalNPE

    with pytest.raises(InputError, match="needs the prior"):
        CalNPE(None)
    trainer = CalNPE(BOX, **QUIET)
    trainer.append_simulations(*pairs(BOX, 100, 0)).train(max_num_epochs=1)
    trainer._round = 1
    with pytest.raises(InputError, match="later round"):
        trainer._get_losses([*pairs(BOX, 8, 1), torch.ones(8, 1)], _loss_args("CalNPE"))


def mixed_prior():
    """A log-uniform, a normal and a uniform parameter, as sbi joins them."""
    one = torch.ones(1)
    base = Uniform(-2.3 * one, 2.3 * one)
    rate = TransformedDistribution(base, [ExpTransform()])
    parts = [rate, Normal(0 * one, one), Uniform(0 * one, one)]
    return peer("sbi.utils").MultipleIndependent(parts)


def test_nothing_is_drawn_outside_a_joined_prior(tmp_path):
    """Draws left the log-uniform part, whose support torch calls positive: 3.5 % of all."""
    prior = mixed_prior()
    torch.manual_seed(0)
    theta = prior.sample((300,))
    x = theta + 0.3 * torch.randn(300, 3)
    ours = prudent.fit(theta, x, prior, method="npe", epochs=3, hidden=[16], progress=False)
    ours.save(tmp_path / "model")
    foreign = peer("sbi.inference").NPE(prior, **QUIET, density_estimator="maf")
    foreign.append_simulations(theta, x).train(max_num_epochs=3)
    adapted = prudent.adapt(foreign.build_posterior())
    for estimator in (ours, prudent.load(tmp_path / "model"), adapted):
        draws = estimator(x[:20]).sample((200,), seed=0)
        assert float(draws[..., 0].min()) >= 0.1
        assert float(draws[..., 0].max()) <= 10
        assert bool(((draws[..., 2] >= 0) & (draws[..., 2] <= 1)).all())
        outside = torch.tensor([[0.05, 0.0, 0.5], [1.0, 0.0, 1.5]])
        assert bool(estimator(x[:2]).log_prob(outside).isneginf().all())
    assert float(adapted(x[:20]).unnormalized().sample((200,))[..., 0].min()) < 0.1
