"""Image classifiers that keep learning new classes on a frozen vision transformer."""

__version__ = "0.1.0.dev0"

from cprompt.backbone import FrozenViT, Prompts, load_backbone
from cprompt.config import RunConfig, resolve
from cprompt.errors import CPromptError
from cprompt.experiment import load_method, run
from cprompt.methods import METHODS, Method, create_method, register
from cprompt.record import Record, load_record

__all__ = [
    "METHODS",
    "CPromptError",
    "FrozenViT",
    "Method",
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
