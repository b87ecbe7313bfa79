"""The one door to timm: it is imported without torch's compiler, half of the time of a start.

timm, and torchvision, which timm imports, only mention the compiler: some functions are marked to
be left alone by it, one asks whether it can be used. So while they are imported a stand-in takes
its place. The real one is imported by whatever needs it first. The same is done with wandb, which
timm imports if it is installed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__all__ = [
    "Attention",
    "Block",
    "LayerScale",
    "Mlp",
    "PatchEmbed",
    "VisionTransformer",
    "is_model",
    "model_entrypoint",
    "timm",
]

_COMPILER = "torch._dynamo"
_TRACKER = "wandb"


@contextmanager
def _with_stand_ins() -> Iterator[None]:
    """Let imports in the block meet stand-ins of what is not there yet."""
    stand_ins = [] if _COMPILER in sys.modules else [_compiler(), _utilities()]
    folders = None if _TRACKER in sys.modules else _folders(_TRACKER)
    if folders is not None:
        stand_ins.append(_stand_in(_TRACKER, folders))
    sys.modules.update({module.__name__: module for module in stand_ins})
    try:
        yield
    finally:
        _remove(stand_ins)


def _compiler() -> ModuleType:
    from torch._compile import _disable_dynamo

    def disable(fn: Any = None, recursive: bool = True, **reason: Any) -> Any:
        return _disable_dynamo(fn, recursive)  # looks for the compiler when `fn` is called

    return _stand_in(_COMPILER, _folders(_COMPILER) or [], disable=disable)


def _utilities() -> ModuleType:
    def is_compile_supported(device_type: str) -> bool:
        from torch._dynamo.utils import is_compile_supported

        return bool(is_compile_supported(device_type))

    return _stand_in(f"{_COMPILER}.utils", [], is_compile_supported=is_compile_supported)


def _stand_in(name: str, folders: list[str], **offered: Callable[..., Any]) -> ModuleType:
    """A module of that name that offers this; asked for anything else, it makes way.

    Its own modules, in these folders, can be imported as ever.
    """
    module = ModuleType(name)
    module.__path__ = folders
    module.__dict__.update(offered)

    def asked(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        _remove([module])
        return getattr(importlib.import_module(name), attribute)

    module.__dict__["__getattr__"] = asked
    return module


def _folders(package: str) -> list[str] | None:
    """Where the modules of a package are; None if it is not installed."""
    spec = importlib.util.find_spec(package)
    return None if spec is None else list(spec.submodule_search_locations or [])


def _remove(stand_ins: list[ModuleType]) -> None:
    for module in stand_ins:
        if sys.modules.get(module.__name__) is module:
            del sys.modules[module.__name__]


with _with_stand_ins():
    import timm
    from timm.layers import Attention, Mlp, PatchEmbed
    from timm.models import is_model, model_entrypoint
    from timm.models.vision_transformer import Block, LayerScale, VisionTransformer
