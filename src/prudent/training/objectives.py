r"""Losses: functions of (posterior, theta), like penalties, to be added up.

Marginal pairs for the classifier come from the batch itself: each observation meets the theta of
its neighbor. A batch is in random order, so these pairs are independent, and none is joint.

Where simulations failed and were left out, the theta of a batch follow the prior given success,
and a ratio to that times the prior is not the posterior. The marginal theta must then come from
all simulations, failed ones included: the ``pool`` of :class:`WeightedSum`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from prudent._randomness import seeded
from prudent.contracts import Evaluation, LogRatio, Objective, Posterior, Prior, SampleAndLogProb
from prudent.coverage import CoveragePenalty, Nominal, Sometimes
from prudent.coverage.figures import evaluation
from prudent.coverage.proposals import even_if_possible
from prudent.coverage.sharing import RUNNING, Step
from prudent.errors import InputError, unknown_name
from prudent.priors.checks import check_prior, support_box
from prudent.priors.density import log_density
from prudent.training.options import COVERAGE_OPTIONS, Options

# Prior draws that a proposal must be able to make.
NUM_CHECKED = 4096


def nll(posterior: Posterior, theta: Tensor) -> Tensor:
    r"""Negative log-density of the nominal parameters, :math:`-\log q(\theta_i \mid x_i)`."""
    return -Step.of(posterior, theta).once("log_prob").mean()


def bce(posterior: LogRatio, theta: Tensor) -> Tensor:
    r"""Binary cross-entropy of joint against marginal pairs; both means have weight one.

    With log ratio :math:`\ell`: mean of :math:`\log(1 + e^{-\ell})` over joint and of
    :math:`\log(1 + e^{\ell})` over marginal pairs.
    """
    joint, apart = Step.of(posterior, theta).once("log_ratio")
    return softplus(-joint).mean() + softplus(apart).mean()


def balance(posterior: LogRatio, theta: Tensor) -> Tensor:
    r"""The balancing condition of Delaunoy et al. (2022), squared.

    The classifier :math:`d = \sigma(\ell)` should satisfy
    :math:`E_\text{joint}[d] + E_\text{marginal}[d] = 1`. For a flow the log ratio is its
    log-density minus that of the prior.
    """
    joint, apart = Step.of(posterior, theta).once("log_ratio")
    excess: Tensor = joint.sigmoid().mean() + apart.sigmoid().mean() - 1
    return excess.square()


LOSSES: dict[str, Objective] = {"nll": nll, "bce": bce, "balance": balance}


class WeightedSum:
    """An objective made of others; the first is the loss, the rest regularize it.

    Terms are named by their kind, further ones of a kind with a number: ``coverage_2``.

    Args:
        *terms: Pairs of a weight and a term.
        pool: The theta of all simulations, (M, D), where some were left out because they failed.

    >>> objective = weighted_sum((1.0, nll), (0.5, balance))
    >>> objective
    1 nll + 0.5 balance
    """

    def __init__(self, *terms: tuple[float, Objective], pool: Tensor | None = None) -> None:
        kinds = [_name(term) for _, term in terms]
        before = [kinds[:place].count(kind) for place, kind in enumerate(kinds)]
        names = [f"{k}_{n + 1}" if n else k for k, n in zip(kinds, before, strict=True)]
        self.weights = {
            name: float(weight) for name, (weight, _) in zip(names, terms, strict=True)
        }
        self.objectives = {name: term for name, (_, term) in zip(names, terms, strict=True)}
        self.pool = pool
        # What the losses ask of the pairs of a step.
        self.wanted = {
            "log_prob" if term is nll else "log_ratio"
            for _, term in terms
            if term in LOSSES.values()
        }

    def evaluate(self, posterior: Posterior, theta: Tensor) -> dict[str, Evaluation]:
        """All terms on a batch, before weighting."""
        found = {}
        token = RUNNING.set(Step(posterior, theta, self.pool, self.wanted))
        try:
            # The loss last: a penalty evaluates the points of the loss beside its own.
            for name, term in reversed(self.objectives.items()):
                found[name] = evaluation(term, posterior, theta)
        finally:
            RUNNING.reset(token)
        return {name: found[name] for name in self.objectives}

    def total(self, terms: Mapping[str, Evaluation]) -> Tensor:
        """The weighted sum of the terms."""
        values = [self.weights[name] * term.factor * term.value for name, term in terms.items()]
        return torch.stack(values).sum()

    def train(self, mode: bool = True) -> None:  # noqa: FBT001, FBT002 (as torch has it)
        """Put the terms that are modules in training or in evaluation mode."""
        for term in self.objectives.values():
            if isinstance(term, nn.Module):
                term.train(mode)

    def state(self) -> dict[str, Tensor]:
        """What the terms remember of earlier steps."""
        return {
            f"{name}.{key}": value
            for name, term in self.objectives.items()
            if isinstance(term, nn.Module)
            for key, value in term.state_dict().items()
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a state."""
        for name, value in state.items():
            term, *path, key = name.split(".")
            module: Any = self.objectives[term]
            # Not by load_state_dict: a checkpoint of an earlier version may lack some of it.
            setattr(module.get_submodule(".".join(path)), key, value)

    def __call__(self, posterior: Posterior, theta: Tensor) -> Tensor:
        """The value to minimize."""
        return self.total(self.evaluate(posterior, theta))

    def __repr__(self) -> str:
        return " + ".join(f"{weight:g} {name}" for name, weight in self.weights.items())


