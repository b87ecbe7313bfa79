"""Whether the fields of a record's file have the types, lengths and ranges that runs write."""

from __future__ import annotations

import itertools
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cprompt.errors import ConfigError, DataError
from cprompt.research.stream import TaskStream

Check = Callable[[Any, str], None]
"""Raises a DataError about a value, which is at that place in the file."""

MOST = 2**53
"""The largest count: floats hold all whole numbers up to it, and sums of a few fit an array."""


def check_fields(values: Mapping[str, Any]) -> None:
    """Raise a DataError that names the first field of a record's file that no run can have written.

    `values` are those of the file. Fields that older versions did not write may be absent.

    >>> check_fields({"config": {}})
    Traceback (most recent call last):
    ...
    cprompt.errors.DataError: `stream` is missing
    """
    for name, check in _NEEDED.items():
        if name not in values:
            raise DataError(f"`{name}` is missing")
        check(values[name], name)
    for name, check in _ADDED.items():
        if name in values:
            check(values[name], name)
    stream = TaskStream.from_dict(values["stream"])
    _length(values["classes"], "classes", stream.n_classes)
    planned = values["config"].get("stream", {}).get("first_tasks") or stream.n_tasks
    if planned > stream.n_tasks:
        raise _wrong(planned, "config.stream.first_tasks", f"at most {stream.n_tasks}, all tasks")
    for name, most in (("rows", planned), ("losses", stream.n_tasks), ("movement", stream.n_tasks)):
        if len(values.get(name, ())) > most:
            raise DataError(f"`{name}` has {len(values[name])} entries for {most} tasks")
    _check_rows(values["rows"], stream)


def _check_rows(rows: Sequence[Mapping[str, Any]], stream: TaskStream) -> None:
    """Lengths and counts of each row, for the classes that were seen by then."""
    seen = list(itertools.accumulate(stream.sizes))
    before: list[int] = []
    for task, row in enumerate(rows):
        where, count = f"rows[{task}]", row["count"]
        _length(count, f"{where}.count", seen[task])
        if count[: len(before)] != before:
            raise DataError(f"`{where}.count` differs from that of the task before")
        before = count
        modes = row["correct"]
        if "selected" not in modes or set(modes) != set(rows[0]["correct"]):
            raise DataError(
                f"`{where}.correct` has the modes {', '.join(modes) or 'none'}; "
                "expected 'selected', and the same ones after every task"
            )
        counted = {f"{where}.correct.{mode}": correct for mode, correct in modes.items()}
        if row["top_k"] is not None:
            counted[f"{where}.top_k"] = row["top_k"]
        for place, correct in counted.items():
            _length(correct, place, seen[task])
            for position, (right, all_) in enumerate(zip(correct, count, strict=True)):
                if right > all_:
                    raise _wrong(
                        right, f"{place}[{position}]", f"at most {all_}, the test images there"
                    )
        if row["picks"] is not None:
            _check_picks(row["picks"], f"{where}.picks", count, seen[: task + 1])


def _check_picks(
    picks: Sequence[Sequence[int]], where: str, count: Sequence[int], seen: Sequence[int]
) -> None:
    """One row and one column per task; every test image of a task picked one prompt."""
    _length(picks, where, len(seen))
    for task, (picked, start, stop) in enumerate(zip(picks, [0, *seen], seen, strict=False)):
        _length(picked, f"{where}[{task}]", len(seen))
        if sum(picked) != sum(count[start:stop]):
            raise DataError(
                f"`{where}[{task}]` counts {sum(picked)} images, but the task has "
                f"{sum(count[start:stop])} test images"
            )


def _wrong(value: object, where: str, expected: str) -> DataError:
    return DataError(f"`{where}` is {reprlib.repr(value)}; expected {expected}")


def _length(values: Sequence[Any], where: str, expected: int) -> None:
    if len(values) != expected:
        raise DataError(f"`{where}` has {len(values)} entries; expected {expected}")


