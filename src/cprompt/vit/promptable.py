"""The vision transformer, frozen unless a method trains a copy, and the two ways to prompt it.

Extra tokens join the sequence before a block and stay in it until the last one; key/value prefixes
are seen by the attention of one block only. Both may be set at any block, shared by the batch or
one for each image. Nothing here knows what a task or a method is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from timm.layers import Attention
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from cprompt.errors import BackboneError
from cprompt.vit.rounded import RoundedWeights

Tap = Literal["pre_norm", "post_norm"]
Precision = Literal["fp32", "bf16"]
BlockRunner = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Prompts:
    """What a pass adds to the frozen model, by block index counted from 0.

    Every tensor is (L, D), shared by the batch, or (B, L, D), one prompt for each image.

    >>> from cprompt import load_backbone
    >>> vit = load_backbone("test_vit", weights="random:0", image_size=48)
    >>> embedded = vit.embed(torch.zeros(2, 3, 48, 48))
    >>> vit.encode(embedded).shape  # a class token and 9 patches
    torch.Size([2, 10, 64])
    >>> vit.encode(embedded, Prompts(tokens={0: torch.zeros(5, 64)})).shape
    torch.Size([2, 15, 64])
    """

    tokens: Mapping[int, Tensor] = field(default_factory=dict)
    prefixes: Mapping[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class PromptableViT(nn.Module):
    """A timm ViT with a class token, and the passes through it.

    A pass is `embed` (images to tokens), then `encode` (all blocks, prompted or not) or, where
    only the class token is wanted, `read`. They are separate so that several passes over the same
    images pay for the embedding once. With `precision` "bf16" the blocks compute in bfloat16
    around a float32 residual stream; what comes out is float32 all the same, so heads, keys and
    losses never lose digits.
    """

    def __init__(self, vit: VisionTransformer, name: str) -> None:
        super().__init__()
        check_promptable(vit, name)
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
        """Images (B, 3, H, W) to the token sequence (B, N, D) that enters block 0."""
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
        """Images (B, 3, H, W) to class-token features (B, D)."""
        return self.read(self.embed(images), prompts, tap)

    def _blocks(self) -> Iterable[nn.Module]:
        """The blocks to run, in order."""
        blocks: nn.Sequential = self.vit.blocks
        return blocks

    def _patches(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) to patch tokens (B, patches, D)."""
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
    """A timm ViT whose parameters never change, known by where its weights come from.

    >>> import timm
    >>> vit = FrozenViT(timm.create_model("test_vit", img_size=48), "test_vit", "random")
    >>> any(parameter.requires_grad for parameter in vit.parameters())
    False
    >>> vit(torch.zeros(2, 3, 48, 48)).shape  # the class token of each image
    torch.Size([2, 64])
    """

    def __init__(self, vit: VisionTransformer, name: str, weights: str) -> None:
        super().__init__(vit, name)
        self.vit.requires_grad_(False)
        self.weights = weights
        self._fingerprint: str | None = None
        # Kept out of the module's own children: a rounded copy is no weight of its own.
        self.__dict__["_rounded"] = None

    _rounded: RoundedWeights | None

    def _blocks(self) -> Iterable[nn.Module]:
        """With bf16, copies whose matrices are rounded once; autocast would round in every pass."""
        return super()._blocks() if self.precision == "fp32" else self._low().blocks

    def _patches(self, images: Tensor) -> Tensor:
        low = None if self.precision == "fp32" else self._low()
        return super()._patches(images) if low is None or low.patch is None else low.patch(images)

    def _low(self) -> RoundedWeights:
        if self._rounded is None:
            with torch.inference_mode(False):  # training may need what a prediction made first
                self.__dict__["_rounded"] = RoundedWeights(self.vit)
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


def check_promptable(vit: nn.Module, name: str) -> None:
    """Refuse a model that is not a timm VisionTransformer with a class token."""
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


# --- building one -------------------------------------------------------------------------------
