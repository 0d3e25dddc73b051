"""Models of sbi: posteriors, trained estimators, and its trainers with the coverage penalty."""

from collections.abc import Sequence
from typing import Any

import torch
from sbi.inference import NPE, NRE
from torch import Tensor

from prudent.adapters import nflows, zuko
from prudent.adapters.estimator import Adapted
from prudent.adapters.model import Model, rows_for
from prudent.coverage import CoveragePenalty, Nominal
from prudent.errors import InputError
from prudent.priors.checks import check_prior, of_any_shape

NO_FLOW = "Its density takes an integration for each point; train a flow by NPE to have one."


def posterior_of(posterior: Any, prior: Any = None) -> Model:
    """What an sbi posterior can do: a flow, or prior times ratio or likelihood, or draws alone.

    Args:
        posterior: A ``DirectPosterior``, an ``MCMCPosterior``, ``RejectionPosterior`` or
            ``ImportanceSamplingPosterior``, a ``VectorFieldPosterior`` or an
            ``EnsemblePosterior``. Chains and rejection only draw; the density that they draw from
            is what is adapted.
        prior: The prior, if not that of the posterior.
    """
    if hasattr(posterior, "posteriors"):
        members = [posterior_of(one, prior) for one in posterior.posteriors]
        return _ensemble_of(members, posterior.weights, prior or posterior.prior)
    potential = posterior.potential_fn
    facts = {"prior": prior or potential.prior}
    if hasattr(posterior, "q"):
        raise InputError(
            "a VIPosterior is fitted to one observation, and coverage is about many; pass the "
            "posterior of another `sample_with`."
        )
    if (flow := getattr(potential, "posterior_estimator", None)) is not None:
        return density_of(flow, **facts)
    if (ratio := getattr(potential, "ratio_estimator", None)) is not None:
        return ratio_of(ratio, **facts)
    if (likelihood := getattr(potential, "likelihood_estimator", None)) is not None:
        return _likelihood_of(likelihood, **facts)
    return _drawing(posterior, **facts)


def _ensemble_of(members: Sequence[Model], weights: Tensor, prior: Any) -> Model:
    """The weighted average of posteriors, each cut to the prior's support, or of ratios."""
    kinds = {(model.is_ratio, model.has_density) for model in members}
    if len(kinds) != 1 or not members[0].has_density:
        raise InputError(
            "expected an ensemble of flows or one of ratios; this one is mixed or has no density."
        )
    return Model(
        "ensemble of sbi",
        networks=[network for model in members for network in model.networks],
        prior=prior,
        x_shape=members[0].x_shape,
        members=members,
        weights=weights,
    )


def density_of(estimator: Any, **facts: Any) -> Model:
    """What a trained density estimator of the posterior can do.

    Args:
        estimator: The estimator that ``NPE(...).train()`` returns.
        **facts: Further arguments of :class:`Model`.
    """
    kind = type(estimator).__name__
    facts = {"x_shape": tuple(estimator.condition_shape), **facts}
    # sbi's own `sample_and_log_prob` of several observations mixes them up for nflows, in 0.27.
    if kind == "NFlowsFlow":
        return nflows.model_of(estimator.net, name="flow of sbi", **facts)
    if kind == "ZukoFlow":
        return zuko.model_of(estimator.net, estimator.embedding_net, "flow of sbi", **facts)

    def log_prob(theta: Tensor, x: Tensor) -> Tensor:
        value: Tensor = estimator.log_prob(theta, x)
        return value

    def sample(number: int, x: Tensor) -> Tensor:
        draws: Tensor = estimator.sample(torch.Size((number,)), x)
        return draws

    return Model(f"{kind} of sbi", log_prob, sample=sample, networks=[estimator], **facts)


def ratio_of(classifier: Any, **facts: Any) -> Model:
    """What a trained classifier can do.

    Args:
        classifier: The classifier that ``NRE(...).train()`` returns.
        **facts: Further arguments of :class:`Model`.
    """
    x_shape = tuple(classifier.x_shape)

    def log_ratio(theta: Tensor, features: Tensor) -> Tensor:
        parts = classifier.embedding_net_theta(theta.flatten(0, 1)), rows_for(features, len(theta))
        value: Tensor = classifier.net(torch.cat(parts, dim=-1))
        return value.reshape(theta.shape[:-1])

    return Model(
        "ratio of sbi",
        log_ratio=log_ratio,
        embed=classifier.embedding_net_x,
        networks=[classifier],
        **{"x_shape": x_shape, **facts},
    )


