"""bfloat16 against autocast, which rounds in every pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import Embedded, FrozenViT, PromptableViT, Prompts
from tests.vit.common import KINDS, gradients, images, prompts_of_both_kinds, small


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_gives_the_very_numbers_of_autocast(kind: str) -> None:
    vit = small(kind)
    frozen = FrozenViT(vit, kind, "random")
    tokens = frozen.embed(images(3, 32)).tokens.requires_grad_()
    ours = frozen.encode(Embedded(tokens, "bf16"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs = vit.blocks(tokens)
    assert ours.dtype == torch.float32
    assert torch.equal(ours, theirs.float())
    assert torch.equal(gradients(ours, [tokens])[0], gradients(theirs, [tokens])[0])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "blocks of another kind"])
def test_bf16_prompts_get_the_very_gradients_of_autocast(kind: str) -> None:
    """A model that is not frozen has no rounded copies: there autocast rounds in every pass."""
    vit = small(kind)
    frozen, tuned = FrozenViT(vit, kind, "random"), PromptableViT(copy.deepcopy(vit), kind)
    embedded = Embedded(tuned.embed(images(3, 32), "bf16").tokens.detach(), "bf16")
    prompts, leaves = prompts_of_both_kinds(vit, 3)
    mine, theirs = frozen.read(embedded, prompts), tuned.read(embedded, prompts)
    assert mine.dtype == torch.float32
    assert torch.equal(mine, theirs)
    for one, other in zip(gradients(mine, leaves), gradients(theirs, leaves), strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)


def test_bf16_patches_are_the_convolution_s_to_a_rounding() -> None:
    vit: Any = small("plain")
    x = images(4, 32)
    rough = FrozenViT(vit, "plain", "random").embed(x, "bf16").tokens
    assert rough.dtype == torch.float32
    places = vit.pos_embed[:, 1:]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        convolved = vit.patch_embed(x).float()
    # Both round the same sums, added up in another order: at worst to neighbouring numbers.
    torch.testing.assert_close(rough[:, 1:] - places, convolved, rtol=2**-7, atol=1e-5)
    exact = vit.patch_embed(x) + places
    assert 0 < (rough[:, 1:] - exact).norm() / exact.norm() < 0.01
    assert torch.equal(rough[:, 0], (vit.cls_token + vit.pos_embed[:, :1])[:, 0].expand(4, -1))


class Overlapping(nn.Module):
    """Patches of 10 by 10 every 8 pixels."""

    img_size = (32, 32)

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, 32, 10, stride=8, padding=1)
        self.grid_size, self.num_patches = like.grid_size, like.num_patches

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.proj(x)
        return projected.flatten(2).transpose(1, 2)


@pytest.mark.parametrize("change", ["norm", "overlap", "any size"])
def test_a_patch_embedding_of_another_kind_is_left_to_timm(change: str) -> None:
    vit: Any = small("any size" if change == "any size" else "plain")
    if change == "norm":
        vit.patch_embed.norm = nn.LayerNorm(32)
    if change == "overlap":
        vit.patch_embed = Overlapping(vit.patch_embed)
    x = images(2, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs = vit._pos_embed(vit.patch_embed(x))
    frozen = FrozenViT(vit, change, "random")
    assert torch.equal(frozen.embed(x, "bf16").tokens, theirs.float())


def test_bf16_stays_near_fp32_and_returns_fp32(backbone: FrozenViT) -> None:
    x = images(4)
    exact, rough = backbone(x), backbone(x, precision="bf16")
    assert rough.dtype == torch.float32
    error = (rough - exact).norm() / exact.norm()
    assert 0 < error < 0.02


def test_bf16_leaves_the_weights_and_their_fingerprint_alone() -> None:
    low = load_backbone("test_vit", weights="random:0", image_size=48)
    fresh = load_backbone("test_vit", weights="random:0", image_size=48)
    exact = low(images(2))
    low(images(2), precision="bf16")
    assert low.fingerprint == fresh.fingerprint
    mine, theirs = low.state_dict(), fresh.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert all(p.dtype == torch.float32 for p in low.parameters())
    assert len([*low.modules()]) == len([*fresh.modules()])
    assert torch.equal(low(images(2)), exact)


def test_rounded_copies_follow_the_model_to_another_device() -> None:
    frozen = FrozenViT(small("plain"), "plain", "random")
    frozen(images(1, 32), precision="bf16")
    here = frozen._low()
    assert frozen._low() is here
    frozen.to("meta")
    there = frozen._low()
    assert there.patch is not None
    tensors = [*there.blocks.parameters(), there.patch.weight, there.patch.bias]
    assert all(t is not None and t.device.type == "meta" for t in tensors)


def test_rounded_copies_made_for_a_prediction_serve_training() -> None:
    frozen = load_backbone("test_vit", weights="random:0", image_size=48)
    x = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        frozen(x, precision="bf16")
    prompt = torch.zeros(3, 64, requires_grad=True)
    frozen(x, Prompts({0: prompt}), precision="bf16").sum().backward()
    assert prompt.grad is not None
    assert prompt.grad.any()


def test_a_copy_of_a_model_in_bf16_is_one_of_its_own() -> None:
    frozen = FrozenViT(small("plain"), "plain", "random")
    x = images(2, 32)
    before = frozen(x, precision="bf16")
    twin = copy.deepcopy(frozen)
    assert torch.equal(twin(x, precision="bf16"), before)
    with torch.no_grad():
        for parameter in twin._low().blocks.parameters():
            parameter.zero_()
    assert torch.equal(frozen(x, precision="bf16"), before)