weighted_sum = WeightedSum


def _name(term: Objective) -> str:
    """``nll`` for a function, ``coverage`` for a CoveragePenalty."""
    inner = term.term if isinstance(term, Sometimes) else term
    default = type(inner).__name__.removesuffix("Penalty").lower()
    return str(getattr(inner, "__name__", default))


def make_term(name: str, family: str, prior: Prior, options: Options) -> Objective:
    """The term of that name: a plain loss, or the coverage penalty with its settings."""
    if name in LOSSES:
        return LOSSES[name]
    if name != "coverage":
        raise unknown_name("term", name, [*LOSSES, "coverage"])
    settings = {setting: getattr(options, setting) for setting in COVERAGE_OPTIONS}
    settings["proposal"] = _proposal(family, prior, options.proposal)
    fraction = settings.pop("fraction")
    return Sometimes(CoveragePenalty(**settings), fraction)


def _proposal(family: str, prior: Prior, proposal: Any) -> Any:
    """The proposal that a setting stands for."""
    if proposal == "prior":
        return prior
    if proposal == "even":
        return even_if_possible(prior)
    if proposal == "box":
        return support_box(prior)
    if proposal == "nominal":
        return Nominal(prior)
    if isinstance(proposal, str) and family == "nre":
        raise InputError(
            f'proposal="{proposal}" needs a flow: a ratio cannot draw from itself. Use "nominal" '
            'or "prior", or a method such as calnpe.'
        )
    if not isinstance(proposal, str | SampleAndLogProb | Nominal):
        _check_cover(proposal, prior)
    return proposal


def _check_cover(proposal: Any, prior: Prior) -> None:
    """Refuse a proposal that can never draw what the prior does."""
    dim, expected = check_prior(proposal, "proposal"), check_prior(prior)
    if dim != expected:
        raise InputError(f"the proposal draws {dim} parameters, the prior {expected}.")
    with seeded(0):
        theta = prior.sample((NUM_CHECKED,))
    missed = theta[log_density(proposal, theta).isneginf()]
    if len(missed):
        raise InputError(
            f"the proposal has no density at {len(missed):,} of {NUM_CHECKED:,} draws from the "
            f"prior, such as {missed[0].tolist()}; it must cover the prior's support. Widen it, "
            'or use "prior".'
        )
