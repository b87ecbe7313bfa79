from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from cprompt.errors import BackboneError
from cprompt.training.acceleration import compile_all_cases
from cprompt.vit import products, promptable
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT, PromptableViT, Prompts, is_promptable
from tests.vit.common import KINDS, Compiler, close, gradients, images, prompts_of_both_kinds, small


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("test_vit", 48),
        ("vit_tiny_patch16_224", 64),
        ("vit_small_patch14_reg4_dinov2", 56),  # registers, layer scale
        ("deit_tiny_distilled_patch16_224", 64),  # two prefix tokens
        ("vit_base_patch16_clip_224", 32),  # norm before the blocks
        ("deit3_small_patch16_224", 32),  # position embedding without class token
    ],
)
def test_without_prompts_it_is_timm_to_the_bit(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "mkl_is_slow", lambda: False)  # oneDNN adds in another order
    vit = timm.create_model(name, img_size=size, num_classes=0).eval()
    frozen = FrozenViT(vit, name, "random")
    x = images(2, size)
    with torch.no_grad():
        ours = frozen.vit.norm(frozen.encode(frozen.embed(x)))
        assert torch.equal(ours, vit.forward_features(x))
        cls = frozen.encode(frozen.embed(x))[:, 0]
        close(frozen(x, tap="pre_norm"), cls)
        close(frozen(x, tap="post_norm"), vit.norm(cls))


def test_dimensions_are_read_from_the_model(backbone: FrozenViT) -> None:
    assert (backbone.dim, backbone.depth, backbone.image_size) == (64, 6, (48, 48))


def test_tokens_join_before_their_block_and_stay(backbone: FrozenViT) -> None:
    p0, p2 = torch.randn(4, 64), torch.randn(2, 64)
    x = images(1)
    vit = backbone.vit
    embedded = backbone.embed(x).tokens[0]
    seq = torch.cat([embedded[:1], p0, embedded[1:]])
    for layer, block in enumerate(vit.blocks):
        if layer == 2:
            seq = torch.cat([seq[:5], p2, seq[5:]])
        seq = block(seq[None])[0]
    tokens = backbone.encode(backbone.embed(x), Prompts(tokens={0: p0, 2: p2}))
    assert tokens.shape == (1, 10 + 4 + 2, 64)
    torch.testing.assert_close(tokens[0], seq)


def test_tokens_stand_after_the_registers() -> None:
    vit = timm.create_model("vit_small_patch14_reg4_dinov2", img_size=28, num_classes=0)
    frozen = FrozenViT(vit, "reg", "random")
    first, second = torch.randn(1, frozen.dim), torch.randn(2, frozen.dim)
    embedded = frozen.embed(images(1, 28))
    with torch.no_grad():
        seq = torch.cat(
            [embedded.tokens[0, :5], first, embedded.tokens[0, 5:]]
        )  # a class token, four registers
        for layer, block in enumerate(vit.blocks):
            if layer == 3:
                seq = torch.cat([seq[:6], second, seq[6:]])
            seq = block(seq[None])[0]
        tokens = frozen.encode(embedded, Prompts(tokens={0: first, 3: second}))
    torch.testing.assert_close(tokens[0], seq)


@pytest.mark.parametrize("kind", ["tokens", "prefixes"])
def test_each_image_can_have_its_own_prompt(backbone: FrozenViT, kind: str) -> None:
    own, other = torch.randn(3, 2, 64), torch.randn(3, 2, 64)

    def prompts(i: int | slice) -> Prompts:
        if kind == "tokens":
            return Prompts(tokens={0: own[i], 3: other[i]})
        return Prompts(prefixes={0: (own[i], other[i])})

    x = images(3)
    together = backbone(x, prompts(slice(None)))
    alone = torch.stack([backbone(x[i : i + 1], prompts(i))[0] for i in range(3)])
    torch.testing.assert_close(together, alone)
    assert not torch.allclose(together, backbone(x, prompts(0)))


def test_nothing_of_it_can_be_trained(backbone: FrozenViT) -> None:
    assert not any(p.requires_grad for p in backbone.parameters())
    backbone.train()
    assert not any(m.training for m in backbone.modules())


def test_a_prompt_of_the_wrong_shape_or_block_is_named(backbone: FrozenViT) -> None:
    with pytest.raises(BackboneError, match=r"block 6, but test_vit has blocks 0 to 5"):
        backbone(images(1), Prompts(tokens={6: torch.zeros(1, 64)}))
    with pytest.raises(BackboneError, match=r"shape \(1, 32\).*\(length, 64\)"):
        backbone(images(1), Prompts(tokens={0: torch.zeros(1, 32)}))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("test_resnet", "ResNet, which cannot be prompted"),
        ("test_vit2", "has no class token"),
    ],
)
def test_a_model_that_cannot_be_prompted_is_refused_by_name(name: str, why: str) -> None:
    model = timm.create_model(name, num_classes=0)
    assert not is_promptable(model)
    with pytest.raises(BackboneError, match=f"{name}.*{why}"):
        FrozenViT(model, name, "random")


