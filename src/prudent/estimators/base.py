"""The common part of estimators: prior, standardization, embedding, and how they are saved.

Networks compute in float32, on standardized numbers. Theta itself, its draws and all log-densities
have the type of the prior: with one of float64, parameters far from zero keep their digits.
"""

import copy
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from prudent._arrays import as_tensor, placed
from prudent._files import dump_tensors, write_atomic
from prudent._settings import positive, whole
from prudent.contracts import Prior
from prudent.errors import DataError, InputError, one_line, shortened
from prudent.estimators import _description
from prudent.estimators._regression import Regression
from prudent.estimators._standardize import Standardize
from prudent.estimators.nearby import Nearby
from prudent.estimators.networks import Embedding, Flatten, build
from prudent.estimators.novelty import Novelty, Observed
from prudent.history import History
from prudent.posteriors.density import Density
from prudent.posteriors.parts import inside, pooled
from prudent.posteriors.posterior import Posterior
from prudent.priors.checks import dtype_of, of_any_shape, to_spec
from prudent.priors.support import Support

FORMAT = 1
# The names of the tensors of the test for novelty, and of judged pairs, begin with these.
NOVELTY, NEARBY, TRAINED_ON = "novelty.", "nearby.", "trained_on"
# An observation of more numbers than this goes through a network, down to so many features.
MOST_INPUTS, NUM_FEATURES = 64, 32
# The last rows of the history are saved, members of an ensemble counted together.
MOST_ROWS = 10_000
# Tails of x are compressed beyond so many spreads.
SQUASH = 3.0
# The spreads of theta whose squares float32 holds, with room for posteriors that are narrower.
LEAST_SPREAD, MOST_SPREAD = 1e-15, 1e15


def check_floor(floor: float, *, normalized: bool) -> float:
    """The share of the prior in a pool of flows, refused if it cannot be one."""
    if floor and not normalized:
        raise InputError("a floor is for flows; pass the temperature of ratios alone.")
    if not 0 <= floor < 1:
        raise InputError(f"`floor` is {floor}; expected a share, at least 0 and below 1.")
    return float(floor)


