"""Any timm model, frozen, read by its layers; it cannot be prompted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.errors import BackboneError
from cprompt.vit.backbone import Backbone, Channels, TapTokens, normalization_of
from cprompt.vit.products import FastCopy
from cprompt.vit.promptable import Embedded, Precision, Prompts, autocast


class FrozenModel(Backbone):
    """A timm model of any kind whose parameters never change.

    Layers are what timm's `forward_intermediates` gives: blocks of a transformer, stages of a
    hierarchical or convolutional model. For the few models that do not have it there is one
    layer, the last. The last layer is always what the model's own head reads
    (`forward_features`), which in some convolutional networks is wider than the last stage.

    >>> from cprompt import load_backbone
    >>> model = load_backbone("test_convnext", weights="random:0", image_size=64)
    >>> model.depth, model.dim, model.mean
    (4, 64, (0.5, 0.5, 0.5))
    >>> model.tap_kinds([0, 3]), model.tap_widths([0, 3])
    (['patch', 'class', 'patch'], [24, 64, 64])
    >>> model.taps(model.embed(torch.zeros(2, 3, 64, 64)), [0, 3]).shape
    torch.Size([2, 152])
    """

    model: Any
    """timm's; each kind of model has methods of its own."""

    def __init__(
        self,
        model: nn.Module,
        name: str,
        weights: str,
        image_size: int | None = None,
        normalization: tuple[Channels, Channels] | None = None,
    ) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self._fast: FastCopy[Any] = FastCopy()
        self.name, self.weights = name, weights
        self.mean, self.std = normalization or normalization_of(model)
        own = tuple(getattr(model, "pretrained_cfg", {}).get("input_size", (3, 224, 224)))[1:]
        self.image_size = own if image_size is None else (image_size, image_size)
        self._class_token = _has_class_token(model)
        self._final_norms: tuple[str, ...] | None = None
        self._widths: list[tuple[int | None, int]] = []
        self._options: dict[str, Any] = {"norm": False, "output_fmt": "NCHW"}
        if self._class_token and "return_prefix_tokens" in _intermediate_options(model):
            self._options["return_prefix_tokens"] = True
        self._in_layers, self._pools = True, False
        self._measure(own)

    def embed(self, images: Tensor, precision: Precision = "fp32") -> Embedded:
        """The images (B, 3, H, W) themselves: an embedding cannot be separated in every model."""
        return Embedded(images, precision)

    def taps(
        self,
        embedded: Embedded,
        layers: Sequence[int],
        tokens: TapTokens = "both",
        prompts: Prompts | None = None,
    ) -> Tensor:
        """What single layers say, in one pass: (B, F), the parts of `tap_kinds` side by side.

        For each of `layers`, in the order given, the class part and the mean over all positions.
        Every position is normalised over its channels to zero mean and unit variance before the
        mean is taken. At the last layer the model's own final norm does that instead, if it has
        one that applies to a position: a layer or RMS norm before its pooling (ViT, Swin) or
        after it (ConvNeXt, EVA-02). A batch norm (ResNet, MobileNet) does not count.

        The class part is the class token, normalised in the same way. A model without a class
        token has a class part at its last layer only: its own pooled output before the
        classifier, unchanged (attention pooling in SigLIP, average pooling and norm in ConvNeXt).
        """
        if prompts is not None:
            raise BackboneError(
                f"{self.name} is a {type(self.model).__name__}, which cannot be prompted",
                hint="choose a timm VisionTransformer with a class token",
            )
        parts = self.tap_parts(layers, tokens)
        read: dict[tuple[int, str], Tensor] = {}
        last = self.depth - 1
        before = sorted({layer for layer in layers if layer != last})
        with autocast(embedded.tokens, embedded.precision):
            found = self._pass(embedded.tokens, before, last in layers)
            pooled = None
            if self._pools and any(p.layer == last and p.kind == "class" for p in parts):
                pooled = _pooled(self.model, found.final)
        for layer, tapped in zip(before, found.layers, strict=True):
            read.update(tapped.apply(_plain_norm).parts(layer))
        if last in layers:
            read.update(self._read_last(found, pooled).parts(last))
        return torch.cat([read[part.layer, part.kind] for part in parts], dim=1)

    def _read_last(self, found: _Pass, pooled: Tensor | None) -> _Layer:
        """The last layer, normed; its class part is the class token or what the model pools."""
        layer = found.last(self.model).apply(self._final_norm)
        token = pooled if self._pools else layer.token
        return _Layer(layer.patches, None if token is None else token.float())

    def _final_norm(self, x: Tensor) -> Tensor:
        if self._final_norms is None:
            return _plain_norm(x)
        for name in self._final_norms:
            x = _norm_positions(self.model.get_submodule(name), x)
        return x

    def _pass(self, images: Tensor, layers: Sequence[int], final: bool) -> _Pass:
        """One pass; reads `layers` in ascending order, none of them the last, and the last one."""
        if not self._in_layers:
            return _Pass([], self._runner().forward_features(images), None, self._class_token)
        run, options = self._runner().forward_intermediates, self._options
        if not final:
            maps = run(
                images, indices=[*layers], stop_early=True, intermediates_only=True, **options
            )
            return _Pass([self._layer(each) for each in maps], None, None, self._class_token)
        features, maps = run(images, indices=[*layers, self.depth - 1], **options)
        *read, end = [self._layer(each) for each in maps]
        return _Pass(read, features, end, self._class_token)

    def _runner(self) -> Any:
        """What computes the passes: the model, or a copy of it over the same weights."""
        return self._fast.of(self.model)

    def _apply(self, *args: Any, **kwargs: Any) -> FrozenModel:
        """Drop the copy when weights move or change their type."""
        self._fast = FastCopy()
        applied: FrozenModel = super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        return applied

    def _layer(self, found: Any) -> _Layer:
        """What timm gives for a layer: a map (B, C, H, W), perhaps with prefix tokens (B, P, C)."""
        grid, prefix = found if isinstance(found, (tuple, list)) else (found, None)
        has_token = self._class_token and prefix is not None and prefix.shape[1] > 0
        return _Layer(grid.flatten(2).transpose(1, 2), prefix[:, 0] if has_token else None)

    def _class_width(self, layer: int) -> int | None:
        return self._widths[layer][0]

    def _patch_width(self, layer: int) -> int:
        return self._widths[layer][1]

    def _named_weights(self) -> Mapping[str, Tensor]:
        weights: Mapping[str, Tensor] = self.model.state_dict()
        return weights

    @torch.no_grad()
    def _measure(self, own: tuple[int, ...]) -> None:
        """Count the layers and their widths by passing an empty image.

        timm's own tables leave out some models, and an image of a size that does not fit is
        refused here, before anything was learnt.
        """
        side = self.image_size
        images = torch.zeros(1, 3, *side, device=next(self.model.parameters()).device)
        try:
            features = self.model.forward_features(images)
            if not isinstance(features, Tensor) or features.dim() not in (3, 4):
                raise BackboneError(
                    f"{self.name} is a {type(self.model).__name__}, whose features are not one "
                    "tensor of positions",
                    hint="choose another backbone",
                )
            found = self._pass_over_all(images, features)
            end = found.last(self.model)
            self._pools = end.token is None
            summary = _pooled(self.model, features) if end.token is None else end.token
        except BackboneError:
            raise
        except Exception as error:  # a model may raise anything at a size that it does not take
            what = str(error).strip().partition("\n")[0][:200] or type(error).__name__
            raise BackboneError(
                f"{self.name} ({type(self.model).__name__}) cannot read images of "
                f"{side[0]} x {side[1]} pixels ({what})",
                hint=f"its own size is {own[0]} x {own[1]}"
                if side != own
                else "choose another backbone",
            ) from error
        self._widths = [layer.widths for layer in found.layers]
        width = end.patches.shape[-1]
        self._widths.append((summary.shape[-1], width))
        self.depth, self.dim = len(self._widths), width
        self._in_layers = found.end is not None
        self._final_norms = _final_norms(self.model, width)

    def _pass_over_all(self, images: Tensor, features: Tensor) -> _Pass:
        """All layers, or the last alone where one pass does not also give what the head reads."""
        run = getattr(self.model, "forward_intermediates", None)
        if run is not None:
            final, maps = run(images, **self._options)
            if isinstance(final, Tensor) and final.shape == features.shape:
                *read, end = [self._layer(each) for each in maps]
                return _Pass(read, final, end, self._class_token)
        return _Pass([], features, None, self._class_token)


