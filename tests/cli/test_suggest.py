"""`cprompt suggest`: the photos to label, as lines, as CSV and as a page."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.cli.common import Main, ok
from tests.report.reader import Reader


def test_photos_are_listed_written_and_shown(model: Path, photos: Path, tmp_path: Path) -> None:
    table, page = tmp_path / "next.csv", tmp_path / "next.html"
    printed = ok(
        *("suggest", model, photos / "test", "--count", "4", "--weights", "random:0"),
        *("--csv", table, "--sheet", page),
    )
    rows = list(csv.DictReader(io.StringIO(table.read_text("utf-8"))))
    assert list(rows[0]) == ["image", "label", "best", "probability", "familiarity", "doubt"]
    assert len({row["image"] for row in rows}) == len(rows) == 4
    assert all(Path(row["image"]).is_relative_to(photos / "test") for row in rows)
    assert [row["image"] for row in rows] == [
        line.split()[0] for line in printed.splitlines() if line.startswith(str(photos))
    ]
    read = Reader(page.read_text("utf-8"))
    assert len(read.by_tag["img"]) == 4
    assert all(any(row["image"] in text for text in read.texts) for row in rows)


def test_csv_alone_goes_to_standard_output(model: Path, photos: Path) -> None:
    printed = ok(
        *("suggest", model, photos / "test", "--count", "2", "--csv", "--weights", "random:0")
    )
    assert len(list(csv.DictReader(io.StringIO(printed)))) == 2


def test_a_photo_that_cannot_be_read_is_named(
    model: Path, photos: Path, tmp_path: Path, main: Main
) -> None:
    bad = tmp_path / "bad.png"
    bad.touch()
    code, out, err = main("suggest", model, photos / "test", bad, "--weights", "random:0")
    assert code == 3
    assert "1 of 11 photos cannot be read" in err
    assert str(bad) in err
    assert str(photos / "test") in out


def test_names_of_photos_are_whole_in_a_narrow_terminal(
    model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    shown = ok("suggest", model, photos / "test", "--weights", "random:0")
    files = [str(file) for file in (photos / "test").rglob("*.png")]
    assert any(line.startswith(file) for line in shown.splitlines() for file in files)
