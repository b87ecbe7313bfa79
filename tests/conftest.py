"""Small things that many tests share."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cprompt.backbone import FrozenViT, load_backbone


@pytest.fixture(scope="session")
def backbone() -> FrozenViT:
    """timm's test ViT at 48 pixels (9 patches), six blocks, dimension 64, random weights."""
    return load_backbone("test_vit", weights="random:0", image_size=48)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


TINY = {
    "backbone.name": "test_vit",
    "backbone.weights": "random:0",
    "backbone.image_size": 48,
    "data.options": {"classes": 6, "train_per_class": 5, "test_per_class": 3, "size": 48},
    "stream.sizes": [3, 1, 2],
    "training.epochs": 2,
    "training.batch_size": 4,
    "execution.device": "cpu",
    "execution.eval_batch_size": 8,
}
"""A run over three unequal tasks of drawn pictures, in about a second."""


@pytest.fixture
def tiny() -> dict[str, Any]:
    return dict(TINY)
