"""Building a frozen backbone: embedded, from timm, from a local file, or random."""

from __future__ import annotations

from pathlib import Path

import timm
import torch
from huggingface_hub import try_to_load_from_cache
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from cprompt.errors import BackboneError
from cprompt.vit import embedded
from cprompt.vit.promptable import FrozenViT, check_promptable

PAPER_BACKBONE = "vit_base_patch16_224.augreg_in21k_ft_in1k"

_CHECK_NAME = "check that --backbone names the architecture these weights were trained with"


def load_backbone(
    name: str, weights: str | Path | None = None, image_size: int | None = None
) -> FrozenViT:
    """Build a frozen backbone.

    `name` is an embedded backbone, a timm ViT, or "auto": the paper's if its weights are on this
    machine, else the embedded one. `weights` is None (the embedded file, or timm's pre-trained
    weights of the tag in `name`), a local .safetensors or .pth file, or "random:SEED".
    `image_size` resizes the position embedding.

    >>> vit = load_backbone("test_vit", weights="random:0", image_size=48)
    >>> vit.dim, vit.depth, vit.image_size
    (64, 6, (48, 48))
    """
    if name == "auto":
        if weights is not None:
            raise BackboneError(
                f"weights {weights} need the name of their model, not 'auto'",
                hint="pass --backbone NAME",
            )
        name = PAPER_BACKBONE if _is_cached(PAPER_BACKBONE) else next(iter(embedded.EMBEDDED))
    if name in embedded.EMBEDDED and weights is None:
        return _embedded(name, image_size)
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise BackboneError(
            f"timm has no model {architecture!r}",
            hint="`cprompt list backbones` shows names that work",
        )
    size = {} if image_size is None else {"img_size": image_size}
    if weights is None:
        tagged = _with_tag(architecture, tag)
        try:
            vit = timm.create_model(tagged, pretrained=True, num_classes=0, **size)
        except (OSError, RuntimeError, ValueError) as error:
            raise BackboneError(
                f"the weights of {tagged} are not on this machine and could not be fetched "
                f"({_first_line(error)})",
                hint="connect once so that timm can cache them, or pass --weights FILE "
                "(.safetensors or .pth), or use an embedded backbone "
                f"(--backbone {next(iter(embedded.EMBEDDED), 'none')})",
            ) from error
        return FrozenViT(vit, tagged, f"timm:{tagged}")
    if str(weights).startswith("random:"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_random_seed(str(weights)))
            vit = _new(architecture, size)
        return FrozenViT(vit, name, str(weights))
    path = Path(weights)
    vit = _new(architecture, size)
    check_promptable(vit, name)
    _load_into(vit, _read_weights(path), path)
    return FrozenViT(vit, name, f"file:{path.name}")


def _new(architecture: str, size: dict[str, int]) -> nn.Module:
    try:
        model: nn.Module = timm.create_model(architecture, num_classes=0, **size)
    except TypeError as error:
        raise BackboneError(f"timm cannot build {architecture} here: {error}") from error
    return model


def _with_tag(architecture: str, tag: str) -> str:
    """The full name. A name without a tag is accepted only if timm has a single set of weights.

    timm's default tag has changed over time, so a name without a tag would not say which weights
    a result was made with.
    """
    tags = [n.partition(".")[2] for n in timm.list_pretrained(f"{architecture}.*")]
    if tag in tags:
        return f"{architecture}.{tag}"
    known = ", ".join(f"{architecture}.{t}" for t in tags) or "none"
    if tag:
        raise BackboneError(
            f"timm has no weights {tag!r} for {architecture}", hint=f"it has: {known}"
        )
    if len(tags) == 1:
        return f"{architecture}.{tags[0]}"
    raise BackboneError(
        f"{architecture} has {len(tags)} sets of weights",
        hint=f"name one so that results say which ({known}), or pass --weights FILE",
    )


def _is_cached(tagged: str) -> bool:
    """Whether timm would find these weights on this machine."""
    repo = timm.get_pretrained_cfg(tagged).hf_hub_id
    return bool(repo) and any(
        isinstance(try_to_load_from_cache(repo, file), str)
        for file in ("model.safetensors", "pytorch_model.bin")
    )


def _embedded(name: str, image_size: int | None) -> FrozenViT:
    asset = embedded.EMBEDDED[name]
    size = image_size or asset.architecture["img_size"]
    vit = VisionTransformer(**{**asset.architecture, "img_size": size, "num_classes": 0})
    _load_into(vit, _read_weights(asset.path), asset.path)
    return FrozenViT(vit, name, "embedded")


def _random_seed(weights: str) -> int:
    seed = weights.removeprefix("random:")
    if not seed.isdigit():
        raise BackboneError(
            f"weights {weights!r} have no seed", hint="use random:SEED with a whole number"
        )
    return int(seed)


def _read_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from .safetensors, or from .pth/.pt/.bin with tensors only."""
    if not path.is_file():
        raise BackboneError("does not exist; expected a file of weights", file=path)
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # every reader raises its own kinds
        raise BackboneError(
            f"cannot be read as weights ({_first_line(error)})",
            file=path,
            hint="use a .safetensors file, or a .pth file that holds tensors only",
        ) from error
    for key in ("model", "state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not (isinstance(loaded, dict) and all(isinstance(v, Tensor) for v in loaded.values())):
        raise BackboneError("does not hold a state dict of tensors", file=path)
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
        raise BackboneError(
            f"does not fit the model: {_first_line(error)}", file=path, hint=_CHECK_NAME
        ) from error
    if missing or unexpected:
        raise BackboneError(
            f"does not fit the model: {len(missing)} tensors are missing "
            f"(first: {missing[:1]}), {len(unexpected)} are unknown (first: {unexpected[:1]})",
            file=path,
            hint=_CHECK_NAME,
        )


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:200]
