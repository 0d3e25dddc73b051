r"""What a posterior says of its observations: numbers, a region, a table and a picture.

All of it is read off the same draws, of which there are :data:`NUM_DRAWS` per observation. They
are made once, with a seed of their own, so that two questions never get answers that disagree.
Where the draws are worth less than their number, every answer says so.

The region of credibility :math:`1 - c` holds all theta whose alpha, the posterior mass of lower
density, is at least c.
"""

import contextlib
import html
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from prudent._arrays import MOST_AT_ONCE, as_shape, as_tensor, in_pieces
from prudent._extras import require
from prudent._randomness import seeded
from prudent._settings import whole
from prudent.contracts import Shape
from prudent.coverage.alpha import alpha
from prudent.errors import DataError, InputError
from prudent.estimators._description import verdict_of
from prudent.estimators.importance import SamplingReport, joined
from prudent.estimators.novelty import Observed
from prudent.estimators.sampling import complaint
from prudent.posteriors.density import facts_of
from prudent.priors.checks import check_prior, marginal_density
from prudent.priors.density import log_density
from prudent.priors.support import Support

# Draws per observation: the 5 % quantile of a normal is found to a thirtieth of its spread.
NUM_DRAWS = 4096
# Points whose density is evaluated at a time.
CHUNK = 2**16
# The steps of the climb to the highest density, in spreads of the posterior: so long at first,
# and shorter by this factor each.
NUM_STEPS, STEP, SHORTER = 120, 0.1, 0.96
QUANTILES = (0.05, 0.5, 0.95)
COLUMNS = ("parameter", "mean", "std", *(f"{100 * q:.0f} %" for q in QUANTILES))


class Interval(NamedTuple):
    """The ends of the intervals of N observations and D parameters, (N, D) each."""

    low: Tensor
    high: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class CredibleRegion:
    """The highest-density regions of the posteriors of N observations.

    Args:
        posterior: The posteriors.
        level: The level that was asked for: the mass of the regions, or for conformal posteriors
            the probability with which they hold the truth.
        least_alpha: The alpha from which on a theta is inside, (N,).
        density: The log-density of L draws that measure alpha, (L, N).
        log_weight: The log of the weights of these draws, (L, N).
    """

    posterior: Any
    level: float
    least_alpha: Tensor
    density: Tensor
    log_weight: Tensor

    @property
    def credibility(self) -> Tensor:
        """The posterior mass that each region holds, (N,)."""
        return 1 - self.least_alpha.clamp(min=0)

    @property
    def threshold(self) -> Tensor:
        """The log-density from which on a theta is inside, (N,)."""
        ordered = self.density.sort(dim=0)
        mass = self.log_weight.softmax(dim=0).gather(0, ordered.indices).cumsum(dim=0)
        least = self.least_alpha.to(mass)
        place = (mass < least).sum(dim=0, keepdim=True).clamp(max=len(mass) - 1)
        found = ordered.values.gather(0, place).squeeze(0)
        return found.where(least > 0, lowest(self.density, self.log_weight) + least)

    @torch.no_grad()
    def contains(self, theta: Any) -> Tensor:
        """Whether each theta (..., N, D) is inside, (..., N)."""
        found = alphas(self.posterior.log_prob(theta), self.density, self.log_weight)
        return found >= self.least_alpha.to(found)

    def __repr__(self) -> str:
        mean = float(self.credibility.mean())
        return f"<CredibleRegion of level {self.level:g}: {mean:.3f} of the posterior mass>"


def lowest(density: Tensor, log_weight: Tensor) -> Tensor:
    """The least log-density (N,) of draws (L, N) that have a weight."""
    return density.masked_fill(log_weight == -torch.inf, torch.inf).amin(dim=0)


def alphas(log_prob: Tensor, density: Tensor, log_weight: Tensor) -> Tensor:
    """The posterior mass of lower density than log-densities (..., N), by weighted draws (L, N).

    Where no draw is less dense, it is the negative distance in nats from the least dense one, so
    that points far out are told apart.
    """
    flat = log_prob.reshape(-1, density.shape[1])
    found = torch.stack(
        [alpha(own, density, log_weight, indicator="hard", midpoint=True) for own in flat]
    )
    beyond = (flat - lowest(density, log_weight)).clamp(max=0.0)
    return torch.where(found > 0, found, beyond).reshape(log_prob.shape)


