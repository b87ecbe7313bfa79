"""Building a frozen backbone: embedded, from timm, from a local file, or random."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cprompt.errors import BackboneError
from cprompt.vit import embedded
from cprompt.vit.backbone import Backbone
from cprompt.vit.catalogue import PAPER_BACKBONE as PAPER_BACKBONE
from cprompt.vit.catalogue import SHORT_NAMES, spelt_out
from cprompt.vit.download import (
    check_reachable,
    fetch,
    is_cached,
    known_tags,
    out_of_reach,
    with_tag,
)
from cprompt.vit.frozen_model import FrozenModel
from cprompt.vit.light_timm import VisionTransformer, timm
from cprompt.vit.promptable import FrozenViT, is_promptable
from cprompt.vit.weight_files import (
    WithoutRandomValues,
    check_there,
    first_line,
    load_into,
    read_weights,
)


def load_backbone(
    name: str = "auto", weights: str | Path | None = None, image_size: int | None = None
) -> Backbone:
    """Build a frozen backbone: a `FrozenViT` if it can be prompted, else a `FrozenModel`.

    `name` is an embedded backbone, any timm model, one of the short names small, base and large
    (see `cprompt.vit.catalogue`), or "auto": the model that the file of weights
    is named after; without a file, the paper's if its weights are on this machine, else the
    embedded one. `weights` is None (the embedded file, or timm's pre-trained weights of the tag in
    `name`), a local .safetensors or .pth file, or "random:SEED". `image_size` is the side of the
    input in pixels, by default the model's own; position embeddings are resized.

    >>> vit = load_backbone("test_vit", weights="random:0", image_size=48)
    >>> vit.dim, vit.depth, vit.image_size
    (64, 6, (48, 48))
    """
    if weights is not None and not str(weights).startswith("random:"):
        check_there(Path(weights))
    if name == "auto":
        name = _automatic_name(weights)
    name, image_size = spelt_out(name, image_size)
    if name in embedded.EMBEDDED:
        if weights is not None:
            raise BackboneError(
                f"{name} is embedded with its weights and takes no others, such as {weights}",
                hint="name the timm model that they are for with --backbone, or leave --weights "
                "out",
            )
        return _embedded(name, image_size)
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise _no_model(architecture)
    if weights is None:
        tagged = with_tag(architecture, tag)
        check_reachable(tagged)
        try:
            fetch(tagged)
            model = _new(tagged, image_size, pretrained=True)
        except BackboneError:
            raise
        except Exception as error:  # every downloader raises its own kinds
            raise out_of_reach(tagged, first_line(error)) from error
        return _frozen(model, tagged, f"timm:{tagged}", image_size)
    # With its tag, where timm knows it: input size and normalisation are those of the weights.
    known = name if tag in known_tags(architecture) else architecture
    if str(weights).startswith("random:"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_random_seed(str(weights)))
            model = _new(known, image_size)
        return _frozen(model, name, str(weights), image_size)
    path = Path(weights)
    state = read_weights(path)
    with WithoutRandomValues():
        model = _new(known, image_size)
    load_into(model, state, path, name)
    return _frozen(model, name, f"file:{path.name}", image_size)


def model_named_by(weights: str | Path) -> str | None:
    """The timm model that a file of weights is named after, if it is.

    >>> model_named_by("downloads/vit_tiny_patch16_224.augreg_in21k.safetensors")
    'vit_tiny_patch16_224.augreg_in21k'
    >>> model_named_by("mine.safetensors")
    """
    name = Path(weights).stem
    return name if timm.is_model(name.partition(".")[0]) else None


def _no_model(architecture: str) -> BackboneError:
    """The error for an unknown name, with the most similar one."""
    if architecture in SHORT_NAMES:
        return BackboneError(
            f"{architecture} is a short name and takes no tag",
            hint=f"use --backbone {architecture}",
        )
    names = {name.partition(".")[0]: name for name in embedded.EMBEDDED}
    names |= {name: name for name in (*SHORT_NAMES, *timm.list_models())}
    near = [names[like] for like in difflib.get_close_matches(architecture, names, n=1)]
    return BackboneError(
        f"timm has no model {architecture!r}",
        hint=(f"did you mean {near[0]!r}? " if near else "")
        + "`cprompt backbones` shows names that work",
    )


def _automatic_name(weights: str | Path | None) -> str:
    """The name that "auto" stands for."""
    if weights is None:
        return PAPER_BACKBONE if is_cached(PAPER_BACKBONE) else next(iter(embedded.EMBEDDED))
    name = model_named_by(weights)
    if name is None:
        raise BackboneError(
            f"weights {weights} do not say which model they are for",
            hint="pass --backbone NAME, or name the file after the model, as in "
            f"{PAPER_BACKBONE}.safetensors",
        )
    return name


def _new(name: str, image_size: int | None, pretrained: bool = False) -> nn.Module:
    """A timm model without classifier. One that takes any size is not told of it."""
    options: dict[str, Any] = {"pretrained": pretrained, "num_classes": 0}
    try:
        if image_size is None:
            return _created(name, options)
        try:
            return _created(name, {**options, "img_size": image_size})
        except TypeError as error:
            if "img_size" not in str(error):
                raise
            return _created(name, options)
    except (TypeError, AssertionError) as error:
        raise BackboneError(f"timm cannot build {name} here: {first_line(error)}") from error


def _created(name: str, options: dict[str, Any]) -> nn.Module:
    model: nn.Module = timm.create_model(name, **options)
    return model


def _frozen(model: nn.Module, name: str, weights: str, image_size: int | None) -> Backbone:
    if is_promptable(model):
        assert isinstance(model, VisionTransformer)
        return FrozenViT(model, name, weights)
    return FrozenModel(model, name, weights, image_size)


def _embedded(name: str, image_size: int | None) -> FrozenViT:
    asset = embedded.EMBEDDED[name]
    size = image_size or asset.architecture["img_size"]
    with WithoutRandomValues():
        vit = VisionTransformer(**{**asset.architecture, "img_size": size, "num_classes": 0})
    load_into(vit, read_weights(asset.path), asset.path, name)
    return FrozenViT(vit, name, "embedded", (asset.mean, asset.std))


def _random_seed(weights: str) -> int:
    seed = weights.removeprefix("random:")
    if not seed.isdigit():
        raise BackboneError(
            f"weights {weights!r} have no seed", hint="use random:SEED with a whole number"
        )
    return int(seed)
