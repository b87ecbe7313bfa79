"""The tables of settings in the pages are those of the code."""

from __future__ import annotations

import dataclasses

import pytest

from cprompt.data.pipeline.views import RECIPES
from cprompt.methods.cprompt import CPromptConfig
from cprompt.methods.registry import METHODS
from cprompt.research.config import DataConfig
from tests.scripts import load_tool

settings_pages = load_tool("settings_pages")


def test_the_pages_have_the_settings_and_flavours_of_the_code() -> None:
    for page, text in settings_pages.rendered().items():
        assert page.read_text("utf-8") == text, f"run tools/settings_pages.py for {page}"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_has_a_page_with_each_of_its_settings(name: str) -> None:
    page = settings_pages.PAGES[name].read_text("utf-8")
    for mark in ("settings", "flavours"):
        assert page.count(f"<!-- {mark} -->") == page.count(f"<!-- /{mark} -->") == 1
    assert page.count(f"<!-- results:{name} -->") == page.count("<!-- /results -->") <= 1
    for setting in dataclasses.fields(METHODS[name].Config):
        assert page.count(f"| `method.{setting.name}` |") == 1


def test_a_table_says_defaults_and_choices_as_they_are_typed() -> None:
    rows = settings_pages.settings("method", CPromptConfig).splitlines()
    helps = {field.name: field.metadata["help"] for field in dataclasses.fields(CPromptConfig)}
    assert rows[0] == "| setting | default | meaning |"
    assert f"| `method.tau` | `1.15` | {helps['tau']} |" in rows
    assert f"| `method.keys` | `class` (or `task`) | {helps['keys']} |" in rows
    assert any(row.startswith("| `method.ccl` | `true` | ") for row in rows)
    [line] = [x for x in settings_pages.settings("data", DataConfig).splitlines() if "form`" in x]
    for transform in RECIPES:  # each is described on the page that the line leads to
        assert f"`{transform}`" in line
        assert f"\n| `{transform}` |" in (settings_pages.DOCS / "datasets.md").read_text("utf-8")
    assert any(row.startswith("| `method.layers` | empty | ") for row in rows)
