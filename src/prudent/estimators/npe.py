r"""Neural posterior estimation: a conditional normalizing flow over theta.

The flow is zuko's neural spline flow on standardized coordinates of theta; densities are in the
original units. The coordinates are those of the prior's support, in which it has no edges, so that
the flow lives inside the prior and is normalized there. The paper's flow does without them, and
some supports have no such coordinates: then the flow is trained on the whole space, and what it
hands out afterwards is cut to the support, with densities divided by the mass that is left.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import torch
import zuko
from torch import Tensor, nn

from prudent._arrays import as_shape
from prudent._randomness import even_noise, seeded
from prudent._settings import whole
from prudent.contracts import Shape
from prudent.estimators import _splines
from prudent.estimators.base import NeuralEstimator, NeuralPosterior
from prudent.estimators.importance import SamplingReport
from prudent.estimators.sampling import reject, weighted
from prudent.priors.density import log_density
from prudent.priors.support import Support, leaks

NUM_TRANSFORMS = 2
# Draws of each observation by which the inverse of our splines is compared with their density.
NUM_COMPARED = 2
# The mass inside the prior's support is found from rounds of so many draws, for so many
# observations at a time; rounds are added, up to so many, until its relative error is this small.
NUM_DRAWS, ROWS, MOST_ROUNDS, TOLERANCE = 2048, 256, 16, 0.01
# The flow of the paper.
PAPER = {"transforms": 3, "bins": 10, "coupling": True, "bounded": False, "linear": False}


class CutPosterior(NeuralPosterior):
    """Densities on the whole space for N observations, cut to the prior's support.

    It needs ``log_prob``, which calls ``_cut``, and ``_whole``.
    """

    def __init__(self, estimator: Any, features: Tensor, *, raw: bool = False) -> None:
        super().__init__(estimator, features)
        leaks = estimator.leaks and not estimator.training
        self.normalization = "cut" if leaks and not raw else "none"

    def unnormalized(self) -> Self:
        """The flows themselves, on the whole space."""
        return type(self)(self.estimator, self.features, raw=True)

    def _chosen(self, index: Tensor | slice) -> Self:
        raw = self.normalization == "none"
        return type(self)(self.estimator, self.features[index], raw=raw)

    @cached_property
    def log_mass(self) -> Tensor:
        """The log of the mass of each flow inside the prior's support, (N,)."""
        raw, starts = self.unnormalized(), range(0, len(self), ROWS)
        return torch.cat([raw.rows(slice(i, i + ROWS))._find_log_mass() for i in starts])

    def _find_log_mass(self) -> Tensor:
        rows, tolerance = torch.arange(len(self)), getattr(self.estimator, "tolerance", TOLERANCE)
        count, total = torch.zeros(2, len(self)).unbind()
        for index in range(MOST_ROUNDS):
            with seeded(index, "mass"):
                theta = self.rows(rows.to(self.features.device))._spread(NUM_DRAWS)
            inside = log_density(self.estimator.prior, theta) > -torch.inf
            count[rows] += inside.sum(dim=0).cpu()
            total[rows] += NUM_DRAWS
            share = count.clamp(min=0.5) / total  # half a draw where none is inside
            rows = ((1 - share) > tolerance**2 * share * total).nonzero().squeeze(1)
            if len(rows) == 0:
                break
        return share.log().to(self.features.device, self.estimator.dtype)

    def _cut(self, theta: Tensor, log_prob: Tensor) -> Tensor:
        """Log-densities of the flow as those inside the prior's support."""
        if self.normalization == "none":
            return log_prob
        outside = log_density(self.estimator.prior, theta) == -torch.inf
        return log_prob.masked_fill(outside, -torch.inf) - self.log_mass

    def _spread(self, number: int) -> Tensor:
        """Draws (number, N, D) of the density itself, by which its mass is found."""
        return self._whole((number,))

    def log_ratio(self, theta: Any) -> Tensor:
        """Log of posterior over prior at ``theta`` (..., N, D), as (..., N)."""
        return self.log_prob_and_ratio(theta)[1]

    def log_prob_and_ratio(self, theta: Any) -> tuple[Tensor, Tensor]:
        """What :meth:`log_prob` and :meth:`log_ratio` return, by one evaluation."""
        theta = self._theta(theta)
        log_prob = self.log_prob(theta)
        return log_prob, log_prob - log_density(self.estimator.prior, theta)

    @torch.no_grad()
    def _draw(self, shape: tuple[int, ...]) -> tuple[Tensor, SamplingReport | None]:
        if self.normalization == "none":
            return self._whole(shape), None
        draws, report = self._inside(torch.Size(shape).numel())
        return draws.reshape(*shape, *draws.shape[1:]), report

    def _whole(self, shape: tuple[int, ...]) -> Tensor:
        """Draws ``(*shape, N, D)`` of the density itself."""
        raise NotImplementedError

    def _inside(self, number: int) -> tuple[Tensor, SamplingReport]:
        """Draws (number, N, D) of the flows that lie inside the prior's support."""
        prior, device = self.estimator.prior, self.features.device

        def candidates(rows: Tensor, number: int) -> tuple[Tensor, Tensor]:
            theta = self.rows(rows.to(device))._whole((number,))
            inside = log_density(prior, theta) > -torch.inf
            return theta, torch.where(inside, 0.0, -torch.inf)

        kept, worth = self._kept(), torch.full((len(self),), float(number))
        draws = torch.empty(number, len(self), self.estimator.dim, dtype=self.estimator.dtype)
        left = reject(candidates, kept, draws)
        if len(left):  # the flow is almost nowhere inside
            found, report = self._elsewhere(left, number)
            draws[:, left], worth[left] = found.cpu(), report.effective_sample_size.to(worth)
        report = SamplingReport("rejection", number, worth, acceptance=float(kept.mean()))
        return draws.to(device), report

    def _kept(self) -> Tensor:
        """The share of draws of each observation that are expected inside the support, (N,)."""
        return self.log_mass.exp().cpu()

    def _elsewhere(self, rows: Tensor, number: int) -> tuple[Tensor, SamplingReport]:
        """Draws (number, R, D) of some observations, where almost none are inside the support."""
        some = self.rows(rows.to(self.features.device))
        return weighted(some, self.estimator.prior, (number,), like=self.log_mass)


