"""A model folder under damage, crashes, full disks, readers and second writers."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from cprompt.classifier import model_folder
from cprompt.classifier.model_folder import (
    FILE,
    LOCK,
    OtherFormatError,
    check_new,
    check_readable,
    exists,
    read,
    read_about,
    size,
    undo,
    write,
    writing,
)
from cprompt.errors import ModelError
from cprompt.files import part_beside


def put(folder: Path, number: int, replaces: tuple[str, ...] | None = None) -> int:
    """Write version `number`, whose tensors and description both say which one it is."""
    before = tuple(f"m{i}" for i in range(number)) if replaces is None else replaces
    about = {"model": f"m{number}", "names": ["Ørsted", "猫", "🐈"], "number": number}
    return write(folder, about, {"t": torch.full((50,), float(number))}, replaces=before)


def version(folder: Path) -> int:
    """Which version is there; fails where description and tensors are of two."""
    stored = read(folder)
    number: int = stored.about["number"]
    assert torch.equal(stored.tensors["t"], torch.full((50,), float(number)))
    assert stored.about["names"] == ["Ørsted", "猫", "🐈"]
    return number


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Versions 1 and 2."""
    made = tmp_path / "model"
    assert put(made, 1) == 1
    assert put(made, 2) == 2
    return made


def files(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {LOCK}


def test_a_model_and_the_one_before_are_kept_and_nothing_else(folder: Path) -> None:
    assert version(folder) == 2
    two = {FILE, "learnt-000002.safetensors", "model-000001.json", "learnt-000001.safetensors"}
    assert files(folder) == two
    put(folder, 3)
    assert files(folder) == {
        FILE,
        "learnt-000003.safetensors",
        "model-000002.json",
        "learnt-000002.safetensors",
    }
    assert size(folder) == sum((folder / name).stat().st_size for name in files(folder))


def test_the_description_is_json_with_names_as_they_are(folder: Path) -> None:
    text = (folder / FILE).read_text(encoding="utf-8")
    assert "猫" in text
    about = json.loads(text)
    assert (about["format"], about["version"], about["generation"]) == ("cprompt-model", 2, 2)
    assert read_about(folder) == {k: v for k, v in about.items() if k != "sha256"}


def test_leftovers_of_killed_writers_count_and_are_removed_by_the_next(folder: Path) -> None:
    kept, before = files(folder), size(folder)
    for name in (FILE, "learnt-000003.safetensors", "model-000002.json"):
        for part in (f"{name}.part", part_beside(folder / name).name):
            (folder / part).write_bytes(b"half")
    assert size(folder) == before + 6 * len(b"half")
    assert undo(folder) == 1
    assert files(folder) < kept


def test_a_new_model_may_take_the_place_of_one_whose_writer_was_killed(tmp_path: Path) -> None:
    made = tmp_path / "model"
    made.mkdir()
    part_beside(made / "learnt-000001.safetensors").write_bytes(b"half")
    assert put(made, 1) == 1
    assert files(made) == {FILE, "learnt-000001.safetensors"}


def test_undo_goes_back_once(folder: Path) -> None:
    assert undo(folder) == 1
    assert version(folder) == 1
    assert files(folder) == {FILE, "learnt-000001.safetensors"}
    with pytest.raises(ModelError, match="no previous version"):
        undo(folder)
    assert put(folder, 3) == 2
    assert version(folder) == 3
    undo(folder)
    assert version(folder) == 1


def test_saving_the_same_model_again_changes_nothing(folder: Path) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert put(folder, 2) == 2
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_saving_the_version_before_is_an_undo(folder: Path) -> None:
    assert put(folder, 1, replaces=("m2",)) == 1
    assert version(folder) == 1
    assert files(folder) == {FILE, "learnt-000001.safetensors"}


def test_a_model_that_learnt_more_meanwhile_is_not_overwritten(folder: Path) -> None:
    with pytest.raises(ModelError, match="holds another model than the one that was loaded"):
        put(folder, 5, replaces=("m1",))
    assert version(folder) == 2


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"photo")
    with pytest.raises(ModelError, match=r"other files \('cat.jpg'\)"):
        put(tmp_path, 1)
    assert files(tmp_path) == {"cat.jpg"}


