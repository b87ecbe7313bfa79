"""`cprompt list`: the names that other commands take."""

from __future__ import annotations

import pytest
import timm
import torch

from cprompt.data.registry import DATASETS
from cprompt.methods.registry import METHODS
from cprompt.research.config import PARTS
from cprompt.research.recipes import benchmarks, flavours, method_recipe
from cprompt.vit.catalogue import FOR_STRATA, PAPER_BACKBONE, SHORT_NAMES, SUGGESTED
from cprompt.vit.embedded import EMBEDDED
from cprompt.vit.promptable import is_promptable
from tests import fresh
from tests.cli.common import Main, ok, squeezed


def first_words(text: str) -> set[str]:
    return {line.split()[0] for line in text.splitlines() if line.strip()}


def test_list_names_everything_there_is() -> None:
    assert first_words(ok("list", "methods")) >= set(METHODS)
    assert first_words(ok("list", "benchmarks")) >= set(benchmarks())
    assert first_words(ok("list", "datasets")) >= set(DATASETS)
    assert first_words(ok("list", "backbones")) >= {
        PAPER_BACKBONE,
        *SUGGESTED,
        *FOR_STRATA,
        *SHORT_NAMES,
        *EMBEDDED,
    }
    assert not {*SUGGESTED} & {*EMBEDDED}  # the suggested ones are timm's


def test_names_are_whole_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert first_words(ok("list", "backbones")) >= {*SUGGESTED, *FOR_STRATA}


def test_list_says_which_backbones_can_be_prompted() -> None:
    rows = [line.split()[:2] for line in ok("list", "backbones").splitlines()]
    for name in (PAPER_BACKBONE, *SUGGESTED, *EMBEDDED):
        assert [name, "all"] in rows
    for name in FOR_STRATA:
        assert [name, "strata"] in rows
        assert name in timm.list_pretrained()
        # Built without memory for its weights; only the kind of model matters.
        with torch.device("meta"):
            assert not is_promptable(timm.create_model(name.partition(".")[0]))


def test_list_says_what_each_method_is() -> None:
    printed = squeezed(ok("list", "methods"))
    for name in METHODS:
        assert f"\n{name} {METHODS.info(name).summary}" in printed


def test_the_methods_are_listed_without_importing_any() -> None:
    program = """
import sys
from cprompt.cli import main
sys.argv = ["cprompt", "list", "methods"]
try:
    main()
finally:
    assert not {"torch", "timm"} & {*sys.modules}
"""
    assert "cprompt" in fresh.printed(program)


def test_list_settings_names_every_setting_with_its_default() -> None:
    printed = ok("list", "settings")
    lines = [line.split() for line in printed.splitlines()]
    for part, config in PARTS.items():
        for name in config.__dataclass_fields__:
            assert f"{part}.{name}" in first_words(printed)
    for method, cls in METHODS.items():
        assert ["with", "--method", method] in lines
        for name in cls.Config.__dataclass_fields__:
            assert f"method.{name}" in first_words(printed)
    assert ["training.lr", "0.01", "initial", "learning", "rate"] in lines
    assert "(inputs in [0,1])" in printed


def test_list_recipes_names_every_recipe_and_what_it_sets() -> None:
    printed = ok("list", "recipes")
    lines = [line.split() for line in printed.splitlines()]
    sets = "training.epochs=120, method.tau=1.15, method.margin=0.1"
    assert ["cars10", "cprompt", *sets.split()] in lines
    for method in METHODS:
        for flavour in flavours(method) or [""]:
            recipe = method_recipe(method, flavour or None)[1]
            for benchmark in ["all", *recipe.get("benchmarks", {})]:
                start = [benchmark, method, *flavour.split()]
                assert start in [line[: len(start)] for line in lines], start


def test_what_cannot_be_listed_is_answered_with_what_can(main: Main) -> None:
    code, _, err = main("list", "colours")
    assert code == 2
    assert all(kind in err for kind in ("methods", "benchmarks", "datasets", "backbones"))