@dataclass(frozen=True)
class _Layer:
    """The positions of a layer (B, N, C), and its class token (B, C) if there is one."""

    patches: Tensor
    token: Tensor | None

    @property
    def widths(self) -> tuple[int | None, int]:
        """Of the class part and of the patch mean."""
        return None if self.token is None else self.token.shape[-1], self.patches.shape[-1]

    def apply(self, norm: Callable[[Tensor], Tensor]) -> _Layer:
        """Normed token by token, in float32."""
        token = None if self.token is None else norm(self.token.float())
        return _Layer(norm(self.patches.float()), token)

    def parts(self, layer: int) -> dict[tuple[int, str], Tensor]:
        found = {(layer, "patch"): self.patches.mean(1)}
        if self.token is not None:
            found[layer, "class"] = self.token
        return found


@dataclass(frozen=True)
class _Pass:
    """What one pass gave: the layers before the last, what the head reads, the last map."""

    layers: list[_Layer]
    final: Any
    end: _Layer | None
    """The last layer as an intermediate one; what the head reads may have another shape."""
    class_token: bool

    def last(self, model: nn.Module) -> _Layer:
        """The last layer, out of what the head reads: (B, C, H, W), (B, H, W, C) or (B, N, C)."""
        final: Tensor = self.final
        if final.dim() == 4:
            channels_last = getattr(model, "output_fmt", "NCHW") == "NHWC"
            patches = final.flatten(1, 2) if channels_last else final.flatten(2).transpose(1, 2)
            return _Layer(patches, None)
        count = int(self.class_token) if self.end is None else self.end.patches.shape[1]
        prefix = count if self.end is None else final.shape[1] - count
        token = final[:, 0] if self.class_token else None
        if prefix < 0:  # the class token alone is left: PiT
            assert self.end is not None
            return _Layer(_plain_norm(self.end.patches.float()), token)
        return _Layer(final[:, prefix:], token)


