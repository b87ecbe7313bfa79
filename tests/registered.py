"""Methods and datasets that a page registers are gone after its test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cprompt.data.registry import DATASETS
from cprompt.methods.registry import METHODS


@contextmanager
def forgotten_afterwards() -> Iterator[None]:
    """Removes new names only.

    A copy of the whole registry must not be put back: a built-in method registers itself when its
    module is first imported, and a module is imported once.
    """
    registries: tuple[Any, ...] = (METHODS, DATASETS)
    before = [set(registry) for registry in registries]
    try:
        yield
    finally:
        for registry, names in zip(registries, before, strict=True):
            for name in set(registry) - names:
                for table in ("_infos", "_classes"):
                    getattr(registry, table, {}).pop(name, None)
