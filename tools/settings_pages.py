"""Write the settings of methods and runs into their pages.

    python tools/settings_pages.py

In docs/methods/NAME.md the block between `<!-- settings -->` and `<!-- /settings -->` is generated
from the method's dataclass, the one between `<!-- flavours -->` and `<!-- /flavours -->` from its
recipe. In docs/settings.md, `<!-- settings:PART -->` names a part of a run's settings. Other text
stays as it is. A test checks that the pages are up to date.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cprompt.data.pipeline.views import RECIPES
from cprompt.methods.registry import METHODS
from cprompt.research.config import PARTS, flatten
from cprompt.research.recipes import flavours, method_recipe

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = {name: DOCS / "methods" / f"{name}.md" for name in sorted(METHODS)}
RUN_PAGE = DOCS / "settings.md"
NAMES = {"data.transform": RECIPES}
"""The values of settings whose type does not list them."""
EXPLAINED = {
    "data.transform": "datasets.md#how-images-are-fed",
    "data.normalization": "datasets.md#how-images-are-fed",
}
"""Where the values of a setting are described."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


def shown(value: Any) -> str:
    """A value as it would be typed."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, (tuple, list)):
        return f"`{','.join(map(str, value))}`"
    return f"`{value}`"


def choices(hint: Any) -> list[Any]:
    """What a setting of this type can be, where that is a list of names."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType, tuple):
        return [each for part in typing.get_args(hint) for each in choices(part)]
    return []


def settings(part: str, config: type) -> str:
    hints = typing.get_type_hints(config)
    rows = []
    for field in dataclasses.fields(config):
        default = getattr(config(), field.name)
        name, meaning = f"{part}.{field.name}", field.metadata["help"]
        known = NAMES.get(name) or choices(hints[field.name])
        others = [shown(c) for c in known if c != default]
        either = f" (or {', '.join(others)})" if others and default != {} else ""
        value = "empty" if default == {} else shown(default)
        if name in EXPLAINED:
            meaning += f" ([what each does]({EXPLAINED[name]}))"
        rows.append([f"`{name}`", value + either, meaning])
    return table(["setting", "default", "meaning"], rows)


def recipe(method: str) -> str:
    """What each flavour sets; benchmarks with the same values share a line."""
    rows = []
    for flavour in flavours(method) or [""]:
        found = method_recipe(method, flavour or None)[1]
        everywhere = {part: values for part, values in found.items() if part != "benchmarks"}
        alike: dict[str, list[str]] = {}
        for where, values in {"all": everywhere, **found.get("benchmarks", {})}.items():
            each = [f"`{name}` {shown(value)}" for name, value in flatten(values).items()]
            alike.setdefault(", ".join(each), []).append(where)
        rows += [[f"`{flavour}`", ", ".join(where), sets] for sets, where in alike.items() if sets]
    if not flavours(method):
        return table(["benchmark", "sets"], [row[1:] for row in rows])
    return table(["flavour", "benchmark", "sets"], rows)


def render(page: str, blocks: dict[str, str]) -> str:
    """The page with every block generated again."""

    def filled(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n\n{blocks[found[1]]}\n<!-- /{found[2]} -->"

    pattern = r"<!-- ((settings|flavours)(?::\w+)?) -->.*?<!-- /\2 -->"
    return re.sub(pattern, filled, page, flags=re.DOTALL)


def rendered() -> dict[Path, str]:
    """Every page as it should be."""
    pages = {
        path: {"settings": settings("method", METHODS[name].Config), "flavours": recipe(name)}
        for name, path in PAGES.items()
    }
    pages[RUN_PAGE] = {f"settings:{part}": settings(part, config) for part, config in PARTS.items()}
    return {path: render(path.read_text("utf-8"), blocks) for path, blocks in pages.items()}


if __name__ == "__main__":
    for page, text in rendered().items():
        page.write_text(text, encoding="utf-8")
