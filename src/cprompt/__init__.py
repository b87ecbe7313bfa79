"""Image classifiers that keep learning new classes on a frozen vision transformer."""

__version__ = "0.1.0.dev0"

from cprompt.classifier.classifier import ContinualClassifier
from cprompt.classifier.evaluation import ClassResult, Evaluation
from cprompt.classifier.explanation import Explanation
from cprompt.classifier.photo_sources import UNKNOWN
from cprompt.classifier.state import LearntBatch
from cprompt.errors import CPromptError, ModelError
from cprompt.methods.base import Method, create_method, register
from cprompt.methods.registry import METHODS
from cprompt.research.config import RunConfig, resolve
from cprompt.research.experiment import load_method, run
from cprompt.research.record import Record, load_record
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT, Prompts

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
