r"""Models of lampe, and its losses with the coverage penalty, without torchsort.

lampe's ``DCPNRELoss`` and ``DCPNPELoss`` sort alphas by torchsort, an extension that must be
compiled. On numbers in [0, 1] its soft sort is a sort, forward and backward
(:mod:`prudent.coverage.relaxations`), and ours is one: the losses are the same.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from prudent.adapters import zuko
from prudent.adapters.model import Model
from prudent.coverage import CoveragePenalty
from prudent.priors.density import log_density


def model_of(estimator: Any, embedding: nn.Module | None = None) -> Model:
    """What an ``NPE``, ``FMPE``, ``NRE`` or ``AMNRE`` can do.

    Args:
        estimator: The model.
        embedding: The network that makes its x of observations, if there is one.
    """
    kinds = {kind.__name__ for kind in type(estimator).__mro__}
    if "NPE" in kinds:
        return zuko.model_of(estimator.flow, embedding, "NPE of lampe")
    networks = [network for network in (estimator, embedding) if network is not None]
    if "FMPE" in kinds:

        def sample(number: int, features: Tensor) -> Tensor:
            draws: Tensor = estimator.flow(features).sample((number,))
            return draws

        def log_prob(theta: Tensor, features: Tensor) -> Tensor:
            value: Tensor = estimator.flow(features).log_prob(theta)
            return value

        return Model(
            "FMPE of lampe",
            log_prob=log_prob,
            sample=sample,
            slow=True,
            embed=embedding,
            networks=networks,
        )

    def log_ratio(theta: Tensor, features: Tensor) -> Tensor:
        whole = (torch.ones_like(theta, dtype=torch.bool),) if "AMNRE" in kinds else ()
        value: Tensor = estimator(theta, features, *whole)
        return value

    name = "AMNRE of lampe" if "AMNRE" in kinds else "NRE of lampe"
    return Model(name, log_ratio=log_ratio, embed=embedding, networks=networks)


class _Given:
    """The density of a function of theta and x for the observations of a batch."""

    def __init__(self, log_prob: Any) -> None:
        self.log_prob = log_prob


class DCPNRELoss(nn.Module):
    """The cross-entropy of a ratio plus the coverage penalty; lampe's class of the same name.

    Args:
        estimator: A network from theta and x to the log ratio.
        prior: The prior.
        proposal: The distribution of the draws that measure coverage; None for the prior.
        lmbda: The weight of the penalty.
        n_samples: The number of draws for each pair.
        calibration: Whether the target is the calibrated one, not the conservative one.
        sort_kwargs: Accepted and not used: there is nothing to soften.
    """

    def __init__(
        self,
        estimator: nn.Module,
        prior: Any,
        proposal: Any = None,
        lmbda: float = 5.0,
        n_samples: int = 16,
        calibration: bool = False,  # noqa: FBT001, FBT002 - the signature is lampe's
        sort_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.estimator, self.prior, self.lmbda = estimator, prior, lmbda
        target = "calibrated" if calibration else "conservative"
        proposal = prior if proposal is None else proposal
        self.penalty = CoveragePenalty.paper(proposal, n_samples, target)

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        """The loss of theta (N, D) and x (N, L)."""

        def log_prob(theta: Tensor) -> Tensor:
            value: Tensor = self.estimator(theta, x)
            return value + log_density(self.prior, theta)

        both = self.estimator(torch.stack((theta.roll(1, dims=0), theta)), x)
        signed = torch.stack((-both[0], both[1]))
        value: Tensor = self.penalty(_Given(log_prob), theta)
        return self.lmbda * value - logsigmoid(signed).mean()


class DCPNPELoss(nn.Module):
    """The negative log-likelihood of a flow plus the coverage penalty; as lampe's of that name.

    Args:
        estimator: An ``NPE``, or a module with ``flow(x)`` that maps theta and x to log-densities.
        proposal: The distribution of the draws that measure coverage; None for the flow itself,
            with a gradient through its draws.
        lmbda: The weight of the penalty.
        n_samples: The number of draws for each pair.
        calibration: Whether the target is the calibrated one, not the conservative one.
        sort_kwargs: Accepted and not used: there is nothing to soften.
    """

    def __init__(
        self,
        estimator: nn.Module,
        proposal: Any = None,
        lmbda: float = 5.0,
        n_samples: int = 16,
        calibration: bool = False,  # noqa: FBT001, FBT002 - the signature is lampe's
        sort_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.estimator, self.lmbda = estimator, lmbda
        target = "calibrated" if calibration else "conservative"
        proposal = "model-rsample" if proposal is None else proposal
        self.penalty = CoveragePenalty.paper(proposal, n_samples, target)

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        """The loss of theta (N, D) and x (N, L)."""
        estimator: Any = self.estimator
        posterior = estimator.flow(x)
        log_prob: Tensor = posterior.log_prob(theta)
        value: Tensor = self.penalty(posterior, theta)
        return self.lmbda * value - log_prob.mean()
