"""A model of another library as an estimator, whose posteriors can do what ours can.

One posterior is handed out and judged: where a density leaks out of the prior's support, it is cut
to it, as that of our own flows is (:class:`prudent.estimators.npe.CutPosterior`). In training mode
densities are those of the model itself, with a gradient to its weights.
"""

from collections.abc import Sequence
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from prudent._arrays import as_shape, as_tensor, finite_rows, placed
from prudent._randomness import seeded
from prudent.adapters.model import Model
from prudent.contracts import Prior, Shape
from prudent.errors import DataError, InputError, PrudentError, one_line
from prudent.estimators import _description
from prudent.estimators.npe import TOLERANCE, CutPosterior
from prudent.estimators.nre import RatioPosterior
from prudent.estimators.summaries import check_names
from prudent.priors.checks import check_prior, dtype_of, of_any_shape
from prudent.priors.density import log_density
from prudent.priors.support import leaks

# Draws by which the mass inside the prior's support is found, of models that draw slowly.
NUM_SLOW = 256


def _called(model: Model, name: str, first: Any, features: Tensor) -> Any:
    """What a function of a model returns; what it raises is told with what it was called with."""
    try:
        return getattr(model, name)(first, features)
    except (PrudentError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # code of others raises anything
        given = f"theta {tuple(first.shape)}" if isinstance(first, Tensor) else f"{first} draws"
        raise InputError(
            f"`{name}` of {model.name} failed for {given} and x {tuple(features.shape)}: "
            f"{one_line(error)}. Does it take these shapes, and is the prior that of the model?"
        ) from error


class _Foreign:
    """Evaluations of a model for the observations of a posterior; a mixin."""

    estimator: "Adapted"
    features: Tensor

    def _evaluated(self, name: str, theta: Tensor) -> Tensor:
        """What ``log_prob`` or ``log_ratio`` of the model says of theta (..., N, D), (..., N)."""
        number, dim, model = len(self.features), self.estimator.dim, self.estimator.model
        whole = theta.expand(torch.broadcast_shapes(theta.shape, (number, dim)))
        rows = whole.reshape(-1, number, dim).to(self.estimator.like)
        found = as_tensor(name, _called(model, name, rows, self.features), theta.dtype)
        if found.shape != rows.shape[:-1]:
            raise InputError(
                f"expected `{name}` to map theta of shape {tuple(rows.shape)} to "
                f"{tuple(rows.shape[:-1])}, got {tuple(found.shape)}."
            )
        return found.reshape(whole.shape[:-1]).to(theta.device)

    @torch.no_grad()
    def _sampled(self, shape: tuple[int, ...]) -> Tensor:
        """Draws ``(*shape, N, D)`` of the model."""
        number, model = torch.Size(shape).numel(), self.estimator.model
        found = _called(model, "sample", number, self.features)
        found = as_tensor("draws", found, self.estimator.dtype)
        expected = (number, len(self.features), self.estimator.dim)
        if found.shape != expected:
            raise InputError(
                f"expected `sample` to draw theta of shape {expected}, got {tuple(found.shape)}."
            )
        return found.reshape(*shape, *expected[1:]).to(self.features.device)


class AdaptedPosterior(_Foreign, CutPosterior):
    """A density that draws, given N observations; normalized on the prior's support."""

    def log_prob(self, theta: Any) -> Tensor:
        """The log-density at ``theta`` (..., N, D), as (..., N)."""
        theta = self._theta(theta)
        return self._cut(theta, self._evaluated("log_prob", theta))

    def _whole(self, shape: tuple[int, ...]) -> Tensor:
        return self._sampled(shape)


class SlowPosterior(AdaptedPosterior):
    """The same with a density that takes much longer than a draw."""

    slow_density = True

    def _kept(self) -> Tensor:
        return torch.ones(len(self))  # to find it would take more draws than to do without

    def _find_log_mass(self) -> Tensor:
        """The log of the mass inside the prior's support, right to a few per cent."""
        with seeded(0, "mass"):
            inside = log_density(self.estimator.prior, self._whole((NUM_SLOW,))) > -torch.inf
        return (inside.sum(dim=0).clamp(min=0.5) / NUM_SLOW).log().to(self.estimator.dtype)


class NoisePosterior(AdaptedPosterior):
    """The same for a flow that takes its noise from the caller."""

    def _pushed(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Noise (..., N, D) as draws and their log-density under the flow, with a gradient."""
        model, rows = self.estimator.model, noise.reshape(-1, *noise.shape[-2:])
        assert model.from_noise is not None
        theta, log_prob = model.from_noise(rows.to(self.estimator.like), self.features)
        dtype = self.estimator.dtype
        return theta.reshape(noise.shape).to(dtype), log_prob.reshape(noise.shape[:-1]).to(dtype)

    def _noise(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(*shape, len(self), self.estimator.dim)

    def rsample(self, sample_shape: Shape | int = ()) -> Tensor:
        """Draw ``(*sample_shape, N, D)`` of the flow, as a function of the weights; never cut."""
        return self._pushed(self._noise(as_shape(sample_shape)))[0]

    @torch.no_grad()
    def _whole(self, shape: tuple[int, ...]) -> Tensor:
        return self.rsample(shape)

    @torch.no_grad()
    def from_noise(self, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal noise (L, N, D) as draws, their log-density, and that of the flow."""
        theta, log_prob = self._pushed(noise)
        return theta, self._cut(theta, log_prob), log_prob

    @torch.no_grad()
    def sample_and_log_prob(self, sample_shape: Shape | int = ()) -> tuple[Tensor, Tensor]:
        """Draws and their log-density, for the flow itself at the cost of the draws alone."""
        if self.normalization == "none":
            return self._pushed(self._noise(as_shape(sample_shape)))
        theta = self.sample(sample_shape)
        return theta, self.log_prob(theta)


class AdaptedRatio(_Foreign, RatioPosterior):
    """Prior times ratio, or a density that cannot draw, given N observations; unnormalized."""

    def log_ratio(self, theta: Any) -> Tensor:
        """The log of posterior over prior at ``theta`` (..., N, D), as (..., N)."""
        theta = self._theta(theta)
        if self.estimator.model.log_ratio is not None:
            return self._evaluated("log_ratio", theta)
        known = log_density(self.estimator.prior, theta)
        return (self._evaluated("log_prob", theta) - known).masked_fill(known == -torch.inf, 0.0)


class AdaptedDraws(_Foreign, CutPosterior):
    """Draws given N observations, without any density."""

    def _whole(self, shape: tuple[int, ...]) -> Tensor:
        return self._sampled(shape)

    def _kept(self) -> Tensor:
        return torch.ones(len(self))

    def _elsewhere(self, rows: Tensor, number: int) -> NoReturn:
        raise InputError(
            f"almost all draws of {len(rows):,} posteriors lie outside the prior, and without a "
            "density no others are found. Was the model trained with this prior?"
        )

    @property
    def log_prob(self) -> NoReturn:
        """There is none: an AttributeError, so that nothing takes it for one."""
        raise AttributeError(self._lacking("density"))

    def region(self, level: float = 0.9) -> NoReturn:
        """There is none without a density."""
        raise InputError(self._lacking(f"region of level {level:g}"))

    def map(self) -> NoReturn:
        """There is none without a density."""
        raise InputError(self._lacking("place of highest density"))

    def _lacking(self, what: str) -> str:
        model = self.estimator.model
        return f"{model.name} draws and has no density, so that there is no {what}. {model.remedy}"


class Adapted:
    """A model of another library as an estimator; made by :func:`prudent.adapt`.

    Called with observations ``(N, *x_shape)`` or one of them, as a tensor, array or list, it
    returns their posteriors, which are like those of our own estimators.

    Args:
        model: What the model can do.
        prior: The prior.
        x_shape: The shape of one observation, None if a single one is never passed or a vector.
        names: The names of the parameters.

    Attributes:
        normalized: Whether its densities are normalized by construction.
        tolerance: The relative error of the mass inside the prior's support, where it is cut.
        info: The names of the parameters and the verdict of the last diagnosis.
    """

    def __init__(
        self,
        model: Model,
        prior: Prior,
        x_shape: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        places = {str(weight.device) for weight in model.parameters()}
        if len(places) > 1:
            raise InputError(
                f"the networks of {model.name} are on {' and '.join(sorted(places))}; move all of "
                "them to one device."
            )
        self.dim, self.dtype = check_prior(prior), dtype_of(prior)
        self.model, self.prior = model, of_any_shape(prior, self.dim)
        self.x_shape = x_shape and tuple(x_shape)
        self.normalized = model.sample is not None and model.log_ratio is None
        self.leaks = not model.inside and leaks(prior, self.dim, bounded=False)
        self.tolerance, self.info = TOLERANCE, dict[str, Any]()
        if names is not None:
            self.info["parameter_names"] = check_names(names, self.dim)
        self._posterior = self._kind()

    def _kind(self) -> type[Any]:
        model = self.model
        if not self.normalized:
            return AdaptedRatio
        if model.log_prob is None:
            return AdaptedDraws
        if model.slow:
            return SlowPosterior
        return AdaptedPosterior if model.from_noise is None else NoisePosterior

    @property
    def like(self) -> Tensor:
        """An empty tensor of the type and on the device that the model expects."""
        weights = [weight for weight in self.parameters() if weight.is_floating_point()]
        return weights[0].new_empty(0) if weights else torch.empty(0, dtype=self.dtype)

    @property
    def training(self) -> bool:
        """Whether the networks are in training mode."""
        return any(network.training for network in self.model.networks)

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - as torch has it
        """Put the networks into training mode, in which densities have a gradient."""
        for network in self.model.networks:
            network.train(mode)
        return self

    def eval(self) -> Self:
        """Put the networks into evaluation mode, as they are after :func:`prudent.adapt`."""
        return self.train(mode=False)

    def to(self, device: str | torch.device) -> Self:
        """Move the networks to a device; they stay those of the model."""
        for network in self.model.networks:
            network.to(device)
        return self

    def parameters(self) -> list[nn.Parameter]:
        """The weights of the model."""
        return self.model.parameters()

    def observations(self, x: Any) -> Tensor:
        """Observations ``(N, *x_shape)`` as a tensor, or a single one as ``(1, *x_shape)``."""
        like = self.like
        found = placed("x", as_tensor("x", x, like.dtype), like.device)
        single = found.ndim == 1 if self.x_shape is None else tuple(found.shape) == self.x_shape
        found = found.unsqueeze(0) if single else found
        if self.x_shape is not None and tuple(found.shape[1:]) != self.x_shape:
            shape = ", ".join(map(str, ("N", *self.x_shape)))
            raise DataError(f"expected `x` of shape ({shape}), got {tuple(found.shape)}.")
        if not self.training and (bad := int((~finite_rows(found)).sum())):
            raise DataError(
                f"{bad:,} of {len(found):,} observations hold NaN or infinity; the posterior "
                "is not defined there. Remove or repair them."
            )
        return found

    def __call__(self, x: Any) -> Any:
        """The posteriors given ``x``."""
        x, embed = self.observations(x), self.model.embed
        return self._posterior(self, x if embed is None else embed(x))

    @property
    def abilities(self) -> str:
        """What can be measured, in one line."""
        if self._posterior is AdaptedDraws:
            return (
                "draws alone: SBC, TARP and coverage by draws; no penalty with densities, log "
                f"posterior, region, temperature or conformal level. {self.model.remedy}"
            )
        if self._posterior is AdaptedRatio:
            return "an unnormalized density: everything, with draws by importance or a chain"
        return "a density and draws: everything"

    def summary(self) -> str:
        """What the model is, what it can do, and the verdict about it, for reading."""
        return _description.text(type(self).__name__, self._rows())

    def _repr_html_(self) -> str:
        return _description.page(type(self).__name__, self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        weights = sum(weight.numel() for weight in self.parameters())
        return [
            *_description.known(self),
            ("model", self.model.name),
            ("abilities", self.abilities),
            ("networks", f"{len(self.model.networks)} with {weights:,} weights in all"),
            ("device", str(self.like.device)),
        ]

    def __repr__(self) -> str:
        return f"<Adapted {self.model.name}, {self.dim} parameters, {self.abilities}>"
