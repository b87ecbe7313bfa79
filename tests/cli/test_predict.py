"""`cprompt predict`: a table, JSON and CSV of the same answers."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from cprompt.cli.predict import photo_files
from cprompt.errors import ConfigError, DataError
from tests.cli.common import ok


def test_predictions_as_a_table_as_json_and_as_csv(model: Path, photos: Path) -> None:
    files = sorted((photos / "test").rglob("*.png"))[:3]
    rows = json.loads(ok("predict", model, *files, "--top", "2", "--json", "--weights", "random:0"))
    assert [row["image"] for row in rows] == [str(f) for f in files]
    for row in rows:
        assert len(row["ranking"]) == 2
        assert row["ranking"][0][1] == row["probability"]
        assert set(row) == {"image", "label", "probability", "known", "ranking"}
    table = list(
        csv.DictReader(
            io.StringIO(ok("predict", model, *files, "--csv", "--explain", "--weights", "random:0"))
        )
    )
    assert [line["label"] for line in table] == [row["label"] for row in rows]
    assert all(line["prompt"] in ("1", "2") for line in table)
    shown = ok("predict", model, *files, "--explain", "--top", "2", "--weights", "random:0")
    assert "nearest keys" in shown
    for row in rows:
        (line,) = [line for line in shown.splitlines() if row["image"] in line]
        assert f"{100 * row['probability']:.0f}" in line.split()


def test_options_that_exclude_each_other_are_refused(model: Path, photos: Path) -> None:
    with pytest.raises(ConfigError, match="--json and --csv"):
        ok("predict", model, photos, "--json", "--csv")
    with pytest.raises(ConfigError, match="'fp16'"):
        ok("predict", model, photos, "--precision", "fp16")


def test_a_folder_stands_for_its_photos(photos: Path, tmp_path: Path) -> None:
    assert len(photo_files(photos / "test")) == 10
    assert photo_files(tmp_path / "a.jpg") == [tmp_path / "a.jpg"]
    with pytest.raises(DataError) as error:
        photo_files(tmp_path)
    assert error.value.file == str(tmp_path)
