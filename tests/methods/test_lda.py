"""LDA against numpy: the formula of Gaussians with one covariance, and the authors' recursion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method
from cprompt.vit.promptable import FrozenViT
from tests.methods.common import class_tokens, learnt_in_tasks, of_class, random_images

CLASSES = 4


def naive_scores(backbone: FrozenViT, shrinkage: float) -> np.ndarray:
    """x·Λμ - ½ μ·Λμ with Λ the inverse of (1 - ε) Σ + ε I, image by image."""
    x = [class_tokens(backbone, of_class(c)) for c in range(CLASSES)]
    means = np.stack([each.mean(0) for each in x])
    apart = np.concatenate([each - mean for each, mean in zip(x, means, strict=True)])
    covariance = sum(np.outer(a, a) for a in apart) / len(apart)
    inverse = np.linalg.inv((1 - shrinkage) * covariance + shrinkage * np.eye(backbone.dim))
    asked = class_tokens(backbone, random_images(5))
    return np.array([[a @ inverse @ m - 0.5 * m @ inverse @ m for m in means] for a in asked])


@pytest.mark.parametrize("shrinkage", [1e-4, 0.1, 1.0])
@pytest.mark.parametrize("tasks", [[[0, 1, 2, 3]], [[0], [1, 2], [3]]], ids=["one", "three"])
def test_probabilities_are_those_of_gaussians_with_one_covariance(
    backbone: FrozenViT, shrinkage: float, tasks: list[list[int]]
) -> None:
    """Logits but for one number per image, which the softmax does not see."""
    method = learnt_in_tasks("lda", backbone, tasks, shrinkage=shrinkage)
    with torch.no_grad():
        found = method(random_images(5)).double().numpy()
    expected = naive_scores(backbone, shrinkage)
    found -= found.mean(1, keepdims=True)
    expected -= expected.mean(1, keepdims=True)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * scale)


def test_the_covariance_is_what_a_stream_of_single_images_leads_to(backbone: FrozenViT) -> None:
    """Welford's update, image by image, with the count of the image's own class."""
    method: Any = learnt_in_tasks("lda", backbone, [[0, 1], [2, 3]])
    means = np.zeros((CLASSES, backbone.dim))
    scatter, counts = np.zeros((backbone.dim, backbone.dim)), np.zeros(CLASSES)
    for c in range(CLASSES):
        for x in class_tokens(backbone, of_class(c)):
            apart, n = x - means[c], counts[c]
            scatter += n / (n + 1) * np.outer(apart, apart)
            means[c] += apart / (n + 1)
            counts[c] += 1
    np.testing.assert_allclose(
        method.moments.within().numpy(), scatter / counts.sum(), rtol=1e-4, atol=1e-5
    )


def test_one_image_per_class_is_enough_for_a_finite_head(backbone: FrozenViT) -> None:
    """Nothing varies within classes: the covariance is the identity's share alone."""
    method: Any = create_method("lda", backbone)
    method.begin_task(2, torch.Generator())
    images = torch.cat([of_class(0)[:1], of_class(1)[:1]])
    method.end_task([(method.embed(images), torch.tensor([0, 1]))])
    with torch.no_grad():
        logits = method(images)
    assert torch.isfinite(logits).all()
    assert logits.argmax(1).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shrinkage": 0.0}, r"shrinkage 0.0 must be in \(0, 1\]"),
        ({"shrinkage": 1.5}, r"shrinkage 1.5 must be in \(0, 1\]"),
        ({"views": 0}, "views 0 must be at least 1"),
    ],
)
def test_bad_settings_are_named(
    backbone: FrozenViT, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        create_method("lda", backbone, settings)
