"""First and second moments of all classes' features, which only ever add up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ClassMoments(nn.Module):
    """Count (C,) and sum (C, F) of each class's features, and one second moment (F, F) of all.

    Everything is a sum in float64. So neither the order of images nor how they came in tasks or
    batches changes the result by more than rounding, and two sets of moments simply add. Saved is
    one triangle of the second moment, which is symmetric.
    """

    count: Tensor
    total: Tensor
    second: Tensor
    left: Tensor
    """How many features of classes that were dropped still have their part in the covariance."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("count", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("total", torch.zeros(0, dim, dtype=torch.float64))
        second = torch.zeros(dim, dim, dtype=torch.float64)
        self.register_buffer("second", second, persistent=False)
        self.register_buffer("left", torch.zeros((), dtype=torch.float64))

    @property
    def sums(self) -> tuple[Tensor, ...]:
        """All that `add` adds to."""
        return self.count, self.total, self.second

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

    def merge(self, other: ClassMoments, classes: Tensor) -> None:
        """Add moments counted elsewhere; class i there is class `classes[i]` here."""
        self.count.index_add_(0, classes, other.count)
        self.total.index_add_(0, classes, other.total)
        self.second += other.second
        self.left += other.left

    def drop(self, at: int, features: Tensor | None = None) -> None:
        """Forget class `at`; later classes move up by one.

        With all of its `features` (n, F) nothing of it is left. Without them, its part in the
        covariance within classes stays: how its images differ from their mean, mixed with how the
        images of all other classes do.

        Features computed elsewhere may be off by rounding. What is large in them, the mean, is
        therefore subtracted as it was counted; else the covariance could get negative variances.
        """
        total = self.total[at]
        self.second -= torch.outer(total, total) / self.count[at].clamp(min=1)
        if features is None:
            self.left += self.count[at]
        else:
            apart = features.double()
            apart = apart - apart.mean(0)
            self.second.addmm_(apart.T, apart, alpha=-1)
        rest = torch.arange(len(self.count), device=self.count.device) != at
        self.count, self.total = self.count[rest], self.total[rest]

    def were_counted(self, at: int, features: Tensor) -> bool:
        """Whether `features` (n, F) can be all those of class `at`: as many, with the same sum.

        Another processor or library rounds otherwise, by about 1e-5 of a feature's length. One
        image in place of another is off by about half of it.
        """
        n = len(features)
        if n != int(self.count[at]):
            return False
        x = features.double()
        length = x.square().sum(1).mean().sqrt()
        return bool((x.sum(0) - self.total[at]).norm() <= (1e-3 + 1e-5 * n) * length)

    def means(self) -> Tensor:
        """(C, F); zero for a class without images."""
        return self.total / self.count.clamp(min=1)[:, None]

    def within(self) -> Tensor:
        """The covariance within classes (F, F): Σ_c Σ_i (x - μ_c)(x - μ_c)ᵀ / n."""
        between = self.total.T @ self.means()
        return (self.second - between) / (self.count.sum() + self.left).clamp(min=1)

    def discriminant(self, shrinkage: float) -> tuple[Tensor, Tensor]:
        """The linear head (C, F), (C,) of Gaussians with these means and one covariance Σ.

        Σ = W + shrinkage · tr(W)/F · I, W being the covariance within classes. With m the mean of
        the class means, the logits are (x - m)·Σ⁻¹(μ_c - m) - ½ (μ_c - m)·Σ⁻¹(μ_c - m). If no two
        images of a class differ, Σ = I.
        """
        return gaussian_head(self.means(), shrunk(self.within(), shrinkage))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        rows = [self.second[row, : row + 1] for row in range(self.dim)]
        destination[prefix + "triangle"] = torch.cat(rows) if rows else self.second.flatten()

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        triangle = state.pop(prefix + "triangle", None)
        super()._load_from_state_dict(state, prefix, *rest)
        if triangle is None or len(triangle) != self.dim * (self.dim + 1) // 2:
            found = "missing" if triangle is None else f"{len(triangle)} numbers long"
            rest[-1].append(f"{prefix}triangle is {found}, for features of {self.dim} numbers")
            return
        # Row by row: a mask and its indices would take several times the room of the matrix.
        for row, values in enumerate(torch.split(triangle, [row + 1 for row in range(self.dim)])):
            self.second[row, : row + 1] = values
            self.second[:row, row] = values[:-1]


def shrunk(covariance: Tensor, shrinkage: float) -> Tensor:
    """The covariance plus `shrinkage` times its mean variance on the diagonal; I if it is zero."""
    spread = covariance.diagonal().mean()
    if not spread > 1e-12:  # no two images of a class differ, or there are none
        return torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    sigma = covariance.clone()
    sigma.diagonal().add_(shrinkage * spread)
    return sigma


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