def test_no_model_is_named_as_such(tmp_path: Path) -> None:
    assert not exists(tmp_path)
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ModelError, match=r"holds no model.*`cprompt learn` makes one"):
            read(path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelError, match="file"):
        put(tmp_path / "file", 1)


# --- damage -------------------------------------------------------------------------------------


def test_every_flipped_byte_of_the_description_is_noticed(folder: Path) -> None:
    path = folder / FILE
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        with pytest.raises(ModelError, match=FILE):
            read(folder)
    path.write_bytes(whole)
    assert version(folder) == 2


def test_every_flipped_byte_of_the_tensors_is_noticed(folder: Path) -> None:
    path = folder / "learnt-000002.safetensors"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        with pytest.raises(ModelError, match=r"is damaged.*cprompt undo") as caught:
            read(folder)
        assert caught.value.file == str(path)


@pytest.mark.parametrize("name", [FILE, "learnt-000002.safetensors"])
def test_a_truncated_file_is_named_in_the_error(folder: Path, name: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    for length in (0, 1, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=name):
            read(folder)
    path.write_bytes(whole + b"\n")
    with pytest.raises(ModelError, match=name):
        read(folder)
    path.unlink()
    with pytest.raises(ModelError, match=r"is missing|holds no model"):
        read(folder)


def test_swapped_files_are_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    put(other, 1)
    put(other, 7, replaces=("m1",))
    one, two = (folder / f"learnt-00000{i}.safetensors" for i in (1, 2))
    shutil.copy(two, tmp_path / "kept")
    for impostor in (one, other / two.name):
        shutil.copy(impostor, two)
        with pytest.raises(ModelError, match="does not match its hash"):
            read(folder)
    shutil.copy(tmp_path / "kept", two)
    shutil.copy(other / FILE, folder / FILE)
    with pytest.raises(ModelError, match="does not match its hash"):
        read(folder)


@pytest.mark.parametrize("name", ["model-000001.json", "learnt-000001.safetensors"])
def test_undo_refuses_a_damaged_version_and_keeps_the_good_one(folder: Path, name: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:30] + b"?" + whole[31:], b""):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=name):
            undo(folder)
        assert version(folder) == 2


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[]", b"null", b'{"format": 3}', b"\xff"])
def test_anything_but_a_description_is_refused(folder: Path, content: bytes) -> None:
    (folder / FILE).write_bytes(content)
    with pytest.raises(ModelError, match="does not describe a model of cprompt"):
        read(folder)


