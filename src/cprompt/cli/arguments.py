"""Settings by dotted name on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer
import yaml
from typer.core import TyperCommand

from cprompt.errors import ConfigError

TRACK = typer.Option(
    ["jsonl"],
    help="Where losses and metrics are written on the way: jsonl (events.jsonl in the run's "
    "folder), tensorboard, wandb, mlflow or none; may be given several times.",
)

_NAME = re.compile(r"\w+(\.\w+)+")


class TakesSettings(TyperCommand):
    """A command that takes settings, --PART.NAME VALUE, anywhere beside its own arguments.

    They are in the context's `args`, and so is whatever else nobody asked for.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.allow_extra_args = self.ignore_unknown_options = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the settings out before a value of theirs can be taken for an argument."""
        own, settings = split_settings(args)
        ctx.args = left = [*super().parse_args(ctx, own), *settings]
        return left


def split_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that are no settings, and those of the settings with their values."""
    own: list[str] = []
    settings: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if not (name.startswith("--") and _NAME.fullmatch(name[2:])):
            own.append(word)
            continue
        settings.append(word)
        if not equals and rest and not rest[0].startswith("--"):
            settings.append(rest.pop(0))
    return own, settings


def parse_settings(arguments: Sequence[str]) -> dict[str, Any]:
    """`--a.b 1`, `--a.b=1` and `a.b=1` to {"a.b": 1}; values are read as YAML."""
    settings: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{word!r} is no option of this command; settings are written --PART.NAME VALUE, "
                "such as --training.epochs 5 (see --help and `cprompt list settings`)"
            )
        if not equals:
            if not word.startswith("--") or not rest or rest[0].startswith("--"):
                raise ConfigError(f"setting {name!r} has no value; write --{name} VALUE")
            value = rest.pop(0)
        settings[name] = parse_value(value)
    return settings


def parse_value(text: str) -> Any:
    """A number, true/false, null, a list (`a,b` or YAML's) or text."""
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str) and "," in value:
        return [parse_value(part.strip()) for part in value.split(",")]
    return value
