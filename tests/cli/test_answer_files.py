"""Rows about photos as JSON, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from cprompt.cli.answer_files import as_csv, as_json, as_parquet, check_targets, write_rows
from cprompt.errors import ConfigError

ROWS: list[dict[str, Any]] = [
    {
        "image": "é, 1.jpg",
        "label": "cat",
        "probability": 0.75,
        "known": True,
        "ranking": [["cat", 0.75], ["dog", 0.25]],
        "error": None,
    },
    {
        "image": "b.jpg",
        "label": None,
        "probability": None,
        "known": None,
        "ranking": None,
        "error": "is empty (0 bytes)",
    },
]


def test_json_is_the_rows() -> None:
    assert json.loads(as_json(ROWS)) == ROWS


def test_csv_has_a_line_per_row_and_empty_cells_for_what_is_not_known() -> None:
    first, second = csv.DictReader(io.StringIO(as_csv(ROWS).decode()))
    assert first["image"] == "é, 1.jpg"
    assert first["ranking"] == "cat=0.7500;dog=0.2500"
    assert float(first["probability"]) == 0.75
    assert second == dict.fromkeys(ROWS[0], "") | {"image": "b.jpg", "error": "is empty (0 bytes)"}


def test_parquet_keeps_types_even_where_nothing_is_known() -> None:
    both = pyarrow.parquet.read_table(io.BytesIO(as_parquet(ROWS)))
    pairs = [{"name": "cat", "probability": 0.75}, {"name": "dog", "probability": 0.25}]
    assert both.to_pylist() == [{**ROWS[0], "ranking": pairs}, ROWS[1]]
    unread = pyarrow.parquet.read_table(io.BytesIO(as_parquet(ROWS[1:])))
    assert unread.schema == both.schema


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pyarrow, .*not installed; pip install .*\[parquet\]"):
        check_targets(None, None, "answers.parquet")


def test_targets_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot both"):
        check_targets("-", "-", None)
    with pytest.raises(ConfigError, match="--parquet needs a file"):
        check_targets(None, None, "-")
    with pytest.raises(ConfigError, match="is a folder"):
        check_targets(str(tmp_path), "-", None)


def test_each_target_is_written_and_files_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "new" / "a.csv")
    assert write_rows(ROWS, file, "-", None) == [file]
    assert Path(file).read_bytes() == as_csv(ROWS)
    assert capsys.readouterr().out.encode() == as_json(ROWS)
