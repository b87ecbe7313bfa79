"""The trained copy of the backbone: it starts equal, learns at its own rate, and is saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method
from cprompt.methods.parts.tuned_backbone import TunedBackboneMethod
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT
from tests.methods.common import random_images

EACH = pytest.mark.parametrize("name", ["slca", "joint_tuning"])


def opened(name: str, backbone: FrozenViT, **settings: Any) -> TunedBackboneMethod:
    method = create_method(name, backbone, settings)
    assert isinstance(method, TunedBackboneMethod)
    method.begin_task(4, torch.Generator().manual_seed(1))
    return method


@EACH
def test_the_feature_is_that_of_a_plain_model_at_first(name: str, backbone: FrozenViT) -> None:
    method, images = opened(name, backbone), random_images(2)
    with torch.no_grad():
        feature = method.feature(method.embed(images))
        for row, image in zip(feature, images, strict=True):
            token = backbone.vit.forward_features(image[None])[0, 0]  # after the final norm
            torch.testing.assert_close(row, token, rtol=1e-5, atol=1e-6)


@EACH
def test_copy_and_heads_are_two_groups_with_every_parameter_once(
    name: str, backbone: FrozenViT
) -> None:
    method = opened(name, backbone, backbone_lr_scale=0.25)
    slow, fast = method.parameter_groups()
    assert slow["lr_scale"] == 0.25
    assert "lr_scale" not in fast
    assert [id(p) for p in slow["params"]] == [id(p) for p in method.tuned.parameters()]
    in_groups = [id(p) for group in (slow, fast) for p in group["params"]]
    assert sorted(in_groups) == sorted(id(p) for p in method.parameters() if p.requires_grad)
    assert [p.shape[0] for p in fast["params"]] == [4, 4]  # weight and bias of four classes


@EACH
def test_a_step_moves_the_copy_and_not_the_backbone_it_was_made_from(name: str) -> None:
    backbone = load_backbone("test_vit", "random:0", 48)
    before = {n: t.clone() for n, t in backbone.vit.state_dict().items()}
    method = opened(name, backbone)
    loss = method.loss(method.embed(random_images(4)), torch.arange(4), {})["ce"]
    loss.backward()
    slow, _ = method.parameter_groups()
    torch.optim.SGD(slow["params"], lr=0.1).step()
    assert all(torch.equal(t, before[n]) for n, t in backbone.vit.state_dict().items())
    moved = method.tuned.vit.state_dict()
    assert moved.keys() == before.keys()
    assert all(not torch.equal(moved[n], t) for n, t in before.items() if n.endswith("qkv.weight"))


@EACH
def test_the_copy_is_saved_and_loads_into_a_new_method(name: str, backbone: FrozenViT) -> None:
    method = opened(name, backbone)
    with torch.no_grad():
        for parameter in method.tuned.parameters():
            parameter += 0.05
    state = method.state_dict()
    saved = {n.removeprefix("tuned.vit.") for n in state if n.startswith("tuned.vit.")}
    assert saved == set(backbone.vit.state_dict())
    other = opened(name, backbone)
    other.load_state_dict(state)
    images = random_images(2)
    with torch.no_grad():
        assert torch.equal(other(images), method(images))


@EACH
def test_the_copy_computes_in_the_precision_asked_for_but_stays_fp32(name: str) -> None:
    method, images = opened(name, load_backbone("test_vit", "random:0", 48)), random_images(3)
    with torch.no_grad():
        exact = method.feature(method.embed(images))
        rough = method.feature(method.embed(images, "bf16"))
    assert rough.dtype == torch.float32
    assert 0 < (rough - exact).norm() / exact.norm() < 0.05
    assert all(p.dtype == torch.float32 for p in method.parameters())


@EACH
def test_a_rate_of_zero_is_refused(name: str, backbone: FrozenViT) -> None:
    with pytest.raises(ConfigError, match=r"backbone_lr_scale 0\.0 must be positive"):
        create_method(name, backbone, {"backbone_lr_scale": 0})
