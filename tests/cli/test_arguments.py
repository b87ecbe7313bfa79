"""Settings by dotted names, wherever they stand, and plugins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cprompt.cli.arguments import parse_settings, parse_value, settings_as_options, with_files
from cprompt.errors import ConfigError
from cprompt.methods.registry import METHODS
from tests.cli.common import Main, ok


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("1e-3", 0.001),
        ("2.5", 2.5),
        ("true", True),
        ("null", None),
        ("word", "word"),
        ("3,1,2", [3, 1, 2]),
        ("selected, given", ["selected", "given"]),
        ("[3, 1]", [3, 1]),
        ("{a: 1}", {"a": 1}),
        ("random:0", "random:0"),
        ("/a/b [c", "/a/b [c"),
        ("a: b: c", "a: b: c"),
    ],
)
def test_values_are_read_as_what_they_look_like(text: str, value: Any) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_settings_are_told_from_a_command_s_own_words() -> None:
    words = "--a.b 1 run --out x.y --c.d=2 --e.f -3 --resume --g.h --data z --i.j"
    assert settings_as_options(words.split()) == [
        "--set",
        "a.b=1",
        "run",
        "--out",
        "x.y",
        "--set",
        "c.d=2",
        "--set",
        "e.f=-3",
        "--resume",
        "--set",
        "g.h",
        "--data",
        "z",
        "--set",
        "i.j",
    ]


def test_words_after_two_dashes_are_no_settings() -> None:
    words = ["--a.b", "1", "--", "--c.d", "2"]
    assert settings_as_options(words) == ["--set", "a.b=1", "--", "--c.d", "2"]


def test_a_setting_is_a_name_and_a_value() -> None:
    settings = parse_settings(["a.b=1", "d.e=x=y", "f.g.h=-1", "i.j="])
    assert settings == {"a.b": 1, "d.e": "x=y", "f.g.h": -1, "i.j": None}
    for word, fault in (("a.b", "'a.b'"), ("5", "'5'"), ("epochs=5", "'epochs=5'")):
        with pytest.raises(ConfigError, match=fault) as error:
            parse_settings([word])
        assert error.value.hint is not None
        assert "VALUE" in error.value.hint


@pytest.mark.parametrize(
    "arguments",
    [
        "--training.epochs 3 demo --dry-run --method.tau 1.5 --training.weight_decay 0",
        "demo --training.epochs=3 --dry-run method.tau=1.5 --training.weight_decay=0",
        "--dry-run --method.tau 1.5 --training.weight_decay 0 --training.epochs 3 demo",
        "demo --set training.epochs=3 --set method.tau=1.5 --dry-run training.weight_decay=0",
    ],
)
def test_settings_may_stand_anywhere(arguments: str) -> None:
    shown = yaml.safe_load(ok("run", *arguments.split()))
    assert shown["training"]["epochs"] == 3
    assert shown["training"]["weight_decay"] == 0
    assert shown["method"]["tau"] == 1.5


def test_negative_values_are_values(main: Main) -> None:
    message = main.error("run", "--seeds.init", "-3", "shapes", "--training.lr", "-1", "--dry-run")
    assert "-1" in message
    assert "has no value" not in message


def test_a_word_too_many_is_answered_with_how_settings_are_written(main: Main) -> None:
    message = main.error("run", "shapes", "5")
    assert message.startswith("'5' ")
    assert "--PART.NAME VALUE" in message


def test_a_wrong_option_is_answered_with_the_nearest(main: Main) -> None:
    code, _, err = main("table", "aux", "--smal")
    assert code == 2
    assert "--smal" in err
    assert "--small" in err
    assert "Traceback" not in err


def test_commands_without_settings_take_none(main: Main) -> None:
    code, _, err = main("show", "runs/x", "--training.lr", "1")
    assert code == 2
    assert "--training.lr" in err
    assert "--set" not in err


# --- plugins ------------------------------------------------------------------------------------

TOY = """
from dataclasses import dataclass

from cprompt.methods.base import register
from cprompt.methods.finetune import FineTune
from cprompt.methods.parts.token_prompts import SegmentsConfig


@dataclass(frozen=True)
class ToyConfig(SegmentsConfig):
    spice: int = 7


@register("toy", ToyConfig, title="Toy")
class Toy(FineTune):
    \"\"\"A method from a file.\"\"\"
"""


@pytest.fixture
def _toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """toy.py in the working folder; what importing it changes is undone."""
    Path("toy.py").write_text(TOY)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("toy", None)
    for known in (METHODS._infos, METHODS._classes):
        known.pop("toy", None)


@pytest.mark.usefixtures("_toy")
@pytest.mark.parametrize("name", ["toy", "toy.py"])
def test_a_plugin_s_method_is_listed_and_run(name: str) -> None:
    assert "A method from a file." in ok("list", "methods", "--plugin", name)
    shown = yaml.safe_load(ok("run", "shapes", "--method", "toy", "--plugin", name, "--dry-run"))
    assert (shown["method"]["name"], shown["method"]["spice"]) == ("toy", 7)


@pytest.mark.usefixtures("_toy")
def test_without_the_plugin_the_error_says_to_name_it(main: Main) -> None:
    message = main.error("run", "shapes", "--method", "toy", "--dry-run")
    assert "--plugin" in message


def test_a_plugin_that_cannot_be_imported_is_named(main: Main) -> None:
    Path("broken_toy.py").write_text("1 / 0")
    assert "'broken_toy'" in main.error("list", "methods", "--plugin", "broken_toy")
    assert "'nowhere_toy'" in main.error("list", "methods", "--plugin", "nowhere_toy")


@pytest.mark.parametrize(
    "command",
    ["run", "table", "learn", "predict", "evaluate", "serve", "export", "list", "doctor"],
)
def test_commands_that_may_need_a_plugin_take_several(command: str, main: Main) -> None:
    assert "--plugin" in ok(command, "--help")
    Path("fine_toy.py").write_text("")
    message = main.error(command, "--plugin", "fine_toy", "--plugin", "nowhere_toy", "x", "y")
    assert "'nowhere_toy'" in message  # before arguments are looked at


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], []),
        (["model", "--csv"], ["model", "--csv=-"]),
        (["--csv", "A.CSV", "x"], ["--csv", "A.CSV", "x"]),
        (["--csv", "x.jpg", "--json"], ["--csv=-", "x.jpg", "--json=-"]),
        (["--csv", "-", "--json=x.txt"], ["--csv", "-", "--json=x.txt"]),
        (["--csv", "--", "--json"], ["--csv=-", "--", "--json"]),
        (["--top", "3", "--csv", "no ending"], ["--top", "3", "--csv=-", "no ending"]),
    ],
)
def test_an_option_takes_the_next_word_only_if_it_is_its_file(
    words: list[str], expected: list[str]
) -> None:
    assert with_files(words, {"--csv": "[FILE.csv]", "--json": "[FILE.json]"}) == expected
