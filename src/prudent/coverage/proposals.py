"""The proposals that the draws of the coverage penalty come from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from prudent._choices import MODELS
from prudent.contracts import Posterior, Reparametrized, SampleAndLogProb, Shape
from prudent.coverage.draws import pool_scores
from prudent.errors import InputError, unknown_name
from prudent.priors.density import OURS, is_independent, log_density, trial_draws


@dataclass(frozen=True)
class Draws:
    """The draws for N pairs.

    Args:
        theta: The draws, (L, N, D).
        log_weight: The function from their log-density under the posterior (L, N) to the logs of
            their weights, up to a constant per pair.
        density: What their densities are evaluated by, if not the posterior.
        worth: The number of equally weighted draws that they stand for, (N,), or None where their
            weights say it.
    """

    theta: Tensor
    log_weight: Callable[[Tensor], Tensor]
    density: Any = None
    worth: Tensor | None = None


@runtime_checkable
class Drawing(Protocol):
    """A proposal; it may look at the posterior and at the pairs before it draws."""

    def draw(self, posterior: Any, num_samples: int, theta: Tensor) -> Draws:
        """The draws for each pair of a batch, theta (N, D)."""


def over(log_proposal: Tensor) -> Callable[[Tensor], Tensor]:
    """The weights of draws whose log-density under their proposal is known, (L, N)."""
    return lambda log_prob: log_prob - log_proposal.to(log_prob)


class PriorDraws:
    """Draws of a distribution that knows nothing of the posterior, such as the prior."""

    def __init__(self, source: Any) -> None:
        if not isinstance(source, SampleAndLogProb):
            trial_draws(source, "proposal")
        self.source = source

    @torch.no_grad()
    def draw(self, posterior: Any, num_samples: int, theta: Tensor) -> Draws:
        """The draws for each pair of a batch, theta (N, D)."""
        shape = (num_samples, len(theta))
        if isinstance(self.source, SampleAndLogProb):
            draws, log_proposal = self.source.sample_and_log_prob(shape)
        else:
            draws = self.source.sample(shape)
            log_proposal = log_density(self.source, draws)
        return Draws(fitting(draws, num_samples, theta), over(log_proposal))


class ModelDraws:
    """Draws of the posterior itself, which weigh the same; their weights have a gradient."""

    @torch.no_grad()
    def draw(self, posterior: Any, num_samples: int, theta: Tensor) -> Draws:
        """The draws for each pair of a batch, theta (N, D)."""
        draws = fitting(posterior.sample((num_samples,)), num_samples, theta)
        return Draws(draws, lambda log_prob: log_prob - log_prob.detach())


class MovingDraws:
    """Draws of the posterior itself that are a differentiable function of its weights.

    Args:
        scored: Whether they are compared by how close they are to each other, not by density.
    """

    def __init__(self, *, scored: bool) -> None:
        self.scored = scored

    def draw(self, posterior: Any, num_samples: int, theta: Tensor) -> Draws:
        """The draws for each pair of a batch, theta (N, D)."""
        if not isinstance(posterior, Reparametrized):
            raise InputError(
                f'proposal="{"draws" if self.scored else "model-rsample"}" needs `rsample`, and '
                f'{type(posterior).__name__} has none; use "model" or the prior.'
            )
        draws = fitting(posterior.rsample((num_samples,)), num_samples, theta)
        return Draws(draws, torch.zeros_like, Scores() if self.scored else None)


class Scores:
    """The score of draws among each other in the place of a log-density."""

    def log_prob(self, theta: Tensor) -> Tensor:
        """The scores of the nominal parameters, first, and of their draws (L + 1, N, D)."""
        return pool_scores(theta[0], theta[1:])


def fitting(draws: Tensor, num_samples: int, theta: Tensor) -> Tensor:
    """The draws, which must be as many as were asked for, and like theta (N, D)."""
    if draws.shape != (num_samples, *theta.shape):
        raise InputError(
            f"expected the proposal to draw {(num_samples, *theta.shape)} to match "
            f"`theta` {tuple(theta.shape)}, got {tuple(draws.shape)}. A distribution over D "
            "parameters needs event_shape (D,): wrap it in torch.distributions.Independent."
        )
    return draws.to(theta)


def checked(theta: Any) -> Tensor:
    """The nominal parameters of a batch (N, D), refused if they are something else."""
    if not isinstance(theta, Tensor) or theta.ndim != 2 or len(theta) == 0:
        came = tuple(theta.shape) if isinstance(theta, Tensor) else type(theta).__name__
        raise InputError(f"expected `theta` as a tensor of shape (N, D), N >= 1, got {came}.")
    return theta


class Even:
    r"""Draws of the prior that fill it evenly, more accurate than independent ones for nothing.

    The points of a Sobol sequence are shifted at random for each pair, around the unit cube, and
    go through the quantile functions of the parameters. Every single draw has the distribution of
    the prior, so that alpha has the same expectation but for the bias of few draws.

    Args:
        prior: A product of one-dimensional distributions with quantile functions, such as a box.

    >>> from torch.distributions import Independent, Uniform
    >>> prior = Independent(Uniform(torch.zeros(2), torch.ones(2)), 1)
    >>> draws, _ = Even(prior).sample_and_log_prob((16, 5))
    >>> draws.shape, bool(((draws < 0.5).sum(dim=0) == 8).all())
    (torch.Size([16, 5, 2]), True)
    """

    def __init__(self, prior: Any) -> None:
        self.prior = prior
        self.points = torch.empty(0)
        self.marginals = prior
        while is_independent(self.marginals):
            self.marginals = self.marginals.base_dist
        make = type(self.marginals)  # others may have inherited quantiles of another density
        self.like = trial = trial_draws(prior, "prior")
        fits = make.__module__.startswith(OURS) or "icdf" in vars(make)
        try:
            fits &= self.marginals.icdf(torch.full_like(trial, 0.5)).shape == trial.shape
        except (NotImplementedError, AttributeError):
            fits = False
        if not fits or self.marginals is prior:
            raise InputError(
                f"even draws need a product of one-dimensional distributions that know their "
                f'quantiles (icdf), got {type(prior).__name__}; use proposal="prior".'
            )

    def sample_and_log_prob(self, sample_shape: Shape = ()) -> tuple[Tensor, Tensor]:
        """Draws (L, N, D), even for each of N pairs, and their log-density (L, N)."""
        (number, num_pairs), dim = sample_shape, self.like.shape[-1]
        if len(self.points) != number:
            engine = torch.quasirandom.SobolEngine(dim)
            self.points = engine.draw(number, dtype=torch.float64)
        shift = torch.rand(num_pairs, dim, dtype=torch.float64)
        uniform = ((self.points.unsqueeze(1) + shift) % 1.0).clamp(1e-7, 1 - 1e-7)
        draws = self.marginals.icdf(uniform.to(self.like))
        return draws, log_density(self.prior, draws)


def even_if_possible(prior: Any) -> Any:
    """Even draws of the prior, or the prior itself if it is no product with quantiles."""
    try:
        return Even(prior)
    except InputError:
        return prior


def evaluated(posterior: Posterior, theta: Tensor) -> Tensor:
    """The posterior's log-density (L, N) of theta (L, N, D), refused if it has another shape."""
    log_prob = posterior.log_prob(theta)
    if log_prob.shape != theta.shape[:-1]:
        raise InputError(
            f"expected `posterior.log_prob` to map {tuple(theta.shape)} to "
            f"{tuple(theta.shape[:-1])}, got {tuple(log_prob.shape)}. Is it conditioned on the "
            f"{theta.shape[1]} observations of this batch?"
        )
    return log_prob


def proposal_of(source: Any) -> Drawing:
    """The proposal that the argument of a penalty stands for, refused if it cannot be one."""
    if isinstance(source, Drawing):
        return source
    if not isinstance(source, str):
        return PriorDraws(source)
    if source in ("nominal", "even"):
        raise InputError(
            f'proposal="{source}" needs the prior; pass '
            f"prudent.coverage.{source.capitalize()}(prior)."
        )
    if source not in MODELS:
        raise unknown_name("proposal", source, MODELS, "Or pass a torch distribution.")
    return ModelDraws() if source == "model" else MovingDraws(scored=source == "draws")
