"""The methods, one file each. Importing this package registers all of them."""

from cprompt.methods import cprompt, finetune, joint
from cprompt.methods.base import METHODS, Method, create_method, method_class, register

__all__ = [
    "METHODS",
    "Method",
    "cprompt",
    "create_method",
    "finetune",
    "joint",
    "method_class",
    "register",
]
