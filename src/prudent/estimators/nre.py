r"""Neural ratio estimation: a classifier of joint against marginal pairs.

Its logit converges to :math:`\log r(\theta, x) = \log p(\theta \mid x) - \log p(\theta)`, so that
the posterior is the prior times the ratio. The product is only approximately normalized.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from prudent.estimators.base import NeuralEstimator
from prudent.estimators.networks import MLP
from prudent.posteriors.density import Density, Facts
from prudent.priors.support import Support

# A call of the network takes as long as so many of its products.
PRODUCTS_OF_CALL = 2e7
# The classifier of the paper sees theta itself.
PAPER = {"bounded": False, "linear": False}


class RatioDensity(Density):
    """The prior times a ratio for N observations, up to a constant for each.

    Args:
        network: The estimator.
        features: The features of the observations, (N, F).
    """

    def __init__(self, network: "RatioEstimator", features: Tensor) -> None:
        facts = Facts(ratio=True, overhead=PRODUCTS_OF_CALL / network.num_weights)
        like = features.new_empty(len(features), 0, dtype=network.dtype)
        super().__init__(network.prior, network.dim, like, facts)
        self.network, self.features = network, features

    def rows(self, index: Tensor | slice) -> "RatioDensity":
        """The densities of some observations; nothing is embedded again."""
        return RatioDensity(self.network, self.features[index])

    def log_ratio(self, theta: Tensor) -> Tensor:
        """The log of posterior over prior at theta (..., N, D), (..., N)."""
        standard = self.network.place(theta, self.features)
        logit: Tensor = self.network.head(standard, self.features)
        return logit.squeeze(-1).to(theta.dtype)


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
        head = MLP(self.support.size + num_features, 1, self.hidden)
        self.num_weights = sum(weight.numel() for weight in head.parameters())
        return head

    def plain(self, x: Tensor) -> RatioDensity:
        """The ratios themselves."""
        return RatioDensity(self, self.embed(x))
