"""The vision transformer, frozen unless a method trains a copy, and the two ways to prompt it.

Extra tokens join the sequence before a block and stay in it until the last one. A key/value prefix
is seen by the attention of one block only. Both can be set at any block, and either be shared by
the batch or differ per image. Nothing here knows what a task or a method is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.errors import BackboneError
from cprompt.vit.backbone import Backbone, Channels, TapTokens, normalization_of
from cprompt.vit.blocks import is_plain, per_image, run_block, settled
from cprompt.vit.fused import run_fused
from cprompt.vit.light_timm import VisionTransformer
from cprompt.vit.products import FastCopy
from cprompt.vit.rounded import RoundedWeights

Tap = Literal["pre_norm", "post_norm"]
Precision = Literal["fp32", "bf16"]
BlockRunner = Callable[..., tuple[Tensor, Tensor]]

_REUSED = 20 * 2**20
"""Bytes of a result whose memory a CPU's allocator uses again. Beyond 32 MiB glibc gives each back
and asks for fresh pages at every layer, a quarter of the time of a pass."""


@dataclass(frozen=True)
class Prompts:
    """What a pass adds to the frozen model, by block index counted from 0.

    Every tensor is (L, D), shared by the batch, or (B, L, D), one prompt per image.

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


@dataclass(frozen=True)
class Embedded:
    """Images as the tokens (B, N, D) that enter block 0, and the precision of passes over them.

    `FrozenModel`, whose embedding is not separate, keeps the images (B, 3, H, W) themselves.
    `embed` sets the precision once and it stays with the tokens. Every pass that starts from them
    uses it, so no precision is set on the backbone, which others share.
    """

    tokens: Tensor
    precision: Precision = "fp32"
    views: int = 1
    """B / views different images: all under one view, then all under the next, and so on."""
    keys: Tensor | None = None
    """Numbers (B / views,) that follow from the images' content, if they are known."""
    gather: Callable[[Tensor], Tensor] = lambda rows: rows
    """Rows (B, …) of these images to those of the whole batch, if processes share a batch."""

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def __getitem__(self, images: Tensor | slice) -> Embedded:
        return Embedded(self.tokens[images], self.precision)


