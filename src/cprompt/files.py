"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from cprompt.errors import CheckpointError

T = TypeVar("T")


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` beside `path`, to disk, and only then give it that name."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise CheckpointError(
            f"{path} cannot be written ({error.strerror}); make room or choose another folder"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON. NaN is refused, as JSON has none."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(path, (text + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON; a missing or broken file is named in the error."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}") from error


def with_prefix(prefix: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """Put `prefix/` before each name.

    >>> with_prefix("head", {"weight": 1})
    {'head/weight': 1}
    """
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under_prefix(prefix: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """Those tensors whose name starts with `prefix/`, without it.

    >>> under_prefix("head", {"head/weight": 1, "keys": 2})
    {'weight': 1}
    """
    start = f"{prefix}/"
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
