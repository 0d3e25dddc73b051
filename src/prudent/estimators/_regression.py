r"""What a linear regression on x leaves of theta.

Much of what an observation says is often linear in it. Least squares find that part at once, from
few pairs, where a network needs many steps and many pairs. So the network sees

.. math:: L^{-1} (\theta - A x - b), \qquad L L^\top = \operatorname{Cov}(\theta - A x - b),

which is round, of unit size and centered, and has only the rest to learn. The map is affine in
theta for each x: densities stay exact. Where x says nothing linear, A is near zero.
"""

import torch
from torch import Tensor, nn

# The regression is as if so many more pairs had been seen in which features say nothing.
RIDGE = 1.0
# The least variance of a residual, in units of the variance of theta.
LEAST_VARIANCE = 1e-8


class Regression(nn.Module):
    """The map from theta to what the regression leaves of it, one that changes nothing at first.

    Args:
        dim: The number of parameters.
        num_features: The number of features that theta is regressed on.
    """

    weight: Tensor
    bias: Tensor
    factor: Tensor

    def __init__(self, dim: int, num_features: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(dim, num_features))
        self.register_buffer("bias", torch.zeros(dim))
        self.register_buffer("factor", torch.eye(dim))

    @torch.no_grad()
    def adapt(self, values: Tensor, features: Tensor) -> None:
        """Fit standardized theta (N, D) by features (N, F), unless there are too few pairs."""
        ones = torch.ones(len(features), 1, dtype=torch.float64)
        design, values = torch.cat((features.double(), ones), dim=1), values.double()
        if len(design) < 2 * design.shape[1] + 2:
            return
        ridge = RIDGE * torch.eye(design.shape[1], dtype=torch.float64)
        found = torch.linalg.solve(design.T @ design + ridge, design.T @ values)
        rest = values - design @ found
        covariance = rest.T @ rest / len(rest)
        covariance += LEAST_VARIANCE * torch.eye(len(covariance), dtype=torch.float64)
        self.weight.copy_(found[:-1].T)
        self.bias.copy_(found[-1])
        self.factor.copy_(torch.linalg.cholesky(covariance))

    def _guess(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight, self.bias)

    def forward(self, values: Tensor, features: Tensor) -> Tensor:
        """What is left of standardized theta (..., N, D), given features (N, F)."""
        centered = values - self._guess(features)
        # Rows of one matrix: as many systems of one equation take several times as long.
        rows = centered.reshape(-1, centered.shape[-1])
        rest: Tensor = torch.linalg.solve_triangular(self.factor.T, rows, upper=True, left=False)
        return rest.view(centered.shape)

    def inverse(self, rest: Tensor, features: Tensor) -> Tensor:
        """Standardized theta (..., N, D) from what is left of it."""
        return rest @ self.factor.T + self._guess(features)

    def log_scale(self) -> Tensor:
        """The log of the volume of a unit of what is left."""
        return self.factor.diagonal().log().sum()
