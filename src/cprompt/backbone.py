"""The vision transformer, frozen unless a method trains a copy, and the two ways to prompt it.

Extra tokens join the sequence before a block and stay in it until the last one; key/value prefixes
are seen by the attention of one block only. Both may be set at any block, shared by the batch or
one for each image. Nothing here knows what a task or a method is.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import timm
import torch
import torch.nn.functional as F
from huggingface_hub import try_to_load_from_cache
from safetensors.torch import load_file
from timm.layers import Attention, PatchEmbed
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from cprompt import assets
from cprompt.errors import BackboneError

PAPER_BACKBONE = "vit_base_patch16_224.augreg_in21k_ft_in1k"

Tap = Literal["pre_norm", "post_norm"]
Precision = Literal["fp32", "bf16"]
BlockRunner = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Prompts:
    """What a pass adds to the frozen model, by block index counted from 0.

    Every tensor is (L, D), shared by the batch, or (B, L, D), one prompt for each image.
    """

    tokens: Mapping[int, Tensor] = field(default_factory=dict)
    prefixes: Mapping[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class PromptableViT(nn.Module):
    """A timm ViT with a class token, and the passes through it.

    A pass is `embed` (pictures to tokens), then `encode` (all blocks, prompted or not) or, where
    only the class token is wanted, `read`. They are separate so that several passes over the same
    pictures pay for the embedding once. With `precision` "bf16" the blocks compute in bfloat16
    around a float32 residual stream; what comes out is float32 all the same, so heads, keys and
    losses never lose digits.
    """

    def __init__(self, vit: VisionTransformer, name: str) -> None:
        super().__init__()
        _check_promptable(vit, name)
        self.vit = vit.eval()
        self.name = name
        self.dim: int = vit.embed_dim
        self.depth: int = len(vit.blocks)
        self.image_size: tuple[int, int] = vit.patch_embed.img_size
        self.n_prefix: int = vit.num_prefix_tokens
        self.precision: Precision = "fp32"
        self._run_block: BlockRunner = _run_block
        self._compiled = False

    def train(self, mode: bool = True) -> PromptableViT:
        """Stay in evaluation mode: dropout and drop-path would make features random."""
        return super().train(False)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Have torch.compile fuse what a block does between its matrix products.

        One block is compiled, for any batch and length, and serves all of them: seconds, where
        the whole model would take minutes.
        """
        config: Any = torch._dynamo.config
        if hasattr(config, "recompile_limit"):  # several models may share one process
            config.recompile_limit = max(config.recompile_limit, 64)
        self._run_block = torch.compile(_run_block, *args, **{"dynamic": True, **kwargs})
        self._compiled = True

    def decompile(self) -> None:
        """Run blocks as they are written."""
        self._run_block, self._compiled = _run_block, False

    def embed(self, images: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) to the token sequence (B, N, D) that enters block 0."""
        with self._autocast(images):
            x = self.vit._pos_embed(self._patches(images))
            embedded: Tensor = self.vit.norm_pre(self.vit.patch_drop(x))
        return embedded.float()

    def encode(self, embedded: Tensor, prompts: Prompts | None = None) -> Tensor:
        """All blocks on (B, N, D); the result, before the final norm, has the prompt tokens too.

        Prompt tokens stand after the class and register tokens, in the order they were added, and
        get no position embedding.
        """
        return self._pass(embedded, prompts, class_token_only=False)

    def read(
        self, embedded: Tensor, prompts: Prompts | None = None, tap: Tap = "pre_norm"
    ) -> Tensor:
        """The class token (B, D) after all blocks, before or after the final norm.

        The last block works for the class token alone: the other tokens lend it their keys and
        values, but what becomes of themselves nobody reads. It saves most of that block.
        """
        return self.tap(self._pass(embedded, prompts, class_token_only=True), tap)

    def _pass(self, embedded: Tensor, prompts: Prompts | None, class_token_only: bool) -> Tensor:
        prompts = prompts or Prompts()
        self._check(prompts)
        x: Tensor = embedded
        pending: Tensor | None = None
        end = self.n_prefix
        with self._autocast(embedded):
            for layer, block in enumerate(self._blocks()):
                if layer in prompts.tokens:
                    x, pending = _settled(x, pending), None
                    extra = _per_image(prompts.tokens[layer], len(x)).to(x.dtype)
                    x = torch.cat([x[:, :end], extra, x[:, end:]], dim=1)
                    end += extra.shape[1]
                if _is_plain(block):
                    prefix = prompts.prefixes.get(layer)
                    asking = 1 if class_token_only and layer == self.depth - 1 else None
                    if pending is None and self._compiled:
                        # Nothing to add, in the form of something: fewer cases to compile.
                        pending = torch.zeros_like(x, dtype=self._pending_dtype)
                        pending.requires_grad_(x.requires_grad)
                    x, pending = self._run_block(block, x, pending, prefix, asking)
                else:
                    x, pending = block(_settled(x, pending)), None
        return _settled(x, pending).float()

    def tap(self, tokens: Tensor, where: Tap) -> Tensor:
        """The class token (B, D) of encoded tokens, before or after the final norm."""
        cls = tokens[:, 0]
        return cls if where == "pre_norm" else self.norm(cls)

    def norm(self, tokens: Tensor) -> Tensor:
        """The model's final norm, applied token by token."""
        normed: Tensor = self.vit.fc_norm(self.vit.norm(tokens))
        return normed

    def forward(
        self, images: Tensor, prompts: Prompts | None = None, tap: Tap = "pre_norm"
    ) -> Tensor:
        """Pictures (B, 3, H, W) to class-token features (B, D)."""
        return self.read(self.embed(images), prompts, tap)

    def _blocks(self) -> Iterable[nn.Module]:
        """The blocks to run, in order."""
        blocks: nn.Sequential = self.vit.blocks
        return blocks

    def _patches(self, images: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) to patch tokens (B, patches, D)."""
        patches: Tensor = self.vit.patch_embed(images)
        return patches

    @property
    def _pending_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    def _autocast(self, like: Tensor) -> torch.autocast:
        return torch.autocast(
            like.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"
        )

    def _check(self, prompts: Prompts) -> None:
        for layer, tensors in [
            *((layer, (t,)) for layer, t in prompts.tokens.items()),
            *prompts.prefixes.items(),
        ]:
            if not 0 <= layer < self.depth:
                raise BackboneError(
                    f"a prompt is set at block {layer}, but {self.name} has blocks "
                    f"0 to {self.depth - 1}"
                )
            for tensor in tensors:
                if tensor.dim() not in (2, 3) or tensor.shape[-1] != self.dim:
                    raise BackboneError(
                        f"the prompt at block {layer} has shape {tuple(tensor.shape)}; "
                        f"{self.name} takes (length, {self.dim}) or (batch, length, {self.dim})"
                    )
        for layer in prompts.prefixes:
            block: Any = self.vit.blocks[layer]
            if not _is_plain(block):
                raise BackboneError(
                    f"{self.name} cannot take a key/value prefix at block {layer}: its attention "
                    f"is {type(block.attn).__name__}, not timm's plain Attention; use a method "
                    "that prompts with tokens, or a plain ViT"
                )


class FrozenViT(PromptableViT):
    """A timm ViT whose parameters never change, known by where its weights come from."""

    def __init__(self, vit: VisionTransformer, name: str, weights: str) -> None:
        super().__init__(vit, name)
        self.vit.requires_grad_(False)
        self.weights = weights
        self._fingerprint: str | None = None
        # Kept out of the module's own children: a rounded copy is no weight of its own.
        self.__dict__["_rounded"] = None

    _rounded: _RoundedWeights | None

    def _blocks(self) -> Iterable[nn.Module]:
        """With bf16, copies whose matrices are rounded once; autocast would round in every pass."""
        return super()._blocks() if self.precision == "fp32" else self._low().blocks

    def _patches(self, images: Tensor) -> Tensor:
        low = None if self.precision == "fp32" else self._low()
        return super()._patches(images) if low is None or low.patch is None else low.patch(images)

    def _low(self) -> _RoundedWeights:
        if self._rounded is None:
            with torch.inference_mode(False):  # training may need what a prediction made first
                self.__dict__["_rounded"] = _RoundedWeights(self.vit)
        assert self._rounded is not None
        return self._rounded

    def _apply(self, *args: Any, **kwargs: Any) -> FrozenViT:
        """Weights that move, or change their type, are rounded anew."""
        self.__dict__["_rounded"] = None
        applied: FrozenViT = super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        return applied

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the names, shapes and values of all weights but the classifier's."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for name, tensor in self.vit.state_dict().items():
                if not name.startswith("head"):
                    digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
                    digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint


def _check_promptable(vit: nn.Module, name: str) -> None:
    if not isinstance(vit, VisionTransformer):
        raise BackboneError(
            f"{name} is a {type(vit).__name__}, which cannot be prompted here; choose a timm model "
            "of class VisionTransformer, such as vit_base_patch16_224.augreg_in21k_ft_in1k"
        )
    if not vit.has_class_token:
        raise BackboneError(
            f"{name} has no class token, which prompts and heads read; choose a ViT that has one"
        )


def _per_image(prompt: Tensor, batch: int) -> Tensor:
    """(L, D) or (B, L, D) to (B, L, D)."""
    return prompt.expand(batch, -1, -1)


def _settled(x: Tensor, pending: Tensor | None) -> Tensor:
    """The residual stream with what the last block still owes it."""
    return x if pending is None else x + pending


def _is_plain(block: Any) -> bool:
    """Whether `_run_block` knows the block: timm's own, with its plain attention."""
    return type(block) is Block and type(block.attn) is Attention and block.attn.gate is None


