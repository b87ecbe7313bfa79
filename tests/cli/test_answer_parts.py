"""Answers in parts: which are missing, and which belong together."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from cprompt.cli.answer_parts import AnswerParts, digest
from cprompt.errors import ConfigError
from cprompt.files import part_beside

ROWS = [
    {"image": "é.jpg", "label": "cat", "probability": 0.5, "error": None},
    {"image": "b.jpg", "label": None, "probability": None, "error": "is empty"},
]


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_what_is_written_is_no_longer_missing(ending: str, tmp_path: Path) -> None:
    parts = AnswerParts(tmp_path / "out", 3, ending, {"model": "m"})
    parts.write(1, ROWS)
    again = AnswerParts(tmp_path / "out", 3, ending, {"model": "m"})
    assert again.missing() == [0, 2]
    if ending == "parquet":
        assert pyarrow.parquet.read_table(parts.path(1)).to_pylist() == ROWS
    else:
        lines = parts.path(1).read_text("utf-8").splitlines()
        assert [json.loads(line) for line in lines] == ROWS


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_photos_that_could_not_be_read_are_counted_in_the_files(
    ending: str, tmp_path: Path
) -> None:
    parts = AnswerParts(tmp_path, 2, ending, {})
    nested = {"ranking": [["cat", 0.5]]}
    parts.write(0, [{**row, **nested} for row in (*ROWS, ROWS[1])])
    parts.write(1, [ROWS[0]])
    assert [parts.unread(number) for number in (0, 1)] == [2, 0]


def test_a_part_that_was_not_renamed_is_missing(tmp_path: Path) -> None:
    parts = AnswerParts(tmp_path, 1, "jsonl", {})
    part_beside(parts.path(0)).write_text("half")
    assert parts.missing() == [0]


def test_what_killed_writers_left_of_a_part_goes_when_it_is_written(tmp_path: Path) -> None:
    parts = AnswerParts(tmp_path, 2, "jsonl", {})
    for number in (0, 0, 1):
        part_beside(parts.path(number)).write_text("half")
    parts.write(0, ROWS)
    left = [path.name for path in tmp_path.glob("*.part")]
    assert [name.partition("-of-")[0] for name in left] == ["part-000001"]


@pytest.mark.parametrize(
    ("count", "ending", "about", "named"),
    [(2, "jsonl", {"a": 1}, "parts"), (1, "parquet", {"a": 1}, "format"), (1, "jsonl", {}, None)],
)
def test_answers_to_something_else_are_not_mixed(
    count: int, ending: str, about: dict[str, int], named: str | None, tmp_path: Path
) -> None:
    AnswerParts(tmp_path, 1, "jsonl", {"a": 1})
    if named is None:
        with pytest.raises(ConfigError, match="other a"):
            AnswerParts(tmp_path, 1, "jsonl", {"a": 2})
        return
    with pytest.raises(ConfigError, match=f"other {named}") as error:
        AnswerParts(tmp_path, count, ending, about)
    assert error.value.file == str(tmp_path)


def test_the_digest_tells_lists_apart() -> None:
    assert digest(["a", Path("b")]) == digest(["a", "b"])
    assert len({digest(x) for x in (["a", "b"], ["b", "a"], ["ab"], ["a"], [])}) == 5


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_a_part_that_is_cut_short_is_missing(ending: str, tmp_path: Path) -> None:
    parts = AnswerParts(tmp_path, 3, ending, {})
    for number in range(3):
        parts.write(number, ROWS)
    assert parts.missing() == []
    whole = parts.path(1).read_bytes()
    parts.path(1).write_bytes(whole[:-3])
    parts.path(2).write_bytes(b"")
    assert parts.missing() == [1, 2]
