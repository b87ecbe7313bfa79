"""Weights from a local file into a timm model of any kind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cprompt.errors import BackboneError
from cprompt.vit.light_timm import is_model, model_entrypoint

State = dict[str, Tensor]

_CHECK_NAME = "check that --backbone names the architecture these weights were trained with"


def check_there(path: Path) -> None:
    """Raise a BackboneError if there is no such file."""
    if not path.is_file():
        raise BackboneError("does not exist; expected a file of weights", file=path)


def read_weights(path: Path) -> State:
    """A state dict from .safetensors, or from .pth/.pt/.bin with tensors only."""
    check_there(path)
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise BackboneError(
            f"cannot be read ({error.strerror or error})", file=path, hint="check its permissions"
        ) from error
    except Exception as error:
        # Every reader raises its own kinds. Their texts are not shown: torch's advises to load
        # the file unsafely.
        raise BackboneError(
            "cannot be read as weights: it is damaged, of another kind, or holds more than tensors",
            file=path,
            hint="use a .safetensors file, or a .pth file that holds tensors only",
        ) from error
    for key in ("model", "state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not (isinstance(loaded, dict) and all(isinstance(v, Tensor) for v in loaded.values())):
        raise BackboneError("does not hold a state dict of tensors", file=path)
    return loaded


_RANDOM = {"uniform_", "normal_", "erfinv_", "trunc_normal_"} | {
    f"{kind}_{law}_" for kind in ("kaiming", "xavier") for law in ("uniform", "normal")
}


class WithoutRandomValues(TorchFunctionMode):
    """While a model is made, draw no initial values: a file's take their places.

    For ViT-B this saves about a second. `load_into` makes sure that the file has all of them.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", None) in _RANDOM:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def load_into(model: nn.Module, state: State, path: Path, name: str) -> None:
    """Load all weights but the classifier's, which `model` must not have.

    timm's own filter for the model called `name` comes first: it renames older weights, and
    resizes position embeddings.
    """
    try:
        state = _filter_of(name, model)(state, model)
        state = {key: tensor.float() for key, tensor in state.items()}
        missing, unexpected = model.load_state_dict(_without_classifier(state, model), strict=False)
    except (RuntimeError, KeyError, AttributeError, ValueError, IndexError) as error:
        raise BackboneError(
            f"does not fit the model: {first_line(error)}", file=path, hint=_CHECK_NAME
        ) from error
    if missing or unexpected:
        raise BackboneError(
            f"does not fit the model: {len(missing)} tensors are missing "
            f"(first: {missing[:1]}), {len(unexpected)} are unknown (first: {unexpected[:1]})",
            file=path,
            hint=_CHECK_NAME,
        )


def first_line(error: BaseException) -> str:
    """The beginning of an error's text, for a message."""
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:200]


def _filter_of(name: str, model: nn.Module) -> Callable[[State, nn.Module], State]:
    """timm's filter of checkpoints in the module that builds the model, or that of its class."""
    architecture = name.partition(".")[0]
    modules = [type(model).__module__]
    if is_model(architecture):
        modules.insert(0, model_entrypoint(architecture).__module__)
    for module in modules:
        found = getattr(sys.modules[module], "checkpoint_filter_fn", None)
        if found is not None:
            chosen: Callable[[State, nn.Module], State] = found
            return chosen
    return lambda state, model: state


def _without_classifier(state: State, model: nn.Module) -> State:
    """Drop what stands in the classifier's place and is not in the model.

    A norm in the head (ConvNeXt) is in the model, and stays.
    """
    about: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    names = about.get("classifier") or ()
    heads = {"head", "head_dist", "pre_logits"}
    heads |= {part.partition(".")[0] for part in ([names] if isinstance(names, str) else names)}
    own = model.state_dict()
    return {k: t for k, t in state.items() if k in own or k.partition(".")[0] not in heads}
