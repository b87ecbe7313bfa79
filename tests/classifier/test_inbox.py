"""Photos that arrive: sorted once, whole, and never lost."""

from __future__ import annotations

import dataclasses
import errno
import filecmp
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from PIL import Image

from cprompt import UNKNOWN, ContinualClassifier
from cprompt.classifier import inbox as inbox_module
from cprompt.classifier.inbox import JOURNAL, Inbox, Sorted, folder_name
from cprompt.errors import ConfigError, DataError
from tests.classifier.common import learnt, photos, saved
from tests.unremovable import unremovable
from tests.waiting import soon


@pytest.fixture(scope="module")
def classifier() -> ContinualClassifier:
    """One that is never unsure: without kept photos there is no threshold."""
    return learnt({"red": 4, "sea": 4}, keep_held_out=0)


@pytest.fixture
def box(tmp_path: Path) -> Path:
    (tmp_path / "inbox").mkdir()
    return tmp_path / "inbox"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "sorted"


def arrive(box: Path, name: str, colour: str = "red", seed: int = 9) -> Path:
    return saved(box / name, photos(colour, 1, seed)[0])


def looks(inbox: Inbox, classifier: ContinualClassifier, times: int = 2) -> list[Sorted]:
    return [each for _ in range(times) for each in inbox.look(classifier)]


def tree(folder: Path) -> list[str]:
    """Photos below a folder."""
    found = (p.relative_to(folder).as_posix() for p in folder.rglob("*.png"))
    return sorted(name for name in found if not Path(name).name.startswith("."))


def test_a_folder_that_cannot_be_made_is_an_error(box: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match="cannot be written") as caught,
        Inbox(box, tmp_path / "file" / "sorted").alone(),
    ):
        pass
    assert caught.value.file == str(tmp_path / "file" / "sorted")


def test_photos_go_to_the_folder_of_their_answer(
    box: Path, out: Path, classifier: ContinualClassifier
) -> None:
    files = [arrive(box, "a.png"), arrive(box, "deep/b.png", "sea"), arrive(box, "c.png", "sun")]
    (box / "notes.txt").write_text("x")
    contents = {file.name: file.read_bytes() for file in files}
    times = {file.name: file.stat().st_mtime_ns for file in files}
    answers = {file.name: classifier.explain(file)[0] for file in files}
    inbox = Inbox(box, out)
    with inbox.alone():
        found = looks(inbox, classifier)
    assert {each.photo.name: each.label for each in found} == {
        name: answer.label for name, answer in answers.items()
    }
    assert tree(box) == []
    assert (box / "notes.txt").exists()
    assert tree(out) == sorted(f"{answer.label}/{name}" for name, answer in answers.items())
    for each in found:
        assert each.target is not None
        assert each.target.read_bytes() == contents[each.photo.name]
        assert each.target.stat().st_mtime_ns == times[each.photo.name]
    rows = [json.loads(line) for line in (out / JOURNAL).read_text("utf-8").splitlines()]
    assert [row["photo"] for row in rows] == ["a.png", "c.png", "deep/b.png"]


def test_what_is_unknown_goes_apart(box: Path, out: Path) -> None:
    unsure = learnt({"red": 8, "sea": 8, "moss": 8, "sun": 8, "ash": 8}, accept=0.5)
    files = [arrive(box, f"{name}.png", name, seed=5) for name in ("red", "sea", "pink", "teal")]
    answers = unsure.predict(files)
    assert {UNKNOWN} < set(answers)
    inbox = Inbox(box, out)
    with inbox.alone():
        looks(inbox, unsure)
    expected = zip(answers, files, strict=True)
    assert tree(out) == sorted(f"{answer}/{file.name}" for answer, file in expected)


def test_a_pipe_among_the_photos_does_not_stop_the_others(
    box: Path, out: Path, classifier: ContinualClassifier, pipe: Path
) -> None:
    (box / "b.jpg").symlink_to(pipe)
    files = [arrive(box, "a.png"), arrive(box, "c.png", "sea")]
    inbox = Inbox(box, out)
    with inbox.alone():
        found = soon(lambda: looks(inbox, classifier, times=3), seconds=60)
    (refused,) = [each for each in found if each.target is None]
    assert refused.photo == box / "b.jpg"
    assert refused.error is not None
    assert refused.error.message == "is a pipe, not a file"
    assert [each.photo for each in found if each.target] == files
    assert inbox.waiting == 0


