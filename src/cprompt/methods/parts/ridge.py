"""Ridge regression: the head, and the penalty with the least error on images held out."""

from __future__ import annotations

import torch
from torch import Tensor

RIDGES = tuple(10.0**power for power in range(-8, 9))
"""Penalties to choose from."""

_NOISE = 1e-14
"""What float64 cannot tell from zero, in parts of a matrix's trace."""


def ridge_head(gram: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """W (C, F) with W (G + λ I) = C, from G = Σ h hᵀ (F, F) and C = Σ y hᵀ (C, F) in float64.

    If λ is so small that it disappears in rounding, the least that does not is used.
    """
    penalised = gram.clone()
    penalised.diagonal().add_(max(ridge, _NOISE * float(gram.trace())))
    factor = torch.linalg.cholesky(penalised)
    del penalised  # 800 MB for 10,000 features
    return torch.cholesky_solve(cross.T, factor).T.float()


def best_ridge(x: Tensor, y: Tensor, x_held: Tensor, y_held: Tensor) -> float:
    """The penalty of `RIDGES` whose regression from `x` to `y` has the least error on `x_held`.

    x: (n, F), y: (n, C), in float64. One eigendecomposition serves all penalties. It is of the
    smaller of x xᵀ and xᵀ x, as xᵀ (x xᵀ + λ I)⁻¹ y = (xᵀ x + λ I)⁻¹ xᵀ y.
    """
    if len(x) < x.shape[1]:
        values, vectors = torch.linalg.eigh(x @ x.T)
        fitted, asked = vectors.T @ y, (x_held @ x.T) @ vectors
    else:
        values, vectors = torch.linalg.eigh(x.T @ x)
        fitted, asked = vectors.T @ (x.T @ y), x_held @ vectors
    values = values.clamp(min=0)  # rounding leaves some a little below
    errors = [
        (asked @ (fitted / (values + ridge)[:, None]) - y_held).square().mean() for ridge in RIDGES
    ]
    return RIDGES[int(torch.stack(errors).argmin())]