class Saved(_description.Described, nn.Module):
    """A network that writes itself to one file: its weights, and the rest as JSON."""

    prior: Prior
    normalized: bool
    info: dict[str, Any]
    history: History
    # The test of whether observations are like the simulations; None if there is none.
    novelty: Novelty | None = None
    # The pairs that judged the estimator last, as far as observations can be compared with them.
    nearby: Nearby | None = None
    # Hashes of training pairs, which cannot judge it; None if it does not remember any.
    trained_on: Tensor | None = None
    # What the file held beside the networks, of which `prudent.load` makes the rest.
    stored: tuple[Mapping[str, Any], Mapping[str, Tensor]] = ({}, {})
    # The diagnosis of cross-fitted members by the pairs that they did not train on.
    out_of_fold: Any = None
    # What the log of posterior over prior is divided by, and the share of the prior in flows.
    temperature: float = 1.0
    floor: float = 0.0

    @property
    def is_warm(self) -> bool:
        """Whether there is a temperature or a floor."""
        return (self.temperature, self.floor) != (1, 0)

    def describe(self) -> dict[str, Any]:
        """The networks in plain JSON, without their weights."""
        raise NotImplementedError

    def to_bytes(
        self,
        others: Mapping[str, Any] = MappingProxyType({}),
        tensors: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> bytes:
        """The contents of the file, with what the estimator does not know of."""
        settings = {"format": FORMAT, **self.describe(), "info": self.info, **others}
        settings["prior"] = to_spec(self.prior)
        # Without times, so that a repetition writes the same bytes.
        settings["history"] = History(self.history[-MOST_ROWS:]).to_jsonl(times=False)
        return dump_tensors(settings, {**self.state_dict(), **self.more_tensors(), **tensors})

    def more_tensors(self) -> dict[str, Tensor]:
        """What is saved beside the weights."""
        known = {} if self.novelty is None else self.novelty.tensors
        judged = {} if self.nearby is None else self.nearby.tensors()
        own = {} if self.trained_on is None else {TRAINED_ON: self.trained_on}
        found = own | {NOVELTY + name: value for name, value in known.items()}
        return found | {NEARBY + name: value for name, value in judged.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the estimator to one file, atomically; :func:`prudent.load` reads it."""
        self.check_saving(path)
        write_atomic(path, self.to_bytes())

    def check_saving(self, path: str | os.PathLike[str]) -> None:
        """Refuse a directory, and tell what the file will not hold."""
        if Path(path).is_dir():
            raise InputError(
                f"{path} is a directory; give a file name, such as model.safetensors."
            )
        if to_spec(self.prior) is None:
            kind = _description.prior_name(self.prior)
            told = f"the file cannot hold a prior of {kind}; read it with load(path, prior=...)."
            warnings.warn(told, stacklevel=3)

    def _rows(self) -> list[tuple[str, str]]:
        return _description.rows(self)

    def observations(self, x: Any) -> Tensor:
        """Observations as a tensor ``(N, *x_shape)``."""
        raise NotImplementedError

    def density(self, x: Tensor) -> Density:
        """The densities given observations that were checked, ``(N, *x_shape)``."""
        raise NotImplementedError

    def forward(self, x: Any) -> Posterior:
        """The posteriors given ``x`` ``(N, *x_shape)``, which is converted and checked once."""
        x = self.observations(x)
        test = None if self.training else self.novelty
        observed = None if test is None else Observed.of(test, x)
        return Posterior(self, self.density(x), x, observed)

    def tempered(self, temperature: float, floor: float = 0.0) -> Self:
        """The estimator at another temperature: above one its posteriors are wider, else narrower.

        The weights are shared. A floor is for one that has none and is at temperature one.
        """
        other = copy.copy(self)
        for own in ("_modules", "_parameters", "_buffers"):  # what one replaces the other keeps
            setattr(other, own, getattr(self, own).copy())
        other.history = History(self.history)
        other.temperature = positive("temperature", self.temperature * temperature)
        other.floor = check_floor(floor or self.floor, normalized=self.normalized)
        other.info, other.stored = _description.unjudged(self), ({}, {})
        other.nearby = other.out_of_fold = None
        return other


class NeuralEstimator(Saved):
    """A network that turns observations into posteriors.

    Args:
        prior: The distribution of theta in the simulations.
        dim: The number of parameters.
        x_shape: The shape of one observation.
        embedding: A network from ``(N, *x_shape)`` to (N, F), a function that makes one, the
            specification of one of ours, or None for the default of the kind.
        hidden: The widths of the hidden layers of the head, or None for the default of the kind.
        linear: Whether the network sees what a linear regression on x leaves of theta. For that,
            observations must be vectors without an embedding. Also, tails of x are compressed from
            three spreads on, and not from one.

    Attributes:
        history: One row per epoch of training, filled by :func:`prudent.fit`; saved without times.
        info: The record of the training, in plain JSON; saved with the estimator.
    """

    kind: str
    normalized: bool
    default_hidden: tuple[int, ...]
    # Arguments of the kind's own, which are attributes too and are saved.
    extra_names: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def paper(cls, x_shape: Sequence[int]) -> dict[str, Any]:
        """The arguments with which the kind has the network of the paper."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            if (known := KINDS.get(cls.kind, cls)).__module__ != cls.__module__:
                raise InputError(f"the kind `{cls.kind}` is taken by {known}; use another name.")
            KINDS[cls.kind] = cls

    def __init__(
        self,
        prior: Prior,
        dim: int,
        x_shape: Sequence[int],
        embedding: Embedding | None = None,
        hidden: Sequence[int] | None = None,
        *,
        linear: bool = True,
    ) -> None:
        super().__init__()
        self.prior, self.dim, self.x_shape = of_any_shape(prior, dim), dim, tuple(x_shape)
        widths: Any = self.default_hidden if hidden is None else hidden
        if isinstance(widths, str) or not isinstance(widths, Iterable):
            raise InputError(
                f"`hidden` is {shortened(repr(hidden))}; expected a list of widths, such as "
                "[64, 64]."
            )
        self.hidden = tuple(whole("hidden", width, 1) for width in widths)
        self.history, self.info = History(), {}
        self.support = self.make_support()
        self.theta_scale = Standardize((self.support.size,), dtype=dtype_of(prior))
        # Components of a vector differ in kind; the pixels of an image do not.
        scales = self.x_shape if len(self.x_shape) == 1 else ()
        self.linear = linear
        self.x_scale = Standardize(scales, squash=SQUASH if linear else 1.0)
        self.embedding = build(self.default_embedding() if embedding is None else embedding)
        self.num_features = self._num_features()
        regressed = linear and isinstance(self.embedding, Flatten)
        self.regression = Regression(self.support.size, self.num_features) if regressed else None
        self.head = self.make_head(self.num_features)

    @property
    def dtype(self) -> torch.dtype:
        """The type of theta, of draws and of log-densities: that of the prior."""
        return self.theta_scale.location.dtype

    def default_embedding(self) -> dict[str, Any]:
        """The observation itself, or what a network makes of one of many numbers."""
        number = math.prod(self.x_shape)
        if number <= MOST_INPUTS:
            return {"kind": "flatten"}
        return {"kind": "flatten_mlp", "inputs": number, "outputs": NUM_FEATURES}

    def make_support(self) -> Support:
        """The coordinates that the network sees, which are theta itself by default."""
        return Support(None, self.dim)

    def make_head(self, num_features: int) -> nn.Module:
        """The part of the network that sees theta."""
        raise NotImplementedError

    def _num_features(self) -> int:
        training = self.embedding.training
        self.embedding.eval()
        try:
            with torch.no_grad():
                features = self.embedding(torch.zeros(2, *self.x_shape))
        except Exception as error:  # it is a user's
            shape, reason = ", ".join(map(str, ("N", *self.x_shape))), one_line(error).rstrip(".")
            raise InputError(
                f"the embedding cannot take x of shape ({shape}): {reason}. Expected a network "
                f"whose first layer takes observations of shape {self.x_shape}."
            ) from error
        self.embedding.train(training)
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
            came = tuple(features.shape) if isinstance(features, Tensor) else type(features)
            raise InputError(
                f"expected the embedding to map {(2, *self.x_shape)} to (2, F), got {came}. "
                "End it with torch.nn.Flatten()."
            )
        return features.shape[1]

    def adapt(self, theta: Tensor, x: Tensor) -> None:
        """Fix the standardization from training pairs."""
        if not bool((x.amax(dim=0) - x.amin(dim=0)).isfinite().all()):
            raise DataError(
                f"`x` spans more than float32 holds: from {float(x.min()):.1e} to "
                f"{float(x.max()):.1e}. Divide it by a constant."
            )
        self._check_digits(theta, x)
        values = self.support.coordinates(theta.to(self.dtype))
        self.theta_scale.adapt(values)
        self.x_scale.adapt(x)
        if self.regression is not None:
            features = self.embedding(self.x_scale(x))
            self.regression.adapt(self.theta_scale(values), features)

    def standard(self, theta: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Theta (..., N, D) as the network sees it, and the log of its volume there, (..., N)."""
        values, log_volume = self.support(theta)
        log_volume = log_volume - self.theta_scale.log_scale()
        if self.regression is not None:
            log_volume = log_volume - self.regression.log_scale()
        return self._seen(values, features), log_volume

    def place(self, theta: Tensor, features: Tensor) -> Tensor:
        """Theta (..., N, D) as the network sees it, without a volume, which ratios do not have."""
        return self._seen(self.support.coordinates(theta), features)

    def _seen(self, values: Tensor, features: Tensor) -> Tensor:
        """Coordinates of the support as the network sees them."""
        standard: Tensor = self.theta_scale(values).to(features)
        return standard if self.regression is None else self.regression(standard, features)

    def original(self, standard: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of :meth:`standard`: theta, and the log of the volume of what it comes from.

        That is taken where theta comes from, as theta itself may have been rounded to an edge.
        """
        log_volume = -self.theta_scale.log_scale()
        if self.regression is not None:
            standard = self.regression.inverse(standard, features)
            log_volume = log_volume - self.regression.log_scale()
        values = self.theta_scale.inverse(standard)
        return self.support.inverse(values), log_volume + self.support.log_volume(values)

    def _check_digits(self, theta: Tensor, x: Tensor) -> None:
        """Refuse theta that float32 cannot hold, and warn of such components of x."""
        remedy = "or pass theta and a prior of float64"
        raw = Standardize((self.dim,), dtype=self.dtype)
        raw.adapt(theta)
        center, spread = raw.location, raw.scale
        if bool((lost := raw.coarse(theta)).any()):
            raise DataError(
                f"`theta` lies around {float(center[lost][0]):.8g} with a spread of "
                f"{float(spread[lost][0]):.2g}, less than float32 resolves there. Subtract a "
                f"constant, {remedy}."
            )
        least, most = float(spread.min()), float(spread.max())
        if self.dtype == torch.float32 and not LEAST_SPREAD < least <= most < MOST_SPREAD:
            raise DataError(
                f"`theta` has spreads from {least:.1e} to {most:.1e}, whose squares float32 does "
                f"not hold. Divide it by a constant, {remedy}."
            )
        if self.x_scale.scale.ndim == 0:  # one for all pixels
            return
        raw = Standardize(self.x_shape)
        raw.adapt(x)
        lost = raw.coarse(x) & (x != x[0]).any(dim=0)
        if bool(lost.any()):
            places = ", ".join(map(str, lost.nonzero()[:8, 0].tolist()))
            warnings.warn(
                f"components {places} of x vary by less than float32 resolves so far from zero; "
                "subtract a constant from them.",
                stacklevel=2,
            )

    def observations(self, x: Any) -> Tensor:
        """Observations ``(N, *x_shape)`` as a tensor, or a single one as ``(1, *x_shape)``."""
        scale = self.x_scale.scale
        x = placed("x", as_tensor("x", x, scale.dtype), scale.device)
        if tuple(x.shape) == self.x_shape:
            x = x.unsqueeze(0)
        if tuple(x.shape[1:]) != self.x_shape or x.ndim != len(self.x_shape) + 1:
            shape = ", ".join(map(str, ("N", *self.x_shape)))
            raise DataError(f"expected `x` of shape ({shape}), got {tuple(x.shape)}.")
        # In training the pairs were checked once; a check per step would stall an accelerator.
        if not self.training and not bool(x.isfinite().all()):
            bad = int((~x.isfinite()).flatten(1).any(dim=1).sum())
            raise DataError(
                f"{bad:,} of {len(x):,} observations hold NaN or infinity; the posterior is not "
                "defined there. Remove or repair them."
            )
        found: Tensor = x
        return found

    def embed(self, x: Tensor) -> Tensor:
        """The features (N, F) of observations that were checked."""
        features: Tensor = self.embedding(self.x_scale(x))
        return features

    def plain(self, x: Tensor) -> Density:
        """The densities of the network itself, given observations that were checked."""
        raise NotImplementedError

    def density(self, x: Tensor) -> Density:
        """The densities given observations that were checked, inside the prior after training."""
        plain = self.plain(x)
        if self.is_warm:
            return pooled([plain], self.temperature, self.floor)
        return plain if self.training else inside(plain)

    def describe(self) -> dict[str, Any]:
        """The network in plain JSON, without its weights."""
        return {
            "kind": self.kind,
            "dim": self.dim,
            "x_shape": list(self.x_shape),
            "hidden": list(self.hidden),
            "embedding": getattr(self.embedding, "spec", None),
            "linear": self.linear,
            **{name: getattr(self, name) for name in self.extra_names},
            **({"temperature": self.temperature, "floor": self.floor} if self.is_warm else {}),
        }

    def __repr__(self) -> str:
        method = self.info.get("method", "not trained")
        number = sum(parameter.numel() for parameter in self.parameters())
        return (
            f"<{type(self).__name__} {method}: theta ({self.dim},), x {self.x_shape}, "
            f"{number:,} weights>"
        )


# The kinds of estimator by name, each entered where its class is made.
KINDS: dict[str, type[NeuralEstimator]] = {}
