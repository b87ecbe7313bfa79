"""Strata: what it reads, what it counts, and that tasks and order do not matter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method
from cprompt.methods.strata import Strata
from cprompt.vit.promptable import FrozenViT, Prompts
from tests.methods.common import random_images, step_losses


def naive_taps(backbone: FrozenViT, images: Tensor) -> Tensor:
    """timm's own blocks, one after another: (B, depth, 2, D)."""
    vit = backbone.vit
    x = vit._pos_embed(vit.patch_embed(images))
    found = []
    for number, block in enumerate(vit.blocks):
        x = block(x)
        if number == backbone.depth - 1:
            normed = vit.norm(x)
        else:
            mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
            normed = (x - mean) / (variance + 1e-5).sqrt()
        found.append(torch.stack([normed[:, 0], normed[:, 1:].mean(1)], 1))
    return torch.stack(found, 1)


def learnt(backbone: FrozenViT, tasks: list[list[int]], **settings: Any) -> Strata:
    """After tasks of these classes, each with three images of its own; classes by arrival."""
    method = create_method("strata", backbone, {"shrinkage": 0.1, **settings})
    assert isinstance(method, Strata)
    for task in tasks:
        method.begin_task(len(task), torch.Generator().manual_seed(0))
        images = torch.cat([of_class(c) for c in task])
        targets = method.known + torch.arange(len(task)).repeat_interleave(3)
        method.end_task([(method.embed(images[:4]), targets[:4])])
        if len(images) > 4:
            method.end_task([(method.embed(images[4:]), targets[4:])])
        method.close_task()
    return method


def of_class(number: int) -> Tensor:
    rng = torch.Generator().manual_seed(number)
    middle = torch.randn(1, 3, 48, 48, generator=rng)
    return middle + 0.5 * torch.randn(3, 3, 48, 48, generator=rng)


def test_taps_are_those_of_timms_blocks(backbone: FrozenViT) -> None:
    images = random_images(3)
    with torch.no_grad():
        expected = naive_taps(backbone, images)
        found = backbone.taps(backbone.embed(images), range(backbone.depth))
        some = backbone.taps(backbone.embed(images), [4, 1])
    torch.testing.assert_close(found, expected.flatten(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(some, expected[:, [4, 1]].flatten(1), rtol=1e-4, atol=1e-5)


def test_prompt_tokens_are_not_read(backbone: FrozenViT) -> None:
    """Means are over the image's own patches; with a prompt before the last block only that."""
    embedded = backbone.embed(random_images(2))
    prompts = Prompts(tokens={5: torch.randn(3, backbone.dim)})
    with torch.no_grad():
        taps = backbone.taps(embedded, [4, 5], prompts=prompts).view(2, 2, 2, -1)
        tokens = backbone.norm(backbone.encode(embedded, prompts))
        plain = backbone.taps(embedded, [4])
    torch.testing.assert_close(taps[:, 0].flatten(1), plain)
    torch.testing.assert_close(taps[:, 1, 1], tokens[:, 4:].mean(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("tokens", "kinds"), [("both", 2), ("class", 1), ("patch", 1)])
def test_a_feature_has_the_tokens_asked_for(backbone: FrozenViT, tokens: str, kinds: int) -> None:
    method = create_method("strata", backbone, {"layers": [3, 1], "tokens": tokens})
    images = random_images(2)
    with torch.no_grad():
        feature = method.feature(method.embed(images), None, None)
        taps = naive_taps(backbone, images)[:, [1, 3]]
    chosen = {"both": taps, "class": taps[:, :, :1], "patch": taps[:, :, 1:]}[tokens]
    assert feature.shape == (2, 2 * kinds * backbone.dim)
    torch.testing.assert_close(feature, chosen.flatten(1), rtol=1e-4, atol=1e-5)


def test_ten_batches_are_as_good_as_one(backbone: FrozenViT) -> None:
    """Any cut into tasks and any order of classes: the same statistics, the same answers."""
    images = torch.cat([of_class(c)[:1] for c in range(4)])
    once = learnt(backbone, [[0, 1, 2, 3]])
    with torch.no_grad():
        expected = once(images)
        for tasks in ([[0], [1], [2], [3]], [[2, 3], [1], [0]]):
            method = learnt(backbone, tasks)
            arrival = [c for task in tasks for c in task]
            found = method(images)[:, [arrival.index(c) for c in range(4)]]
            torch.testing.assert_close(
                method.moments.second, once.moments.second, rtol=1e-9, atol=1e-9
            )
            scale = float(expected.abs().max())
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * scale)
            assert found.argmax(1).tolist() == [0, 1, 2, 3]


def test_without_adaptation_nothing_is_trained(backbone: FrozenViT) -> None:
    method = create_method("strata", backbone)
    method.begin_task(2, torch.Generator().manual_seed(0))
    assert not list(method.parameters())
    assert step_losses(method, random_images(2), torch.tensor([0, 1])) == {}


def test_a_prompt_is_trained_on_the_first_task_and_then_frozen(backbone: FrozenViT) -> None:
    method = create_method("strata", backbone, {"adaptation": "prompt", "prompt_length": 2})
    assert isinstance(method, Strata)
    method.begin_task(2, torch.Generator().manual_seed(0))
    images, targets = random_images(4), torch.tensor([0, 1, 1, 0])
    with torch.no_grad():
        method.first.weight += 0.1 * torch.randn(method.first.weight.shape)  # type: ignore[union-attr]
    losses = step_losses(method, images, targets)
    assert method.first.prefixes is not None
    pairs = {i: (p[0], p[1]) for i, p in enumerate(method.first.prefixes)}
    with torch.no_grad():
        tokens = backbone.norm(backbone.encode(backbone.embed(images), Prompts(prefixes=pairs)))
        last = torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], 1)
        assert method.first.weight is not None
        logits = F.linear(last, method.first.weight, method.first.bias)
        log_p = logits.log_softmax(1)
        smooth = 0.9 * F.one_hot(targets, 2) + 0.05
        expected = -(smooth * log_p).sum(1).mean()
    torch.testing.assert_close(losses["ce"], expected, rtol=1e-5, atol=1e-5)
    torch.autograd.backward(losses["ce"])
    assert method.first.prefixes.grad is not None
    assert method.first.prefixes.grad.flatten(1).any(1).all()  # every block's
    method.close_task()
    method.begin_task(1, torch.Generator().manual_seed(1))
    assert not [p for p in method.parameters() if p.requires_grad]
    assert step_losses(method, images, targets) == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": [0, 0]}, "different block numbers"),
        ({"layers": [99]}, "has no block 99"),
        ({"shrinkage": 0.0}, "shrinkage 0.0 must be positive"),
        ({"views": 0}, "views 0 must be at least 1"),
    ],
)
def test_bad_settings_are_named(
    backbone: FrozenViT, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        create_method("strata", backbone, settings)
