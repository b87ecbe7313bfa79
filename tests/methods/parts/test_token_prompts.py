"""Token segments: where they join, how they start, and what they do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cprompt.errors import ConfigError
from cprompt.methods.parts.token_prompts import SegmentsConfig, fresh, place, prompted_feature
from cprompt.vit.promptable import FrozenViT


def test_segments_join_at_the_first_and_the_middle_block(backbone: FrozenViT) -> None:
    assert place(SegmentsConfig(), backbone) == (0, 2)  # of six; 0 and 5 of twelve
    assert place(SegmentsConfig(layers=(4, 1)), backbone) == (4, 1)


@pytest.mark.parametrize("layers", [(6,), (0, -1)])
def test_a_block_that_does_not_exist_is_named(layers: Any, backbone: FrozenViT) -> None:
    with pytest.raises(ConfigError, match=f"no block {layers[-1]}, only 0 to 5"):
        place(SegmentsConfig(layers=layers), backbone)


@pytest.mark.parametrize("settings", [{"length": 0}, {"layers": ()}, {"layers": (1, 1)}])
def test_a_size_or_place_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        SegmentsConfig(**settings)


def test_initial_values_fill_the_bounds_and_repeat(backbone: FrozenViT) -> None:
    config = SegmentsConfig(length=30, layers=(0, 2, 3))
    one, same = (fresh(config, backbone, torch.Generator().manual_seed(4)) for _ in range(2))
    assert one.shape == (3, 30, 64)
    assert torch.equal(one, same)
    assert 0.99 / 8 < one.abs().max() <= 1 / 8  # 1 / sqrt(64)
    assert abs(float(one.mean())) < 0.01


def test_each_segment_joins_before_its_block(backbone: FrozenViT) -> None:
    rng = torch.Generator().manual_seed(1)
    prompt = torch.randn(2, 2, 3, 64, generator=rng)  # two images, two segments of three
    embedded = backbone.embed(torch.randn(2, 3, 48, 48, generator=rng))
    for image in range(2):
        x = embedded.tokens[image : image + 1]
        for layer, block in enumerate(backbone.vit.blocks):
            if layer in (1, 4):
                segment = prompt[image, (1, 4).index(layer)][None]
                end = 1 if layer == 1 else 4
                x = torch.cat([x[:, :end], segment, x[:, end:]], dim=1)
            x = block(x)
        own = prompted_feature(backbone, embedded, prompt, (1, 4))[image]
        torch.testing.assert_close(own, x[0, 0], rtol=1e-4, atol=1e-5)
    shared = prompted_feature(backbone, embedded, prompt[0], (1, 4))
    torch.testing.assert_close(
        shared[0], prompted_feature(backbone, embedded, prompt, (1, 4))[0], rtol=1e-5, atol=1e-5
    )
