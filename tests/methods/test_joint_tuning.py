"""Joint fine-tuning of the whole backbone against one image at a time on a plain timm model."""

from __future__ import annotations

import copy

import pytest
import torch

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method
from cprompt.methods.joint_tuning import JointTuning
from cprompt.vit.promptable import FrozenViT


def opened(backbone: FrozenViT, n_classes: int = 5) -> JointTuning:
    method = create_method("joint_tuning", backbone)
    assert isinstance(method, JointTuning)
    method.begin_task(n_classes, torch.Generator().manual_seed(1))
    return method


def test_loss_and_gradients_are_those_of_a_plain_model_with_a_linear_head(
    backbone: FrozenViT,
) -> None:
    method = opened(backbone)
    images = torch.randn(4, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 4, 2, 2])
    loss = method.loss(method.embed(images), targets, {})["ce"]
    loss.backward()

    plain = copy.deepcopy(backbone.vit).requires_grad_(True)
    weight = method.weight.detach().clone().requires_grad_(True)
    bias = method.bias.detach().clone().requires_grad_(True)
    naive = torch.zeros(())
    for image, target in zip(images, targets, strict=True):
        token = plain.forward_features(image[None])[0, 0]  # after the final norm
        z = weight @ token + bias
        naive = naive + (z.exp().sum().log() - z[target]) / len(images)
    naive.backward()
    torch.testing.assert_close(loss, naive, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(method.weight.grad, weight.grad, rtol=1e-4, atol=1e-6)
    mine = dict(method.tuned.vit.named_parameters())
    for name, parameter in plain.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(mine[name].grad, parameter.grad, rtol=1e-3, atol=1e-6)


def test_the_copy_learns_at_a_sixtieth_of_the_rate(backbone: FrozenViT) -> None:
    slow, _ = opened(backbone).parameter_groups()
    assert slow["lr_scale"] == pytest.approx(1 / 60)


def test_a_second_task_is_refused(backbone: FrozenViT) -> None:
    method = opened(backbone)
    with pytest.raises(ConfigError, match="joint_tuning sees all classes in one task"):
        method.begin_task(1, torch.Generator())
