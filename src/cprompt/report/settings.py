"""The settings of recorded runs: what decides their numbers, and where they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from cprompt.errors import ConfigError
from cprompt.research.config import config_from_dict, deciding_settings, flatten, resolve
from cprompt.research.record import Record

METHOD = "method.name"


def settings_of(record: Record) -> dict[str, Any]:
    """What decides a run's numbers besides its seeds, by dotted name.

    Settings that are newer than the record have their defaults. `stream.sizes` are the task sizes,
    however they were asked for. The backbone counts by its fingerprint.
    """
    plain: Mapping[str, Any] = record.config
    with suppress(ConfigError):  # a method that is not installed, or settings renamed since
        plain = config_from_dict(plain).to_dict()
    counts = {k: v for k, v in deciding_settings(plain).items() if k not in ("seeds", "stream")}
    flat = flatten(counts)
    flat.pop("backbone.weights", None)
    flat["stream.sizes"] = list(record.stream.sizes)
    flat["backbone.fingerprint"] = record.backbone.get("fingerprint")
    return flat


def recipe_settings_of(record: Record) -> dict[str, Any]:
    """The settings that the benchmark's recipe gives the record's method, by dotted name.

    The defaults where the recipe is not known here; nothing where the method is not either.
    """
    method, flavour = method_of(record), record.config.get("flavour")
    with suppress(ConfigError):
        return flatten(deciding_settings(resolve(benchmark_of(record), method, flavour).public()))
    with suppress(ConfigError):
        return flatten(deciding_settings(config_from_dict({"method": {"name": method}}).to_dict()))
    return {}


def method_of(record: Record) -> str:
    """The method's name as settings write it."""
    return str(record.config.get("method", {}).get("name", "unknown"))


def benchmark_of(record: Record) -> str:
    """The benchmark's name, or the dataset's where an old record has none."""
    return str(record.config.get("benchmark", record.dataset))


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names whose values are not the same everywhere; the method's name comes first."""
    names = sorted({name for one in settings for name in one}, key=lambda n: (n != METHOD, n))
    return [name for name in names if len({sort_key(one.get(name)) for one in settings}) > 1]


def sort_key(value: Any) -> str:
    """Text that is equal for equal values and gives any values an order."""
    return json.dumps(value, sort_keys=True, default=str)
