"""Image classifiers that keep learning new classes on a frozen vision transformer."""

__version__ = "0.1.0.dev0"

from cprompt.assessment import ClassResult, Evaluation
from cprompt.backbone import FrozenViT, Prompts, load_backbone
from cprompt.classifier import ContinualClassifier, Explanation, LearntBatch
from cprompt.config import RunConfig, resolve
from cprompt.errors import CPromptError, ModelError
from cprompt.experiment import load_method, run
from cprompt.methods import METHODS, Method, create_method, register
from cprompt.record import Record, load_record
from cprompt.sources import UNKNOWN

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
