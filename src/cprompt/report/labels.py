"""Labels of series: the method's name, and the settings that tell its series apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cprompt.methods.registry import METHODS
from cprompt.report.settings import differing, recipe_settings_of
from cprompt.research.record import Record

MOST_SETTINGS = 4
"""A label that would name more settings than this names three and counts the others."""


def labels_of(method: str, alike: Sequence[tuple[Mapping[str, Any], Record]]) -> list[str]:
    """One label for each series of a method, no longer than needed to tell them apart.

    alike: the settings of each series, and one of its records. A setting is named where it differs
    between series and is not what the recipe gives.
    """
    name = METHODS.title(method)
    flavours = [record.config.get("flavour") for _, record in alike]
    labels = []
    for (settings, record), flavour in zip(alike, flavours, strict=True):
        peers = [s for (s, _), f in zip(alike, flavours, strict=True) if f == flavour]
        names = [n for n in differing(peers) if n != "flavour"]
        if "backbone.name" in names:
            names = [n for n in names if n != "backbone.fingerprint"]
        usual = recipe_settings_of(record) if names else {}
        unusual = {n: settings.get(n) for n in names if usual.get(n, ...) != settings.get(n)}
        short = {n: _short_name(n) for n in names}
        often = Counter(short.values())
        parts = [str(flavour)] if flavour and len(set(flavours)) > 1 else []
        for n, value in unusual.items():
            text = str(value)[:8] if n == "backbone.fingerprint" else _value_text(value)
            parts.append(f"{n if often[short[n]] > 1 else short[n]} {text}")
        if len(parts) > MOST_SETTINGS:
            parts = [*parts[: MOST_SETTINGS - 1], f"{len(parts) - MOST_SETTINGS + 1} more"]
        labels.append(", ".join([name, *parts]))
    return _numbered(labels)


def _numbered(labels: Sequence[str]) -> list[str]:
    """`label #2` and so on where labels repeat."""
    seen: Counter[str] = Counter()
    numbered = []
    for label in labels:
        seen[label] += 1
        numbered.append(label if seen[label] == 1 else f"{label} #{seen[label]}")
    return numbered


def _short_name(name: str) -> str:
    """The last part of a dotted setting, or a clearer word."""
    special = {"backbone.name": "backbone", "backbone.fingerprint": "weights"}
    last = name.rpartition(".")[2]
    return special.get(name, f"data {last}" if name.startswith("data.options.") else last)


def _value_text(value: Any) -> str:
    """A setting's value, short: on and off for yes and no."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "on", False: "off"}[value]
    if isinstance(value, list):
        text = "+".join(map(_value_text, value))
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else f"{text[:21]}…"
