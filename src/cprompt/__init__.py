"""Image classifiers that keep learning new classes on a frozen vision transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0.dev0"

__all__ = [
    "METHODS",
    "UNKNOWN",
    "CPromptError",
    "ClassResult",
    "ContinualClassifier",
    "Evaluation",
    "Explanation",
    "FrozenViT",
    "LearntBatch",
    "Method",
    "ModelError",
    "Prompts",
    "Record",
    "RunConfig",
    "__version__",
    "create_method",
    "load_backbone",
    "load_method",
    "load_record",
    "register",
    "resolve",
    "run",
]

if TYPE_CHECKING:
    from cprompt.classifier.classifier import ContinualClassifier, Explanation, LearntBatch
    from cprompt.classifier.evaluation import ClassResult, Evaluation
    from cprompt.classifier.photo_sources import UNKNOWN
    from cprompt.errors import CPromptError, ModelError
    from cprompt.methods.base import Method, create_method, register
    from cprompt.methods.registry import METHODS
    from cprompt.research.config import RunConfig, resolve
    from cprompt.research.experiment import load_method, run
    from cprompt.research.record import Record, load_record
    from cprompt.vit.loading import load_backbone
    from cprompt.vit.promptable import FrozenViT, Prompts
else:
    # `import cprompt` must be quick, as every command starts with it; torch takes seconds. So a
    # public name is imported when it is first used. The same names as above, by module:
    _NAMES_OF = {
        "classifier.classifier": ("ContinualClassifier", "Explanation", "LearntBatch"),
        "classifier.evaluation": ("ClassResult", "Evaluation"),
        "classifier.photo_sources": ("UNKNOWN",),
        "errors": ("CPromptError", "ModelError"),
        "methods.base": ("Method", "create_method", "register"),
        "methods.registry": ("METHODS",),
        "research.config": ("RunConfig", "resolve"),
        "research.experiment": ("load_method", "run"),
        "research.record": ("Record", "load_record"),
        "vit.loading": ("load_backbone",),
        "vit.promptable": ("FrozenViT", "Prompts"),
    }
    _MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used (PEP 562)."""
        from importlib import import_module

        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
