r"""The parts that posteriors are made of: each makes one density of others.

- :class:`Cut` keeps what lies inside the prior's support.
- :class:`Pool` is the average of the densities of K members,
  :math:`\frac1K \sum_k q_k(\theta \mid x)`. It is as wide as the members together: where they
  disagree, each keeps its place. The prior may be one more member with a small share e, the
  *floor*: then :math:`(1 - e) q + e p` takes the place of q.
- :class:`Temper` divides the log of posterior over prior by a temperature T, so that with
  :math:`a = 1 / T` the density of a pool q and a prior p is

.. math:: g(\theta) = q(\theta \mid x)^a \, p(\theta)^{1 - a} .

Above one the posterior is wider, and ends as the prior, not at its edges. A few posteriors that
are wrong are not mended by that: what they call impossible stays so, unless there is a floor. The
integral of g is the mean of weights of draws, which come from the members, widened like the
posterior, and from the prior.

By the inequality of the means, g is nowhere above :math:`a q + (1 - a) p` if T is at least one. So
draws of that average, each kept with the probability that the quotient says, are exact draws.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from prudent._randomness import even_noise, seeded
from prudent.coverage.alpha import effective_size
from prudent.errors import InputError
from prudent.estimators.importance import chosen_draws
from prudent.posteriors.density import Density, Facts
from prudent.posteriors.normalized import Normalized
from prudent.priors.density import log_density

# Draws of a round by which the mass inside the prior's support is found, and of slow densities.
NUM_DRAWS, NUM_SLOW = 2048, 256
# Draws of each member of a pool in a round by which its integral is found.
DRAWS_PER_ROUND = 64
# The share of draws that come from the prior, where the temperature is not one.
PRIOR_SHARE = 0.25
# Candidates from which the share that rejection keeps is estimated.
NUM_TRIED = 256
# Weighted draws among which one is chosen, where rejection is not possible.
NUM_CANDIDATES = 8


class Cut(Density):
    """A density on the whole space where it is inside the prior's support, and zero elsewhere.

    Args:
        inner: The density.
        tolerance: The relative error of the mass inside.
    """

    def __init__(self, inner: Density, tolerance: float = 0.01) -> None:
        super().__init__(inner.prior, inner.dim, inner.like, replace(inner.facts, divided="cut"))
        self.inner, self.tolerance = inner, tolerance
        self.rounds = (1, 1 if self.facts.slow else 16)

    def rows(self, index: Tensor | slice) -> "Cut":
        """The densities of some observations."""
        return Cut(self.inner.rows(index), self.tolerance)

    def undivided(self) -> Density:
        """The density on the whole space."""
        return self.inner

    def _outside(self, theta: Tensor) -> Tensor:
        return log_density(self.prior, theta) == -torch.inf

    def log_prob(self, theta: Tensor) -> Tensor:
        """The log-density of theta (..., N, D), (..., N), not divided by the mass inside."""
        return self.inner.log_prob(theta).masked_fill(self._outside(theta), -torch.inf)

    def from_noise(self, noise: Tensor, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal noise (L, N, D) as draws, their log-density, and that of the draws."""
        theta, log_prob, log_proposal = self.inner.from_noise(noise, spread)
        return theta, log_prob.masked_fill(self._outside(theta), -torch.inf), log_proposal

    def candidates(self, number: int) -> tuple[Tensor, Tensor]:
        """Draws (number, N, D), of which those inside are kept."""
        theta = self.inner.sample((number,))
        return theta, torch.where(self._outside(theta), -torch.inf, 0.0)

    def log_weights(self, index: int) -> Tensor:
        """The log of one for draws inside, and of zero for others, (L, N)."""
        with seeded(index, "mass"):
            if not self.facts.noise:
                return self.candidates(NUM_SLOW if self.facts.slow else NUM_DRAWS)[1]
            noise = even_noise(NUM_DRAWS, 1, self.dim).expand(-1, len(self), -1)
            outside = self._outside(self.inner.from_noise(noise)[0])
            return torch.where(outside, -torch.inf, 0.0)

    def share_kept(self, log_integral: Callable[[], Tensor]) -> Tensor:
        """The share of candidates that is kept; all where it takes more draws to find it."""
        if self.facts.slow or not self.facts.density:
            return torch.ones(len(self))
        return super().share_kept(log_integral)

    def leftover(self, number: int) -> tuple[Tensor, Tensor]:
        """Draws (number, N, D) where almost none are inside, and what they are worth."""
        if self.facts.density:
            return super().leftover(number)
        raise InputError(
            f"almost all draws of {len(self):,} posteriors lie outside the prior, and without a "
            "density no others are found. Was the model trained with this prior?"
        )