@pytest.mark.parametrize("content", [b"", b"{}", None])
def test_undo_is_a_way_out_of_a_damaged_last_version(folder: Path, content: bytes | None) -> None:
    if content is None:
        (folder / FILE).unlink()
    else:
        (folder / FILE).write_bytes(content)
    undo(folder)
    assert version(folder) == 1


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("version", 3, "has format version 3"), ("format", "other", "is of format 'other'")],
)
def test_a_model_of_another_format_is_not_undone(
    folder: Path, name: str, value: object, said: str
) -> None:
    about = {**read_about(folder), name: value}
    (folder / FILE).write_bytes(model_folder._text(about))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(OtherFormatError, match=said):
        undo(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_model_without_its_description_is_not_overwritten(folder: Path) -> None:
    (folder / FILE).unlink()
    before = files(folder)
    for attempt in (lambda: put(folder, 9), lambda: read(folder), lambda: check_new(folder)):
        with pytest.raises(ModelError, match=r"model.json: is missing; .*`cprompt undo`"):
            attempt()
        assert files(folder) == before
    undo(folder)
    assert version(folder) == 1
    (folder / FILE).unlink()
    with pytest.raises(ModelError, match=r"model\.json: is missing; restore") as caught:
        put(folder, 9)
    assert "undo" not in str(caught.value)  # there is nothing to go back to
    assert files(folder) == {"learnt-000001.safetensors"}


def test_where_perhaps_nothing_was_ever_finished_another_folder_is_a_way_out(
    folder: Path, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(folder / "learnt-000001.safetensors", begun)
    for attempt in (lambda: put(begun, 9), lambda: check_new(begun)):
        with pytest.raises(ModelError, match=r"from a copy, or name a new folder$"):
            attempt()
    shutil.copy(folder / "learnt-000002.safetensors", begun)  # a version was finished before it
    with pytest.raises(ModelError, match=r"restore the folder from a copy$"):
        check_new(begun)


def test_undo_is_a_hint_only_where_it_helps(folder: Path) -> None:
    (folder / "learnt-000001.safetensors").unlink()
    with pytest.raises(ModelError, match=r"learnt-000001\.safetensors: is missing") as caught:
        undo(folder)
    assert "cprompt undo" not in str(caught.value)
    (folder / "learnt-000002.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="restore the folder") as caught:
        read(folder)
    assert "cprompt undo" not in str(caught.value)


def resealed(folder: Path, **changes: Any) -> None:
    """The description with other values and a hash that fits, as only a forger would write it."""
    about = read_about(folder)
    (folder / FILE).write_bytes(model_folder._text({**about, **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "something"}, "format 'something'; expected 'cprompt-model'"),
        ({"version": 3}, r"version 3; this cprompt reads 1 and 2; use the cprompt that wrote"),
        ({"version": 0}, r"version 0; this cprompt reads 1 and 2"),
        ({"version": None}, r"version None; this cprompt reads 1 and 2"),
        ({"files": {}}, "invalid list of files"),
        ({"files": {"../../etc/passwd": {"sha256": "", "bytes": 1}}}, "invalid list of files"),
        ({"files": {"learnt-000002.safetensors": 3}}, "invalid list of files"),
        ({"generation": "2"}, "invalid list of files"),
        ({"model": None}, "invalid list of files"),
    ],
)
def test_a_description_of_something_else_is_refused(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    resealed(folder, **changes)
    with pytest.raises(ModelError, match=message):
        read(folder)


def test_a_folder_of_version_1_is_read_and_written_on_as_version_2(folder: Path) -> None:
    resealed(folder, version=1)
    assert version(folder) == 2
    put(folder, 3)
    assert read_about(folder)["version"] == 2
    undo(folder)
    assert (version(folder), read_about(folder)["version"]) == (2, 1)
    path = folder / FILE
    path.write_bytes(path.read_bytes().replace(b'"number": 2', b'"number": 3'))
    with pytest.raises(ModelError, match="does not match its own hash"):
        read(folder)


@pytest.mark.parametrize(
    ("number", "name", "settings", "refused"),
    [
        (1, "aligned", {}, True),
        (1, "strata", {}, True),
        (1, "cprompt", {"align": True}, True),
        (1, "cprompt", {"align": False}, False),
        (1, "cprompt", {}, False),
        (1, "l2p", {}, False),
        (2, "strata", {}, False),
    ],
)
def test_methods_that_only_version_1_had_are_refused_with_the_way_over(
    number: int, name: str, settings: dict[str, Any], refused: bool
) -> None:
    about = {"version": number, "method": {"name": name, "settings": settings}}
    if not refused:
        check_readable("m", about)
        return
    with pytest.raises(ModelError, match=f"learnt with '{name}' of an earlier cprompt") as caught:
        check_readable("m", about)
    assert caught.value.file == "m"
    assert caught.value.hint is not None
    assert "learn the photos again into a new folder" in caught.value.hint


def test_a_file_that_is_no_safetensors_is_refused_even_if_its_hash_fits(folder: Path) -> None:
    import hashlib

    data = b"\x80\x04pickle" * 9
    (folder / "learnt-000002.safetensors").write_bytes(data)
    about = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    resealed(folder, files={"learnt-000002.safetensors": about})
    with pytest.raises(ModelError, match="is not a safetensors file"):
        read(folder)
    assert save({})  # the format's own reader is what refused it


# --- crashes and full disks ---------------------------------------------------------------------


class Killed(BaseException):
    """Stands for a kill: nobody catches it."""


CALLS: list[tuple[Any, str]] = [
    (Path, "open"),
    (Path, "replace"),
    (Path, "unlink"),
    (os, "fsync"),
]


def break_at(
    monkeypatch: pytest.MonkeyPatch, nth: int, error: BaseException, after: bool
) -> Callable[[], int]:
    """Raise at the nth of all calls that touch the disk, before or after it is made; the count."""
    counter = itertools.count(1)
    made: list[int] = []

    def wrap(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            number = next(counter)
            made.append(number)
            if number == nth and not after:
                raise error
            result = original(*args, **kwargs)
            if number == nth:
                raise error
            return result

        return call

    for owner, name in CALLS:
        monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))
    return lambda: len(made)


def every_call(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], Path],
    change: Callable[[Path], object],
    error: BaseException,
) -> Iterator[tuple[Path, bool]]:
    """Folders after `change` was broken off at each of its calls in turn; whether it noticed."""
    for after in (False, True):
        for nth in itertools.count(1):
            folder = make()
            raised = False
            with monkeypatch.context() as patch:
                count = break_at(patch, nth, error, after)
                try:
                    change(folder)
                except (Killed, ModelError):
                    raised = True
                calls = count()
            if calls < nth:
                assert nth > 5  # the patches did meet the calls that matter
                break
            yield folder, raised


