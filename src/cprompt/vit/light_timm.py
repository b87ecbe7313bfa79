"""The one door to timm: it is imported without what it only mentions, most of the time of a start.

timm, and torchvision, which timm imports, mention torch's compiler: some functions are marked to be
left alone by it, one asks whether it can be used. timm also imports functions of torchvision's
models and of huggingface_hub, which few programs call, and wandb if it is installed. So while timm
is imported stand-ins take their places. The real ones are imported by whatever needs them first.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = [
    "Attention",
    "Block",
    "Mlp",
    "PatchEmbed",
    "VisionTransformer",
    "is_model",
    "model_entrypoint",
    "timm",
]

_COMPILER = "torch._dynamo"
_TRACKER = "wandb"
_MODELS = "torchvision.models"
_HUB = "huggingface_hub"
_HUB_ERRORS = ("EntryNotFoundError", "RepositoryNotFoundError")


@contextmanager
def _with_stand_ins() -> Iterator[None]:
    """Let imports in the block meet stand-ins of what is not there yet."""
    made = {
        _COMPILER: _compiler,
        _TRACKER: lambda: [_stand_in(_TRACKER)],
        _MODELS: _models,
        _HUB: _hub,
    }
    absent = [name for name in made if name not in sys.modules and _installed(name)]
    stand_ins = [module for name in absent for module in made[name]()]
    sys.modules.update({module.__name__: module for module in stand_ins})
    try:
        yield
    finally:
        _remove(stand_ins)


def _compiler() -> list[ModuleType]:
    from torch._compile import _disable_dynamo

    def disable(fn: Any = None, recursive: bool = True, **reason: Any) -> Any:
        return _disable_dynamo(fn, recursive)  # looks for the compiler when `fn` is called

    utilities = _calling_late(f"{_COMPILER}.utils", "is_compile_supported")
    return [_stand_in(_COMPILER, disable=disable), utilities]


def _models() -> list[ModuleType]:
    functions = ("create_feature_extractor", "get_graph_node_names")
    return [_stand_in(_MODELS), _calling_late(f"{_MODELS}.feature_extraction", *functions)]


def _hub() -> list[ModuleType]:
    def real_errors() -> None:
        """timm catches what these functions raise: have it know the real classes by then."""
        found = importlib.import_module(f"{_HUB}.utils")
        user = sys.modules["timm.models._hub"]
        for name in _HUB_ERRORS:
            setattr(user, name, getattr(found, name))

    functions = ("HfApi", "hf_hub_download", "model_info")
    errors = {name: type(name, (Exception,), {}) for name in _HUB_ERRORS}
    return [
        _calling_late(_HUB, *functions, first=real_errors),
        _stand_in(f"{_HUB}.utils", **errors),
    ]


def _calling_late(
    name: str, *functions: str, first: Callable[[], None] = lambda: None
) -> ModuleType:
    """A stand-in whose functions import the real module when they are called, and call its own."""

    def late(function: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            first()
            return getattr(importlib.import_module(name), function)(*args, **options)

        return call

    return _stand_in(name, **{function: late(function) for function in functions})


def _stand_in(name: str, **offered: Callable[..., Any]) -> ModuleType:
    """A module of that name that offers this; asked for anything else, it makes way.

    Its own modules can be imported as ever.
    """
    module = ModuleType(name)
    module.__path__ = _folders(name)
    module.__dict__.update(offered)

    def asked(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        _remove([module])
        return getattr(importlib.import_module(name), attribute)

    module.__dict__["__getattr__"] = asked
    return module


def _installed(module: str) -> bool:
    package = module.partition(".")[0]
    return importlib.util.find_spec(package) is not None


def _folders(module: str) -> list[str]:
    """Where the modules of a package are, found without importing it."""
    package, *inner = module.split(".")
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    return [str(Path(folder, *inner)) for folder in folders]


def _remove(stand_ins: list[ModuleType]) -> None:
    for module in stand_ins:
        if sys.modules.get(module.__name__) is module:
            del sys.modules[module.__name__]


with _with_stand_ins():
    import timm
    from timm.layers import Attention, Mlp, PatchEmbed
    from timm.models import is_model, model_entrypoint
    from timm.models.vision_transformer import Block, VisionTransformer
