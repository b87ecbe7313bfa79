"""Files are whole or not there."""

from __future__ import annotations

import errno
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from cprompt import files
from cprompt.errors import CheckpointError, ConfigError
from cprompt.files import (
    append_line,
    check_writable,
    read_json,
    shown_path,
    write_bytes,
    write_json,
)


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    left = ["a.json.part", "a.json.0123456789abcdef.part"]
    others = ["a.json", "a.json.0123456789abcdeg.part", "b.json.part", "aajson.part"]
    for name in left + others:
        (tmp_path / name).touch()
    files.remove_parts(tmp_path, "a.json", "c.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_what_a_writer_of_today_leaves_is_removed_as_well(tmp_path: Path) -> None:
    for _ in range(3):
        files.part_beside(tmp_path / "a.json").touch()
    assert len(list(tmp_path.iterdir())) == 3
    other = tmp_path / "a.json.part.kept.part"  # somebody's own file
    other.touch()
    files.remove_parts(tmp_path, "a.json")
    assert list(tmp_path.iterdir()) == [other]


def test_what_is_written_is_read_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x.json"
    write_json(path, {"name": "é名", "n": [1, 2.5, None]})
    assert read_json(path) == {"name": "é名", "n": [1, 2.5, None]}
    assert "é名" in path.read_text(encoding="utf-8")
    assert path.read_bytes().endswith(b"}\n")
    write_bytes(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.bin"
    write_bytes(path, b"old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"x\.bin: cannot be written \(No space left"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    monkeypatch.undo()
    write_bytes(path, b"new")  # what the failed one left is no obstacle
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def test_the_name_is_given_only_once_all_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.bin"
    seen: list[tuple[bool, bytes]] = []
    sync = os.fsync

    def look(fd: int) -> None:
        sync(fd)
        (part,) = tmp_path.glob("x.bin*.part")
        seen.append((path.exists(), part.read_bytes()))

    monkeypatch.setattr(files.os, "fsync", look)
    write_bytes(path, b"whole")
    assert seen == [(False, b"whole")]


def test_a_write_while_another_is_under_way_disturbs_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.bin"
    sync = os.fsync

    def another(fd: int) -> None:
        monkeypatch.setattr(files.os, "fsync", sync)
        write_bytes(path, b"the other")
        assert path.read_bytes() == b"the other"

    monkeypatch.setattr(files.os, "fsync", another)
    write_bytes(path, b"one")
    assert path.read_bytes() == b"one"
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def test_threads_that_write_one_file_all_succeed_and_leave_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    contents = [bytes([i]) * (10 + 50_000 * i) for i in range(4)]
    with ThreadPoolExecutor(len(contents)) as threads:
        for written in threads.map(partial(write_bytes, path), contents * 30):
            assert written is None
    assert path.read_bytes() in contents
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


@pytest.mark.parametrize(
    "name", ["x" * 255, "猫" * 85, "é" * 125 + ".json"], ids=["x", "cat", "json"]
)
def test_a_name_as_long_as_file_systems_allow_can_be_written(tmp_path: Path, name: str) -> None:
    write_bytes(tmp_path / name, b"whole")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [(name, b"whole")]


@pytest.mark.skipif(os.name != "posix", reason="other systems have no umask")
@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_permissions_are_those_of_any_new_file(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        (tmp_path / "usual").write_bytes(b"")
        write_bytes(tmp_path / "x.bin", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "x.bin").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_what_breaks_off_a_write_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os if call == "fsync" else Path, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "x.bin", b"new")
    assert list(tmp_path.iterdir()) == []


def test_who_has_the_old_file_open_goes_on_reading_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    write_bytes(path, b"old")
    with path.open("rb") as reader:
        write_bytes(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"file/run/x\.json: cannot be written"):
        write_json(tmp_path / "file" / "run" / "x.json", {})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_has_no_number_for_is_refused_before_anything_is_written(
    tmp_path: Path, value: float
) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"old": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"new": [value]})
    assert json.loads(path.read_text()) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.json: does not exist$"):
        read_json(tmp_path / "none.json")
    for broken in (b'{"a": ', b"", b"\xff\xfe"):
        (tmp_path / "x.json").write_bytes(broken)
        with pytest.raises(CheckpointError, match=r"x\.json: is not readable JSON: "):
            read_json(tmp_path / "x.json")
    with pytest.raises(CheckpointError, match="is not readable JSON: "):
        read_json(tmp_path)


@pytest.mark.parametrize("name", ["new.json", "a/b/new.json", "old.json"])
def test_a_file_that_can_be_written_passes_and_nothing_is_created(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old.json").touch()
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / name, Path(name)):
        check_writable(path)
    assert [p.name for p in tmp_path.iterdir()] == ["old.json"]
    write_bytes(tmp_path / name, b"x")


def test_a_folder_or_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "x.json", tmp_path / "file" / "a" / "x.json"):
        with pytest.raises(ConfigError) as error:
            check_writable(path)
        assert error.value.file == str(path)


def test_a_folder_that_may_not_be_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, int]] = []

    def access(path: Path, mode: int) -> bool:  # a process of root may write everywhere
        asked.append((Path(path), mode))
        return False

    monkeypatch.setattr(files.os, "access", access)
    with pytest.raises(ConfigError) as error:
        check_writable(tmp_path / "a" / "x.json")
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]
    assert error.value.file == str(tmp_path / "a" / "x.json")


@pytest.mark.parametrize(
    ("before", "after"),
    [("", "é\n"), ("a\n", "a\né\n"), ('{"cut": "', '{"cut": "\né\n'), ("\n", "\né\n")],
)
def test_a_line_that_is_added_is_a_line_of_its_own(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(before, encoding="utf-8")
    append_line(path, "é")
    assert path.read_text("utf-8") == after


def test_the_first_line_makes_its_file(tmp_path: Path) -> None:
    append_line(tmp_path / "x.jsonl", "a")
    append_line(tmp_path / "x.jsonl", "b")
    assert (tmp_path / "x.jsonl").read_bytes() == b"a\nb\n"


def test_only_bytes_that_are_not_utf8_are_escaped() -> None:
    assert shown_path(os.fsdecode(b"a\\b/\xc3\xa9\xe9\xff.jpg")) == "a\\b/é\\xe9\\xff.jpg"
    assert shown_path(Path("猫 🐈.jpg")) == "猫 🐈.jpg"
