"""First and second moments of all classes' features, which only ever add up."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ClassMoments(nn.Module):
    """Count (C,) and sum (C, F) of each class's features, and one second moment (F, F) of all.

    Everything is a sum in float64. So neither the order of images nor how they came in tasks or
    batches changes the result by more than rounding, and two sets of moments simply add.
    """

    count: Tensor
    total: Tensor
    second: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("count", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("total", torch.zeros(0, dim, dtype=torch.float64))
        self.register_buffer("second", torch.zeros(dim, dim, dtype=torch.float64))

    def open(self, n_classes: int) -> None:
        """Make room for new classes, without images so far."""
        self.count = torch.cat([self.count, self.count.new_zeros(n_classes)])
        self.total = torch.cat([self.total, self.total.new_zeros(n_classes, self.dim)])

    def add(self, features: Tensor, classes: Tensor) -> None:
        """Count features (n, F) of `classes` (n,)."""
        x = features.double()
        self.count.index_add_(0, classes, torch.ones_like(classes, dtype=torch.float64))
        self.total.index_add_(0, classes, x)
        self.second.addmm_(x.T, x)

    def means(self) -> Tensor:
        """(C, F); zero for a class without images."""
        return self.total / self.count.clamp(min=1)[:, None]

    def within(self) -> Tensor:
        """The covariance within classes (F, F): Σ_c Σ_i (x - μ_c)(x - μ_c)ᵀ / n."""
        between = self.total.T @ self.means()
        return (self.second - between) / self.count.sum().clamp(min=1)

    def discriminant(self, shrinkage: float) -> tuple[Tensor, Tensor]:
        """The linear head (C, F), (C,) of Gaussians with these means and one covariance Σ.

        Σ = W + shrinkage · tr(W)/F · I, W being the covariance within classes. With m the mean of
        the class means, the logits are (x - m)·Σ⁻¹(μ_c - m) - ½ (μ_c - m)·Σ⁻¹(μ_c - m). If no two
        images of a class differ, Σ = I.
        """
        within = self.within()
        spread = within.diagonal().mean()
        identity = torch.eye(self.dim, dtype=within.dtype, device=within.device)
        known = spread > 1e-12
        sigma = within + shrinkage * spread * identity if known else identity
        return gaussian_head(self.means(), sigma)


def gaussian_head(means: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """The linear head (C, F), (C,) of Gaussians with `means` (C, F) and one covariance (F, F).

    Logits are taken from the mean of the means on. That adds the same number to all logits of an
    image, and keeps them small enough for float32.
    """
    centre = means.mean(0)
    apart = means - centre
    weight = torch.cholesky_solve(apart.T, torch.linalg.cholesky(sigma)).T
    bias = -0.5 * (weight * apart).sum(1) - weight @ centre
    return weight.float(), bias.float()