def test_an_attention_of_another_kind_takes_no_prefix(backbone: FrozenViT) -> None:
    class Other(nn.Module):
        gate = None

    vit = timm.create_model("test_vit", img_size=48, num_classes=0)
    vit.blocks[1].attn = Other()
    frozen = FrozenViT(vit, "odd_vit", "random")
    prefix = (torch.zeros(1, 64), torch.zeros(1, 64))
    with pytest.raises(BackboneError, match="odd_vit cannot take a key/value prefix at block 1"):
        frozen(images(1), Prompts(prefixes={1: prefix}))


# --- the class token alone ----------------------------------------------------------------------


@pytest.mark.parametrize("tap", ["pre_norm", "post_norm"])
@pytest.mark.parametrize("kind", KINDS)
def test_reading_the_class_token_is_encoding_all_and_taking_the_first(kind: str, tap: Any) -> None:
    vit = small(kind)
    frozen = FrozenViT(vit, kind, "random")
    embedded = frozen.embed(images(3, 32))
    close(frozen.read(embedded, tap=tap), frozen.tap(frozen.encode(embedded), tap))
    prompts, leaves = prompts_of_both_kinds(vit, 3)
    whole = frozen.tap(frozen.encode(embedded, prompts), tap)
    read = frozen.read(embedded, prompts, tap)
    assert read.shape == (3, 32)
    close(read, whole)
    for mine, theirs in zip(gradients(read, leaves), gradients(whole, leaves), strict=True):
        assert theirs.any()
        close(mine, theirs)


def test_reading_gives_a_trained_copy_the_gradients_of_encoding() -> None:
    tuned = PromptableViT(small("plain"), "tuned")
    names, weights = zip(*tuned.vit.blocks.named_parameters(), strict=True)
    read = gradients(tuned.read(tuned.embed(images(2, 32))), list(weights))
    whole = gradients(tuned.encode(tuned.embed(images(2, 32)))[:, 0], list(weights))
    for name, mine, theirs in zip(names, read, whole, strict=True):
        assert theirs.any(), name
        close(mine, theirs)


# --- compiled -----------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_blocks_give_the_same_features_and_gradients(
    compiler: Compiler, precision: Any
) -> None:
    vit = small("registers")
    written, compiled = (FrozenViT(vit, "small", "random") for _ in range(2))
    compiled.compile(backend=compiler)
    for batch in (2, 3):
        embedded = written.embed(images(batch, 32), precision)
        prompts, leaves = prompts_of_both_kinds(vit, batch)
        for make in (PromptableViT.encode, PromptableViT.read):
            mine, theirs = make(compiled, embedded, prompts), make(written, embedded, prompts)
            close(mine, theirs)
            both = gradients(mine, leaves), gradients(theirs, leaves)
            for one, other in zip(*both, strict=True):
                close(one, other)
    made = len(compiler.graphs)
    assert made > 0
    compiled.decompile()
    embedded = written.embed(images(4, 32), precision)
    assert torch.equal(compiled.read(embedded), written.read(embedded))
    assert len(compiler.graphs) == made


def test_compiling_meets_four_cases_and_no_more(compiler: Compiler, backbone: FrozenViT) -> None:
    """Whole block or class token alone, with gradient or without, for any batch and length."""
    compiled = load_backbone("test_vit", weights="random:0", image_size=48)
    compiled.compile(backend=compiler)
    compile_all_cases(compiled, torch.zeros(2, 3, 48, 48))
    assert len(compiler.graphs) == 4
    x = images(5)
    prompt = torch.randn(2, 7, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    found: list[Tensor] = []
    expected: list[Tensor] = []
    for vit, values in ((compiled, found), (backbone, expected)):
        h = vit(x, Prompts({0: prompt[0], 2: prompt[1]}))
        values += [h, *torch.autograd.grad(h.square().sum(), prompt)]
        with torch.no_grad():
            values += [vit(x[:3]), vit(x, Prompts({1: prompt[1].expand(5, -1, -1)}))]
    assert len(compiler.graphs) == 4
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("own", [False, True])
def test_a_cpu_takes_a_few_images_at_a_time_and_gives_the_same(
    backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Whatever the parts, and with prompts of single images all at once."""
    pixels = images(7)
    tokens = torch.randn(7, 3, backbone.dim) if own else torch.randn(3, backbone.dim)
    prompts = Prompts(tokens={1: tokens})
    with torch.no_grad():
        embedded = backbone.embed(pixels)
        ways = {
            "read": lambda: backbone.read(embedded, prompts),
            "encode": lambda: backbone.encode(embedded, prompts),
            "taps": lambda: backbone.taps(embedded, [0, 5], prompts=prompts),
        }
        whole = {name: way() for name, way in ways.items()}
        sizes = []
        inner = backbone._pass
        monkeypatch.setattr(
            backbone, "_pass", lambda part, *a, **k: sizes.append(len(part)) or inner(part, *a, **k)
        )
        monkeypatch.setattr(promptable, "_REUSED", 2 * backbone._widest(embedded))
        for name, way in ways.items():
            close(way(), whole[name])
    assert sizes == ([7] * 3 if own else [2, 2, 2, 1] * 3)
    sizes.clear()
    backbone.read(embedded, prompts)  # with gradients, all at once
    assert sizes == [7]
