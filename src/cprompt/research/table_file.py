"""User-defined tables in YAML files, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cprompt.errors import ConfigError
from cprompt.research import metrics
from cprompt.research.config import read_yaml
from cprompt.research.recipes import benchmarks
from cprompt.settings import suggest

_MODES = ("selected", "given", "first")
_TABLE = {
    **{"title": str, "paper": str, "benchmarks": list, "columns": dict, "rows": list},
    **{"notes": list, "notes_on": dict},
}
_ROW = {
    **{"label": str, "method": str, "flavour": str, "mode": str, "set": dict, "paper": dict},
    "chosen": dict,
}
_CHOSEN = {"flavour": str, "set": dict}
_DESCRIBED: dict[type, str] = {str: "text", list: "a list", dict: "names and values"}


def read_table_file(path: Path) -> dict[str, Any]:
    """The content of a table's file; a ConfigError names the file and the key at fault.

    `title`, `benchmarks`, `columns` and `rows` are required, and `label` in each row. Without
    `paper` the table has only our numbers. The settings of the rows are not checked here.
    """
    table = read_yaml(path)
    _check_keys(table, _TABLE, ("title", "benchmarks", "columns", "rows"), "", path)
    _check_names(table["benchmarks"], benchmarks(), "benchmarks", path)
    _check_names(list(table["columns"]), metric_names(), "columns", path)
    _check_names(list(table.get("notes_on", {})), table["benchmarks"], "notes_on", path)
    for number, row in enumerate(table["rows"], start=1):
        where = f"rows, number {number}: "
        _check_keys(row, _ROW, ("label",), where, path)
        _check_names([row.get("mode", "selected")], list(_MODES), f"{where}mode", path)
        _check_names(list(row.get("paper", {})), table["benchmarks"], f"{where}paper", path)
        _check_names(list(row.get("chosen", {})), table["benchmarks"], f"{where}chosen", path)
        for benchmark, chosen in row.get("chosen", {}).items():
            _check_keys(chosen, _CHOSEN, (), f"{where}chosen.{benchmark}: ", path)
        for benchmark, numbers in row.get("paper", {}).items():
            if not isinstance(numbers, list) or len(numbers) != len(table["columns"]):
                raise ConfigError(
                    f"{where}paper.{benchmark}: {numbers!r} is not a list of "
                    f"{len(table['columns'])} numbers, one per column",
                    file=path,
                )
    return table


def metric_names() -> list[str]:
    """Metrics a column can show: the names in `Record.summary`, without the suffix of a mode."""
    one_task = metrics.AccuracyMatrix(np.ones((1, 1), int), np.ones(1, int))
    of_record = ("old_accuracy", "new_accuracy", "top_k_accuracy", "selection_accuracy")
    return [*metrics.summary(one_task), *of_record]


def _check_keys(
    values: Any, kinds: Mapping[str, type], required: tuple[str, ...], where: str, file: Path
) -> None:
    if not isinstance(values, dict):
        raise ConfigError(f"{where}{values!r} is not names and values", file=file)
    for key, value in values.items():
        if key not in kinds:
            raise ConfigError(f"{where}no key {key!r}", hint=suggest(key, list(kinds)), file=file)
        if not isinstance(value, kinds[key]):
            raise ConfigError(f"{where}{key}: {value!r} is not {_DESCRIBED[kinds[key]]}", file=file)
    for key in required:
        if not values.get(key):
            raise ConfigError(f"{where}{key} is missing or empty", file=file)


def _check_names(given: list[Any], known: list[str], where: str, file: Path) -> None:
    for name in given:
        if name not in known:
            raise ConfigError(f"{where}: no {name!r}", hint=suggest(name, known), file=file)
