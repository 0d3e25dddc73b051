"""A model of another library as an estimator, whose posteriors can do what ours can.

One posterior is handed out and judged: where a density leaks out of the prior's support, it is cut
to it, as that of our own flows is (:class:`prudent.posteriors.parts.Cut`). In training mode
densities are those of the model itself, with a gradient to its weights.
"""

import copy
import math
import os
from collections.abc import Sequence
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from prudent._arrays import as_tensor, finite_rows, placed
from prudent._settings import positive
from prudent.adapters.model import Model
from prudent.contracts import Prior
from prudent.errors import DataError, InputError, PrudentError, one_line
from prudent.estimators import _description
from prudent.estimators.summaries import check_names
from prudent.posteriors.density import Density, Facts, wider
from prudent.posteriors.parts import Pool, Temper, inside
from prudent.posteriors.posterior import Posterior
from prudent.priors.checks import check_prior, dtype_of, of_any_shape
from prudent.priors.support import leaks

# The relative error of the mass of a member inside the prior's support: that of its weight.
MEMBER_TOLERANCE = 0.05
NO_TEMPERATURE = (
    "a temperature needs the density of every draw, and {} has none, or one that is too slow for "
    "that."
)
LACKS = "{} draws and has no density, so that there is no {{}}."


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


class Foreign(Density):
    """What a model says of the observations of a batch.

    Args:
        estimator: The estimator that the model became.
        model: The model, or a member of it.
        features: The features of the observations, (N, ...).
    """

    def __init__(self, estimator: "Adapted", model: Model, features: Tensor) -> None:
        leaks = estimator.leaks and not model.inside
        facts = Facts(
            lacks="" if model.has_density else f"{LACKS.format(model.name)} {model.remedy}",
            ratio=model.is_ratio,
            noise=model.from_noise is not None and not (model.slow or model.is_ratio),
            slow=model.slow,
            inside=model.is_ratio or not leaks,
        )
        like = features.new_empty(len(features), 0, dtype=estimator.dtype)
        super().__init__(estimator.prior, estimator.dim, like, facts)
        self.estimator, self.model, self.features = estimator, model, features

    def rows(self, index: Tensor | slice) -> "Foreign":
        """The densities of some observations; nothing is embedded again."""
        return Foreign(self.estimator, self.model, self.features[index])

    def log_prob(self, theta: Tensor) -> Tensor:
        """The log-density of theta (..., N, D), (..., N)."""
        return self._evaluated("log_prob", theta)

    def log_ratio(self, theta: Tensor) -> Tensor:
        """The log of posterior over prior at theta (..., N, D), (..., N)."""
        known = self.model.log_ratio is not None
        return self._evaluated("log_ratio", theta) if known else super().log_ratio(theta)

    def _evaluated(self, name: str, theta: Tensor) -> Tensor:
        """What ``log_prob`` or ``log_ratio`` of the model says of theta (..., N, D), (..., N)."""
        whole = theta.expand(torch.broadcast_shapes(theta.shape, (len(self), self.dim)))
        rows = whole.reshape(-1, len(self), self.dim).to(self.estimator.like)
        found = as_tensor(name, _called(self.model, name, rows, self.features), theta.dtype)
        if found.shape != rows.shape[:-1]:
            raise InputError(
                f"expected `{name}` to map theta of shape {tuple(rows.shape)} to "
                f"{tuple(rows.shape[:-1])}, got {tuple(found.shape)}."
            )
        return found.reshape(whole.shape[:-1]).to(theta.device)

    @torch.no_grad()
    def sample(self, shape: tuple[int, ...]) -> Tensor:
        """Draws ``(*shape, N, D)`` of the model."""
        if self.facts.ratio:
            return super().sample(shape)
        if self.facts.noise:
            return self.rsample(shape)
        number = math.prod(shape)
        found = _called(self.model, "sample", number, self.features)
        found = as_tensor("draws", found, self.like.dtype)
        expected = (number, len(self), self.dim)
        if found.shape != expected:
            raise InputError(
                f"expected `sample` to draw theta of shape {expected}, got {tuple(found.shape)}."
            )
        return found.reshape(*shape, *expected[1:]).to(self.like.device)

    def _pushed(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Noise (..., N, D) as draws and their log-density under the flow, with a gradient."""
        assert self.model.from_noise is not None
        rows = noise.reshape(-1, *noise.shape[-2:]).to(self.estimator.like)
        theta, log_prob = self.model.from_noise(rows, self.features)
        dtype = self.like.dtype
        return theta.reshape(noise.shape).to(dtype), log_prob.reshape(noise.shape[:-1]).to(dtype)

    def _noise(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(*shape, len(self), self.dim)

    def rsample(self, shape: tuple[int, ...]) -> Tensor:
        """Draws ``(*shape, N, D)`` of a flow, as a function of the weights."""
        return self._pushed(self._noise(shape))[0] if self.facts.noise else super().rsample(shape)

    @torch.no_grad()
    def from_noise(self, noise: Tensor, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal noise (L, N, D) as draws, their log-density, and that of the draws."""
        theta, log_prob = self._pushed(spread * noise)
        return theta, log_prob, wider(log_prob, noise, spread)

    @torch.no_grad()
    def sample_and_log_prob(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Draws and their log-density, for a flow at the cost of the draws alone."""
        if self.facts.noise:
            return self._pushed(self._noise(shape))
        return super().sample_and_log_prob(shape)


class Adapted(_description.Described):
    """A model of another library as an estimator; made by :func:`prudent.adapt`.

    Called with observations ``(N, *x_shape)`` or one of them, as a tensor, array or list, it
    returns their posteriors, which are like those of our own estimators.

    Args:
        model: What the model can do.
        prior: The prior.
        x_shape: The shape of one observation, None if a single one is never passed or a vector.
        names: The names of the parameters.

    Attributes:
        temperature: The number by which the log of posterior over prior is divided.
        info: The names of the parameters and the verdict of the last diagnosis.
    """

    temperature: float = 1.0

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
        self.leaks = leaks(prior, self.dim, bounded=False)
        self.info: dict[str, Any] = {}
        if names is not None:
            self.info["parameter_names"] = check_names(names, self.dim)

    @property
    def normalized(self) -> bool:
        """Whether its densities are normalized by construction."""
        return self.temperature == 1 and not self.model.is_ratio

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

    def __call__(self, x: Any) -> Posterior:
        """The posteriors given ``x``, which is converted and checked once."""
        x = self.observations(x)
        return Posterior(self, self.density(x), x)

    def density(self, x: Tensor) -> Density:
        """The densities given observations that were checked, ``(N, *x_shape)``."""
        found = self._plain(x)
        if self.temperature != 1:
            return Temper(found, self.temperature, by_ratio=True)
        return found if self.training else inside(found)

    def _plain(self, x: Tensor) -> Density:
        """The densities of the model itself, or of its members, each inside the prior."""
        if self.model.members:
            each = [self._of(model, x) for model in self.model.members]
            members = [inside(member, MEMBER_TOLERANCE) for member in each]
            return Pool(members, weights=self.model.weights)
        return self._of(self.model, x)

    def _of(self, model: Model, x: Tensor) -> Foreign:
        return Foreign(self, model, x if model.embed is None else model.embed(x))

    def tempered(self, temperature: float, floor: float = 0.0) -> Self:
        """The model at another temperature; its densities are then known by their ratios alone."""
        if floor:
            raise InputError("a floor is for flows of prudent; pass the temperature alone.")
        if not self.model.has_density or self.model.slow:
            raise InputError(NO_TEMPERATURE.format(self.model.name))
        other = copy.copy(self)
        other.temperature = positive("temperature", self.temperature * temperature)
        other.info = _description.unjudged(self)
        return other

    def save(self, path: str | os.PathLike[str]) -> NoReturn:
        """Refused: the library that a model comes from saves it."""
        warm = f", and call `.tempered({self.temperature:.6g})`" if self.temperature != 1 else ""
        raise InputError(
            f"{self.model.name} is saved by its own means, not to {path}; load it and adapt it "
            f"again{warm}."
        )

    @property
    def abilities(self) -> str:
        """What can be measured, in one line."""
        if not self.model.has_density:
            return (
                "draws alone: SBC, TARP and coverage by draws; no penalty with densities, log "
                f"posterior, region, temperature or conformal level. {self.model.remedy}"
            )
        if not self.normalized:
            return "an unnormalized density: everything, with draws by importance or a chain"
        return "a density and draws: everything"

    def _rows(self) -> list[tuple[str, str]]:
        weights = sum(weight.numel() for weight in self.parameters())
        return [
            *_description.known(self),
            ("model", self.model.name),
            ("abilities", self.abilities),
            ("networks", f"{len(self.model.networks)} with {weights:,} weights in all"),
            ("device", str(self.like.device)),
            *([("temperature", f"{self.temperature:.3g}")] if self.temperature != 1 else []),
        ]

    def __repr__(self) -> str:
        warm = f" at temperature {self.temperature:.3g}" if self.temperature != 1 else ""
        return f"<Adapted {self.model.name}{warm}, {self.dim} parameters, {self.abilities}>"


def borrowed(estimator: Any) -> Adapted:
    """An object that maps x to posteriors as an adapted model, where it must be one."""

    def log_prob(theta: Tensor, x: Tensor) -> Tensor:
        value: Tensor = estimator(x.float()).log_prob(theta)
        return value

    def sample(number: int, x: Tensor) -> Tensor:
        draws: Tensor = estimator(x.float()).sample((number,))
        return draws

    draws = sample if estimator.normalized else None
    other = Adapted(Model(repr(estimator), log_prob, sample=draws, inside=True), estimator.prior)
    other.info = _description.unjudged(estimator)
    return other
