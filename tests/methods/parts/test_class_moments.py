"""Moments and the head from them, against numpy in float64, one image at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cprompt.methods.parts.class_moments import ClassMoments, shrunk

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


def test_moments_of_two_sites_add() -> None:
    x, y = features()
    whole = counted(torch.arange(sum(SIZES)))
    first, second = ClassMoments(D), ClassMoments(D)
    first.open(2)
    first.add(x[:5], y[:5])
    second.open(2)  # its classes are 1 and 2
    second.add(x[5:], y[5:] - 1)
    first.open(1)
    first.merge(second, torch.tensor([1, 2]))
    for name, mine in whole.state_dict().items():
        torch.testing.assert_close(first.state_dict()[name], mine, rtol=1e-12, atol=1e-12)


def test_a_class_dropped_with_its_features_was_never_there() -> None:
    x, y = features()
    moments, rest = counted(torch.arange(sum(SIZES))), ClassMoments(D)
    moments.drop(1, x[y == 1])
    rest.open(2)
    rest.add(x[y != 1], (y[y != 1] > 1).long())
    for name, mine in rest.state_dict().items():
        torch.testing.assert_close(moments.state_dict()[name], mine, rtol=1e-12, atol=1e-10)


def test_a_class_dropped_without_its_features_leaves_the_covariance() -> None:
    moments = counted(torch.arange(sum(SIZES)))
    within, means = moments.within(), moments.means()
    moments.drop(2)
    torch.testing.assert_close(moments.within(), within, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(moments.means(), means[:2])
    assert float(moments.left) == SIZES[2]


def test_a_dropped_class_stays_in_the_covariance_of_two_sites_together() -> None:
    """What is left of it counts as often after merging as where it was learnt."""
    x, y = features()
    here, there = ClassMoments(D), ClassMoments(D)
    here.open(2)
    here.add(x[y < 2], y[y < 2])
    there.open(2)
    there.add(x[y != 1], (y[y != 1] > 0).long())
    there.drop(0)  # its four features stay in the covariance
    here.open(1)
    here.merge(there, torch.tensor([2]))
    groups = [x[y == c].double() for c in (0, 1, 0, 2)]  # class 0 once more, without a mean
    scatter = sum((g - g.mean(0)).T @ (g - g.mean(0)) for g in groups)
    expected = scatter / sum(len(g) for g in groups)
    torch.testing.assert_close(here.within(), expected, rtol=1e-10, atol=1e-10)


def test_a_class_without_images_can_be_dropped() -> None:
    moments = counted(torch.arange(sum(SIZES)))
    within = moments.within()
    moments.open(1)
    moments.drop(len(SIZES))
    torch.testing.assert_close(moments.within(), within)


def test_one_image_in_place_of_another_is_told_among_a_thousand() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(1000, D, generator=rng) + 3
    moments = ClassMoments(D)
    moments.open(1)
    moments.add(x, torch.zeros(len(x), dtype=torch.long))
    rounded = x * (1 + 1e-5 * torch.randn(x.shape, generator=rng))
    assert moments.were_counted(0, rounded)
    length = float(x.square().sum(1).mean().sqrt())
    other = x.clone()
    other[7, 0] += 0.3 * length
    assert not moments.were_counted(0, other)
    assert not moments.were_counted(0, torch.cat([x, torch.zeros(1, D)]))
    assert not moments.were_counted(0, x[:-1])


def test_shrinking_a_covariance_leaves_it_as_it_was() -> None:
    covariance = torch.diag(torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(shrunk(covariance, 0.5), torch.diag(torch.tensor([2.0, 4.0])))
    torch.testing.assert_close(covariance, torch.diag(torch.tensor([1.0, 3.0])))


def test_one_triangle_is_saved() -> None:
    moments, fresh = counted(torch.arange(sum(SIZES))), ClassMoments(D)
    state = moments.state_dict()
    assert state["triangle"].shape == (D * (D + 1) // 2,)
    assert "second" not in state
    fresh.open(len(SIZES))
    fresh.load_state_dict(state)
    torch.testing.assert_close(fresh.second, moments.second, rtol=1e-15, atol=0)


def test_a_triangle_of_another_size_is_refused() -> None:
    state = counted(torch.arange(sum(SIZES))).state_dict()
    fresh = ClassMoments(D)
    fresh.open(len(SIZES))
    with pytest.raises(RuntimeError, match="triangle is 3 numbers long, for features of 6"):
        fresh.load_state_dict({**state, "triangle": torch.zeros(3)})
