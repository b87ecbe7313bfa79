"""Methods and datasets from outside the package.

An installed package offers them through the entry-point groups `cprompt.methods` and
`cprompt.datasets`; a file in the working folder is named on the command line, `--plugin MODULE`.
A model folder, a record or a checkpoint never causes an import.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from cprompt.errors import ConfigError

METHODS_GROUP = "cprompt.methods"
DATASETS_GROUP = "cprompt.datasets"


def offered(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of installed packages in `group`, by name; nothing is imported."""
    return {entry.name: entry for entry in entry_points(group=group)}


def load(entry: EntryPoint) -> Any:
    """Load the object an entry point refers to; if that fails, a ConfigError names the package."""
    try:
        return entry.load()
    except Exception as error:  # an outside module may fail in any way
        raise ConfigError(
            f"{entry.name!r} of {provider(entry)} cannot be loaded "
            f"({type(error).__name__}: {error})",
            hint=f"repair {entry.value}, or uninstall the package",
        ) from error


def provider(entry: EntryPoint) -> str:
    """The package that an entry point belongs to."""
    return "an installed package" if entry.dist is None else f"the package {entry.dist.name}"


def import_module(name: str) -> None:
    """Import a module, which registers what it defines; the working folder is searched first."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        importlib.import_module(name.removesuffix(".py"))
    except ConfigError:
        raise
    except Exception as error:  # an outside module may fail in any way
        raise ConfigError(
            f"the plugin {name!r} cannot be imported ({type(error).__name__}: {error})",
            hint=f"name a module, such as toy for {Path.cwd() / 'toy.py'}",
        ) from error
