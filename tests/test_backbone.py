from __future__ import annotations

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from cprompt.backbone import FrozenViT, Prompts, load_backbone
from cprompt.errors import BackboneError


def images(n: int = 3, size: int = 48) -> Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(1))


def naive_attention(attn: nn.Module, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One picture (N, D), head by head, with softmax written out."""
    dim = x.shape[1]
    width = dim // attn.num_heads
    q, k, v = (attn.qkv.weight @ x.T + attn.qkv.bias[:, None]).T.split(dim, dim=1)
    k, v = torch.cat([key, k]), torch.cat([value, v])
    heads = []
    for h in range(attn.num_heads):
        part = slice(h * width, (h + 1) * width)
        scores = q[:, part] @ k[:, part].T / width**0.5
        weights = scores.exp() / scores.exp().sum(1, keepdim=True)
        heads.append(weights @ v[:, part])
    return torch.cat(heads, 1) @ attn.proj.weight.T + attn.proj.bias


def naive_block(block: nn.Module, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
    x = x + naive_attention(block.attn, block.norm1(x), key, value)
    return x + block.mlp(block.norm2(x))


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
def test_without_prompts_it_is_timm_to_the_bit(name: str, size: int) -> None:
    vit = timm.create_model(name, img_size=size, num_classes=0).eval()
    frozen = FrozenViT(vit, name, "random")
    x = images(2, size)
    with torch.no_grad():
        ours = frozen.vit.norm(frozen.encode(frozen.embed(x)))
        assert torch.equal(ours, vit.forward_features(x))
        cls = frozen.encode(frozen.embed(x))[:, 0]
        assert torch.equal(frozen(x, tap="pre_norm"), cls)
        assert torch.equal(frozen(x, tap="post_norm"), vit.norm(cls))


def test_dimensions_are_read_from_the_model(backbone: FrozenViT) -> None:
    assert (backbone.dim, backbone.depth, backbone.image_size) == (64, 6, (48, 48))


def test_tokens_join_before_their_block_and_stay(backbone: FrozenViT) -> None:
    p0, p2 = torch.randn(4, 64), torch.randn(2, 64)
    x = images(1)
    vit = backbone.vit
    embedded = backbone.embed(x)[0]
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
    marker = torch.full((1, frozen.dim), 7.0)
    seen: list[Tensor] = []
    handle = vit.blocks[0].register_forward_pre_hook(lambda m, a: seen.append(a[0]))
    frozen.encode(frozen.embed(images(1, 28)), Prompts(tokens={0: marker}))
    handle.remove()
    assert torch.equal(seen[0][0, 5], marker[0])  # one class token, four registers, then ours


def test_a_prefix_enters_the_keys_and_values_of_its_block_only(backbone: FrozenViT) -> None:
    key, value = torch.randn(3, 64), torch.randn(3, 64)
    x = images(1)
    seq = backbone.embed(x)[0]
    for layer, block in enumerate(backbone.vit.blocks):
        none = torch.empty(0, 64)
        prefix = (key, value) if layer == 1 else (none, none)
        seq = naive_block(block, seq, *prefix)
    tokens = backbone.encode(backbone.embed(x), Prompts(prefixes={1: (key, value)}))
    assert tokens.shape == (1, 10, 64)
    torch.testing.assert_close(tokens[0], seq, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["tokens", "prefixes"])
def test_each_picture_can_have_its_own_prompt(backbone: FrozenViT, kind: str) -> None:
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


def test_bf16_stays_near_fp32_and_returns_fp32(backbone: FrozenViT) -> None:
    x = images(4)
    exact = backbone(x)
    try:
        backbone.precision = "bf16"
        rough = backbone(x)
    finally:
        backbone.precision = "fp32"
    assert rough.dtype == torch.float32
    error = (rough - exact).norm() / exact.norm()
    assert 0 < error < 0.02


def test_a_prompt_of_the_wrong_shape_or_block_is_named(backbone: FrozenViT) -> None:
    with pytest.raises(BackboneError, match=r"block 6, but test_vit has blocks 0 to 5"):
        backbone(images(1), Prompts(tokens={6: torch.zeros(1, 64)}))
    with pytest.raises(BackboneError, match=r"shape \(1, 32\).*\(length, 64\)"):
        backbone(images(1), Prompts(tokens={0: torch.zeros(1, 32)}))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("resnet18", "ResNet, which cannot be prompted"),
        ("swin_tiny_patch4_window7_224", "SwinTransformer, which cannot be prompted"),
        ("vit_base_patch16_siglip_224", "has no class token"),
    ],
)
def test_a_model_that_cannot_be_prompted_is_refused_by_name(name: str, why: str) -> None:
    with pytest.raises(BackboneError, match=f"{name}.*{why}"):
        load_backbone(name, weights="random:0")


def test_an_attention_of_another_kind_takes_no_prefix(backbone: FrozenViT) -> None:
    class Other(nn.Module):
        gate = None

    vit = timm.create_model("test_vit", img_size=48, num_classes=0)
    vit.blocks[1].attn = Other()
    frozen = FrozenViT(vit, "odd_vit", "random")
    prefix = (torch.zeros(1, 64), torch.zeros(1, 64))
    with pytest.raises(BackboneError, match="odd_vit cannot take a key/value prefix at block 1"):
        frozen(images(1), Prompts(prefixes={1: prefix}))


# --- where weights come from --------------------------------------------------------------------


def test_random_weights_depend_on_the_seed_alone() -> None:
    state = torch.get_rng_state()
    a = load_backbone("test_vit", weights="random:3")
    assert torch.equal(torch.get_rng_state(), state)
    assert load_backbone("test_vit", weights="random:3").fingerprint == a.fingerprint
    assert load_backbone("test_vit", weights="random:4").fingerprint != a.fingerprint


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_local_file_gives_its_weights(tmp_path, suffix: str) -> None:
    source = timm.create_model("test_vit")
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save({"state_dict": source.state_dict()}, path)
    else:
        save_file(source.state_dict(), path)
    loaded = load_backbone("test_vit", weights=path)
    assert loaded.weights == f"file:{path.name}"
    for name, tensor in loaded.vit.state_dict().items():
        assert torch.equal(tensor, source.state_dict()[name]), name


def test_another_picture_size_resizes_the_position_embedding(tmp_path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(timm.create_model("test_vit").state_dict(), path)
    loaded = load_backbone("test_vit", weights=path, image_size=64)
    assert loaded.image_size == (64, 64)
    assert loaded(images(1, 64)).shape == (1, 64)


def test_weights_of_another_model_are_refused(tmp_path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(timm.create_model("vit_tiny_patch16_224").state_dict(), path)
    with pytest.raises(BackboneError, match=r"weights\.safetensors does not fit"):
        load_backbone("test_vit", weights=path)
    save_file({"other": torch.zeros(1)}, path)
    with pytest.raises(BackboneError, match="tensors are missing"):
        load_backbone("test_vit", weights=path)


def test_unreadable_weights_are_named(tmp_path) -> None:
    with pytest.raises(BackboneError, match=r"nowhere\.pth does not exist"):
        load_backbone("test_vit", weights=tmp_path / "nowhere.pth")
    for name in ("broken.safetensors", "broken.pth"):
        (tmp_path / name).write_bytes(b"not weights")
        with pytest.raises(BackboneError, match=f"{name} cannot be read"):
            load_backbone("test_vit", weights=tmp_path / name)


def test_a_pickle_with_code_in_it_is_not_run(tmp_path) -> None:
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"x": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(BackboneError, match="cannot be read"):
        load_backbone("test_vit", weights=tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()


def test_a_bare_name_with_several_weight_tags_is_ambiguous() -> None:
    with pytest.raises(BackboneError, match=r"name one.*augreg_in21k_ft_in1k"):
        load_backbone("vit_base_patch16_224")
    with pytest.raises(BackboneError, match=r"no weights 'nonesuch'"):
        load_backbone("vit_base_patch16_224.nonesuch")
    with pytest.raises(BackboneError, match="timm has no model 'vit_imaginary'"):
        load_backbone("vit_imaginary")


def test_without_a_network_the_error_says_what_to_do(monkeypatch, tmp_path) -> None:
    def offline(*args: object, **kwargs: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("cprompt.backbone.timm.create_model", offline)
    with pytest.raises(BackboneError, match=r"not on this machine.*no route to host.*--weights"):
        load_backbone("vit_base_patch16_224.augreg_in21k_ft_in1k")
