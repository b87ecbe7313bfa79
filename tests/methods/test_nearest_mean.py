"""Nearest mean: answers by numpy's means, and that tasks and order do not matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method
from cprompt.vit.promptable import FrozenViT
from tests.methods.common import class_tokens, learnt_in_tasks, of_class, random_images


def naive(backbone: FrozenViT, metric: str, classes: int) -> np.ndarray:
    """Scores of `random_images(5)` by timm's own features, one pair at a time."""
    asked = class_tokens(backbone, random_images(5))
    means = [class_tokens(backbone, of_class(c)).mean(0) for c in range(classes)]
    if metric == "cosine":
        pairs = [[x @ m / np.linalg.norm(x) / np.linalg.norm(m) for m in means] for x in asked]
    else:
        pairs = [[-np.mean((x - m) ** 2) for m in means] for x in asked]
    return np.array(pairs)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("tasks", [[[0, 1, 2, 3]], [[0], [1, 2], [3]]], ids=["one", "three"])
def test_scores_are_of_the_means_however_they_came(
    backbone: FrozenViT, metric: str, tasks: list[list[int]]
) -> None:
    method = learnt_in_tasks("nearest_mean", backbone, tasks, metric=metric)
    with torch.no_grad():
        found = method(random_images(5)).double().numpy()
    np.testing.assert_allclose(found, naive(backbone, metric, 4), rtol=1e-4, atol=1e-5)


def test_the_two_metrics_are_not_the_same(backbone: FrozenViT) -> None:
    """A mean in the same direction, but farther, is as near by cosine only."""
    for metric, expected in (("cosine", [1.0, 1.0]), ("euclidean", [-0.25, -4.0])):
        method = create_method("nearest_mean", backbone, {"metric": metric})
        method.begin_task(2, torch.Generator())
        with torch.no_grad():
            method.count += 2  # type: ignore[operator]
            method.total += torch.tensor([[3.0], [6.0]])  # type: ignore[operator]
            scores = method.answer(torch.ones(1, backbone.dim))
        torch.testing.assert_close(scores, torch.tensor([expected]))


def test_nothing_is_trained_and_random_views_are_asked_for(backbone: FrozenViT) -> None:
    assert create_method("nearest_mean", backbone).extra_views == 0
    method = create_method("nearest_mean", backbone, {"views": 3})
    assert method.extra_views == 2
    method.begin_task(2, torch.Generator())
    assert not list(method.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"views": 0}, "views 0 must be at least 1"), ({"metric": "city"}, "'city' is not one of")],
)
def test_bad_settings_are_named(
    backbone: FrozenViT, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        create_method("nearest_mean", backbone, settings)
