"""Small things that many tests share."""

from __future__ import annotations

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