# --- types --------------------------------------------------------------------------------------


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise _wrong(value, where, "text")


def _whole(value: Any, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise _wrong(value, where, "a whole number, 0 or more")


def _integer(value: Any, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(value, where, "a whole number")


def _positive(value: Any, where: str) -> None:
    _whole(value, where)
    if not value:
        raise _wrong(value, where, "at least 1")


def _number(value: Any, where: str) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST
    if not whole and not (isinstance(value, float) and math.isfinite(value)):
        raise _wrong(value, where, "a number")


def _at_least_zero(value: Any, where: str) -> None:
    _number(value, where)
    if value < 0:
        raise _wrong(value, where, "0 or more")


def _anything(value: Any, where: str) -> None:
    """Nothing to check: it is only shown, or not read."""


def _mapping(each: Check = _anything) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise _wrong(value, where, "names and values")
        for name, inside in value.items():
            each(inside, f"{where}.{name}")

    return check


def _list(each: Check) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, list):
            raise _wrong(value, where, "a list")
        for index, inside in enumerate(value):
            each(inside, f"{where}[{index}]")

    return check


def _optional(other: Check) -> Check:
    def check(value: Any, where: str) -> None:
        if value is not None:
            other(value, where)

    return check


def _fields(
    needed: Mapping[str, Check], may: Mapping[str, Check] | None = None, more: bool = True
) -> Check:
    """A mapping with the `needed` names; `may` are checked if they are there, `more` may be."""
    known = {**needed, **(may or {})}

    def check(value: Any, where: str) -> None:
        _mapping()(value, where)
        for name in needed:
            if name not in value:
                raise DataError(f"`{where}.{name}` is missing")
        for name, inside in value.items():
            if name in known:
                known[name](inside, f"{where}.{name}")
            elif not more:
                raise DataError(f"`{where}.{name}` is unknown")

    return check


def _stream(value: Any, where: str) -> None:
    _mapping(_list(_whole))(value, where)
    try:
        TaskStream.from_dict(value)
    except ConfigError as error:
        raise DataError(f"`{where}` is inconsistent: {error}") from None


def _order(value: Any, where: str) -> None:
    """A seed, "natural" or the labels in order."""
    if isinstance(value, list):
        _list(_whole)(value, where)
    elif value != "natural":
        _integer(value, where)


_config = _fields(
    {},
    {
        "benchmark": _text,
        "flavour": _optional(_text),
        "method": _fields({"name": _text}),
        "seeds": _fields({}, {"order": _order, "init": _integer, "data": _integer}),
        "stream": _fields({}, {"first_tasks": _optional(_positive)}),
        **dict.fromkeys(("data", "backbone", "training", "evaluation", "execution"), _mapping()),
    },
)
_counts = _list(_whole)
_row = _fields(
    {
        "count": _counts,
        "correct": _mapping(_counts),
        "top_k": _optional(_counts),
        "picks": _optional(_list(_counts)),
    },
    more=False,
)
_movement = _fields(
    dict.fromkeys(("began", "moved", "turned"), _at_least_zero),
    {"lr_scale": _at_least_zero},
    more=False,
)
_NEEDED: dict[str, Check] = {
    "config": _config,
    "stream": _stream,
    "dataset": _text,
    "classes": _list(_text),
    "backbone": _fields(
        {}, {"name": _text, "weights": _text, "fingerprint": _text, "layers": _counts}
    ),
    "pictures": _mapping(_whole),
    "rows": _list(_row),
}
_ADDED: dict[str, Check] = {
    "parameters": _mapping(_whole),
    "losses": _list(_list(_mapping(_number))),
    "movement": _list(_mapping(_movement)),
    "seconds": _mapping(_at_least_zero),
    "test_passes": _mapping(_whole),
    "memory": _mapping(_whole),
    "environment": _mapping(),
    "failure": _optional(_text),
}
