"""The package's recipes, as plain values."""

from __future__ import annotations

import pytest

from cprompt.errors import ConfigError
from cprompt.methods.registry import METHODS
from cprompt.research.recipes import (
    benchmark_recipe,
    benchmarks,
    flavours,
    is_table_file,
    method_recipe,
    read_recipe,
    recipe_names,
)


def test_every_benchmark_has_a_summary_data_and_a_stream() -> None:
    for name in benchmarks():
        recipe = benchmark_recipe(name)
        assert recipe["summary"]
        assert recipe["data"]["dataset"]
        assert len(recipe["stream"]) == 1
    with pytest.raises(ConfigError, match="'cars1O'") as caught:
        benchmark_recipe("cars1O")
    assert "'cars10'" in str(caught.value.hint)


def test_every_recipe_of_a_method_is_of_a_method_and_of_benchmarks_that_exist() -> None:
    assert set(recipe_names("methods")) <= set(METHODS)
    for name in METHODS:
        for flavour in flavours(name) or [None]:
            _, recipe = method_recipe(name, flavour)
            assert set(recipe.get("benchmarks", {})) <= set(benchmarks())


def test_the_default_flavour_comes_first_and_is_taken() -> None:
    assert flavours("l2p") == ["matched", "official"]
    assert method_recipe("l2p") == method_recipe("l2p", "matched")
    assert method_recipe("cprompt")[0] is None
    with pytest.raises(ConfigError, match="'quick'") as caught:
        method_recipe("l2p", "quick")
    assert "official" in str(caught.value.hint)


def test_a_recipe_that_was_changed_is_read_unchanged() -> None:
    read_recipe("benchmarks", "shapes")["stream"]["increment"] = 99
    assert read_recipe("benchmarks", "shapes")["stream"]["increment"] == 5


@pytest.mark.parametrize(
    ("name", "is_file"), [("mine.yaml", True), ("a/mine.yml", True), ("cars10", False)]
)
def test_a_table_file_is_known_by_its_ending(name: str, is_file: bool) -> None:
    assert is_table_file(name) is is_file
