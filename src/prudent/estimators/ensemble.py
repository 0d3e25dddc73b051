r"""Several estimators as one: the pool of their posteriors, and its temperature.

There are two ways to pool the densities of K members:

- ``mixture``: their average, :math:`\frac1K \sum_k q_k(\theta \mid x)`. It is as wide as the
  members together: where they disagree, each keeps its place.
- ``log``: the average of their logarithms, :math:`\exp \frac1K \sum_k \log q_k(\theta \mid x)`.
  It keeps what the members agree on, and is the sharper one.

At temperature T the log of posterior over prior is divided by T, so that with :math:`a = 1 / T`
the density of a pool q and a prior p is

.. math:: g(\theta) = q(\theta \mid x)^a \, p(\theta)^{1 - a} .

Above one the posterior is wider, and ends as the prior, not at its edges. A few posteriors that
are wrong are not mended by that: what they call impossible stays so. Therefore the pool of flows
may have the prior as one more member with a small share e, its *floor*: then
:math:`(1 - e) q + e p` takes the place of q. Ratios, which are pooled
in the same way, need no more than that. The density of flows has to be divided by the integral of
g: that is the mean of weights of draws, which come from the members, widened like the posterior,
and from the prior.

By the inequality of the means, g is nowhere above :math:`a \bar q + (1 - a) p`, the average of all
members and the prior, if T is at least one. So draws of that average, each kept with the
probability that the quotient says, are exact draws.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from prudent._choices import POOLS
from prudent._randomness import even_noise, seeded
from prudent._settings import positive
from prudent.contracts import Prior
from prudent.coverage.alpha import effective_size
from prudent.errors import InputError, unknown_name
from prudent.estimators._description import unjudged
from prudent.estimators.base import NeuralEstimator, NeuralPosterior, Saved
from prudent.estimators.importance import SamplingReport, chosen_draws
from prudent.estimators.nre import RatioPosterior
from prudent.estimators.sampling import reject, weighted
from prudent.history import History
from prudent.priors.density import log_density

# The integral is the mean of rounds with so many draws of each member; rounds are added, up to so
# many, until its relative error is this small.
DRAWS_PER_ROUND, LEAST_ROUNDS, MOST_ROUNDS, TOLERANCE = 64, 8, 64, 0.002
# The share of draws that come from the prior, where the temperature is not one.
PRIOR_SHARE = 0.25
# Observations whose integral is found at a time.
ROWS = 256
# Draws that are made at a time.
MOST_DRAWS = 2**18
# Candidates from which the share that rejection keeps is estimated.
NUM_TRIED = 256
# Weighted draws among which one is chosen, where rejection is not possible.
NUM_CANDIDATES = 8
# The names of the tensors of an out-of-fold diagnosis begin with this.
OUT_OF_FOLD = "out_of_fold."


def log_pool(values: Tensor, pool: str) -> Tensor:
    """The pool of log-densities (K, ...) as (...); for ``log`` without its normalization."""
    if pool == "log":
        return values.mean(dim=0)
    return values.logsumexp(dim=0) - math.log(len(values))


def floored(log_ratio: Tensor, floor: float) -> Tensor:
    """The log of posterior over prior, with the prior as a share of the posterior."""
    if floor == 0:
        return log_ratio
    return torch.logaddexp(
        log_ratio + math.log1p(-floor), torch.full_like(log_ratio, math.log(floor))
    )


def tempered(
    estimator: "NeuralEstimator | Ensemble", temperature: float, floor: float = 0.0
) -> "Ensemble":
    """The estimator at another temperature: above one its posteriors are wider, else narrower.

    The weights are shared. A floor is for an estimator that has none, and is at temperature one.
    """
    if not isinstance(estimator, Ensemble):
        other = Ensemble([estimator], temperature=temperature, floor=floor)
    else:
        warmth, floor = estimator.temperature * temperature, floor or estimator.floor
        other = Ensemble(list(estimator), estimator.pool, estimator.fold, warmth, floor)
    other.info, other.history = unjudged(estimator), estimator.history
    other.novelty, other.trained_on = estimator.novelty, estimator.trained_on
    return other.train(estimator.training)


class _Pooled(NeuralPosterior):
    """The posteriors of the members for N observations."""

    def __init__(self, estimator: "Ensemble", parts: Sequence[Any]) -> None:
        super().__init__(estimator, parts[0].features)
        self.parts = parts

    def _each(self, name: str, theta: Tensor) -> Tensor:
        """A quantity of theta (..., N, D) under each member, (K, ..., N)."""
        return torch.stack([getattr(part, name)(theta) for part in self.parts])

    def _chosen(self, index: Tensor | slice) -> Self:
        return type(self)(self.estimator, [part.rows(index) for part in self.parts])


class RatioEnsemblePosterior(_Pooled, RatioPosterior):
    """The pool of ratios for N observations, times the prior; unnormalized."""

    def log_ratio(self, theta: Any) -> Tensor:
        """Log of posterior over prior at ``theta`` (..., N, D), as (..., N)."""
        pooled = log_pool(self._each("log_ratio", self._theta(theta)), self.estimator.pool)
        value: Tensor = pooled / self.estimator.temperature
        return value


class FlowEnsemblePosterior(_Pooled):
    """The pool of flows for N observations, normalized."""

    def __init__(self, estimator: "Ensemble", parts: Sequence[Any], *, raw: bool = False) -> None:
        super().__init__(estimator, parts)
        self.normalization = "none" if raw else self._kind

    @property
    def _kind(self) -> str:
        """What the densities have to be divided by."""
        if self.estimator.pool != "mixture" or self.estimator.temperature != 1:
            return "pool"
        return "cut" if self._leaks else "none"

    @property
    def _leaks(self) -> bool:
        """Whether members have mass outside the prior's support."""
        return any(part.estimator.leaks for part in self.parts)

    def _chosen(self, index: Tensor | slice) -> Self:
        other = super()._chosen(index)
        return other.unnormalized() if self.normalization == "none" else other

    def unnormalized(self) -> Self:
        """The same posteriors without the search for their normalization."""
        return type(self)(self.estimator, self.parts, raw=True)

    def log_prob(self, theta: Any) -> Tensor:
        """Log-density at ``theta`` (..., N, D), as (..., N)."""
        theta = self._theta(theta)
        value = self._density(theta, self._each("log_prob", theta))
        return value if self.normalization == "none" else value - self.log_norm

    def log_ratio(self, theta: Any) -> Tensor:
        """Log of posterior over prior at ``theta`` (..., N, D), as (..., N)."""
        theta = self._theta(theta)
        return self.log_prob(theta) - log_density(self.estimator.prior, theta)

    def _density(self, theta: Tensor, values: Tensor) -> Tensor:
        """The log of g at theta, from the log-densities of the members (K, ..., N)."""
        pooled, share = self._pool(theta, values), 1 / self.estimator.temperature
        if share == 1 and not self._leaks:
            return pooled
        known = log_density(self.estimator.prior, theta)
        # Minus infinity stays what it is, also for shares above one.
        value: Tensor = share * pooled + (1 - share) * known.masked_fill(known == -torch.inf, 0.0)
        return value.masked_fill(known == -torch.inf, -torch.inf)

    def _pool(self, theta: Tensor, values: Tensor, pool: str = "") -> Tensor:
        """The log of the pool of members and prior, from the members' log-densities."""
        pooled = log_pool(values, pool or self.estimator.pool)
        if self.estimator.floor == 0:
            return pooled
        known = log_density(self.estimator.prior, theta)
        inside = known > -torch.inf
        ratio = floored(pooled - known.where(inside, 0.0), self.estimator.floor)
        return torch.where(inside, known + ratio, pooled)

    @cached_property
    def log_norm(self) -> Tensor:
        """The log of the integral of g for each observation, (N,).

        It is found from even draws that are the same for every observation, so that a density does
        not depend on what else is in the batch.
        """
        starts = range(0, len(self), ROWS)
        return torch.cat([self.rows(slice(i, i + ROWS))._find_log_norm() for i in starts])

    @torch.no_grad()
    def _find_log_norm(self) -> Tensor:
        rows = torch.arange(len(self))
        # The sums over rounds of one, of the integral and of its square, in units of the first.
        sums = torch.zeros(3, len(self), dtype=torch.float64)
        unit = torch.zeros(len(self), dtype=torch.float64)
        number = DRAWS_PER_ROUND * len(self.parts)
        for index in range(MOST_ROUNDS):
            some = self.rows(rows.to(self.features.device)).unnormalized()
            with seeded(index, "pool"):
                noise = even_noise(number, 1, self.estimator.dim).expand(-1, len(rows), -1)
                known = self._prior_draws(number, 1).expand(-1, len(rows), -1)
            _, density, proposal = some._weighted(noise, known)
            log_mean = (density - proposal).double().logsumexp(dim=0).cpu() - math.log(number)
            unit = log_mean.nan_to_num(neginf=0.0) if index == 0 else unit
            value = (log_mean - unit[rows]).exp()
            sums[:, rows] += torch.stack((torch.ones_like(value), value, value.square()))
            mean, square = sums[1] / sums[0], sums[2] / sums[0]
            error = ((square - mean.square()).clamp(min=0) / sums[0]).sqrt()
            if index + 1 >= LEAST_ROUNDS:
                rows = (error > TOLERANCE * mean).nonzero().squeeze(1)
            if len(rows) == 0:
                break
        # Half a draw where none lies inside the prior's support.
        least = 0.5 / (number * sums[0])
        found: Tensor = unit + (sums[1] / sums[0]).maximum(least).log()
        return found.to(self.features.device, self.estimator.dtype)

    @torch.no_grad()
    def from_noise(self, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal noise (L, N, D) as draws of members in turn, and some of the prior.

        Returns:
            The draws (L, N, D), their log-density, and that of what drew them, (L, N) each.
        """
        return self._weighted(noise, self._prior_draws(len(noise), len(self)))

    def _prior_draws(self, number: int, num_rows: int) -> Tensor:
        """The draws of the prior among so many draws, (P, N, D)."""
        share = self.estimator.floor if self.estimator.temperature == 1 else PRIOR_SHARE
        draws: Tensor = self.estimator.prior.sample((math.ceil(share * number), num_rows))
        return draws

    def _weighted(self, noise: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What :meth:`from_noise` returns, where draws of the prior take the place of noise."""
        spread, prior = self.estimator.temperature**0.5, self.estimator.prior
        pieces = noise[len(known) :].tensor_split(len(self.parts))
        made = [
            part.from_noise(piece, spread) for part, piece in zip(self.parts, pieces, strict=True)
        ]
        theta = torch.cat((known.to(made[0][0]), *(own for own, _, _ in made)))
        both, start = [], len(known)
        for part, (own, *densities) in zip(self.parts, made, strict=True):
            # A member knows the densities of its own draws.
            end = start + len(own)
            others = torch.cat((theta[:start], theta[end:]))
            none = [value[:0] for value in densities]
            found = part.log_prob_and_wide(others, spread) if len(others) else none
            pairs = zip(found, densities, strict=True)
            both.append([torch.cat((v[:start], mine, v[start:])) for v, mine in pairs])
            start = end
        each, wide = (torch.stack(values) for values in zip(*both, strict=True))
        counts = torch.tensor([len(piece) for piece in pieces]).to(wide)
        proposals = [(counts / len(noise)).log()[:, None, None] + wide]
        if len(known):
            share = math.log(len(known) / len(noise))
            proposals.append((log_density(prior, theta) + share).unsqueeze(0))
        value = self._density(theta, each)
        value = value if self.normalization == "none" else value - self.log_norm
        return theta, value, torch.cat(proposals).logsumexp(dim=0)

    @torch.no_grad()
    def _draw(self, shape: tuple[int, ...]) -> tuple[Tensor, SamplingReport | None]:
        number, report = torch.Size(shape).numel(), None
        if self._kind == "none":
            draws = self._mixture_sample(number)
        else:
            draws, report = self._rejection(number)
        return draws.reshape(*shape, *draws.shape[1:]), report

    def _rejection(self, number: int) -> tuple[Tensor, SamplingReport]:
        """Draws (number, N, D), of which those that are kept are exact, and their report."""
        step = max(1, MOST_DRAWS // max(number, 1))
        starts = range(0, len(self), step)
        parts = [self.rows(slice(i, i + step))._reject_some(number) for i in starts]
        draws, worth, kept = (
            torch.cat(part, dim=-2 if part[0].ndim > 1 else 0) for part in zip(*parts, strict=True)
        )
        report = SamplingReport("rejection", number, worth, acceptance=float(kept.mean()))
        return draws.to(self.features.device), report

    def _mixture_sample(self, number: int) -> Tensor:
        """Draws (number, N, D), each from a member chosen at random."""
        choice = torch.randint(len(self.parts), (number, len(self)))
        # The place of each draw among those of the same member, so that no member draws in vain.
        counts = one_hot(choice, len(self.parts)).cumsum(dim=0)
        place = counts.gather(-1, choice.unsqueeze(-1)).squeeze(-1) - 1
        most = int(counts.max()) if number else 0
        drawn = torch.stack([part.sample((most,)) for part in self.parts])
        draws = drawn[choice, place, torch.arange(len(self))]
        if self.estimator.floor == 0:
            return draws
        broad = torch.rand(number, len(self), 1) < self.estimator.floor
        known = self.estimator.prior.sample(broad.shape[:2])
        return torch.where(broad.to(draws.device), known.to(draws), draws)

    def _candidates(self, number: int) -> tuple[Tensor, Tensor]:
        """Draws (number, N, D) of members and prior, and the log of the share of each to keep."""
        share, prior = min(1.0, 1 / self.estimator.temperature), self.estimator.prior
        theta = self._mixture_sample(number)
        chosen = torch.rand(number, len(self), 1) < share
        theta = torch.where(
            chosen.to(theta.device), theta, prior.sample(chosen.shape[:2]).to(theta)
        )
        each = self._each("log_prob", theta)
        above = self._pool(theta, each, "mixture") + math.log(share)
        if share < 1:
            above = torch.logaddexp(above, log_density(prior, theta) + math.log(1 - share))
        return theta, (self._density(theta, each) - above).nan_to_num(nan=-torch.inf)

    def _reject_some(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draws (number, N, D), what they are worth, and the share that was kept, (N,) each."""
        device, exact = self.features.device, self.estimator.temperature >= 1
        # Below one nothing is known that is nowhere less than the density.
        kept = self._share_kept() if exact else torch.zeros(len(self))
        draws = torch.empty(number, len(self), self.estimator.dim, dtype=self.estimator.dtype)
        left = reject(
            lambda rows, number: self.rows(rows.to(device))._candidates(number), kept, draws
        )
        worth = torch.full((len(self),), float(number))
        some = self.rows(left.to(device))
        if len(left) and self._leaks:  # members may be almost nowhere inside
            prior, raw = self.estimator.prior, some.unnormalized()
            like = self.features.new_empty(0, dtype=self.estimator.dtype)
            found, report = weighted(raw, prior, (number,), like=like)
            draws[:, left], worth[left] = found.cpu(), report.effective_sample_size.to(worth)
        elif len(left):
            draws[:, left], worth[left] = some.unnormalized()._resampled(number)
        return draws, worth, kept

    def _share_kept(self) -> Tensor:
        """The share of candidates that are kept, (N,): the integral of g, from a few of them.

        Draws by rejection are exact without it; it says whether that is worth a try.
        """
        return self._candidates(NUM_TRIED)[1].exp().mean(dim=0).cpu()

    def _resampled(self, number: int) -> tuple[Tensor, Tensor]:
        """Draws (number, N, D) chosen from weighted ones, and the number that they are worth."""
        noise = torch.randn(
            NUM_CANDIDATES * max(number, DRAWS_PER_ROUND), len(self), self.estimator.dim
        )
        theta, density, proposal = (value.cpu() for value in self.from_noise(noise))
        weight = (density - proposal).double().softmax(dim=0)
        return chosen_draws(theta, weight, number), effective_size(weight).clamp(
            max=number
        ).float()


class Ensemble(Saved):
    """The pool of estimators of one kind, itself an estimator.

    Args:
        members: The estimators, with the same prior and shapes.
        pool: The way to pool their densities: ``mixture`` or ``log``.
        fold: For cross-fitted members, the members that did not train on each pair, (R, N).
        temperature: The number by which the log of posterior over prior is divided; see
            :func:`prudent.recalibrate`.
        floor: The share of the prior in the pool, at least 0 and below 1, for flows.

    Attributes:
        history: The rows of all members, each with its ``member``; saved without times.
        info: The record of the training, in plain JSON; saved with the ensemble.
        out_of_fold: The diagnosis of cross-fitted members by the pairs that they did not train on,
            None without; saved with the ensemble.
    """

    kind = "ensemble"
    fold: Tensor | None
    out_of_fold: Any = None

    def __init__(
        self,
        members: Sequence[NeuralEstimator],
        pool: str = "mixture",
        fold: Tensor | None = None,
        temperature: float = 1.0,
        floor: float = 0.0,
    ) -> None:
        super().__init__()
        self.temperature = positive("temperature", temperature)
        if not 0 <= floor < 1:
            raise InputError(f"`floor` is {floor}; expected a share, at least 0 and below 1.")
        self.floor = floor
        if not members:
            raise InputError("an ensemble needs at least one member.")
        if pool not in POOLS:
            raise unknown_name("pool", pool, POOLS)
        shapes = {(member.kind, member.dim, member.x_shape) for member in members}
        if len(shapes) > 1:
            raise InputError(
                f"expected members of one kind and shape, got {sorted(shapes)}: (kind, number of "
                "parameters, shape of x)."
            )
        places = {str(weight.device) for member in members for weight in member.parameters()}
        if len(places) > 1:
            raise InputError(
                f"expected members on one device, got {' and '.join(sorted(places))}; move them: "
                "member.to(device)."
            )
        self.members = nn.ModuleList(members)
        self.training = any(member.training for member in members)
        self.pool = pool
        self.register_buffer("fold", fold)
        first = members[0]
        self.prior: Prior = first.prior
        self.dim, self.x_shape, self.normalized = first.dim, first.x_shape, first.normalized
        self.dtype = first.dtype
        rows = ((index, row) for index, member in enumerate(members) for row in member.history)
        self.history = History({"member": index, **row} for index, row in rows)
        self.info = {}

    def __len__(self) -> int:
        return len(self.members)

    def observations(self, x: Any) -> Tensor:
        """Observations as a tensor ``(N, *x_shape)``."""
        return next(iter(self)).observations(x)

    def __iter__(self) -> Iterator[NeuralEstimator]:
        return iter(self.members)  # type: ignore[arg-type]

    def forward(self, x: Any) -> RatioEnsemblePosterior | FlowEnsemblePosterior:
        """The posteriors given ``x`` ``(N, *x_shape)``."""
        kind = FlowEnsemblePosterior if self.normalized else RatioEnsemblePosterior
        parts = [member(x) for member in self.members]
        # A pool of flows is cut to the prior's support as a whole.
        return kind(self, [part.unnormalized() for part in parts] if self.normalized else parts)

    def describe(self) -> dict[str, Any]:
        """The networks of the members in plain JSON, without their weights, and how they fare."""
        members = [member.describe() for member in self]
        names = ("pool", "temperature", "floor")
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.out_of_fold is not None:
            own["out_of_fold"] = self.out_of_fold.settings()
        return {"kind": self.kind, **own, "members": members}

    def more_tensors(self) -> dict[str, Tensor]:
        """What every estimator has, and the out-of-fold diagnosis."""
        found = {} if self.out_of_fold is None else self.out_of_fold.tensors()
        own = {OUT_OF_FOLD + name: value for name, value in found.items()}
        return {**super().more_tensors(), **own}

    def __repr__(self) -> str:
        method = self.info.get("method", self.members[0].kind)
        return f"<Ensemble of {len(self)} {method}: theta ({self.dim},), x {self.x_shape}>"
