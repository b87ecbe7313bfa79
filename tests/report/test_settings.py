"""The settings that count, and where they differ."""

from __future__ import annotations

from cprompt.report.settings import differing, recipe_settings_of, settings_of
from tests.report.records import MakeRun


def test_settings_hold_no_seeds_and_the_sizes_as_they_are(make_run: MakeRun) -> None:
    settings = settings_of(make_run().record)
    assert not any(name.startswith(("seeds", "execution", "cache")) for name in settings)
    assert settings["stream.sizes"] == [2, 1, 2]
    assert settings["method.ccl"] is True
    assert settings["backbone.fingerprint"] == "0123456789abcdef"


def test_the_method_comes_first_among_settings_that_differ() -> None:
    one = {"a": 1, "method.name": "x", "b": [1, 2], "c": None}
    two = {"a": 2, "method.name": "y", "b": [1, 2]}
    assert differing([one, two]) == ["method.name", "a"]
    assert differing([one, one]) == []


def test_recipe_settings_are_those_of_the_benchmark_or_the_defaults(make_run: MakeRun) -> None:
    run = make_run(training__lr=0.3)
    recipe = recipe_settings_of(run.record)
    assert settings_of(run.record)["training.lr"] == 0.3
    assert recipe["training.lr"] == make_run().record.config["training"]["lr"]
    run.record.config["benchmark"] = "somebody else's"
    assert recipe_settings_of(run.record)["method.ccl"] is True
    run.record.config["method"] = {"name": "somebody else's"}
    assert recipe_settings_of(run.record) == {}
