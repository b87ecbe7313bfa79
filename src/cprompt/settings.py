"""Settings as dataclasses that check themselves: built from YAML, JSON or dotted names."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from cprompt.errors import ConfigError

C = TypeVar("C")


def setting(default: Any, help: str) -> Any:
    """A dataclass field with a default and a line for `--help`."""
    return dataclasses.field(default=default, metadata={"help": help})


def check(condition: bool, message: str) -> None:
    """Raise a ConfigError with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


def from_mapping(config: type[C], values: Mapping[str, Any], where: str) -> C:
    """Build `config` (a dataclass, possibly nested) from plain values.

    A single value stands for a list of one. Unknown names and values of the wrong type raise a
    ConfigError whose message starts with `where`.

    >>> @dataclasses.dataclass
    ... class Training:
    ...     epochs: int = setting(50, "Passes over the images of a task.")
    >>> from_mapping(Training, {"epochs": 3}, "training")
    Training(epochs=3)
    >>> from_mapping(Training, {"epochs": "three"}, "training")
    Traceback (most recent call last):
    ...
    cprompt.errors.ConfigError: training.epochs: ...
    """
    hints = typing.get_type_hints(config)
    names = [f.name for f in dataclasses.fields(config) if f.init]  # type: ignore[arg-type]
    built: dict[str, Any] = {}
    for name, value in values.items():
        if name not in names:
            raise ConfigError(f"{where}: no setting {name!r}", hint=suggest(name, names))
        hint = hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
            built[name] = from_mapping(typing.cast(type, hint), value, f"{where}.{name}")
        else:
            built[name] = _convert(hint, value, f"{where}.{name}")
    try:
        return config(**built)
    except ConfigError as error:
        message = f"{where}: {error.message}"
        raise ConfigError(message, hint=error.hint, file=error.file) from None


def keywords(function: Callable[..., Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Convert plain values to the annotated types of `function`'s keyword arguments.

    A value of the wrong type raises a ConfigError.
    """
    hints = typing.get_type_hints(function)
    return {
        name: _convert(hints.get(name, Any), value, f"{where}.{name}")
        for name, value in values.items()
    }


def suggest(name: object, names: list[str]) -> str:
    """A hint for an unknown name: the most similar known name, or all known names."""
    near = difflib.get_close_matches(str(name), names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"


def to_mapping(config: Any) -> dict[str, Any]:
    """Plain values of a dataclass, equal to what JSON or YAML would give back."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(config))
    return plain


def _plain(value: Any) -> Any:
    """Lists for tuples, at every level."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _convert(hint: Any, value: Any, where: str) -> Any:
    """`value` as the annotated type, or a ConfigError that says what was expected."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        for option in args:
            try:
                return _convert(option, value, where)
            except ConfigError:
                continue
        raise ConfigError(f"{where}: {value!r} is not {_describe(hint)}")
    if origin is typing.Literal:
        if value in args:
            return value
        raise ConfigError(f"{where}: {value!r} is not one of {', '.join(map(repr, args))}")
    if origin in (tuple, Sequence):
        if isinstance(value, (list, tuple)):
            return tuple(_convert(args[0], v, where) for v in value)
        with contextlib.suppress(ConfigError):  # on a command line, a list of one has no comma
            return (_convert(args[0], value, where),)
        raise ConfigError(f"{where}: {value!r} is not {_describe(hint)}")
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # a whole number of hundreds of digits
            return float(value)
    if origin is dict and isinstance(value, Mapping):
        return dict(value)
    plain = origin or hint
    if isinstance(value, plain) and not (plain is int and isinstance(value, bool)):
        return value
    raise ConfigError(f"{where}: {value!r} is not {_describe(hint)}")


def _describe(hint: Any) -> str:
    args = typing.get_args(hint)
    if hint is type(None):
        return "empty"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_describe(a) for a in args)
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(repr, args))
    if typing.get_origin(hint) in (tuple, Sequence):
        return f"a list (each {_describe(args[0])})"
    if typing.get_origin(hint) is dict or dataclasses.is_dataclass(hint):
        return "names and values"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(
        hint, getattr(hint, "__name__", str(hint))
    )