class PromptableViT(nn.Module):
    """A timm ViT with a class token, and the passes through it.

    A pass is `embed` (images to tokens), then `encode` (all blocks, prompted or not) or, if only
    the class token is needed, `read`. They are separate so that several passes over the same
    images compute the embedding once. In "bf16" the blocks compute in bfloat16 around a float32
    residual stream. The result is float32, so heads, keys and losses keep full precision.
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
        self._run_block: BlockRunner = run_block
        self._compiled = False

    def train(self, mode: bool = True) -> PromptableViT:
        """Stay in evaluation mode: dropout and drop-path would make features random."""
        return super().train(False)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Let torch.compile fuse the operations between a block's matrix products.

        One block is compiled, for any batch size and length, and reused for all blocks. This takes
        seconds; compiling the whole model would take minutes.
        """
        config: Any = torch._dynamo.config
        if hasattr(config, "recompile_limit"):  # several models may share one process
            config.recompile_limit = max(config.recompile_limit, 64)
        self._run_block = torch.compile(run_block, *args, **{"dynamic": True, **kwargs})
        self._compiled = True

    def decompile(self) -> None:
        """Undo `compile`."""
        self._run_block, self._compiled = run_block, False

    def embed(self, images: Tensor, precision: Precision = "fp32") -> Embedded:
        """Images (B, 3, H, W) to the tokens that enter block 0; passes run in `precision`."""
        with autocast(images, precision):
            x = self.vit._pos_embed(self._patches(images, precision))
            tokens: Tensor = self.vit.norm_pre(self.vit.patch_drop(x))
        return Embedded(tokens.float(), precision)

    def encode(self, embedded: Embedded, prompts: Prompts | None = None) -> Tensor:
        """Run all blocks; all tokens (B, N, D), prompt tokens included, before the final norm.

        Prompt tokens come after the class and register tokens, in the order they were added, and
        have no position embedding.
        """
        return self._in_parts(
            lambda part: self._pass(part, prompts, class_token_only=False), embedded, prompts
        )

    def read(
        self, embedded: Embedded, prompts: Prompts | None = None, tap: Tap = "pre_norm"
    ) -> Tensor:
        """The class token (B, D) after all blocks, before or after the final norm.

        The last block computes the class token only. The other tokens give it keys and values,
        but their own results are not needed, which saves most of that block.
        """
        return self._in_parts(
            lambda part: self.tap(self._pass(part, prompts, class_token_only=True), tap),
            embedded,
            prompts,
        )

    def _in_parts(
        self, run: Callable[[Embedded], Tensor], embedded: Embedded, prompts: Prompts | None
    ) -> Tensor:
        """`run` on all images; on a CPU without gradient, on a few at a time: see `_REUSED`."""
        if torch.compiler.is_compiling():  # a graph for any number of images, as for ONNX
            return run(embedded)
        few = max(1, _REUSED // self._widest(embedded))
        on_cpu = embedded.tokens.device.type == "cpu" and not torch.is_grad_enabled()
        if not on_cpu or len(embedded) <= few or _per_image(prompts):
            return run(embedded)
        firsts = range(0, len(embedded), few)
        return torch.cat([run(embedded[first : first + few]) for first in firsts])

    def _widest(self, embedded: Embedded) -> int:
        """Bytes of the widest result of a block for one image."""
        hidden = getattr(getattr(self.vit.blocks[0], "mlp", None), "fc1", None)
        width = 4 * self.dim if hidden is None else hidden.out_features
        return 4 * embedded.tokens.shape[1] * max(width, 3 * self.dim)

    def _pass(
        self,
        embedded: Embedded,
        prompts: Prompts | None,
        class_token_only: bool,
        after_block: Callable[[int, Tensor, int], None] | None = None,
    ) -> Tensor:
        """All blocks; `after_block` gets each one's number, its tokens and where patches begin."""
        prompts = prompts or Prompts()
        self._check(prompts)
        x, precision = embedded.tokens, embedded.precision
        pending: Tensor | None = None
        end = self.n_prefix
        run = self._block_runner(precision)
        with autocast(x, precision):
            for layer, block in enumerate(self._blocks(precision)):
                if layer in prompts.tokens:
                    x, pending = settled(x, pending), None
                    extra = per_image(prompts.tokens[layer], len(x)).to(x.dtype)
                    x = torch.cat([x[:, :end], extra, x[:, end:]], dim=1)
                    end += extra.shape[1]
                if is_plain(block):
                    prefix = prompts.prefixes.get(layer)
                    asking = 1 if class_token_only and layer == self.depth - 1 else None
                    if pending is None:
                        pending = self._nothing_pending(x, precision)
                    x, pending = run(block, x, pending, prefix, asking)
                else:
                    x, pending = block(settled(x, pending)), None
                if after_block is not None:
                    x, pending = settled(x, pending), None
                    after_block(layer, x.float(), end)
        return settled(x, pending).float()

    def _nothing_pending(self, x: Tensor, precision: Precision) -> Tensor | None:
        """None; for compiled blocks zeros, which is one case fewer to compile."""
        if not self._compiled:
            return None
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        return torch.zeros_like(x, dtype=dtype).requires_grad_(x.requires_grad)

    def tap(self, tokens: Tensor, where: Tap) -> Tensor:
        """The class token (B, D) of encoded tokens, before or after the final norm."""
        cls = tokens[:, 0]
        return cls if where == "pre_norm" else self.norm(cls)

    def norm(self, tokens: Tensor) -> Tensor:
        """The model's final norm, applied token by token."""
        normed: Tensor = self.vit.fc_norm(self.vit.norm(tokens))
        return normed

    def forward(
        self,
        images: Tensor,
        prompts: Prompts | None = None,
        tap: Tap = "pre_norm",
        precision: Precision = "fp32",
    ) -> Tensor:
        """Images (B, 3, H, W) to class-token features (B, D)."""
        return self.read(self.embed(images, precision), prompts, tap)

    def _blocks(self, precision: Precision) -> Iterable[nn.Module]:
        """The blocks to run, in order."""
        blocks: nn.Sequential = self.vit.blocks
        return blocks

    def _block_runner(self, precision: Precision) -> BlockRunner:
        """What runs a plain block."""
        return self._run_block

    def _patches(self, images: Tensor, precision: Precision) -> Tensor:
        """Images (B, 3, H, W) to patch tokens (B, patches, D)."""
        patches: Tensor = self.vit.patch_embed(images)
        return patches

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
            if not is_plain(block):
                raise BackboneError(
                    f"{self.name} cannot take a key/value prefix at block {layer}: its attention "
                    f"is {type(block.attn).__name__}, not timm's plain Attention",
                    hint="use a method that prompts with tokens, or a plain ViT",
                )


class FrozenViT(PromptableViT, Backbone):
    """A timm ViT whose parameters never change, known by where its weights come from.

    >>> import timm
    >>> vit = FrozenViT(timm.create_model("test_vit", img_size=48), "test_vit", "random")
    >>> any(parameter.requires_grad for parameter in vit.parameters())
    False
    >>> vit(torch.zeros(2, 3, 48, 48)).shape  # the class token of each image
    torch.Size([2, 64])
    """

    def __init__(
        self,
        vit: VisionTransformer,
        name: str,
        weights: str,
        normalization: tuple[Channels, Channels] | None = None,
    ) -> None:
        super().__init__(vit, name)
        self.vit.requires_grad_(False)
        self.weights = weights
        self.mean, self.std = normalization or normalization_of(vit)
        self._forget_copies()
        self._fused = False

    _rounded: RoundedWeights | None
    _fast: FastCopy[nn.Sequential]

    def _blocks(self, precision: Precision) -> Iterable[nn.Module]:
        """In bf16, copies whose matrices are rounded once; autocast would round in every pass."""
        if precision != "fp32":
            return self._low().blocks
        return self._fast.of(self.vit.blocks)

    def fuse(self) -> None:
        """Run bf16 passes with kernels of our own between the products; see `fused.fits`.

        Takes the place of `compile`, which gains less and takes longer. Undone by `decompile`.
        """
        self._fused = True

    def decompile(self) -> None:
        """Undo `compile` and `fuse`."""
        super().decompile()
        self._fused = False

    def _block_runner(self, precision: Precision) -> BlockRunner:
        fused = self._fused and precision == "bf16"
        return run_fused if fused else super()._block_runner(precision)

    def _patches(self, images: Tensor, precision: Precision) -> Tensor:
        patch = None if precision == "fp32" else self._low().patch
        return super()._patches(images, precision) if patch is None else patch(images)

    def _low(self) -> RoundedWeights:
        if self._rounded is None:
            with torch.inference_mode(False):  # training may need what a prediction made first
                self.__dict__["_rounded"] = RoundedWeights(self.vit)
        assert self._rounded is not None
        return self._rounded

    def _forget_copies(self) -> None:
        """Forget the copies of the blocks. They are not weights to save, so not child modules."""
        self.__dict__["_rounded"] = None
        self._fast = FastCopy()

    def _apply(self, *args: Any, **kwargs: Any) -> FrozenViT:
        """Drop the copies when weights move or change their type."""
        self._forget_copies()
        applied: FrozenViT = super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        return applied

    def taps(
        self,
        embedded: Embedded,
        layers: Sequence[int],
        tokens: TapTokens = "both",
        prompts: Prompts | None = None,
    ) -> Tensor:
        """What single blocks say, in one pass: (B, F), the parts of `tap_kinds` side by side.

        For each block of `layers`, in the order given, the class token and the mean of the patch
        tokens. They are normalised to zero mean and unit variance; after the last block the
        model's own final norm, if it has one, does that instead. Prompt tokens are not read.
        """
        return self._in_parts(
            lambda part: self._taps(part, layers, tokens, prompts), embedded, prompts
        )

    def _taps(
        self,
        embedded: Embedded,
        layers: Sequence[int],
        tokens: TapTokens,
        prompts: Prompts | None,
    ) -> Tensor:
        parts = self.tap_parts(layers, tokens)
        read: dict[tuple[int, str], Tensor] = {}

        def after_block(layer: int, tokens: Tensor, first_patch: int) -> None:
            if layer in layers:
                normed = self._normed(tokens, layer)
                read[layer, "class"] = normed[:, 0]
                read[layer, "patch"] = normed[:, first_patch:].mean(1)

        self._pass(embedded, prompts, class_token_only=False, after_block=after_block)
        return torch.cat([read[part.layer, part.kind] for part in parts], dim=1)

    def patch_scores(
        self,
        embedded: Embedded,
        weights: Mapping[int, Tensor],
        prompts: Prompts | None = None,
    ) -> Tensor:
        """Linear scores of single patches, added up over layers: (B, N), N the number of patches.

        `weights` maps layers to (B, D): what multiplies the patch tokens of each image, normalised
        as in `taps`. So the mean over patches is the score that the same weights give the patch
        means of `taps`.
        """
        found: list[Tensor] = []

        def after_block(layer: int, tokens: Tensor, first_patch: int) -> None:
            if layer in weights:
                patches = self._normed(tokens, layer)[:, first_patch:]
                found.append((patches * weights[layer][:, None]).sum(-1))

        self._pass(embedded, prompts, class_token_only=False, after_block=after_block)
        return torch.stack(found).sum(0)

    def _normed(self, tokens: Tensor, layer: int) -> Tensor:
        """Tokens after a block to zero mean and unit variance, or by the model's final norm."""
        own_norm = any(type(n) is not nn.Identity for n in (self.vit.norm, self.vit.fc_norm))
        if own_norm and layer == self.depth - 1:
            return self.norm(tokens)
        return F.layer_norm(tokens, tokens.shape[-1:])

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        rows, columns = self.vit.patch_embed.grid_size
        return int(rows), int(columns)

    def _class_width(self, layer: int) -> int | None:
        return self.dim

    def _patch_width(self, layer: int) -> int:
        return self.dim

    def _named_weights(self) -> Mapping[str, Tensor]:
        return {n: t for n, t in self.vit.state_dict().items() if not n.startswith("head")}


def _per_image(prompts: Prompts | None) -> bool:
    """Whether a prompt belongs to one image, not to all."""
    if prompts is None:
        return False
    pairs = [part for pair in prompts.prefixes.values() for part in pair]
    return any(part.dim() > 2 for part in [*prompts.tokens.values(), *pairs])


def is_promptable(model: nn.Module) -> bool:
    """Whether a model is a timm VisionTransformer with a class token."""
    return isinstance(model, VisionTransformer) and bool(model.has_class_token)


def check_promptable(vit: nn.Module, name: str) -> None:
    """Refuse a model that is not a timm VisionTransformer with a class token."""
    if not isinstance(vit, VisionTransformer):
        raise BackboneError(
            f"{name} is a {type(vit).__name__}, which cannot be prompted here",
            hint="choose a timm model of class VisionTransformer, such as "
            "vit_base_patch16_224.augreg_in21k_ft_in1k",
        )
    if not vit.has_class_token:
        raise BackboneError(
            f"{name} has no class token, which heads read", hint="choose a ViT that has one"
        )


def autocast(like: Tensor, precision: Precision) -> torch.autocast:
    """The context of a pass in `precision` on the device of `like`."""
    return torch.autocast(like.device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
