"""Options that several commands share, and settings by their dotted names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import typer
import yaml
from typer.core import TyperGroup

from cprompt import gpus, plugins
from cprompt.cli.output import say
from cprompt.errors import ConfigError

SOME_UNREAD = 3
"""Exit status if some photos could not be read."""

MODEL = typer.Argument(help="A model folder, made by `cprompt learn`.")


def tell_of_unused_gpu(device: str = "auto") -> str:
    """Say on standard error if the command will not use a GPU that is there."""
    line = gpus.unused_gpu() if device == "auto" else None
    if line is not None:
        from rich.console import Console

        say(line, console=Console(stderr=True))
    return device


DEVICE = typer.Option("auto", callback=tell_of_unused_gpu, help="auto, cpu, cuda or mps.")
PRECISION = typer.Option(
    "fp32", help="fp32, bf16, or auto: whichever is faster here, measured once."
)
MOVED_WEIGHTS = typer.Option(
    None, help="The backbone's weights, if the file that the model was learnt on has moved."
)
BACKBONE = typer.Option(None, help="Another backbone than the paper's.")
WEIGHTS = typer.Option(None, help="Local file with the backbone's weights.")
RUNS = typer.Option(Path("runs"), help="Folder that runs are kept in.")
TRACK = typer.Option(
    ["jsonl"],
    help="Where losses and metrics are written during a run: jsonl (events.jsonl in the run's "
    "folder), tensorboard, wandb, mlflow or none; may be given several times.",
)
ON = typer.Option(
    None,
    metavar="ray|HOST:PORT|ray://HOST:PORT",
    help="Spread the work with Ray over this machine, or over a cluster; needs cprompt\\[ray].",
)
GPUS = typer.Option(0.0, min=0.0, help="With --on: GPUs of each worker; 0.25 lets four share one.")
CPUS_PER_RUN = typer.Option(
    1, min=1, help="With --on: cores of each run, and its number of threads."
)
MAX_PARALLEL = typer.Option(
    None, min=1, help="With --on: runs at a time.", show_default="as many as there is room for"
)

TOGETHER = typer.Option(
    1,
    min=1,
    help="Runs at a time in this process, which take turns: small backbones leave room on a GPU.",
)


def _import_plugins(modules: list[str]) -> list[str]:
    for module in modules:
        plugins.import_module(module)
    return modules


PLUGINS = typer.Option(
    [],
    "--plugin",
    metavar="MODULE",
    is_eager=True,  # its methods and datasets are known before other options are looked at
    callback=_import_plugins,
    help="Python module with methods or datasets of your own, such as toy for toy.py in this "
    "folder; may be given several times.",
)

# --- settings -----------------------------------------------------------------------------------

_SET = "--set"
_DOTTED = re.compile(r"\w+(\.\w+)+")

SETTINGS = typer.Option(
    [],
    _SET,
    metavar="PART.NAME=VALUE",
    help="A setting by its name. --PART.NAME VALUE is the same, such as --training.epochs 5.",
)
ALLOW_BARE_SETTINGS = {"allow_extra_args": True}
"""Context settings of a command that takes `PART.NAME=VALUE` after its arguments."""


class SettingsGroup(TyperGroup):
    """The commands; those with `--set` also take `--PART.NAME VALUE`, anywhere.

    An option whose value is shown as `[FILE.ending]` may also stand alone: see `with_files`.

    Click has no options without a fixed name. `resolve_command` is the method that Click's
    documentation overrides to change what a command is given, so the words are changed here.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command and write its settings as `--set`."""
        name, command, words = super().resolve_command(ctx, args)
        if command is not None and any(_SET in parameter.opts for parameter in command.params):
            words = settings_as_options(words)
        if command is not None:
            shown = {parameter.opts[0]: parameter.metavar for parameter in command.params}
            words = with_files(words, {o: m for o, m in shown.items() if m and m[0] == "["})
        return name, command, words


def settings_as_options(words: Sequence[str]) -> list[str]:
    """`--a.b 1` and `--a.b=1` as `--set a.b=1`; other words, and all after `--`, stay as they are.

    A setting without a value becomes `--set a.b`, which `parse_settings` refuses by name.

    >>> settings_as_options(["--seeds.init", "-3", "cars10", "--resume", "--method.tau=1.2"])
    ['--set', 'seeds.init=-3', 'cars10', '--resume', '--set', 'method.tau=1.2']
    """
    written: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*written, word, *rest]
        name, equals, _ = word.partition("=")
        if not (name.startswith("--") and _DOTTED.fullmatch(name[2:])):
            written.append(word)
            continue
        setting = word[2:]
        if not equals and rest and not rest[0].startswith("--"):
            setting += f"={rest.pop(0)}"
        written += [_SET, setting]
    return written


def with_files(words: Sequence[str], optional: Mapping[str, str]) -> list[str]:
    """Give an option that stands alone the value `-`, standard output.

    `optional` maps each option to its `[FILE.ending]`. The next word is the option's file only if
    it has that ending: in `--csv cat.jpg` it is a photo. `--csv=NAME` takes any name.

    >>> with_files(["--csv", "a.csv"], {"--csv": "[FILE.csv]"})
    ['--csv', 'a.csv']
    >>> with_files(["--csv", "cat.jpg"], {"--csv": "[FILE.csv]"})
    ['--csv=-', 'cat.jpg']
    """
    written: list[str] = []
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if "--" in written:
            written.append(word)
            continue
        ending = Path(optional.get(word, "").strip("[]")).suffix
        takes_next = following == "-" or Path(following).suffix.lower() == ending
        written.append(word if word not in optional or takes_next else f"{word}=-")
    return written


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """`a.b=1` as {"a.b": 1}; values are read as YAML.

    >>> parse_settings(["training.epochs=5", "stream.sizes=3,1,2"])
    {'training.epochs': 5, 'stream.sizes': [3, 1, 2]}
    """
    settings: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not _DOTTED.fullmatch(name):
            raise ConfigError(
                f"{word!r} is neither an argument of this command nor a setting",
                hint="settings are written --PART.NAME VALUE, such as --training.epochs 5; "
                "`cprompt list settings` shows them",
            )
        if not equals:
            raise ConfigError(f"setting {name!r} has no value", hint=f"write --{name} VALUE")
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
