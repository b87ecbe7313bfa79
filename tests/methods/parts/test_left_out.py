"""Scores of images left out, against heads that were fitted again without each of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cprompt.methods.parts.left_out import (
    LinearHead,
    Sample,
    Statistics,
    gaussian,
    nearest_mean,
)

P, SIZES = 5, (4, 3, 6)


def features() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    y = torch.cat([torch.full((n,), c) for c, n in enumerate(SIZES)])
    x = torch.randn(len(y), P, generator=rng, dtype=torch.float64)
    return x + y[:, None] * torch.tensor([1.0, 0.5, -0.5, 0, 0]), y


def moments(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means, scatter and counts, one image at a time."""
    means = torch.stack([x[y == c].mean(0) for c in range(len(SIZES))])
    scatter = sum(torch.outer(row - means[c], row - means[c]) for row, c in zip(x, y, strict=True))
    return means, scatter, torch.bincount(y).double()


def statistics() -> Statistics:
    x, y = features()
    means, scatter, counts = moments(x, y)
    return Statistics(means, scatter / len(x), counts, views=1, total=float(len(x)))


def sample() -> Sample:
    x, y = features()
    return Sample(x, x - moments(x, y)[0][y], y)


SIGMA = 0.7


def shrinkage() -> float:
    """Adds `SIGMA` to the diagonal."""
    return SIGMA / float(statistics().within.diagonal().mean())


def naive(i: int, tau: float, centre: Tensor) -> Tensor:
    """Scores of image i by a head that never saw it.

    The covariance is divided by the number of all images and shrunk by the same amount, as the
    formula has it.
    """
    x, y = features()
    rest = torch.arange(len(x)) != i
    means, scatter, counts = moments(x[rest], y[rest])
    inverse = torch.linalg.inv(scatter / len(x) + SIGMA * torch.eye(P, dtype=torch.float64))
    scores = []
    for mean, n in zip(means, counts, strict=True):
        apart = mean - centre
        square = apart @ inverse @ apart - tau / n
        scores.append((x[i] - centre) @ inverse @ apart - 0.5 * square)
    return torch.stack(scores)


def naive_tau() -> float:
    """Mean of ‖x - μ‖² n/(n-1), with the mean of all and the covariance without the image."""
    x, y = features()
    means, _, counts = moments(x, y)
    found = []
    for i, (row, c) in enumerate(zip(x, y, strict=True)):
        rest = torch.arange(len(x)) != i
        scatter = moments(x[rest], y[rest])[1]
        inverse = torch.linalg.inv(scatter / len(x) + SIGMA * torch.eye(P, dtype=torch.float64))
        apart, n = row - means[c], counts[c]
        found.append(float(apart @ inverse @ apart * n / (n - 1)))
    return sum(found) / len(found)


def test_left_out_scores_are_those_of_a_head_without_the_image() -> None:
    head = gaussian(statistics(), shrinkage(), sample())
    centre, tau = statistics().means.mean(0), naive_tau()
    expected = torch.stack([naive(i, tau, centre) for i in range(sum(SIZES))])
    torch.testing.assert_close(head.left_out, expected, rtol=1e-9, atol=1e-9)


def test_half_square_is_a_distance_without_the_image() -> None:
    head = gaussian(statistics(), shrinkage(), sample())
    x, y = features()
    centre = statistics().means.mean(0)
    for i in (0, 5, 12):
        rest = torch.arange(len(x)) != i
        scatter = moments(x[rest], y[rest])[1]
        inverse = torch.linalg.inv(scatter / len(x) + SIGMA * torch.eye(P, dtype=torch.float64))
        expected = 0.5 * (x[i] - centre) @ inverse @ (x[i] - centre)
        torch.testing.assert_close(head.half_square[i], expected, rtol=1e-9, atol=1e-9)


