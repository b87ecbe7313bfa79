"""The first task's prompt: its loss by hand, when it is trained, and that it stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cprompt.errors import ConfigError
from cprompt.methods.parts.first_prompt import FirstPrompt, FirstPromptConfig
from cprompt.vit.promptable import FrozenViT

DIM, CLASSES, LENGTH = 5, 3, 2


def opened(backbone: FrozenViT, **settings: Any) -> FirstPrompt:
    config = FirstPromptConfig(**{"adaptation": "prompt", "prompt_length": LENGTH, **settings})
    prompt = FirstPrompt(config)
    prompt.open(backbone, CLASSES, DIM, torch.Generator().manual_seed(0))
    return prompt


def test_without_adaptation_there_is_no_prompt(backbone: FrozenViT) -> None:
    prompt = opened(backbone, adaptation="none")
    assert not prompt.is_open
    assert prompt.prompts() is None
    assert not list(prompt.parameters())
    prompt.close()
    assert prompt.prompts() is None


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_smoothed_cross_entropy(backbone: FrozenViT, smoothing: float) -> None:
    prompt = opened(backbone, smoothing=smoothing)
    assert prompt.weight is not None
    assert prompt.bias is not None
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        prompt.weight += torch.randn(CLASSES, DIM, generator=rng)
        prompt.bias += torch.randn(CLASSES, generator=rng)
    x, y = torch.randn(4, DIM, generator=rng), torch.tensor([0, 2, 1, 2])
    weight, bias = prompt.weight.detach().numpy(), prompt.bias.detach().numpy()
    expected = 0.0
    for feature, truth in zip(x.numpy(), y.tolist(), strict=True):
        powers = np.exp(weight @ feature + bias)
        for c in range(CLASSES):
            share = smoothing / CLASSES + (1 - smoothing) * (c == truth)
            expected -= share * np.log(powers[c] / powers.sum()) / len(x)
    assert prompt.loss(x, y)["ce"].item() == pytest.approx(expected, rel=1e-4)


def test_every_block_gets_its_own_keys_and_values(backbone: FrozenViT) -> None:
    prompt = opened(backbone)
    assert prompt.prefixes is not None
    found = prompt.prompts()
    assert found is not None
    assert list(found.prefixes) == list(range(backbone.depth))
    for layer, (keys, values) in found.prefixes.items():
        assert keys.shape == values.shape == (LENGTH, backbone.dim)
        assert torch.equal(keys, prompt.prefixes[layer, 0])
        assert torch.equal(values, prompt.prefixes[layer, 1])
    rows = prompt.prefixes.detach().flatten(0, 2)
    assert len({tuple(row.tolist()) for row in rows}) == len(rows)


def test_once_closed_the_prompt_stays_and_the_head_is_gone(backbone: FrozenViT) -> None:
    prompt = opened(backbone)
    assert prompt.is_open
    assert prompt.prefixes is not None
    before = prompt.prefixes.detach().clone()
    prompt.close()
    assert not prompt.is_open
    assert set(prompt.state_dict()) == {"prefixes"}
    assert not any(p.requires_grad for p in prompt.parameters())
    assert torch.equal(prompt.prefixes, before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt_length": 0}, "prompt_length 0 must be at least 1"),
        ({"smoothing": 1.0}, r"smoothing 1.0 must be in \[0, 1\)"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FirstPromptConfig(**settings)
