"""Moments and the head from them, against numpy in float64, one image at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cprompt.methods.parts.class_moments import ClassMoments

D, SIZES = 6, (4, 1, 3)


def features() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    classes = torch.cat([torch.full((n,), c) for c, n in enumerate(SIZES)])
    return 3 + torch.randn(len(classes), D, generator=rng) + classes[:, None], classes


def counted(order: Tensor, parts: int = 1) -> ClassMoments:
    x, y = features()
    moments = ClassMoments(D)
    moments.open(len(SIZES))
    for part in order.chunk(parts):
        moments.add(x[part], y[part])
    return moments


def naive_head(shrinkage: float) -> tuple[np.ndarray, np.ndarray]:
    x, y = (t.double().numpy() for t in features())
    means = np.stack([x[y == c].mean(0) for c in range(len(SIZES))])
    scatter = np.zeros((D, D))
    for row, c in zip(x, y, strict=True):
        apart = row - means[int(c)]
        scatter += np.outer(apart, apart)
    within = scatter / len(x)
    sigma = within + shrinkage * np.trace(within) / D * np.eye(D)
    centre = means.mean(0)
    weight = np.stack([np.linalg.inv(sigma) @ (m - centre) for m in means])
    bias = [-0.5 * (m - centre) @ w - w @ centre for m, w in zip(means, weight, strict=True)]
    return weight, np.array(bias)


@pytest.mark.parametrize("shrinkage", [0.001, 0.1, 10.0])
def test_the_head_is_that_of_gaussians_with_one_covariance(shrinkage: float) -> None:
    weight, bias = counted(torch.arange(sum(SIZES))).discriminant(shrinkage)
    expected = naive_head(shrinkage)
    np.testing.assert_allclose(weight.numpy(), expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(bias.numpy(), expected[1], rtol=1e-5, atol=1e-6)


def test_neither_order_nor_batches_change_the_moments() -> None:
    n = sum(SIZES)
    whole = counted(torch.arange(n))
    shuffled = counted(torch.randperm(n, generator=torch.Generator().manual_seed(1)), parts=4)
    for name, mine in whole.state_dict().items():
        torch.testing.assert_close(mine, shuffled.state_dict()[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(3, D),  # identical images
        torch.eye(D)[:1].expand(1, -1),  # one image
        torch.randn(2, D, generator=torch.Generator().manual_seed(0)),  # fewer images than D
    ],
)
def test_degenerate_input_gives_finite_heads(x: Tensor) -> None:
    moments = ClassMoments(D)
    moments.open(2)  # the second class has no image at all
    moments.add(x, torch.zeros(len(x), dtype=torch.long))
    weight, bias = moments.discriminant(0.001)
    assert torch.isfinite(weight).all()
    assert torch.isfinite(bias).all()
