"""Plain fine-tuning and joint training against one-image-at-a-time arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cprompt.methods.base import create_method
from cprompt.methods.finetune import FineTune
from cprompt.vit.promptable import FrozenViT
from tests.methods.common import (
    assert_losses_and_gradients,
    backward,
    batch_in_turn,
    midway,
    step_losses,
)

SIZES = (3, 1, 4)


def learnt(backbone: FrozenViT, tasks: int, **settings: Any) -> FineTune:
    return midway(FineTune, backbone, SIZES[:tasks], {"length": 3, **settings})


def naive_logits(method: FineTune, image: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    """Tokens join after the class token, before blocks 0 and 2 of six; no final norm."""
    vit = method.backbone.vit
    x = vit._pos_embed(vit.patch_embed(image[None]))[0]
    end = 1
    for i, block in enumerate(vit.blocks):
        if i in (0, 2):
            segment = tensors["prompt"][0 if i == 0 else 1]
            x = torch.cat([x[:end], segment, x[end:]])
            end += len(segment)
        x = block(x[None])[0]
    logits: Tensor = tensors["weight"] @ x[0] + tensors["bias"]
    return logits


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_loss_and_gradients_equal_the_naive_reference(backbone: FrozenViT, tasks: int) -> None:
    method = learnt(backbone, tasks)
    images, targets = batch_in_turn(method, 6)
    tensors = {n: p.detach().clone().requires_grad_() for n, p in method.named_parameters()}
    each = []
    for image, target in zip(images, targets, strict=True):
        logits = naive_logits(method, image, tensors)
        each.append(logits.exp().sum().log() - logits[target])
    expected = {"ce": torch.stack(each).mean()}
    backward(expected)

    losses = step_losses(method, images, targets)
    assert set(tensors) == {"prompt", "weight", "bias"}
    gradients = {n: t.grad for n, t in tensors.items()}
    assert_losses_and_gradients(method, losses, expected, gradients)


def test_logits_equal_the_naive_reference(backbone: FrozenViT) -> None:
    method = learnt(backbone, 3)
    images, _ = batch_in_turn(method, 6)
    tensors = dict(method.named_parameters())
    with torch.no_grad():
        expected = torch.stack([naive_logits(method, image, tensors) for image in images])
        torch.testing.assert_close(method(images), expected, rtol=1e-4, atol=1e-5)
    assert expected.shape == (6, sum(SIZES))


def test_every_row_of_the_head_is_trained_and_the_old_ones_are_pushed_down(
    backbone: FrozenViT,
) -> None:
    """What makes fine-tuning forget: images of new classes lower every old class's answer."""
    method = learnt(backbone, 3)
    images, targets = batch_in_turn(method, 6)
    assert method.weight.requires_grad
    assert method.weight.shape == (sum(SIZES), 64)
    step_losses(method, images, targets)["ce"].backward()
    with torch.no_grad():
        probability = method(images).softmax(-1)
    assert method.bias.grad is not None
    assert method.weight.grad is not None
    old = slice(0, method.known)
    torch.testing.assert_close(method.bias.grad[old], probability.mean(0)[old])
    assert (method.bias.grad[old] > 0).all()
    assert (method.weight.grad.abs().sum(1) > 0).all()


def test_a_new_task_widens_the_head_and_keeps_what_was_learnt(backbone: FrozenViT) -> None:
    method = learnt(backbone, 2)
    before = {n: p.detach().clone() for n, p in method.named_parameters()}
    method.close_task()
    method.begin_task(5, torch.Generator().manual_seed(1))
    assert torch.equal(method.prompt, before["prompt"])
    assert torch.equal(method.weight[:4], before["weight"])
    assert torch.equal(method.bias[:4], before["bias"])
    assert method.weight.shape == (9, 64)
    bound = (3 / 64) ** 0.5
    assert 0.9 * bound < method.weight[4:].abs().max() <= bound
    assert not method.bias[4:].any()


def test_the_prompt_starts_fresh_with_the_first_task(backbone: FrozenViT) -> None:
    method = create_method("finetune", backbone, {"length": 50})
    method.begin_task(2, torch.Generator().manual_seed(0))
    assert isinstance(method, FineTune)
    assert 0.98 / 8 < method.prompt.abs().max() <= 1 / 8  # U(±1/sqrt(64))