@pytest.fixture
def copies(folder: Path, tmp_path: Path) -> Callable[[], Path]:
    numbers = itertools.count()

    def make() -> Path:
        copy = tmp_path / f"copy{next(numbers)}"
        shutil.copytree(folder, copy)
        return copy

    return make


def test_killed_at_any_call_it_is_the_old_model_or_the_new(
    monkeypatch: pytest.MonkeyPatch, copies: Callable[[], Path]
) -> None:
    seen = set()
    for folder, _ in every_call(monkeypatch, copies, lambda f: put(f, 3), Killed()):
        seen.add(version(folder))
        assert put(folder, 4, replaces=("m2", "m3")) in (3, 4)  # and one can go on from there
        assert version(folder) == 4
        assert len(files(folder)) == 4
        undo(folder)
        assert version(folder) in (2, 3)
    assert seen == {2, 3}


def test_killed_at_any_call_of_undo_it_is_one_of_both_versions(
    monkeypatch: pytest.MonkeyPatch, copies: Callable[[], Path]
) -> None:
    seen = set()
    for folder, _ in every_call(monkeypatch, copies, undo, Killed()):
        seen.add(version(folder))
    assert seen == {1, 2}


def test_a_first_write_that_is_killed_leaves_nothing_or_the_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    numbers = itertools.count()
    seen = set()
    for folder, _ in every_call(
        monkeypatch, lambda: tmp_path / f"new{next(numbers)}", lambda f: put(f, 1), Killed()
    ):
        seen.add(version(folder) if exists(folder) else 0)
        put(folder, 2, replaces=("m1",))
        assert version(folder) == 2
    assert seen == {0, 1}


