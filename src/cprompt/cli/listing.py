"""`cprompt list`: the names that other commands take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cprompt.cli.arguments import PLUGINS


def _methods() -> Table:
    from cprompt.methods.registry import METHODS

    table = _table("method", "what it is")
    for name in METHODS:
        table.add_row(name, escape(METHODS.info(name).summary))
    return table


def _benchmarks() -> Table:
    from cprompt.research.recipes import benchmark_recipe, benchmarks

    table = _table("benchmark", "what it is", "dataset")
    for name in benchmarks():
        recipe = benchmark_recipe(name)
        table.add_row(name, recipe["summary"], recipe["data"]["dataset"])
    return table


def _datasets() -> Table:
    from cprompt.data.registry import DATASETS

    table = _table("dataset", "what it is", "expected layout")
    for name, info in DATASETS.items():
        table.add_row(name, info.summary, info.layout)
    return table


def _recipes() -> Table:
    from cprompt.methods.registry import METHODS
    from cprompt.research.config import flatten
    from cprompt.research.recipes import flavours, method_recipe

    table = _table("benchmark", "method", "flavour", "what the recipe sets")
    for method in sorted(METHODS):
        for name in flavours(method) or [""]:
            recipe = method_recipe(method, name or None)[1]
            everywhere = {part: values for part, values in recipe.items() if part != "benchmarks"}
            for benchmark, values in {"all": everywhere, **recipe.get("benchmarks", {})}.items():
                settings = (f"{key}={value}" for key, value in flatten(values).items())
                table.add_row(benchmark, method, name, escape(", ".join(settings)))
    return table


def _backbones() -> Table:
    from cprompt.vit.catalogue import FOR_STRATA, PAPER_BACKBONE, SHORT_NAMES, SUGGESTED
    from cprompt.vit.embedded import EMBEDDED
    from cprompt.vit.light_timm import timm

    table = _table("backbone", "methods", "weights")
    for name, asset in EMBEDDED.items():
        table.add_row(name, "all", f"embedded: {asset.summary}")
    for name, short in SHORT_NAMES.items():
        table.add_row(name, "all", f"timm: {short.tag} at {short.image_size} pixels")
    for name in (PAPER_BACKBONE, *SUGGESTED, *FOR_STRATA):
        if timm.is_model(name.partition(".")[0]):
            methods = "strata" if name in FOR_STRATA else "all"
            table.add_row(name, methods, "timm, the paper's" if name == PAPER_BACKBONE else "timm")
    elsewhere = "timm by tag, or --weights FILE"
    table.add_row("any other timm VisionTransformer with a class token", "all", elsewhere)
    table.add_row("any other timm model", "strata", elsewhere)
    table.add_row(
        "auto",
        "",
        "the model that --weights FILE is named after; without a file, the paper's if its weights "
        "are on this machine, else the embedded one",
    )
    return table


def _settings() -> Table:
    from cprompt.methods.registry import METHODS
    from cprompt.research.config import PARTS

    table = _table("setting", "default", "meaning")
    for part, config in PARTS.items():
        _add_settings(table, part, config)
    for name, cls in sorted(METHODS.items()):
        table.add_section()
        table.add_row(f"[bold]with --method {name}[/]", "", "")
        _add_settings(table, "method", cls.Config)
    return table


class Kind(str, Enum):
    """What can be listed."""

    methods = "methods"
    benchmarks = "benchmarks"
    datasets = "datasets"
    recipes = "recipes"
    backbones = "backbones"
    settings = "settings"


TABLES: dict[Kind, Callable[[], Table]] = {
    Kind.methods: _methods,
    Kind.benchmarks: _benchmarks,
    Kind.datasets: _datasets,
    Kind.recipes: _recipes,
    Kind.backbones: _backbones,
    Kind.settings: _settings,
}


def list_names(
    kind: Kind = typer.Argument(help="What to list."), plugins: list[str] = PLUGINS
) -> None:
    """List methods, benchmarks, datasets, recipes, backbones or settings."""
    table = TABLES[kind]()
    first = table.columns[0]  # names, which are to be copied: no word of them is folded
    first.min_width = max(len(word) for cell in first.cells for word in str(cell).split())
    Console().print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _add_settings(table: Table, part: str, config: Any) -> None:
    for field in dataclasses.fields(config):
        default = getattr(config(), field.name)
        shown = "" if default is None else str(default)
        table.add_row(f"{part}.{field.name}", escape(shown), escape(field.metadata.get("help", "")))