def _run_block(
    block: Block,
    x: Tensor,
    pending: Tensor | None,
    prefix: tuple[Tensor, Tensor] | None = None,
    asking: int | None = None,
) -> tuple[Tensor, Tensor]:
    """One timm block: the residual stream (B, N, D) and what is still to be added to it.

    The block's last addition is left to the next one as `pending`, where a compiler can fuse it
    with the norm that follows. Attention also sees `prefix`, a key and a value (L, D) or
    (B, L, D), after the projections and after any key norm: it is learnt in the space attention
    works in, and the sequence keeps its length. With `asking` only the first so many tokens are
    carried on.
    """
    attn = block.attn
    x = _settled(x, pending)
    y = block.norm1(x)
    B, N, _ = y.shape
    if asking is None:
        q, k, v = attn.qkv(y).view(B, N, 3, attn.num_heads, attn.head_dim).permute(2, 0, 3, 1, 4)
    else:
        x = x[:, :asking]
        q, k, v = _asked_by_few(attn, y, asking)
    q, k = attn.q_norm(q), attn.k_norm(k)
    if prefix is not None:
        key, value = (
            _per_image(p, B).to(k.dtype).reshape(B, -1, attn.num_heads, attn.head_dim)
            for p in prefix
        )
        k = torch.cat([key.transpose(1, 2), k], dim=2)
        v = torch.cat([value.transpose(1, 2), v], dim=2)
    y = F.scaled_dot_product_attention(q, k, v)
    y = attn.proj(attn.norm(y.transpose(1, 2).reshape(B, x.shape[1], -1)))
    x = x + block.ls1(y)
    return x, block.ls2(block.mlp(block.norm2(x)))


def _asked_by_few(attn: Attention, y: Tensor, asking: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of the first `asking` tokens, keys and values of all: (B, heads, tokens, d)."""
    B, N, _ = y.shape
    weight, bias, wide = attn.qkv.weight, attn.qkv.bias, attn.attn_dim
    split = (None, None) if bias is None else (bias[:wide], bias[wide:])
    q = F.linear(y[:, :asking], weight[:wide], split[0])
    kv = F.linear(y, weight[wide:], split[1])
    q = q.view(B, asking, attn.num_heads, attn.head_dim).transpose(1, 2)
    k, v = kv.view(B, N, 2, attn.num_heads, attn.head_dim).permute(2, 0, 3, 1, 4)
    return q, k, v


class _RoundedWeights:
    """The matrices of a frozen ViT in bfloat16, as autocast would round them; norms stay as is."""

    def __init__(self, vit: VisionTransformer) -> None:
        self.blocks = copy.deepcopy(vit.blocks)
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                module.to(torch.bfloat16)
        self.patch = _PatchProduct(vit.patch_embed) if _PatchProduct.fits(vit.patch_embed) else None


class _PatchProduct:
    """A patch embedding as one matrix product, which is what its strided convolution is."""

    @staticmethod
    def fits(embed: Any) -> bool:
        """Whether the embedding is timm's plain one: no padding, no norm, flat output."""
        return (
            type(embed) is PatchEmbed
            and type(embed.norm) is nn.Identity
            and embed.flatten is True
            and not embed.dynamic_img_pad
        )

    def __init__(self, embed: PatchEmbed) -> None:
        self.side: tuple[int, int] = embed.patch_size
        self.weight = embed.proj.weight.detach().flatten(1).to(torch.bfloat16)
        bias = embed.proj.bias
        self.bias = None if bias is None else bias.detach().to(torch.bfloat16)

    def __call__(self, images: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) to (B, patches, D), row by row."""
        B, C, H, W = images.shape
        h, w = self.side
        patches = images.to(self.weight.dtype).view(B, C, H // h, h, W // w, w)
        return F.linear(
            patches.permute(0, 2, 4, 1, 3, 5).reshape(B, -1, C * h * w), self.weight, self.bias
        )


# --- building one -------------------------------------------------------------------------------


def load_backbone(
    name: str, weights: str | Path | None = None, image_size: int | None = None
) -> FrozenViT:
    """Build a frozen backbone.

    `name` is an embedded backbone, a timm ViT, or "auto": the paper's if its weights are on this
    machine, else the embedded one. `weights` is None (the embedded file, or timm's pre-trained
    weights of the tag in `name`), a local .safetensors or .pth file, or "random:SEED".
    `image_size` resizes the position embedding.
    """
    if name == "auto":
        if weights is not None:
            raise BackboneError(f"weights {weights} need the name of their model, not 'auto'")
        name = PAPER_BACKBONE if _is_cached(PAPER_BACKBONE) else next(iter(assets.EMBEDDED))
    if name in assets.EMBEDDED and weights is None:
        return _embedded(name, image_size)
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise BackboneError(
            f"timm has no model {architecture!r}; `cprompt list backbones` shows names that work"
        )
    size = {} if image_size is None else {"img_size": image_size}
    if weights is None:
        tagged = _with_tag(architecture, tag)
        try:
            vit = timm.create_model(tagged, pretrained=True, num_classes=0, **size)
        except (OSError, RuntimeError, ValueError) as error:
            raise BackboneError(
                f"the weights of {tagged} are not on this machine and could not be fetched "
                f"({_first_line(error)}). Connect once so that timm can cache them, or pass "
                "--weights FILE (.safetensors or .pth), or use an embedded backbone "
                f"(--backbone {next(iter(assets.EMBEDDED), 'none')})"
            ) from error
        return FrozenViT(vit, tagged, f"timm:{tagged}")
    if str(weights).startswith("random:"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_random_seed(str(weights)))
            vit = _new(architecture, size)
        return FrozenViT(vit, name, str(weights))
    path = Path(weights)
    vit = _new(architecture, size)
    _check_promptable(vit, name)
    _load_into(vit, _read_weights(path), path)
    return FrozenViT(vit, name, f"file:{path.name}")


def _new(architecture: str, size: dict[str, int]) -> nn.Module:
    try:
        model: nn.Module = timm.create_model(architecture, num_classes=0, **size)
    except TypeError as error:
        raise BackboneError(f"timm cannot build {architecture} here: {error}") from error
    return model


def _with_tag(architecture: str, tag: str) -> str:
    """The full name; a bare one is accepted only where timm has a single set of weights.

    timm's default tag has changed over time, so a bare name would not say which weights a
    result was made with.
    """
    tags = [n.partition(".")[2] for n in timm.list_pretrained(f"{architecture}.*")]
    if tag in tags:
        return f"{architecture}.{tag}"
    known = ", ".join(f"{architecture}.{t}" for t in tags) or "none"
    if tag:
        raise BackboneError(f"timm has no weights {tag!r} for {architecture}; it has: {known}")
    if len(tags) == 1:
        return f"{architecture}.{tags[0]}"
    raise BackboneError(
        f"{architecture} has {len(tags)} sets of weights; name one so that results say which "
        f"({known}), or pass --weights FILE"
    )


def _is_cached(tagged: str) -> bool:
    """Whether timm would find these weights on this machine."""
    repo = timm.get_pretrained_cfg(tagged).hf_hub_id
    return bool(repo) and any(
        isinstance(try_to_load_from_cache(repo, file), str)
        for file in ("model.safetensors", "pytorch_model.bin")
    )


def _embedded(name: str, image_size: int | None) -> FrozenViT:
    asset = assets.EMBEDDED[name]
    size = image_size or asset.architecture["img_size"]
    vit = VisionTransformer(**{**asset.architecture, "img_size": size, "num_classes": 0})
    _load_into(vit, _read_weights(asset.path), asset.path)
    return FrozenViT(vit, name, "embedded")


def _random_seed(weights: str) -> int:
    seed = weights.removeprefix("random:")
    if not seed.isdigit():
        raise BackboneError(f"weights {weights!r}: expected random:SEED with a whole number")
    return int(seed)


def _read_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from .safetensors, or from .pth/.pt/.bin with tensors only."""
    if not path.is_file():
        raise BackboneError(f"weights file {path} does not exist")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # every reader raises its own kinds
        raise BackboneError(
            f"{path} cannot be read as weights ({_first_line(error)}); expected a .safetensors "
            "file, or a .pth file that holds tensors only"
        ) from error
    for key in ("model", "state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not (isinstance(loaded, dict) and all(isinstance(v, Tensor) for v in loaded.values())):
        raise BackboneError(f"{path} holds no state dict of tensors")
    return loaded


def _load_into(vit: VisionTransformer, state: dict[str, Tensor], path: Path) -> None:
    """Load all weights but the classifier's; timm's own filter resizes position embeddings."""
    try:
        state = {
            name: tensor.float()
            for name, tensor in checkpoint_filter_fn(state, vit).items()
            if not name.startswith(("head", "pre_logits"))
        }
        missing, unexpected = vit.load_state_dict(state, strict=False)
    except (RuntimeError, KeyError, AttributeError) as error:
        raise BackboneError(f"{path} does not fit the model: {_first_line(error)}") from error
    if missing or unexpected:
        raise BackboneError(
            f"{path} does not fit the model: {len(missing)} tensors are missing "
            f"(first: {missing[:1]}), {len(unexpected)} are unknown (first: {unexpected[:1]}); "
            "check that --backbone names the architecture these weights were trained with"
        )


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:200]