def inside(density: Density, tolerance: float = 0.01) -> Density:
    """A density that is zero outside the prior's support, and normalized inside."""
    return density if density.facts.inside else Normalized(Cut(density, tolerance))


class Pool(Density):
    """The average of densities, or of ratios to the prior.

    Args:
        members: The densities, or ratios.
        floor: The share of the prior among densities.
        weights: The weights of the members (K,), which add up to one; None for equal ones.
    """

    def __init__(
        self, members: Sequence[Density], floor: float = 0.0, weights: Tensor | None = None
    ) -> None:
        first, known = members[0], [member.facts for member in members]
        facts = Facts(
            ratio=first.facts.ratio,
            noise=all(own.noise and own.divided == "none" for own in known),
            inside=all(own.inside or own.divided != "none" for own in known),
        )
        super().__init__(first.prior, first.dim, first.like, facts)
        self.members, self.floor, self.weights = members, floor, weights

    def rows(self, index: Tensor | slice) -> "Pool":
        """The densities of some observations."""
        return Pool([member.rows(index) for member in self.members], self.floor, self.weights)

    def _pooled(self, values: Tensor) -> Tensor:
        """The log of the average, from log-densities or log ratios (K, ..., N)."""
        if self.weights is None:
            return values.logsumexp(dim=0) - math.log(len(values))
        shares = self.weights.log().to(values)
        return (values + shares.reshape(-1, *[1] * (values.ndim - 1))).logsumexp(dim=0)

    def log_ratio(self, theta: Tensor) -> Tensor:
        """The log of posterior over prior at theta (..., N, D), (..., N)."""
        if not self.facts.ratio:
            return super().log_ratio(theta)
        return self._pooled(torch.stack([member.log_ratio(theta) for member in self.members]))

    def log_prob(self, theta: Tensor) -> Tensor:
        """The log-density of theta (..., N, D), (..., N)."""
        each = torch.stack([member.log_prob(theta) for member in self.members])
        return self._floored(theta, self._pooled(each))

    def _floored(self, theta: Tensor, log_prob: Tensor) -> Tensor:
        """The log-density of members and prior together, from that of the members."""
        if self.floor == 0:
            return log_prob
        known = log_density(self.prior, theta)
        within = known > -torch.inf
        ratio = floored(log_prob - known.where(within, 0.0), self.floor)
        return torch.where(within, known + ratio, log_prob)

    @torch.no_grad()
    def sample(self, shape: tuple[int, ...]) -> Tensor:
        """Draws ``(*shape, N, D)``, each from a member chosen at random, or from the prior."""
        if self.facts.ratio:
            return super().sample(shape)
        number, several = math.prod(shape), len(self.members)
        if self.weights is None:
            choice = torch.randint(several, (number, len(self)))
        else:
            choice = torch.multinomial(self.weights, number * len(self), replacement=True)
            choice = choice.reshape(number, len(self))
        # The place of each draw among those of the same member, so that no member draws in vain.
        counts = one_hot(choice, several).cumsum(dim=0)
        place = counts.gather(-1, choice.unsqueeze(-1)).squeeze(-1) - 1
        most = int(counts.max()) if number else 0
        drawn = torch.stack([member.sample((most,)) for member in self.members])
        draws = drawn[choice, place, torch.arange(len(self))]
        if self.floor:
            broad = torch.rand(number, len(self), 1) < self.floor
            known = self.prior.sample(broad.shape[:2])
            draws = torch.where(broad.to(draws.device), known.to(draws), draws)
        return draws.reshape(*shape, *draws.shape[1:])

    @torch.no_grad()
    def from_noise(self, noise: Tensor, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal noise (L, N, D) as draws of members in turn, and some of the prior."""
        theta, log_prob, proposals = self.proposed(noise, self.prior_draws(noise), spread)
        return theta, log_prob, proposals.logsumexp(dim=0)

    def prior_draws(self, noise: Tensor, share: float | None = None) -> Tensor:
        """The draws of the prior that take the place of some noise (L, N, D), (P, N, D)."""
        number = math.ceil((self.floor if share is None else share) * len(noise))
        draws: Tensor = self.prior.sample((number, noise.shape[1]))
        return draws

    def proposed(
        self, noise: Tensor, known: Tensor, spread: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draws of the prior (P, N, D) in place of some noise (L, N, D), the rest from members.

        Returns:
            The draws (L, N, D), their log-density (L, N), and the parts of what drew them: the
            logs of the members' shares in its density, and of that of the prior, (K + 1, L, N).
        """
        pieces = noise[len(known) :].tensor_split(len(self.members))
        made = [
            member.from_noise(piece, spread)
            for member, piece in zip(self.members, pieces, strict=True)
        ]
        theta = torch.cat((known.to(made[0][0]), *(own for own, _, _ in made)))
        both, start = [], len(known)
        for member, (own, *densities) in zip(self.members, made, strict=True):
            # A member knows the densities of its own draws.
            end = start + len(own)
            others = torch.cat((theta[:start], theta[end:]))
            none = [value[:0] for value in densities]
            found = member.widened(others, spread) if len(others) else none
            pairs = zip(found, densities, strict=True)
            both.append([torch.cat((v[:start], mine, v[start:])) for v, mine in pairs])
            start = end
        each, wide = (torch.stack(values) for values in zip(*both, strict=True))
        counts = torch.tensor([len(piece) for piece in pieces]).to(wide)
        proposals = [(counts / len(noise)).log()[:, None, None] + wide]
        if len(known):
            share = math.log(len(known) / len(noise))
            proposals.append((log_density(self.prior, theta) + share).unsqueeze(0))
        return theta, self._floored(theta, self._pooled(each)), torch.cat(proposals)


class Temper(Density):
    """A density at a temperature; also inside the prior where that did not keep to it.

    Args:
        inner: A pool of flows, or anything else, which is then known by its ratio alone.
        temperature: The number by which the log of posterior over prior is divided.
    """

    rounds, tolerance, shares = (8, 64), 0.002, False

    def __init__(self, inner: Density, temperature: float, *, by_ratio: bool = False) -> None:
        noise = isinstance(inner, Pool) and inner.facts.noise
        ratio = by_ratio or inner.facts.ratio or not noise
        divided = "none" if ratio else "pool" if temperature != 1 else "cut"
        facts = replace(inner.facts, ratio=ratio, noise=not ratio, divided=divided, inside=True)
        super().__init__(inner.prior, inner.dim, inner.like, facts)
        self.inner, self.temperature = inner, temperature

    def rows(self, index: Tensor | slice) -> "Temper":
        """The densities of some observations."""
        return Temper(self.inner.rows(index), self.temperature, by_ratio=self.facts.ratio)

    def log_ratio(self, theta: Tensor) -> Tensor:
        """The log of posterior over prior at theta (..., N, D), (..., N)."""
        if not self.facts.ratio:
            return super().log_ratio(theta)
        return self.inner.log_ratio(theta) / self.temperature

    def log_prob(self, theta: Tensor) -> Tensor:
        """The log-density of theta (..., N, D), (..., N), up to a constant for each row."""
        return self._warm(theta, self.inner.log_prob(theta))

    def _warm(self, theta: Tensor, log_prob: Tensor) -> Tensor:
        known, share = log_density(self.prior, theta), 1 / self.temperature
        # Minus infinity stays what it is, also for shares above one.
        value = share * log_prob + (1 - share) * known.masked_fill(known == -torch.inf, 0.0)
        return value.masked_fill(known == -torch.inf, -torch.inf)

    @property
    def pool(self) -> Pool:
        """The pool inside."""
        assert isinstance(self.inner, Pool)
        return self.inner

    def candidates(self, number: int) -> tuple[Tensor, Tensor]:
        """Draws (number, N, D) of pool and prior, and the log of the share of each to keep."""
        share = min(1.0, 1 / self.temperature)
        theta = self.inner.sample((number,))
        chosen = torch.rand(number, len(self), 1) < share
        known = self.prior.sample(chosen.shape[:2]).to(theta)
        theta = torch.where(chosen.to(theta.device), theta, known)
        log_prob = self.inner.log_prob(theta)
        above = log_prob + math.log(share)
        if share < 1:
            above = torch.logaddexp(above, log_density(self.prior, theta) + math.log(1 - share))
        return theta, (self._warm(theta, log_prob) - above).nan_to_num(
            -torch.inf, neginf=-torch.inf
        )

    def share_kept(self, log_integral: Callable[[], Tensor]) -> Tensor:
        """The share of candidates that is kept, from a few of them: only whether to try."""
        if self.temperature < 1:  # nothing is known that is nowhere less than the density
            return torch.zeros(len(self))
        return self.candidates(NUM_TRIED)[1].exp().mean(dim=0).cpu()

    def from_noise(self, noise: Tensor, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal noise (L, N, D) as draws of members in turn, and some of the prior."""
        share = PRIOR_SHARE if self.temperature != 1 else None
        return self._weighted(noise, self.pool.prior_draws(noise, share))

    def _weighted(self, noise: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        theta, log_prob, parts = self.pool.proposed(noise, known, self.temperature**0.5)
        return theta, self._warm(theta, log_prob), parts.logsumexp(dim=0)

    def log_weights(self, index: int) -> Tensor:
        """The log weights of one round of even draws, the same for every observation, (L, N)."""
        share = PRIOR_SHARE if self.temperature != 1 else None
        with seeded(index, "pool"):
            noise = even_noise(DRAWS_PER_ROUND * len(self.pool.members), 1, self.dim)
            known = self.pool.prior_draws(noise, share).expand(-1, len(self), -1)
        _, log_prob, proposal = self._weighted(noise.expand(-1, len(self), -1), known)
        return (log_prob - proposal).double()

    def leftover(self, number: int) -> tuple[Tensor, Tensor]:
        """Draws (number, N, D) chosen from weighted ones, and the number that they are worth."""
        if not self.pool.facts.inside:  # members may be almost nowhere inside
            return super().leftover(number)
        several = NUM_CANDIDATES * max(number, DRAWS_PER_ROUND)
        noise = torch.randn(several, len(self), self.dim)
        theta, density, proposal = (value.cpu() for value in self.from_noise(noise))
        weight = (density - proposal).double().softmax(dim=0)
        worth = effective_size(weight).clamp(max=number).float()
        return chosen_draws(theta, weight, number), worth


def floored(log_ratio: Tensor, floor: float) -> Tensor:
    """The log of posterior over prior, with the prior as a share of the posterior."""
    if floor == 0:
        return log_ratio
    return torch.logaddexp(
        log_ratio + math.log1p(-floor), torch.full_like(log_ratio, math.log(floor))
    )


def pooled(members: Sequence[Density], temperature: float = 1.0, floor: float = 0.0) -> Density:
    """Members that take noise, or ratios, as one density at a temperature, inside the prior."""
    pool = Pool(members, floor)
    if pool.facts.ratio:
        return Temper(pool, temperature)
    whole = temperature == 1 and pool.facts.inside
    return pool if whole else Normalized(Temper(pool, temperature))