def test_the_head_itself_is_linear_discriminant_analysis_with_the_noise_of_means_removed() -> None:
    found, stats = gaussian(statistics(), shrinkage(), sample()), statistics()
    sigma = stats.within + SIGMA * torch.eye(P, dtype=torch.float64)
    inverse, tau, centre = torch.linalg.inv(sigma), naive_tau(), stats.means.mean(0)
    x, _ = features()
    scores = x @ found.weight.T + found.bias
    for c, mean in enumerate(stats.means):
        apart = mean - centre
        square = apart @ inverse @ apart - tau / stats.images[c]
        expected = (x - centre) @ inverse @ apart - 0.5 * square
        torch.testing.assert_close(scores[:, c], expected, rtol=1e-9, atol=1e-9)


def test_an_image_with_several_views_is_left_out_with_all_of_them() -> None:
    """Exact if the views of an image are equal: then their scatter is between images alone."""
    x, y = features()
    means, scatter, counts = moments(x, y)
    views = 3
    several = Statistics(means, scatter / len(x), counts, views, total=float(views * len(x)))
    torch.testing.assert_close(
        gaussian(several, shrinkage(), sample()).left_out,
        gaussian(statistics(), shrinkage(), sample()).left_out,
    )


def test_nearest_mean_leaves_out_the_image_in_its_own_mean() -> None:
    x, y = features()
    stats, found = statistics(), nearest_mean(statistics(), sample())
    centre = stats.means.mean(0)
    scale = (stats.within.diagonal() + (stats.means - centre).square().mean(0)).rsqrt()
    for i in range(len(x)):
        rest = torch.arange(len(x)) != i
        means = moments(x[rest], y[rest])[0]
        z = (means - centre) * scale
        expected = ((x[i] - centre) * scale) @ (z / z.norm(dim=1, keepdim=True)).T
        torch.testing.assert_close(found.left_out[i], expected, rtol=1e-9, atol=1e-9)
    z = (stats.means - centre) * scale
    expected = ((x - centre) * scale) @ (z / z.norm(dim=1, keepdim=True)).T
    torch.testing.assert_close(x @ found.weight.T + found.bias, expected)


def test_each_amount_of_shrinkage_has_its_own_factor() -> None:
    stats = statistics()
    for amount in (0.1, 2.0, 0.1):
        factor = stats.factor(amount)
        mean = float(stats.within.diagonal().mean())
        expected = stats.within + amount * mean * torch.eye(P, dtype=torch.float64)
        torch.testing.assert_close(factor @ factor.T, expected, rtol=1e-12, atol=1e-12)


def test_a_part_has_the_covariance_of_its_columns() -> None:
    part = statistics().part(slice(1, 4))
    assert part.means.shape == (len(SIZES), 3)
    for i in range(3):
        for j in range(3):
            assert part.within[i, j] == statistics().within[i + 1, j + 1]


def test_no_distance_is_negative_where_rounding_says_more_than_was_counted() -> None:
    """All that was counted of how images differ is one pair, kept as float16 a little too long."""
    apart = torch.tensor([[1.0, 0], [-1, 0]], dtype=torch.float64)
    means = torch.tensor([[0.0, 0], [0, 4]], dtype=torch.float64)
    counts = torch.tensor([2.0, 1], dtype=torch.float64)
    stats = Statistics(means, apart.T @ apart / 3, counts, views=1, total=3.0)
    rounded = 1.001 * apart
    head = gaussian(stats, 1e-4, Sample(rounded, rounded, torch.tensor([0, 0])))
    assert float(head.half_square.min()) >= 0
    assert float(head.tau) >= 0


@pytest.mark.parametrize("kind", ["identical", "one class", "constant"])
def test_degenerate_features_give_finite_scores(kind: str) -> None:
    x, y = features()
    if kind == "identical":
        x = x[:1].expand(len(x), -1).clone()
    elif kind == "constant":
        x = torch.zeros_like(x)
    else:
        y = torch.zeros_like(y)
    counts = torch.bincount(y).double()
    means = torch.stack([x[y == c].mean(0) for c in range(len(counts))])
    apart = x - means[y]
    stats = Statistics(means, apart.T @ apart / len(x), counts, 1, float(len(x)))
    some = Sample(x, apart, y)
    heads: list[LinearHead] = [
        nearest_mean(stats, some),
        gaussian(stats, 0.001, some),
    ]
    for head in heads:
        for tensor in (head.weight, head.bias, head.left_out, head.half_square):
            assert torch.isfinite(tensor).all()
