"""The YAML recipes that come with the package: benchmarks, methods and the paper's tables."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from importlib import resources
from typing import Any

import yaml

from cprompt.errors import ConfigError
from cprompt.settings import suggest


def benchmarks() -> list[str]:
    """Names of all benchmark recipes."""
    return recipe_names("benchmarks")


def benchmark_recipe(name: str) -> dict[str, Any]:
    """The recipe of a benchmark, as plain values, with a `summary`."""
    if name not in benchmarks():
        raise ConfigError(f"no benchmark {name!r}", hint=suggest(name, benchmarks()))
    return read_recipe("benchmarks", name)


def flavours(method: str) -> list[str]:
    """Named sets of a method's settings, the default one first; [] if there is only one set."""
    recipe = _recipe_of(method)
    names = recipe.get("flavours", {})
    return sorted(names, key=lambda name: name != recipe.get("default_flavour"))


def method_recipe(method: str, flavour: str | None = None) -> tuple[str | None, dict[str, Any]]:
    """The flavour's name and its recipe; `benchmarks` in it holds the settings per benchmark.

    Without `flavour` it is the method's default one; (None, {}) for a method without a recipe.
    """
    from cprompt.methods.registry import method_class  # here, so that listing names is fast

    method_class(method)
    known = flavours(method)
    if flavour is not None and flavour not in known:
        raise ConfigError(
            f"{method} has no flavour {flavour!r}",
            hint=f"it has {', '.join(known)}" if known else "it has only one set of settings",
        )
    recipe = _recipe_of(method)
    if not known:
        return None, recipe
    flavour = flavour or known[0]
    return flavour, recipe["flavours"][flavour]


def _recipe_of(method: str) -> dict[str, Any]:
    """A method's recipe; {} if there is none."""
    return read_recipe("methods", method) if method in recipe_names("methods") else {}


def recipe_names(kind: str) -> list[str]:
    """Names of the recipes of a kind: benchmarks, methods or tables."""
    folder = resources.files(__name__) / kind
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml"))


def is_table_file(name: str) -> bool:
    """Whether a table's name is the path of a YAML file, not one of the paper's tables."""
    return name.endswith((".yaml", ".yml"))


def read_recipe(kind: str, name: str) -> dict[str, Any]:
    """The content of one of the package's YAML files, as a copy that the caller may change."""
    return deepcopy(_parsed(kind, name))


@cache  # a table asks for the same few recipes once per row and seed
def _parsed(kind: str, name: str) -> dict[str, Any]:
    text = (resources.files(__name__) / kind / f"{name}.yaml").read_text("utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded
