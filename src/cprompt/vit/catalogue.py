"""Backbones to choose from: short names, what is known of each, and how fast it is here.

Nothing slow is imported before it is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

    from cprompt.vit.embedded import EmbeddedBackbone

PAPER_BACKBONE = "vit_base_patch16_224.augreg_in21k_ft_in1k"


@dataclass(frozen=True)
class ShortName:
    """What a short name stands for."""

    tag: str
    image_size: int
    """Side of the input in pixels, unless another is asked for."""


SHORT_NAMES = {
    "small": ShortName("vit_small_patch14_reg4_dinov2.lvd142m", 224),
    "base": ShortName("vit_base_patch14_reg4_dinov2.lvd142m", 224),
    "large": ShortName("vit_large_patch14_reg4_dinov2.lvd142m", 224),
}
"""docs/backbones.md says why these."""

SUGGESTED = (
    "vit_base_patch16_224.orig_in21k",
    "vit_base_patch16_224.augreg_in21k",
    "vit_small_patch16_224.augreg_in21k_ft_in1k",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "vit_large_patch16_224.augreg_in21k_ft_in1k",
    "vit_base_patch16_224.dino",
    "vit_small_patch14_dinov2.lvd142m",
    "vit_small_patch14_reg4_dinov2.lvd142m",
)
"""Backbones for every method, to try beside the paper's."""

FOR_STRATA = (
    "vit_small_patch16_dinov3.lvd1689m",
    "vit_base_patch16_siglip_224.v2_webli",
    "vit_pe_core_base_patch16_224.fb",
    "eva02_small_patch14_224.mim_in22k",
    "swin_tiny_patch4_window7_224.ms_in22k",
    "convnext_tiny.fb_in22k",
    "mobilenetv4_conv_small.e2400_r224_in1k",
)
"""Backbones that cannot be prompted."""


def spelt_out(name: str, image_size: int | None) -> tuple[str, int | None]:
    """The full name and the size of the input that a short name stands for; others stay.

    >>> spelt_out("small", None)
    ('vit_small_patch14_reg4_dinov2.lvd142m', 224)
    >>> spelt_out("vit_tiny_patch16_224.augreg_in21k", None)
    ('vit_tiny_patch16_224.augreg_in21k', None)
    """
    short = SHORT_NAMES.get(name)
    return (name, image_size) if short is None else (short.tag, image_size or short.image_size)


@dataclass(frozen=True)
class Choice:
    """A backbone one can choose."""

    name: str
    """For `--backbone`: a short name, an embedded one, or a timm model with its tag."""
    tag: str
    parameters: int
    image_size: int
    licence: str
    here: bool
    """Whether its weights are on this machine."""
    promptable: bool


def choices() -> Iterator[Choice]:
    """The embedded backbones, the short names, then others; only those that timm has here."""
    from cprompt.vit.embedded import EMBEDDED
    from cprompt.vit.light_timm import timm

    for asset in EMBEDDED.values():
        yield _embedded(asset)
    named = {short.tag for short in SHORT_NAMES.values()}
    others = [tag for tag in (PAPER_BACKBONE, *SUGGESTED, *FOR_STRATA) if tag not in named]
    for name in (*SHORT_NAMES, *others):
        tag, image_size = spelt_out(name, None)
        if timm.is_model(tag.partition(".")[0]):
            yield _choice(name, tag, image_size)


def images_per_second(choice: Choice, device: torch.device, seconds: float = 1.0) -> float:
    """How many images pass in a second, eight at a time; with random weights, as they all count."""
    import torch

    from cprompt.vit.embedded import EMBEDDED
    from cprompt.vit.loading import load_backbone

    weights = None if choice.tag in EMBEDDED else "random:0"
    backbone = load_backbone(choice.tag, weights, choice.image_size)
    backbone.to(device)
    images = torch.zeros(8, 3, *backbone.image_size, device=device)
    layers = range(backbone.depth)

    def pass_once() -> None:
        with torch.no_grad():
            backbone.taps(backbone.embed(images), layers).sum().item()  # waits for the device

    pass_once()  # the first one is slower
    passes, start = 0, time.perf_counter()
    while passes == 0 or time.perf_counter() - start < seconds:
        pass_once()
        passes += 1
    return len(images) * passes / (time.perf_counter() - start)


def _embedded(asset: EmbeddedBackbone) -> Choice:
    from cprompt.vit.light_timm import VisionTransformer

    size = asset.architecture["img_size"]
    parameters = _parameters(lambda: VisionTransformer(**{**asset.architecture, "num_classes": 0}))
    return Choice(asset.name, asset.name, parameters, size, "apache-2.0", True, True)


def _choice(name: str, tag: str, image_size: int | None) -> Choice:
    from cprompt.vit.download import is_cached
    from cprompt.vit.light_timm import timm

    about = timm.get_pretrained_cfg(tag)
    size = image_size or int(about.input_size[-1])
    architecture = tag.partition(".")[0]
    parameters = _parameters(lambda: timm.create_model(architecture, num_classes=0))
    licence = about.license or "unknown"
    return Choice(name, tag, parameters, size, licence, is_cached(tag), tag not in FOR_STRATA)


def _parameters(build: Callable[[], nn.Module]) -> int:
    """How many the model has; it is built without memory for them."""
    import torch

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters())
