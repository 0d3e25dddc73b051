r"""Neural ratio estimation: a classifier of joint against marginal pairs.

Its logit converges to :math:`\log r(\theta, x) = \log p(\theta \mid x) - \log p(\theta)`, so that
the posterior is the prior times the ratio. The product is only approximately normalized.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from prudent.estimators.base import NeuralEstimator, NeuralPosterior
from prudent.estimators.importance import SamplingReport
from prudent.estimators.networks import MLP
from prudent.estimators.sampling import weighted
from prudent.priors.density import log_density
from prudent.priors.support import Support

# A call of the network takes as long as so many of its products.
PRODUCTS_OF_CALL = 2e7
# The classifier of the paper sees theta itself.
PAPER = {"bounded": False, "linear": False}


class RatioPosterior(NeuralPosterior):
    """Prior times ratio for N observations; unnormalized."""

    @property
    def overhead(self) -> float:
        """The draws whose evaluation takes as long as a call (:mod:`prudent.coverage.passes`)."""
        draws: float = PRODUCTS_OF_CALL / self.estimator.num_weights
        return draws

    @property
    def _like(self) -> Tensor:
        return self.features.new_empty(0, dtype=self.estimator.dtype)

    def log_ratio(self, theta: Any) -> Tensor:
        """Log of posterior over prior at ``theta`` (..., N, D), as (..., N)."""
        theta = self._theta(theta)
        standard = self.estimator.place(theta, self.features)
        logit: Tensor = self.estimator.head(standard, self.features)
        return logit.squeeze(-1).to(theta.dtype)

    def log_prob(self, theta: Any) -> Tensor:
        """Unnormalized log-density at ``theta`` (..., N, D), as (..., N)."""
        return self.log_prob_and_ratio(theta)[0]

    def log_prob_and_ratio(self, theta: Any) -> tuple[Tensor, Tensor]:
        """What :meth:`log_prob` and :meth:`log_ratio` return, by one evaluation."""
        theta = self._theta(theta)
        log_ratio = self.log_ratio(theta)
        return log_density(self.estimator.prior, theta) + log_ratio, log_ratio

    def _draw(self, shape: tuple[int, ...], method: str = "auto") -> tuple[Tensor, SamplingReport]:
        return weighted(self, self.estimator.prior, shape, method, like=self._like)


class RatioEstimator(NeuralEstimator):
    """The log ratio as a network of standardized theta and embedded x, with SELU.

    It takes the arguments of :class:`NeuralEstimator`, where ``hidden`` holds the widths of the
    hidden layers.

    Args:
        *arguments: See :class:`NeuralEstimator`.
        bounded: Whether theta is seen in coordinates in which the prior's support has no edges.
        **keywords: See :class:`NeuralEstimator`.
    """

    kind = "nre"
    normalized = False
    default_hidden = (128,) * 4
    extra_names = ("bounded",)

    def __init__(self, *arguments: Any, bounded: bool = True, **keywords: Any) -> None:
        self.bounded = bounded  # before the rest is made
        super().__init__(*arguments, **keywords)

    @classmethod
    def paper(cls, x_shape: Sequence[int]) -> dict[str, Any]:
        """The paper's classifier: six hidden layers of 256 with SELU on theta and x."""
        return {**PAPER, "hidden": [256] * 6, "embedding": {"kind": "flatten"}}

    def make_support(self) -> Support:
        """The prior's support, or the whole space."""
        return Support(self.prior if self.bounded else None, self.dim)

    def make_head(self, num_features: int) -> nn.Module:
        """Layers on theta and features."""
        head = MLP(self.dim + num_features, 1, self.hidden)
        self.num_weights = sum(weight.numel() for weight in head.parameters())
        return head

    def forward(self, x: Any) -> RatioPosterior:
        """The posteriors given ``x`` ``(N, *x_shape)``."""
        return RatioPosterior(self, self.embed(x))
