"""Tiny models of many timm families, registered with timm, and what their layers are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import timm
import torch
from timm.models import register_model
from torch import Tensor, nn

Layout = Literal["tokens", "channels first", "channels last"]


@dataclass(frozen=True)
class Family:
    """How to make a tiny model, and where a reader of timm's source finds its layers."""

    like: str
    """The timm model that it is a small version of."""
    smaller: dict[str, Any]
    size: int
    layers: tuple[str, ...]
    """The module that ends each layer."""
    norm: str | None
    """The norm between the last layer and the classifier; None: there is none of positions."""
    layout: Layout = "tokens"
    prefix: int = 0
    class_token: bool = False
    """Whether prefix token 0 of every layer is a class token."""
    last_only: bool = False
    """Whether timm's own way to read its layers is taken away: some models lack it, and which ones
    do changes from version to version."""

    def build(self, **options: Any) -> nn.Module:
        """A model of the family."""
        model: nn.Module = timm.create_model(self.like, **{**self.smaller, **options})
        if self.last_only:
            model.forward_intermediates = None  # type: ignore[assignment]
        return model


def blocks(count: int, under: str = "blocks") -> tuple[str, ...]:
    return tuple(f"{under}.{i}" for i in range(count))


VIT = {"embed_dim": 32, "depth": 3, "num_heads": 2}
SWIN = {
    "embed_dim": 16,
    "depths": (1, 2, 1, 1),
    "num_heads": (1, 2, 2, 4),
    "window_size": 4,
}

FAMILIES: dict[str, Family] = {
    "dinov2": Family(
        "vit_small_patch14_reg4_dinov2", VIT, 42, blocks(3), "norm", prefix=5, class_token=True
    ),
    "dinov3": Family(
        "vit_small_patch16_dinov3", VIT, 48, blocks(3), "norm", prefix=5, class_token=True
    ),
    "eva02": Family(
        "eva02_tiny_patch14_224", VIT, 42, blocks(3), "fc_norm", prefix=1, class_token=True
    ),
    "beit": Family(
        "beit_base_patch16_224", VIT, 48, blocks(3), "fc_norm", prefix=1, class_token=True
    ),
    "siglip": Family("vit_base_patch16_siglip_224", VIT, 48, blocks(3), "norm"),
    "registers_only": Family("test_vit2", {"depth": 3}, 48, blocks(3), "fc_norm", prefix=1),
    "perception": Family(
        "vit_pe_core_tiny_patch16_384", VIT, 48, blocks(3), "norm", prefix=1, class_token=True
    ),
    "perception_spatial": Family(
        "vit_pe_spatial_tiny_patch16_512", VIT, 48, blocks(3), None, prefix=1, class_token=True
    ),
    "naflex": Family("naflexvit_base_patch16_gap", VIT, 48, blocks(3), "fc_norm", prefix=4),
    "swin": Family(
        "swin_tiny_patch4_window7_224", SWIN, 64, blocks(4, "layers"), "norm", "channels last"
    ),
    "swinv2": Family(
        "swinv2_tiny_window8_256", SWIN, 64, blocks(4, "layers"), "norm", "channels last"
    ),
    "convnext": Family(
        "convnext_atto",
        {"depths": (1, 1, 2, 1), "dims": (8, 16, 24, 32)},
        64,
        blocks(4, "stages"),
        "head.norm",
        "channels first",
    ),
    "mobilenetv4": Family(
        "mobilenetv4_conv_small_035",
        {},
        64,
        ("bn1", "blocks.0", "blocks.1", "blocks.2", "blocks.4"),
        None,
        "channels first",
    ),
    "fastvit": Family(
        "fastvit_t8",
        {"layers": (1, 1, 1, 1), "embed_dims": (8, 16, 32, 64)},
        64,
        (*blocks(3, "stages"), "final_conv"),
        None,
        "channels first",
    ),
    "resnet": Family(
        "test_resnet",
        {},
        64,
        ("act1", "layer1", "layer2", "layer3", "layer4"),
        None,
        "channels first",
    ),
    "regnet": Family(
        "regnetx_002", {}, 64, ("stem", "s1", "s2", "s3", "s4"), None, "channels first"
    ),
    "densenet": Family(
        "densenet121",
        {"growth_rate": 4, "block_config": (1, 1, 1, 1)},
        64,
        ("features",),
        None,
        "channels first",
        last_only=True,
    ),
}


def _builder(key: str, family: Family) -> Callable[..., nn.Module]:
    def build(pretrained: bool = False, **options: Any) -> nn.Module:
        options.pop("pretrained_cfg", None)
        options.pop("pretrained_cfg_overlay", None)
        options.pop("cache_dir", None)
        return family.build(**options)

    build.__name__ = f"tiny_{key}"
    return build


for _key, _family in FAMILIES.items():
    register_model(_builder(_key, _family))


@torch.no_grad()
def naive_layers(family: Family, model: nn.Module, image: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For one image (3, H, W), the class part and the patch mean of every layer.

    Outputs of modules are caught by hooks; nothing of timm's own ways to read layers is used. A
    layer without a class part has an empty one.
    """
    caught: dict[str, Tensor] = {}
    modules = dict(model.named_modules())
    hooks = [
        modules[name].register_forward_hook(
            lambda module, inputs, output, name=name: caught.__setitem__(name, output.clone())
        )
        for name in family.layers
    ]
    pooled = model(image[None])[0]  # there is no classifier, so this is what it would have read
    for hook in hooks:
        hook.remove()
    found = []
    for number, name in enumerate(family.layers):
        output = caught[name][0]
        if family.layout == "channels first":
            output = output.permute(1, 2, 0)
        positions = output.reshape(-1, output.shape[-1])
        last = number == len(family.layers) - 1
        norm = modules[family.norm] if last and family.norm else None
        rows = _normed(positions, norm)
        token = rows[0] if family.class_token else pooled if last else rows.new_zeros(0)
        found.append((token, rows[family.prefix :].mean(0)))
    return found


def _normed(rows: Tensor, norm: Any) -> Tensor:
    """Rows (N, C) with zero mean and unit variance, then the norm's own scale and shift."""
    eps = 1e-5 if norm is None else norm.eps
    mean, variance = rows.mean(1, keepdim=True), rows.var(1, unbiased=False, keepdim=True)
    rows = (rows - mean) / (variance + eps).sqrt()
    return rows if norm is None else rows * norm.weight + norm.bias


def shaken(model: nn.Module) -> nn.Module:
    """All weights moved away from where they begin, so that no norm is the plain one."""
    rng = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=rng)
    return model