def _intermediate_options(model: nn.Module) -> set[str]:
    """The arguments of `forward_intermediates`; none if the model lacks it."""
    run = getattr(model, "forward_intermediates", None)
    return set() if run is None else set(inspect.signature(run).parameters)


def _pooled(model: Any, features: Tensor) -> Tensor:
    """The model's own pooled output before its classifier: (B, C)."""
    pooled: Tensor = model.forward_head(features, pre_logits=True)
    return pooled.flatten(1)


def _has_class_token(model: nn.Module) -> bool:
    """Whether the first prefix token is a class token, not a register."""
    if hasattr(model, "has_class_token"):
        return bool(model.has_class_token)
    return any(
        getattr(part, "cls_token", None) is not None
        for part in (model, getattr(model, "embeds", None))
    )


def _plain_norm(x: Tensor) -> Tensor:
    """Zero mean and unit variance over the channels (…, C)."""
    return F.layer_norm(x, x.shape[-1:])


def _final_norms(model: nn.Module, width: int) -> tuple[str, ...] | None:
    """The norms after `forward_features` that apply to positions (…, width), by name.

    Empty if the one inside it is all; None if the model has none at all.
    """
    modules = dict(model.named_modules())
    outside = tuple(name for name in ("fc_norm", "head.norm") if _fits(modules.get(name), width))
    return outside or (() if _fits(modules.get("norm"), width) else None)


def _fits(module: Any, width: int) -> bool:
    """Whether a module is a layer or RMS norm over `width` channels."""
    kind = type(module).__name__.lower().startswith("rmsnorm") or isinstance(module, nn.LayerNorm)
    return kind and tuple(module.normalized_shape) == (width,)


def _norm_positions(norm: Any, x: Tensor) -> Tensor:
    """A layer or RMS norm over the last dimension, whatever layout the module itself expects."""
    shape = tuple(norm.normalized_shape)
    if isinstance(norm, nn.LayerNorm):
        return F.layer_norm(x, shape, norm.weight, norm.bias, norm.eps)
    return F.rms_norm(x, shape, norm.weight, norm.eps)
