from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import ParallelThingsBlock, VisionTransformer
from torch import Tensor, nn

from cprompt.errors import BackboneError
from cprompt.training.acceleration import compile_all_cases
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import Embedded, FrozenViT, PromptableViT, Prompts


def images(n: int = 3, size: int = 48) -> Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(1))


def close(one: Tensor | None, other: Tensor | None) -> None:
    """Equal but for the order in which products are added up."""
    torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


def naive_attention(attn: Any, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One image (N, D), head by head, with softmax written out."""
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
    projected: Tensor = torch.cat(heads, 1) @ attn.proj.weight.T + attn.proj.bias
    return projected


def naive_block(block: Any, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
    x = x + naive_attention(block.attn, block.norm1(x), key, value)
    after: Tensor = x + block.mlp(block.norm2(x))
    return after


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


def test_a_prefix_enters_the_keys_and_values_of_its_block_only(backbone: FrozenViT) -> None:
    key, value = torch.randn(3, 64), torch.randn(3, 64)
    x = images(1)
    seq = backbone.embed(x).tokens[0]
    for layer, block in enumerate(backbone.vit.blocks):
        none = torch.empty(0, 64)
        prefix = (key, value) if layer == 1 else (none, none)
        seq = naive_block(block, seq, *prefix)
    tokens = backbone.encode(backbone.embed(x), Prompts(prefixes={1: (key, value)}))
    assert tokens.shape == (1, 10, 64)
    torch.testing.assert_close(tokens[0], seq, rtol=1e-4, atol=1e-5)


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


# --- the class token alone ----------------------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "registers": {"reg_tokens": 3},
    "layer scale": {"init_values": 0.3},
    "norms of queries and keys": {"qk_norm": True},
    "norm after attention": {"scale_attn_norm": True},
    "no bias": {"qkv_bias": False},
    "any size": {"dynamic_img_size": True},
    "blocks of another kind": {"block_fn": ParallelThingsBlock},
}


def small(kind: str) -> VisionTransformer:
    """Three blocks of dimension 32, all weights away from zero and one, on 4 by 4 patches."""
    size: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 4}
    vit = VisionTransformer(**size, depth=3, num_classes=0, **KINDS[kind])
    rng = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=rng)
    return vit


def prompts_of_both_kinds(vit: VisionTransformer, batch: int) -> tuple[Prompts, list[Tensor]]:
    """Tokens and prefixes, shared and of each image, in the last block too; with gradient."""
    rng = torch.Generator().manual_seed(3)

    def new(*shape: int) -> Tensor:
        return torch.randn(*shape, vit.embed_dim, generator=rng).requires_grad_()

    first, last = 0, len(vit.blocks) - 1
    tokens = {first: new(4), last: new(batch, 2)}
    prefixes = {}
    if not isinstance(vit.blocks[0], ParallelThingsBlock):
        prefixes = {first: (new(batch, 3), new(batch, 3)), last: (new(2), new(2))}
    leaves = [*tokens.values(), *(t for pair in prefixes.values() for t in pair)]
    return Prompts(tokens, prefixes), leaves


def gradients(feature: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """Of a sum of the features in which no two count alike."""
    weights = torch.linspace(-1, 1, feature.numel()).view_as(feature)
    return torch.autograd.grad((feature * weights).sum(), leaves)


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


# --- bfloat16 -----------------------------------------------------------------------------------


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


# --- compiled -----------------------------------------------------------------------------------


class Compiler:
    """Leaves what it is handed as it is, and keeps it."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        self.graphs.append(graph)
        return graph.forward


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    """One that has not seen anything yet, and is forgotten afterwards."""
    torch._dynamo.reset()
    yield Compiler()
    torch._dynamo.reset()


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


# --- where weights come from --------------------------------------------------------------------


def test_random_weights_depend_on_the_seed_alone() -> None:
    state = torch.get_rng_state()
    a = load_backbone("test_vit", weights="random:3")
    assert torch.equal(torch.get_rng_state(), state)
    assert load_backbone("test_vit", weights="random:3").fingerprint == a.fingerprint
    assert load_backbone("test_vit", weights="random:4").fingerprint != a.fingerprint


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_local_file_gives_its_weights(tmp_path: Path, suffix: str) -> None:
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


def test_another_image_size_resizes_the_position_embedding(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(timm.create_model("test_vit").state_dict(), path)
    loaded = load_backbone("test_vit", weights=path, image_size=64)
    assert loaded.image_size == (64, 64)
    assert loaded(images(1, 64)).shape == (1, 64)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(timm.create_model("vit_tiny_patch16_224").state_dict(), path)
    with pytest.raises(BackboneError, match=r"weights\.safetensors does not fit"):
        load_backbone("test_vit", weights=path)
    save_file({"other": torch.zeros(1)}, path)
    with pytest.raises(BackboneError, match="tensors are missing"):
        load_backbone("test_vit", weights=path)


def test_unreadable_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match=r"nowhere\.pth does not exist"):
        load_backbone("test_vit", weights=tmp_path / "nowhere.pth")
    for name in ("broken.safetensors", "broken.pth"):
        (tmp_path / name).write_bytes(b"not weights")
        with pytest.raises(BackboneError, match=f"{name} cannot be read"):
            load_backbone("test_vit", weights=tmp_path / name)


def test_a_pickle_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
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


def test_without_a_network_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **kwargs: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("cprompt.vit.loading.timm.create_model", offline)
    with pytest.raises(BackboneError, match=r"not on this machine.*no route to host.*--weights"):
        load_backbone("vit_base_patch16_224.augreg_in21k_ft_in1k")
