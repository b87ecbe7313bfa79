"""Answers about photos, one row each, as JSON, CSV or Parquet.

A row maps column names to values. A list of (name, number) pairs may be a value. `error` is None,
or why the photo was not answered; the other values are then None.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from cprompt.errors import ConfigError
from cprompt.files import check_writable, write_bytes

Row: TypeAlias = Mapping[str, Any]

STANDARD_OUTPUT = "-"
"""The FILE that stands for standard output."""

_NUMBER_OF = {"ranking": "probability", "nearest_keys": "cosine"}
"""What the number of a (name, number) pair is called in Parquet."""


def check_targets(csv_to: str | None, json_to: str | None, parquet_to: str | None) -> None:
    """Raise a ConfigError, before long work, for a file that could not be written afterwards."""
    if csv_to == json_to == STANDARD_OUTPUT:
        raise ConfigError(
            "--json and --csv cannot both go to standard output",
            hint="name a file for one of them, such as --csv answers.csv",
        )
    for target in (csv_to, json_to, parquet_to):
        if target is not None and target != STANDARD_OUTPUT:
            check_writable(Path(target))
    if parquet_to == STANDARD_OUTPUT:
        raise ConfigError("--parquet needs a file", hint="such as --parquet answers.parquet")
    if parquet_to is not None:
        _pyarrow()


def write_rows(
    rows: Sequence[Row], csv_to: str | None, json_to: str | None, parquet_to: str | None
) -> list[str]:
    """Write the rows, of which there is at least one, to each target; the files written."""
    written = []
    for target, render in ((csv_to, as_csv), (json_to, as_json), (parquet_to, as_parquet)):
        if target is None:
            continue
        content = render(rows)
        if target == STANDARD_OUTPUT:
            sys.stdout.write(content.decode())
        else:
            write_bytes(Path(target), content)
            written.append(target)
    return written


def as_json(rows: Sequence[Row]) -> bytes:
    """One JSON list in UTF-8."""
    return (json.dumps(rows, indent=2, ensure_ascii=False) + "\n").encode()


def as_csv(rows: Sequence[Row]) -> bytes:
    """CSV in UTF-8; pairs become `name=number` joined by semicolons, None an empty cell."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(rows[0])
    for row in rows:
        out.writerow(
            ";".join(f"{name}={number:.4f}" for name, number in value)
            if isinstance(value, list)
            else value
            for value in row.values()
        )
    return text.getvalue().encode()


def as_parquet(rows: Sequence[Row]) -> bytes:
    """Parquet with the same columns whatever the values; pairs become structs."""
    arrow, parquet = _pyarrow()
    text, number = arrow.string(), arrow.float64()
    kinds = {"probability": number, "familiarity": number, "score": number, "known": arrow.bool_()}
    kinds |= {"prompt": arrow.int64(), "right": arrow.bool_()}
    for column, what in _NUMBER_OF.items():
        kinds[column] = arrow.list_(arrow.struct([("name", text), (what, number)]))
    schema = arrow.schema([(name, kinds.get(name, text)) for name in rows[0]])
    plain = [
        {
            name: [{"name": n, _NUMBER_OF[name]: v} for n, v in value]
            if isinstance(value, list)
            else value
            for name, value in row.items()
        }
        for row in rows
    ]
    file = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(plain, schema=schema), file)
    return file.getvalue()


def errors_in_parquet(path: Path) -> int:
    """How many rows of a file of `as_parquet` have an error; only its end is read."""
    metadata = _pyarrow()[1].read_metadata(path)
    column = metadata.schema.names.index("error")
    groups = [metadata.row_group(i).column(column) for i in range(metadata.num_row_groups)]
    return sum(group.num_values - group.statistics.null_count for group in groups)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ConfigError(
            f"--parquet needs {error.name}, which is not installed",
            hint="pip install 'cprompt[parquet]'",
        ) from error
    return pyarrow, parquet