def _likelihood_of(estimator: Any, **facts: Any) -> Model:
    """What a density estimator of the likelihood can do: a ratio to the evidence, but for that."""

    def log_ratio(theta: Tensor, x: Tensor) -> Tensor:
        rows = rows_for(x, len(theta)).unsqueeze(0)
        value: Tensor = estimator.log_prob(rows, condition=theta.flatten(0, 1))
        return value.reshape(theta.shape[:-1])

    facts = {"x_shape": tuple(estimator.input_shape), **facts}
    return Model("likelihood of sbi", log_ratio=log_ratio, networks=[estimator], **facts)


def _drawing(posterior: Any, **facts: Any) -> Model:
    """What a posterior can do of which nothing is known but that it draws for many at once."""

    def sample(number: int, x: Tensor) -> Tensor:
        shape, quiet = torch.Size((number,)), {"show_progress_bars": False}
        size = max(1, 100_000 // len(x))
        draws: Tensor = posterior.sample_batched(shape, x, max_sampling_batch_size=size, **quiet)
        return draws

    network = getattr(posterior, "vector_field_estimator", None)
    if network is not None:
        facts = {"x_shape": tuple(network.condition_shape), "networks": [network], **facts}
    name = f"{type(posterior).__name__} of sbi"
    return Model(name, sample=sample, inside=True, remedy=NO_FLOW, **facts)


class Penalized:
    """A trainer of sbi whose loss has the coverage penalty; a mixin before the trainer.

    The draws of the penalty come from the flow itself, or for ratios from around the nominal
    parameters (:class:`prudent.coverage.Nominal`).

    Args:
        prior: The prior, which must be given.
        *arguments: Further arguments of the trainer.
        weight: The weight of the penalty, lambda.
        num_samples: The number of draws for each pair, L.
        target: ``"conservative"``, ``"calibrated"`` or a number between 0 and 1.
        penalty: A :class:`prudent.coverage.CoveragePenalty`, instead of the one that these make.
        **keywords: Further arguments of the trainer.
    """

    _neural_net: Any
    _prior: Any
    _round: int

    def __init__(
        self,
        prior: Any,
        *arguments: Any,
        weight: float = 5.0,
        num_samples: int = 16,
        target: str | float = "conservative",
        penalty: CoveragePenalty | None = None,
        **keywords: Any,
    ) -> None:
        if prior is None:
            raise InputError("the penalty needs the prior; pass it as the first argument.")
        trainer: Any = super()
        trainer.__init__(prior, *arguments, **keywords)
        self.weight = weight
        self.penalty = penalty or CoveragePenalty(self._proposal(), num_samples, target)

    def _proposal(self) -> Any:
        raise NotImplementedError

    def _model(self) -> Model:
        raise NotImplementedError

    def _get_losses(self, batch: Sequence[Tensor], loss_args: Any) -> Tensor:
        """The losses of the trainer, and the penalty of the batch added to each of them."""
        inner: Any = super()
        losses: Tensor = inner._get_losses(batch, loss_args)
        if self._round > 0:
            raise InputError(
                "the penalty is about pairs from the prior, and these come from a later round; "
                "train later rounds with sbi's own class."
            )
        theta, x = (part.to(losses.device) for part in batch[:2])
        # The penalty is that of what is being trained.
        posterior = Adapted(self._model(), self._prior)(x).unnormalized()
        self.penalty.train(self._neural_net.training)
        value: Tensor = self.penalty(posterior, theta)
        return losses + self.weight * value


class CalNPE(Penalized, NPE):  # type: ignore[misc]
    """sbi's ``NPE`` with the coverage penalty in its loss; used in the same way.

    ``CalNPE(prior).append_simulations(theta, x).train()``. See :class:`Penalized` for the
    arguments that it adds, ``weight``, ``num_samples``, ``target`` and ``penalty``.
    """

    def _proposal(self) -> Any:
        return "model"

    def _model(self) -> Model:
        return density_of(self._neural_net)


class CalNRE(Penalized, NRE):  # type: ignore[misc]
    """sbi's ``NRE`` with the coverage penalty in its loss; used in the same way.

    See :class:`Penalized` for the arguments that it adds.
    """

    def _proposal(self) -> Any:
        return Nominal(of_any_shape(self._prior, check_prior(self._prior)))

    def _model(self) -> Model:
        return ratio_of(self._neural_net)