def test_a_file_that_grows_is_left_alone_until_it_rests(
    box: Path, out: Path, classifier: ContinualClassifier
) -> None:
    whole = arrive(box, "a.png").read_bytes()
    inbox = Inbox(box, out)
    with inbox.alone():
        for size in (50, 100, len(whole) - 1, len(whole)):
            (box / "a.png").write_bytes(whole[:size])
            assert list(inbox.look(classifier)) == []
        assert inbox.waiting == 1
        (only,) = inbox.look(classifier)
        assert inbox.waiting == 0
    assert only.target is not None
    assert only.target.read_bytes() == whole


def test_a_file_that_changes_while_it_is_answered_is_not_moved(
    box: Path, out: Path, classifier: ContinualClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = arrive(box, "a.png")
    inbox = Inbox(box, out)
    explain = inbox_module.explain_readable

    def and_write(*args: object, **named: object) -> object:
        found = explain(*args, **named)  # type: ignore[arg-type]
        path.write_bytes(path.read_bytes() + b"more")
        return found

    with inbox.alone():
        monkeypatch.setattr(inbox_module, "explain_readable", and_write)
        assert looks(inbox, classifier) == []
        assert path.exists()
        monkeypatch.undo()
        assert len(looks(inbox, classifier)) == 1


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x" * 4000)


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize(
    ("owner", "call"), [(shutil, "copyfileobj"), (os, "fsync"), (shutil, "copystat")]
)
def test_a_file_that_grows_while_it_is_copied_is_left_for_the_next_look(
    box: Path,
    out: Path,
    classifier: ContinualClassifier,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    call: str,
    copy: bool,
) -> None:
    path = arrive(box, "a.png")
    inbox = Inbox(box, out, copy=copy)
    original = getattr(owner, call)

    def and_append(*args: object) -> None:
        original(*args)
        append(path)

    with inbox.alone():
        monkeypatch.setattr(owner, call, and_append)
        assert looks(inbox, classifier) == []
        monkeypatch.undo()
        assert list((out / "red").iterdir()) == []
        assert not (out / JOURNAL).exists()
        whole = path.read_bytes()
        (only,) = looks(inbox, classifier)
        assert inbox.waiting == 0
    assert only.target is not None
    assert only.target.read_bytes() == whole
    assert len((out / JOURNAL).read_text("utf-8").splitlines()) == 1


def test_a_file_that_grows_beside_an_equal_copy_leaves_the_copy(
    box: Path, out: Path, classifier: ContinualClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = arrive(box, "a.png")
    half = path.read_bytes()
    (out / "red").mkdir(parents=True)
    shutil.copy(path, out / "red")  # as a process leaves it that is killed before the journal
    compare = filecmp.cmp

    def and_append(*args: Any, **named: Any) -> bool:
        equal = compare(*args, **named)
        append(path)
        return equal

    inbox = Inbox(box, out)
    with inbox.alone():
        monkeypatch.setattr(filecmp, "cmp", and_append)
        assert looks(inbox, classifier) == []
        monkeypatch.undo()
        whole = path.read_bytes()
        (only,) = looks(inbox, classifier)
    assert only.target == out / "red" / "a (2).png"
    assert only.target.read_bytes() == whole
    assert (out / "red" / "a.png").read_bytes() == half


def test_a_file_that_grows_after_it_was_copied_is_not_removed(
    box: Path, out: Path, classifier: ContinualClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = arrive(box, "a.png")
    inbox = Inbox(box, out)
    write = Inbox._write

    def and_append(*args: Any) -> None:
        write(*args)
        append(path)

    with inbox.alone():
        monkeypatch.setattr(Inbox, "_write", and_append)
        assert len(looks(inbox, classifier)) == 1
        monkeypatch.undo()
        whole = path.read_bytes()
        (only,) = looks(inbox, classifier)
    assert only.target is not None
    assert only.target.read_bytes() == whole
    assert tree(box) == []


def test_a_file_that_goes_away_while_it_is_copied_is_no_error(
    box: Path, out: Path, classifier: ContinualClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = arrive(box, "a.png")

    def gone(*args: object) -> None:
        path.unlink()
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(shutil, "copyfileobj", gone)
    inbox = Inbox(box, out)
    with inbox.alone():
        assert looks(inbox, classifier) == []
    assert tree(out) == []


@pytest.mark.parametrize("length", [249, 251, 255])
def test_names_as_long_as_file_systems_allow_are_sorted(
    box: Path, out: Path, classifier: ContinualClassifier, length: int
) -> None:
    name = "é" * 100 + "a" * (length - 204) + ".png"
    assert len(name.encode()) == length
    inbox = Inbox(box, out)
    contents = set()
    with inbox.alone():
        for seed in (9, 10, 11):
            contents.add(arrive(box, name, seed=seed).read_bytes())
            arrive(box, f"{seed}.png", "sea")
            assert [each.error for each in looks(inbox, classifier)] == [None, None]
    assert tree(box) == []
    kept = [path for path in (out / "red").iterdir() if path.name.startswith("é")]
    assert {path.read_bytes() for path in kept} == contents
    assert all(path.suffix == ".png" for path in kept)


def test_a_photo_that_cannot_be_copied_stops_no_other_and_is_told_once(
    box: Path, out: Path, classifier: ContinualClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = arrive(box, "a.png").read_bytes()
    arrive(box, "b.png", "sea")
    out.mkdir()
    (out / "red").touch()  # so no folder can be made there
    inbox = Inbox(box, out)
    with inbox.alone():
        stays, moved = looks(inbox, classifier, 4)
        assert (stays.photo.name, stays.target, stays.label) == ("a.png", None, "red")
        assert isinstance(stays.error, DataError)
        assert stays.error.file == str(box / "a.png")
        assert str(out / "red") in stays.error.message
        assert (moved.target, moved.error) == (out / "sea" / "b.png", None)
        assert inbox.waiting == 0
        assert (box / "a.png").read_bytes() == whole
        monkeypatch.setattr(inbox_module, "RETRY", 0.0)
        arrive(box, "a.png", seed=10)  # another photo of that name: told again
        assert [each.target for each in looks(inbox, classifier, 4)] == [None]
        assert inbox.waiting == 0
        (out / "red").unlink()
        (sorted_now,) = looks(inbox, classifier, 3)
    assert sorted_now.target == out / "red" / "a.png"
    assert tree(box) == []


def test_a_photo_that_cannot_be_copied_for_another_reason_is_told_again(
    box: Path, out: Path, classifier: ContinualClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(box, "a.png")
    monkeypatch.setattr(inbox_module, "RETRY", 0.0)
    inbox, told = Inbox(box, out), []
    with inbox.alone():
        for number in (errno.ENOSPC, errno.ENOSPC, errno.EIO, errno.EIO):

            def fail(*_: Any, number: int = number) -> None:
                raise OSError(number, os.strerror(number))

            monkeypatch.setattr(shutil, "copyfileobj", fail)
            told.append([each.error.message for each in looks(inbox, classifier, 3) if each.error])
    assert [len(messages) for messages in told] == [1, 0, 1, 0]
    assert os.strerror(errno.ENOSPC) in told[0][0]
    assert os.strerror(errno.EIO) in told[2][0]


@pytest.mark.parametrize("copy", [False, True])
def test_a_journal_that_cannot_be_written_keeps_the_photos(
    box: Path, out: Path, classifier: ContinualClassifier, copy: bool
) -> None:
    arrive(box, "a.png")
    arrive(box, "b.png", "sea")
    (out / JOURNAL).mkdir(parents=True)
    inbox = Inbox(box, out, copy=copy)
    with inbox.alone():
        found = looks(inbox, classifier, 3)
    assert [each.photo.name for each in found] == ["a.png", "b.png"]
    assert all(each.error and JOURNAL in each.error.message for each in found)
    assert tree(box) == ["a.png", "b.png"]


def test_photos_that_cannot_be_removed_are_copied_and_told_once(
    box: Path, out: Path, classifier: ContinualClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(box, "a.png")
    arrive(box, "b.png", "sea")
    unremovable(box, monkeypatch)
    for _ in range(2):  # and again after a restart
        inbox = Inbox(box, out)
        with inbox.alone():
            found = looks(inbox, classifier, 4)
            assert inbox.waiting == 0
        assert [each.target for each in found] == [out / "red" / "a.png", out / "sea" / "b.png"]
        assert all(each.error and "Permission denied" in each.error.message for each in found)
    assert tree(box) == ["a.png", "b.png"]
    assert tree(out) == ["red/a.png", "sea/b.png"]


def test_a_photo_that_can_be_removed_at_last_is_removed_and_not_answered_again(
    box: Path, out: Path, classifier: ContinualClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(box, "a.png")
    inbox = Inbox(box, out)
    with inbox.alone():
        with monkeypatch.context() as patch:
            unremovable(box, patch)
            (told,) = looks(inbox, classifier, 3)
            patch.setattr(inbox_module, "RETRY", 0.0)
            later = time.monotonic() + 60
            patch.setattr(time, "monotonic", lambda: later)
            assert looks(inbox, classifier, 3) == []  # tried again, and no news
        monkeypatch.setattr(time, "monotonic", lambda: later + 60)
        monkeypatch.setattr(
            inbox_module, "explain_readable", lambda *_, **__: pytest.fail("answered")
        )
        (removed,) = looks(inbox, classifier, 3)
    assert told.error is not None
    assert removed == dataclasses.replace(told, error=None)
    assert (tree(box), tree(out)) == ([], ["red/a.png"])
    assert len((out / JOURNAL).read_text().splitlines()) == 1


def test_a_photo_that_was_not_removed_stays_in_one_folder_whatever_the_model_learns(
    box: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = learnt({"sea": 6, "moss": 6}, keep_held_out=0)
    arrive(box, "a.png", seed=4)
    found = []
    with monkeypatch.context() as patch:
        unremovable(box, patch)
        for _ in range(2):
            inbox = Inbox(box, out)
            with inbox.alone():
                found += looks(inbox, model, 3)
            model.learn(photos("red", 6), ["red"] * 6)
    inbox = Inbox(box, out)
    with inbox.alone():
        found += looks(inbox, model, 3)
    assert model.predict(photos("red", 1, 4)) == ["red"]
    assert [each.error is None for each in found] == [False, False, True]
    assert {(each.target, each.label, each.probability) for each in found} == {
        (found[0].target, found[0].label, found[0].probability)
    }
    assert found[0].label in ("sea", "moss")
    assert (tree(box), tree(out)) == ([], [f"{found[0].label}/a.png"])
    assert len((out / JOURNAL).read_text().splitlines()) == 1


def test_a_photo_whose_sorted_copy_has_gone_is_answered_again(
    box: Path, out: Path, classifier: ContinualClassifier
) -> None:
    arrive(box, "a.png")
    sign = (box / "a.png").stat()
    for _ in range(2):
        inbox = Inbox(box, out)
        with inbox.alone():
            (found,) = looks(inbox, classifier)
        assert found.target == out / "red" / "a.png"
        found.target.unlink()
        arrive(box, "a.png")
        os.utime(box / "a.png", ns=(sign.st_atime_ns, sign.st_mtime_ns))


def test_an_unreadable_file_stays_is_told_once_and_tried_again_when_it_changes(
    box: Path, out: Path, classifier: ContinualClassifier
) -> None:
    whole = arrive(box, "a.png").read_bytes()
    (box / "a.png").write_bytes(whole[:60])
    inbox = Inbox(box, out)
    with inbox.alone():
        (told,) = looks(inbox, classifier, 4)
        assert isinstance(told.error, DataError)
        assert (told.target, inbox.waiting) == (None, 0)
        (box / "a.png").write_bytes(whole)
        (sorted_now,) = looks(inbox, classifier)
    assert sorted_now.label == "red"
    assert tree(box) == []


def test_other_photos_of_the_same_name_are_kept_and_equal_ones_are_not_doubled(
    box: Path, out: Path, classifier: ContinualClassifier
) -> None:
    inbox = Inbox(box, out)
    with inbox.alone():
        for seed in (9, 10, 9, 11):
            arrive(box, "a.png", seed=seed)
            looks(inbox, classifier)
    assert tree(out) == ["red/a (2).png", "red/a (3).png", "red/a.png"]
    assert tree(box) == []


def test_another_photo_of_the_same_name_size_and_time_is_kept_as_well(
    box: Path, out: Path, classifier: ContinualClassifier
) -> None:
    """As from a camera without a clock; what is in a file tells whether it is there already."""
    inbox, contents = Inbox(box, out), set()
    with inbox.alone():
        for seed in (9, 10):
            photo = box / "a.bmp"
            Image.fromarray(photos("red", 1, seed)[0]).save(photo)
            os.utime(photo, ns=(10**18, 10**18))
            contents.add(photo.read_bytes())
            looks(inbox, classifier)
    assert len(contents) == 2
    assert {path.read_bytes() for path in (out / "red").glob("*.bmp")} == contents


def test_files_are_compared_anew_even_if_size_and_time_are_the_same(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        path.write_bytes(b"same")
        os.utime(path, (9, 9))
    assert inbox_module._same_bytes(one, other)
    one.write_bytes(b"else")
    os.utime(one, (9, 9))
    assert not inbox_module._same_bytes(one, other)


def test_a_change_of_a_millisecond_ago_is_a_change(
    box: Path, out: Path, classifier: ContinualClassifier
) -> None:
    photo, inbox = arrive(box, "a.png"), Inbox(box, out)
    with inbox.alone():
        for milliseconds in range(3):  # its size stays the same
            os.utime(photo, ns=(10**18, 10**18 + milliseconds * 10**6))
            assert list(inbox.look(classifier)) == []
        assert len(list(inbox.look(classifier))) == 1


def test_copies_are_made_once_also_after_a_restart(
    box: Path, out: Path, classifier: ContinualClassifier
) -> None:
    arrive(box, "a.png")
    for expected in (1, 0):
        inbox = Inbox(box, out, copy=True)
        with inbox.alone():
            assert len(looks(inbox, classifier, 3)) == expected
            assert inbox.waiting == 0
    assert (tree(box), tree(out)) == (["a.png"], ["red/a.png"])
    arrive(box, "a.png", seed=10)
    os.utime(box / "a.png", ns=(1, 1))
    with inbox.alone():
        assert len(looks(inbox, classifier)) == 1
    assert tree(out) == ["red/a (2).png", "red/a.png"]


class KilledError(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("at", ["copyfileobj", "replace", "_write", "unlink"])
def test_killed_anywhere_no_photo_is_lost_or_doubled(
    box: Path,
    out: Path,
    classifier: ContinualClassifier,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    copy: bool,
) -> None:
    whole = arrive(box, "a.png").read_bytes()
    inbox = Inbox(box, out, copy=copy)

    def killed(*args: object, **named: object) -> None:
        raise KilledError

    owner = {"copyfileobj": shutil, "_write": Inbox}.get(at, Path)
    with inbox.alone(), monkeypatch.context() as patch:
        patch.setattr(owner, at, killed)
        if at == "unlink" and copy:
            patch.undo()  # a copy removes nothing from the inbox
            looks(inbox, classifier)
        else:
            with pytest.raises(KilledError):
                looks(inbox, classifier)
    assert (box / "a.png").read_bytes() == whole
    again = Inbox(box, out, copy=copy)
    with again.alone():
        looks(again, classifier)
    assert tree(box) == (["a.png"] if copy else [])
    assert tree(out) == ["red/a.png"]
    assert (out / "red" / "a.png").read_bytes() == whole


def test_a_full_disk_leaves_the_photo_which_is_tried_again_later(
    box: Path, out: Path, classifier: ContinualClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(box, "a.png")

    def full(source: BinaryIO, target: BinaryIO) -> None:
        target.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    inbox = Inbox(box, out)
    with inbox.alone():
        monkeypatch.setattr(shutil, "copyfileobj", full)
        (told,) = looks(inbox, classifier, 4)
        assert told.error is not None
        assert "No space left" in told.error.message
        monkeypatch.undo()
        assert (tree(box), list((out / "red").iterdir())) == (["a.png"], [])
        later = time.monotonic() + inbox_module.RETRY
        monkeypatch.setattr(time, "monotonic", lambda: later)
        assert len(looks(inbox, classifier, 1)) == 1


def test_a_torn_line_of_the_journal_is_skipped(
    box: Path, out: Path, classifier: ContinualClassifier
) -> None:
    out.mkdir()
    (out / JOURNAL).write_text('{"photo": "a.p')
    arrive(box, "b.png")
    inbox = Inbox(box, out, copy=True)
    with inbox.alone():
        looks(inbox, classifier)
    lines = (out / JOURNAL).read_text("utf-8").splitlines()
    assert (len(lines), json.loads(lines[1])["photo"]) == (2, "b.png")
    assert looks(Inbox(box, out, copy=True), classifier) == []


def test_two_processes_cannot_sort_into_one_folder(box: Path, out: Path) -> None:
    with (
        Inbox(box, out).alone(),
        pytest.raises(ConfigError, match="another process"),
        Inbox(box, out).alone(),
    ):
        pass


@pytest.mark.parametrize("place", ["inbox", "inbox/sorted", "."])
def test_folders_inside_one_another_are_refused(box: Path, tmp_path: Path, place: str) -> None:
    with pytest.raises(ConfigError, match="side by side"):
        Inbox(box, tmp_path / place)


@pytest.mark.parametrize("name", ["猫", "five-point star", "a-b_c (1)", "né"])
def test_usual_names_are_folders_as_they_are(name: str) -> None:
    assert folder_name(name) == name


@pytest.mark.parametrize(
    "name", ["..", ".", "../../etc", "a/b\\c", "/x", " x", "x.", "c:x", "猫" * 200]
)
def test_a_name_never_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / folder_name(name)
    folder.mkdir()
    assert folder.resolve().parent == tmp_path.resolve()


def test_different_names_have_different_folders() -> None:
    names = ["a/b", "a%2Fb", "a\\b", "x" * 300, "x" * 301, "..", "%2E."]
    assert len({folder_name(name) for name in names}) == len(names)