class FlowPosterior(CutPosterior):
    """A flow conditioned on N observations, normalized on the prior's support."""

    # A flow is made of many small operations, whose number does not grow with that of the rows.
    overhead = 800

    def _spread(self, number: int) -> Tensor:
        noise = even_noise(number, 1, self.estimator.dim).expand(-1, len(self), -1)
        return self.from_noise(noise)[0]

    def _flow(self) -> zuko.distributions.NormalizingFlow:
        flow: zuko.distributions.NormalizingFlow = self.estimator.head(self.features)
        return flow

    def log_prob(self, theta: Any) -> Tensor:
        """Log-density at ``theta`` (..., N, D), as (..., N)."""
        theta = self._theta(theta)
        standard, log_volume = self.estimator.standard(theta, self.features)
        log_prob = self._standard_log_prob(standard)
        return self._cut(theta, log_prob.to(theta.dtype) + log_volume)

    def _standard_log_prob(self, standard: Tensor) -> Tensor:
        """The log-density of standardized values (..., N, D), as (..., N)."""
        if self._knows_splines:
            return _splines.log_prob(self.estimator.head, self.features, standard)
        log_prob: Tensor = self._flow().log_prob(standard)
        return log_prob

    @property
    def _knows_splines(self) -> bool:
        return getattr(self.estimator, "known_splines", False)

    def log_prob_and_wide(self, theta: Tensor, spread: float) -> tuple[Tensor, Tensor]:
        """Log-densities of the flow, and those of the draws that noise times a spread makes."""
        standard, log_volume = self.estimator.standard(theta, self.features)
        flow = self._flow()
        if self._knows_splines:
            noise, log_slope = _splines.forward(self.estimator.head, self.features, standard)
        else:
            noise, log_slope = flow.transform.call_and_ladj(standard)
        both = [flow.base.log_prob(noise), flow.base.log_prob(noise / spread)]
        both[1] = both[1] - noise.shape[-1] * math.log(spread)
        one, wide = ((value + log_slope).to(theta.dtype) + log_volume for value in both)
        return one, wide

    def rsample(self, sample_shape: Shape | int = ()) -> Tensor:
        """Draw ``(*sample_shape, N, D)`` of the flow, as a function of the weights; never cut."""
        draws = self._flow().rsample(torch.Size(as_shape(sample_shape)))
        theta: Tensor = self.estimator.original(draws, self.features)[0]
        return theta

    def _whole(self, shape: tuple[int, ...]) -> Tensor:
        """Draws ``(*shape, N, D)`` of the flow itself."""
        return self._whole_and_log_prob(shape)[0]

    @torch.no_grad()
    def sample_and_log_prob(self, sample_shape: Shape | int = ()) -> tuple[Tensor, Tensor]:
        """Draws and their log-density, for the flow itself at the cost of the draws alone."""
        if self.normalization == "cut":
            theta = self.sample(sample_shape)
            return theta, self.log_prob(theta)
        return self._whole_and_log_prob(as_shape(sample_shape))

    @torch.no_grad()
    def _whole_and_log_prob(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Draws ``(*shape, N, D)`` of the flow itself, and their log-density."""
        flow, number = self._flow(), math.prod(shape)
        noise = flow.base.sample((max(number, 1),))  # torch has no density of no draws
        both = self._unscaled(*self._inverse(flow, noise))
        theta, log_prob = (part[:number].reshape(*shape, *part.shape[1:]) for part in both)
        return theta, log_prob

    @torch.no_grad()
    def from_noise(self, noise: Tensor, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal noise (L, N, D), times a spread, as draws.

        Returns:
            The draws (L, N, D), their log-density, and that of what drew them, (L, N) each. It is
            the same for a spread of one; a larger one draws from a wider distribution.
        """
        noise = noise[..., : self.estimator.support.size]  # shares have one number less
        wide = spread * noise.to(self.features)
        theta, log_prob = self._unscaled(*self._inverse(self._flow(), wide))
        size = (wide.square() - noise.to(wide).square()).sum(dim=-1) / 2
        log_proposal = log_prob + size.to(log_prob) - noise.shape[-1] * math.log(spread)
        return theta, self._cut(theta, log_prob), log_proposal

    def _inverse(self, flow: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Standardized draws from noise of the base, and their log-density."""
        log_base, head = flow.base.log_prob(noise), self.estimator.head
        if _splines.has_steps(head):
            draws, log_slope = _splines.inverse(head, self.features, noise)
            log_prob, some = log_base + log_slope, self._standard_log_prob(draws[:NUM_COMPARED])
            if torch.allclose(some, log_prob[:NUM_COMPARED], rtol=1e-3, atol=1e-2):
                return draws, log_prob
        draws, log_volume = flow.transform.inv.call_and_ladj(noise)
        return draws, log_base - log_volume

    def _unscaled(self, draws: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        """Standardized draws and their log-density, in the units of theta."""
        theta, log_volume = self.estimator.original(draws, self.features)
        return theta, log_prob.to(self.estimator.dtype) + log_volume


class FlowEstimator(NeuralEstimator):
    """A spline flow, conditioned on embedded x.

    It takes the arguments of :class:`NeuralEstimator`, where ``hidden`` holds the widths of the
    hidden layers of each transform's network.

    Args:
        *arguments: See :class:`NeuralEstimator`.
        transforms: The number of transforms, each a spline of every parameter.
        bins: The number of pieces of a spline.
        coupling: Whether a transform lets half of the parameters depend on the other half, and
            not each on all before it; the same for two parameters, faster to draw from for many.
        bounded: Whether the flow lives inside the prior's support.
        **keywords: See :class:`NeuralEstimator`.
    """

    kind = "npe"
    normalized = True
    default_hidden = (128,) * 4
    extra_names = ("transforms", "bins", "coupling", "bounded")

    def __init__(
        self,
        *arguments: Any,
        transforms: int = NUM_TRANSFORMS,
        bins: int = 8,
        coupling: bool = False,
        bounded: bool = True,
        **keywords: Any,
    ) -> None:
        self.transforms = whole("transforms", transforms, 1)  # before the head is made
        self.bins, self.coupling, self.bounded = whole("bins", bins, 2), coupling, bounded
        super().__init__(*arguments, **keywords)
        self.leaks = leaks(self.prior, self.dim, bounded=bounded)

    @classmethod
    def paper(cls, x_shape: Sequence[int]) -> dict[str, Any]:
        """The paper's flow: three couplings; x goes through three layers down to ten numbers."""
        embedding = {"kind": "flatten_mlp", "inputs": math.prod(x_shape), "outputs": 10}
        return {**PAPER, "hidden": [64, 64], "embedding": embedding}

    def make_support(self) -> Support:
        """The prior's support, or the whole space."""
        return Support(self.prior if self.bounded else None, self.dim)

    def make_head(self, num_features: int) -> nn.Module:
        """The flow."""
        self.num_features = num_features
        flow: nn.Module = zuko.flows.NSF(
            features=self.support.size,
            context=num_features,
            bins=self.bins,
            transforms=self.transforms,
            hidden_features=self.hidden,
            passes=2 if self.coupling and self.support.size > 1 else None,
        )
        return flow

    @cached_property
    def known_splines(self) -> bool:
        """Whether densities need not be left to zuko."""
        return _splines.agrees(self.head, self.num_features, self.support.size)

    def forward(self, x: Any) -> FlowPosterior:
        """The posteriors given ``x`` ``(N, *x_shape)``."""
        return FlowPosterior(self, self.embed(x))
