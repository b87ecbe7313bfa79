"""Image classifiers that keep learning new classes on a frozen vision transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0.dev0"

__all__ = [
    "DATASETS",
    "METHODS",
    "UNKNOWN",
    "CPromptError",
    "ClassResult",
    "ClassifierDefaults",
    "ContinualClassifier",
    "Dataset",
    "DatasetInfo",
    "Evaluation",
    "Explanation",
    "FrozenModel",
    "FrozenViT",
    "ImageSet",
    "LearntBatch",
    "Method",
    "ModelError",
    "Observer",
    "Prompts",
    "Record",
    "Response",
    "RunConfig",
    "__version__",
    "create_method",
    "load_backbone",
    "load_dataset",
    "load_method",
    "load_record",
    "register",
    "register_dataset",
    "resolve",
    "run",
]

if TYPE_CHECKING:
    from cprompt.classifier.classifier import ContinualClassifier
    from cprompt.classifier.evaluation import ClassResult, Evaluation
    from cprompt.classifier.explanation import Explanation
    from cprompt.classifier.photo_sources import UNKNOWN
    from cprompt.classifier.state import LearntBatch
    from cprompt.data.image_set import Dataset, ImageSet
    from cprompt.data.registry import DATASETS, DatasetInfo, load_dataset, register_dataset
    from cprompt.errors import CPromptError, ModelError
    from cprompt.methods.base import ClassifierDefaults, Method, Response, create_method, register
    from cprompt.methods.registry import METHODS
    from cprompt.research.config import RunConfig, resolve
    from cprompt.research.experiment import load_method, run
    from cprompt.research.record import Record, load_record
    from cprompt.training.observers import Observer
    from cprompt.vit.frozen_model import FrozenModel
    from cprompt.vit.loading import load_backbone
    from cprompt.vit.promptable import FrozenViT, Prompts
else:
    # `import cprompt` must be quick, as every command starts with it; torch takes seconds. So a
    # public name is imported when it is first used. The same names as above, by module:
    _NAMES_OF = {
        "classifier.classifier": ("ContinualClassifier",),
        "classifier.evaluation": ("ClassResult", "Evaluation"),
        "classifier.explanation": ("Explanation",),
        "classifier.photo_sources": ("UNKNOWN",),
        "classifier.state": ("LearntBatch",),
        "data.image_set": ("Dataset", "ImageSet"),
        "data.registry": ("DATASETS", "DatasetInfo", "load_dataset", "register_dataset"),
        "errors": ("CPromptError", "ModelError"),
        "methods.base": ("ClassifierDefaults", "Method", "Response", "create_method", "register"),
        "methods.registry": ("METHODS",),
        "research.config": ("RunConfig", "resolve"),
        "research.experiment": ("load_method", "run"),
        "research.record": ("Record", "load_record"),
        "training.observers": ("Observer",),
        "vit.frozen_model": ("FrozenModel",),
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