def check_names(names: Any, dim: int) -> list[str]:
    """The D names of the parameters, which are numbered where none are given.

    >>> check_names(None, 2), check_names(("mass", "spin"), 2)
    (['theta_1', 'theta_2'], ['mass', 'spin'])
    """
    if names is None:
        return [f"theta_{index + 1}" for index in range(dim)]
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(f"expected a list of {dim} parameter names, got {names!r}.")
    found = [str(name) for name in names]
    if len(found) != dim:
        raise InputError(f"expected {dim} parameter names, got {len(found)}.")
    if len(set(found)) < dim:
        raise InputError(f"expected {dim} parameter names that differ, got {' '.join(found)}.")
    return found


class Summaries:
    """What every posterior of N observations and D parameters can tell; a mixin.

    It needs ``log_prob``, ``_draw``, a length, and an ``estimator`` with a ``prior``; the names of
    the parameters are in the estimator's ``info``, if anywhere.

    Attributes:
        sampling: The report of the last :meth:`sample` that was not exact by itself, None before.
        observed: The observations and the test for whether they are like the simulations; None if
            there is no test.
    """

    estimator: Any
    sampling: SamplingReport | None = None
    observed: Observed | None = None

    def __len__(self) -> int:
        raise NotImplementedError

    def log_prob(self, theta: Any) -> Tensor:
        """The log-density at ``theta`` (..., N, D), as (..., N)."""
        raise NotImplementedError

    def _draw(self, shape: tuple[int, ...]) -> tuple[Tensor, SamplingReport | None]:
        """Draws ``(*shape, N, D)`` without a gradient, and what they are worth, if not exact."""
        raise NotImplementedError

    def sample(
        self,
        sample_shape: Shape | int = (),
        method: str | None = None,
        *,
        seed: int | None = None,
    ) -> Tensor:
        """Draw ``(*sample_shape, N, D)``; what draws of a ratio are worth is in ``sampling``.

        Args:
            sample_shape: The number or the shape of the draws.
            method: Only for ratios: ``"importance"``, ``"mcmc"`` or ``"auto"``, as of
                :func:`prudent.estimators.sampling.draw`.
            seed: The same seed gives the same draws; None draws from torch's global generator.
        """
        shape, how = as_shape(sample_shape), {} if method is None else {"method": method}
        if how and self.estimator.normalized:
            raise InputError(
                f"`method` is {method!r}, but only ratios can be drawn from in several ways; "
                "leave it out, as this posterior draws by itself."
            )
        own = contextlib.nullcontext() if seed is None else seeded(whole("seed", seed), "draws")
        with own:
            number = math.prod(shape)
            if number <= MOST_AT_ONCE or method == "mcmc":
                draws, self.sampling = self._draw(shape, **how)
            else:
                found, reports = in_pieces(
                    lambda some: self._draw((some,), **how), number, len(self)
                )
                draws, self.sampling = found.reshape(*shape, *found.shape[1:]), joined(reports)
        told = [complaint(self.sampling), self._far_away() if len(self) == 1 else None]
        for note in filter(None, told):
            warnings.warn(note, stacklevel=2)
        return draws

    @cached_property
    def _drawn(self) -> tuple[Tensor, SamplingReport | None]:
        """The draws (L, N, D) that all summaries are made of, and their report."""
        with seeded(0, "summaries"):
            return self._draw((NUM_DRAWS,))

    def _told_draws(self) -> Tensor:
        """The same draws, for answers that have no room for words: a warning has them."""
        draws, _ = self._drawn
        for note in self.notes():
            warnings.warn(note, stacklevel=3)
        return draws

    @cached_property
    def _cloud(self) -> tuple[Tensor, Tensor]:
        """Log-densities of draws and the logs of their weights, (L, N) each."""
        return self._log_density, torch.zeros_like(self._log_density)

    @cached_property
    def _log_density(self) -> Tensor:
        """The log-densities of the draws, (L, N), found some at a time."""
        parts = self._drawn[0].split(-(-CHUNK // len(self)))
        with torch.no_grad():
            return torch.cat([self.log_prob(part) for part in parts])

    def notes(self) -> list[str]:
        """Sentences that a reader must see before trusting the posterior; none if all is well.

        Those about draws are there for one observation, and for several after a summary of them.
        """
        known = len(self) == 1 or "_drawn" in vars(self)
        told = complaint(self._drawn[1]) if known else None
        near = [] if self._near is None else self._near[1]
        return [*filter(None, (self._far_away(), told)), *near]

    @cached_property
    def _near(self) -> tuple[str, list[str]] | None:
        """What is known of coverage near one observation, and warnings; None if nothing is."""
        judged = getattr(self.estimator, "nearby", None)
        if judged is None or self.observed is None or len(self) != 1:
            return None
        found: tuple[str, list[str]] = judged.words(self.observed.components()[0])
        return found

    @property
    def near(self) -> str | None:
        """What is known of coverage near one observation; None for several, or if nothing is."""
        return None if self._near is None else self._near[0]

    @cached_property
    def p_value(self) -> Tensor | None:
        """The share of simulations that are as far from the others as each observation is, (N,).

        It is None if it is not known.
        """
        return None if self.observed is None else self.observed.p_value()

    @property
    def rate(self) -> float:
        """The share of simulations that are called far away."""
        return 0.0 if self.observed is None else self.observed.test.rate

    def _far_away(self) -> str | None:
        """The sentence about observations that are unlike the simulations."""
        if self.p_value is None:
            return None
        far, expected = int((self.p_value <= self.rate).sum()), self.rate * len(self)
        if len(self) == 1 and far:
            return (
                "the observation is unlike the simulations: less than "
                f"{100 * self.rate:.2g} % of them are as far from the others. The posterior is a "
                "guess there; look at the data, the simulator and the prior."
            )
        if far > expected + 3 * math.sqrt(expected) + 1:
            return (
                f"{far:,} of {len(self):,} observations are unlike the simulations, where "
                f"{expected:.1f} are expected: see `p_value`. Posteriors are guesses there."
            )
        return None

    @property
    def verdict(self) -> str:
        """What a diagnosis said of the estimator, or that there was none."""
        return verdict_of(self.estimator)

    @property
    def names(self) -> list[str]:
        """The names of the D parameters."""
        known = getattr(self.estimator, "info", {}).get("parameter_names")
        return check_names(known, check_prior(self.estimator.prior))

    @property
    def labels(self) -> list[str]:
        """The names with the units of those that have one, such as ``mass [kg]``."""
        names = self.names
        units = getattr(self.estimator, "info", {}).get("parameter_units") or [""] * len(names)
        pairs = zip(names, units, strict=True)
        return [f"{name} [{unit}]" if unit else name for name, unit in pairs]

    def mean(self) -> Tensor:
        """The posterior means, (N, D)."""
        return self._told_draws().mean(dim=0)

    def std(self) -> Tensor:
        """The posterior standard deviations, (N, D)."""
        return self._told_draws().std(dim=0)

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """The quantiles of each parameter: (N, D) of one probability, (Q, N, D) of several."""
        return _quantile(self._told_draws(), q)

    def interval(self, level: float = 0.9) -> Interval:
        """The equal-tailed interval of each parameter: it leaves as much below as above."""
        tail = (1 - _check_level(level)) / 2
        return Interval(*_quantile(self._told_draws(), (tail, 1 - tail)))

    def region(self, level: float = 0.9) -> CredibleRegion:
        """The smallest regions that hold the share ``level`` of the posterior mass."""
        least = self._least_alpha(_check_level(level))
        self._told_draws()
        return CredibleRegion(self, level, least, *self._cloud)

    def contains(self, theta: Any, level: float) -> Tensor:
        """Whether each theta (..., N, D) is inside the region of a level, (..., N)."""
        return self.region(level).contains(theta)

    def _least_alpha(self, level: float) -> Tensor:
        """The alpha from which on a theta is inside the region of a level, (N,)."""
        return torch.full((len(self),), 1 - level)

    def map(self) -> Tensor:
        """The parameters of highest density inside the prior, (N, D).

        The best of the draws climbs on, as far as the density has a gradient.
        """
        draws, prior = self._told_draws(), self.estimator.prior
        outside = log_density(prior, draws.cpu()) == -torch.inf
        best = self._log_density.masked_fill(outside.to(draws.device), -torch.inf).argmax(dim=0)
        support = Support(prior, draws.shape[-1]).to(draws.device)
        places = support(draws)[0]
        start = places[best, torch.arange(len(self), device=draws.device)]
        target: Any = self
        if facts_of(self).divided == "pool":
            target = target.unnormalized()
        spread = places.std(dim=0).clamp(min=torch.finfo(places.dtype).tiny)

        def log_prob(away: Tensor) -> tuple[Tensor, Tensor]:
            theta = support.inverse(start + spread * away)
            return theta, target.log_prob(theta)

        return _climb(log_prob, torch.zeros_like(start))

    def to_arviz(self, observation: int = 0) -> Any:
        """The draws of one observation for ArviZ, as ``theta`` with the names as coordinates."""
        draws = self._one(observation)
        facts = {"notes": " ".join(self.notes()), "verdict": self.verdict}
        return to_arviz("posterior", draws, self.names, facts)

    def plot(
        self, truth: Any = None, names: Sequence[str] | None = None, observation: int = 0
    ) -> Any:
        """The posterior of one observation: all parameters, and all pairs of them.

        Args:
            truth: The parameters (D,) or (1, D) to mark, if they are known.
            names: The D names of the parameters; by default those of the estimator.
            observation: The number of the observation, from 0.

        Returns:
            A matplotlib figure. The regions hold 50 % and 90 % of the posterior.
        """
        require("matplotlib", "report", "figures")
        from prudent import _corner

        draws, prior = self._one(observation).double(), self.estimator.prior
        dim = draws.shape[-1]
        if truth is not None:
            truth = as_tensor("truth", truth, torch.float64).detach().cpu()
            if tuple(truth.shape) not in ((dim,), (1, dim)):
                raise DataError(f"expected `truth` of shape ({dim},), got {tuple(truth.shape)}.")
            truth = truth.reshape(dim).numpy()
        support = Support(prior, dim)
        return _corner.corner(
            draws.numpy(),
            self.labels if names is None else check_names(names, dim),
            f"Posterior of observation {observation}" if len(self) > 1 else "Posterior",
            truth=truth,
            bounds=torch.stack((support.low, support.high), dim=1).numpy(),
            prior=lambda index, points: marginal_density(prior, index, points),
            notes=self.notes(),
        )

    def _one(self, observation: int) -> Tensor:
        """The draws (L, D) of one observation."""
        number = whole("observation", observation, 0)
        if number >= len(self):
            raise InputError(f"`observation` is {number}; expected 0 to {len(self) - 1}.")
        return self._drawn[0][:, number].cpu()

    def records(self, observation: int = 0) -> list[dict[str, Any]]:
        """The summary of one observation, a row of ``COLUMNS`` per parameter."""
        draws = self._one(observation).double()
        columns = [draws.mean(dim=0), draws.std(dim=0), *_quantile(draws, QUANTILES)]
        rows = zip(self.names, torch.stack(columns, dim=1).tolist(), strict=True)
        return [dict(zip(COLUMNS, (name, *row), strict=True)) for name, row in rows]

    def table(self) -> list[tuple[str, ...]]:
        """The summary of the first observation in words, a row of ``COLUMNS`` per parameter."""
        rows = zip(self.labels, self.records(), strict=True)
        found = [(label, [*record.values()][1:]) for label, record in rows]
        return [(label, *(_figure(value, row[1]) for value in row)) for label, row in found]

    def __repr__(self) -> str:
        number, dim = len(self), check_prior(self.estimator.prior)
        words = "1 observation" if number == 1 else f"{number:,} observations"
        return f"<{type(self).__name__} of {words}, {dim} parameters>"

    def text(self) -> str:
        """The table of the first observation, without the notes."""
        rows = [COLUMNS, *self.table()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in rows
        )

    def __str__(self) -> str:
        if len(self) != 1:
            return repr(self)
        return "\n".join([*self._heading(), self.text()])

    def _heading(self) -> list[str]:
        """What stands above a table: warnings first, then the verdict."""
        near = [] if self.near is None else [f"Near this observation: {self.near}"]
        told = (f"Warning: {note}" for note in self.notes())
        return [*told, f"Verdict: {self.verdict}", *near]

    def _repr_html_(self) -> str:
        if len(self) != 1:
            return f"<pre>{html.escape(repr(self))}</pre>"
        notes = "".join(f"<p>{html.escape(line)}</p>" for line in self._heading())
        tagged = [("th", COLUMNS), *(("td", row) for row in self.table())]
        rows = [
            "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) for tag, row in tagged
        ]
        return f"{notes}<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def to_arviz(
    group: str, values: Tensor, names: Sequence[str], facts: Mapping[str, str | int]
) -> Any:
    """Values (L, D) as a group of an ``InferenceData``, or of a ``DataTree`` from ArviZ 1 on.

    They are ``theta`` with dimensions chain, draw and parameter; the facts are attributes.
    """
    arviz = require("arviz", "arviz", "ArviZ exports")
    variables = {"theta": values.numpy()[None]}
    shape: Any = {"coords": {"parameter": list(names)}, "dims": {"theta": ["parameter"]}}
    if int(arviz.__version__.partition(".")[0]) >= 1:
        data = arviz.from_dict({group: variables}, **shape)
    elif group == "posterior":
        data = arviz.from_dict(posterior=variables, **shape)
    else:
        with warnings.catch_warnings(action="ignore"):  # it does not know the group
            data = arviz.InferenceData(**{group: arviz.dict_to_dataset(variables, **shape)})
    data[group].attrs.update(facts)
    return data


def _check_level(level: float) -> float:
    if not 0 < level < 1:
        raise InputError(f"`level` is {level}; expected a number between 0 and 1.")
    return level


def _quantile(draws: Tensor, q: float | Sequence[float]) -> Tensor:
    """Quantiles over the first dimension; torch's own refuses many numbers."""
    asked = np.asarray(q, dtype=float)
    if asked.ndim > 1 or not ((asked >= 0) & (asked <= 1)).all():
        raise InputError(f"`q` is {q}; expected one or several numbers between 0 and 1.")
    return torch.as_tensor(np.quantile(draws.cpu().numpy(), asked, axis=0)).to(draws)


def _figure(value: float, spread: float) -> str:
    """A number with as many digits as three of the spread deserve.

    >>> _figure(1.23456, 0.1), _figure(123456.789, 0.1), _figure(-1e-9, 1.0)
    ('1.235', '123456.789', '0.00')
    """
    if not (math.isfinite(value) and 1e-4 <= spread < 1e5):
        return f"{value:.4g}"
    return f"{value:z.{max(0, 2 - math.floor(math.log10(spread)))}f}"


def _climb(log_prob: Any, place: Tensor) -> Tensor:
    """The theta of highest log-density that steps uphill from a place (N, D) come across."""
    place = place.clone().requires_grad_()
    optimizer = torch.optim.Adam([place])
    best, highest = torch.empty(()), place.new_full((len(place),), -torch.inf)
    for step in range(NUM_STEPS):
        with torch.enable_grad():
            theta, value = log_prob(place)
            total = value.sum()
        better = (value > highest) | (step == 0)
        best = torch.where(better.unsqueeze(1), theta.detach(), best.to(theta))
        highest = torch.where(better, value.detach(), highest)
        if not value.requires_grad:
            break
        (slope,) = torch.autograd.grad(total, place)
        place.grad = -slope.nan_to_num(0.0, 0.0, 0.0)
        optimizer.param_groups[0]["lr"] = STEP * SHORTER**step
        optimizer.step()
    return best
