"""Settings by dotted name on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer
import yaml

from cprompt.errors import ConfigError

SETTINGS_AFTER = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command that takes settings beside its own options."""

TRACK = typer.Option(
    ["jsonl"],
    help="Where losses and metrics are written on the way: jsonl (events.jsonl in the run's "
    "folder), tensorboard, wandb, mlflow or none; may be given several times.",
)

_NAME = re.compile(r"\w+(\.\w+)+")


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
