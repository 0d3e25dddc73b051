"""Mixtures of Student distributions that are fitted to weighted draws, of many targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

# Degrees of freedom, an even number, and the factor of a fitted variance: tails too thin make
# importance weights explode.
FREEDOM, WIDEN = 8, 1.1
# The least scale: double precision has no place for less.
SMALLEST = 1e-150


class Students(NamedTuple):
    """Mixtures of K Student distributions of equal share for each of N targets.

    Args:
        mean: Their centers, (K, N, D).
        factor: Cholesky factors of their scales, (K, N, D, D).
    """

    mean: Tensor
    factor: Tensor

    @classmethod
    def around(cls, point: Tensor, widths: Tensor) -> Self:
        """Distributions around points (N, D), one for each row of widths (K, D)."""
        factor = torch.diag_embed(widths.unsqueeze(1)).expand(-1, *point.shape, -1)
        return cls(point.expand(len(widths), -1, -1), factor)

    def rows(self, index: Tensor) -> Self:
        """The mixtures of some targets."""
        return type(self)(*(part[:, index] for part in self))

    def replace(self, index: Tensor, other: Self) -> Self:
        """These mixtures, with those of some targets from elsewhere."""
        parts = zip(self, other, strict=True)
        return type(self)(*(mine.index_copy(1, index, new) for mine, new in parts))

    def sample(
        self, number: int, noise: Callable[[int, int, int], Tensor] | None = None
    ) -> Tensor:
        """Draws (L, N, D), as many of each component, in all the next multiple of K.

        Args:
            number: The number of draws of each target.
            noise: The source of standard normal noise (L, M, D) if it is to be more even than
                random numbers are.
        """
        shape = (-(-number // len(self.mean)), *self.mean.shape)
        if noise is None:
            normal = self.mean.new_empty(shape).normal_()
        else:
            normal = noise(shape[0], shape[1] * shape[2], shape[3]).view(shape).to(self.mean)
        # Minus twice the log of a uniform number is a chi-square of two degrees of freedom.
        uniform = self.mean.new_empty(FREEDOM // 2, *shape[:3]).uniform_()
        chi_square = -2 * uniform.clamp(min=1e-300).log().sum(dim=0)
        normal = normal / (chi_square / FREEDOM).sqrt().unsqueeze(-1)
        return (self.mean + torch.einsum("knde,lkne->lknd", self.factor, normal)).flatten(0, 1)

    def standardized(self, theta: Tensor) -> Tensor:
        """Draws (L, N, D) in the coordinates of each component, (K, N, D, L)."""
        centred = theta.permute(1, 2, 0) - self.mean.unsqueeze(-1)
        # A product with the inverse of a small matrix is faster than solving for many draws.
        eye = torch.eye(centred.shape[-2], dtype=centred.dtype, device=centred.device)
        standard: Tensor = torch.linalg.solve_triangular(self.factor, eye, upper=False) @ centred
        return standard

    def log_probs(self, standard: Tensor) -> Tensor:
        """The log-density of each component at standardized draws (K, N, D, L), as (K, L, N)."""
        dim = self.mean.shape[-1]
        squared = standard.square().sum(dim=2).transpose(1, 2)
        constant = math.lgamma((FREEDOM + dim) / 2) - math.lgamma(FREEDOM / 2)
        constant -= dim / 2 * math.log(FREEDOM * math.pi)
        log_scale = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1).unsqueeze(1)
        return constant - log_scale - (FREEDOM + dim) / 2 * (squared / FREEDOM).log1p()

    def log_prob(self, theta: Tensor) -> Tensor:
        """The log-density of the mixture at (L, N, D), as (L, N)."""
        log_probs = self.log_probs(self.standardized(theta))
        return log_probs.logsumexp(dim=0) - math.log(len(self.mean))

    def fitted(self, standard: Tensor, log_weights: Tensor, scale: Tensor) -> Self:
        """The mixture whose components match weighted draws.

        Fits are made in the coordinates of these distributions, in which ridges are round.

        Args:
            standard: The standardized draws, (K, N, D, L).
            log_weights: The log of their weights for each component, (K, L, N).
            scale: A factor of the variance of each component, (K, N).
        """
        weight = log_weights.softmax(dim=1).transpose(1, 2).unsqueeze(2)
        mean = (standard * weight).sum(dim=-1)
        centred = (standard - mean.unsqueeze(-1)) * weight.sqrt()
        covariance = centred @ centred.mT
        # With few draws correlations are noise: they shrink towards those of the fit before.
        shrink = standard.shape[2] * weight.square().sum(dim=-1, keepdim=True)
        variance = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=1e-20) * (1 + 1e-9)
        covariance = torch.lerp(covariance, torch.diag_embed(variance), shrink / (1 + shrink))
        factor = torch.linalg.cholesky_ex(WIDEN * scale[..., None, None] * covariance).L
        moved = self.mean + (self.factor @ mean.unsqueeze(-1)).squeeze(-1)
        factor = self.factor @ factor
        # Draws that all but coincide have no width: there the fit before stays.
        wide = factor.isfinite().flatten(2).all(dim=-1) & moved.isfinite().all(dim=-1)
        wide &= (factor.diagonal(dim1=-2, dim2=-1) > SMALLEST).all(dim=-1)
        moved = torch.where(wide.unsqueeze(-1), moved, self.mean)
        return type(self)(moved, torch.where(wide[..., None, None], factor, self.factor))