def test_what_a_first_write_leaves_that_is_killed_without_warning_is_no_model(
    tmp_path: Path,
) -> None:
    class StopError(Exception):
        pass

    folder, replaced = tmp_path / "new", Path.replace

    def replace(path: Path, target: Path) -> Path:
        if target.name == FILE:
            raise StopError
        return replaced(path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        patch.setattr(model_folder, "_sweep", lambda folder: None)  # as a kill would have it
        with pytest.raises(StopError):
            put(folder, 1)
    assert files(folder) == {"learnt-000001.safetensors", f"{FILE}.part"}
    assert put(folder, 1) == 1
    assert version(folder) == 1
    assert files(folder) == {"learnt-000001.safetensors", FILE}


def test_a_full_disk_loses_nothing_and_leaves_nothing_half_written(
    monkeypatch: pytest.MonkeyPatch, copies: Callable[[], Path]
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    seen = set()
    for folder, raised in every_call(monkeypatch, copies, lambda f: put(f, 3), full):
        now = version(folder)
        seen.add((now, raised))
        if now == 2:
            assert raised
            assert undo(folder) == 1  # the version before is still there
        assert not [name for name in files(folder) if name.endswith(".part")]
    assert {(2, True), (3, False)} <= seen


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError, match=r"No space left.*did not change"):
        put(folder, 3)


# --- others -------------------------------------------------------------------------------------


def test_a_reader_never_fails_while_versions_come_and_go(folder: Path) -> None:
    stop = threading.Event()
    problems: list[BaseException] = []
    seen = set()

    def look() -> None:
        while not stop.is_set():
            try:
                seen.add(version(folder))
            except BaseException as error:
                problems.append(error)
                return

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(3, 60):
        put(folder, number)
        if number % 4 == 0:  # the same file names again, with other content
            undo(folder)
    stop.set()
    reader.join()
    assert not problems
    assert len(seen) > 3


def test_a_model_that_vanishes_between_two_reads_is_read_again(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    original = model_folder._tensors
    changes = iter([(3, 4), (5, 6)])

    def slow(path: Path, about: Any) -> Any:
        for number in next(changes, ()):
            put(folder, number)
        return original(path, about)

    monkeypatch.setattr(model_folder, "_tensors", slow)
    assert version(folder) == 6


OTHER = """
import sys, cprompt.classifier.model_folder as m
with m.writing(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_writers_get_a_clear_error_and_a_killed_one_frees_the_model(folder: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        for change in (lambda: put(folder, 3), lambda: undo(folder)):
            with pytest.raises(ModelError, match="is being changed by another process"):
                change()
        assert version(folder) == 2
    finally:
        other.kill()
        other.wait()
    put(folder, 3)
    assert version(folder) == 3


def test_another_thread_is_another_writer_but_the_same_one_may_write_inside(folder: Path) -> None:
    answers: list[str] = []

    def other() -> None:
        try:
            put(folder, 9)
        except ModelError as error:
            answers.append(str(error))

    with writing(folder):
        put(folder, 3)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(answers) == 1
    assert "is being changed by another process" in answers[0]
    assert version(folder) == 3


# --- a folder that was made for nothing -----------------------------------------------------------


@pytest.mark.parametrize("error", [ModelError("no"), KeyboardInterrupt()])
def test_folders_made_for_a_model_that_never_came_are_removed(
    tmp_path: Path, error: BaseException
) -> None:
    with (
        pytest.raises(type(error)),
        writing(tmp_path / "a" / "model"),
        writing(tmp_path / "a/model"),
    ):
        raise error
    assert list(tmp_path.iterdir()) == []
    put(tmp_path / "a" / "model", 0)
    assert read_about(tmp_path / "a" / "model")["number"] == 0


def test_a_folder_that_was_there_or_holds_something_stays(tmp_path: Path) -> None:
    def fail(folder: Path, before: Callable[[], object] = lambda: None) -> None:
        with writing(folder):
            before()
            raise ModelError("no")

    notes, new = tmp_path / "model" / "notes.txt", tmp_path / "new"
    with pytest.raises(ModelError):
        fail(tmp_path)
    assert tmp_path.is_dir()
    with pytest.raises(ModelError):
        fail(notes.parent, lambda: notes.write_text("mine"))
    assert notes.read_text() == "mine"
    with pytest.raises(ModelError):
        fail(new, lambda: put(new, 0))
    assert exists(new)


def test_undo_where_there_is_no_model_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no model"):
        undo(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()


def test_the_files_of_a_model_are_a_model(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name, content in model_folder.read_files(folder).items():
        (copy / name).write_bytes(content)
    assert model_folder.read(copy).about == model_folder.read(folder).about
    assert len(list(copy.iterdir())) == 2
