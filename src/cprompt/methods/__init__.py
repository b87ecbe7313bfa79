"""The methods, one file each. Importing this package registers all of them."""

from cprompt.methods import coda, cprompt, dualprompt, esn, finetune, hide, joint, l2p, slca
from cprompt.methods.base import METHODS, Method, create_method, method_class, register

__all__ = [
    "METHODS",
    "Method",
    "coda",
    "cprompt",
    "create_method",
    "dualprompt",
    "esn",
    "finetune",
    "hide",
    "joint",
    "l2p",
    "method_class",
    "register",
    "slca",
]
