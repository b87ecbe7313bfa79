"""`cprompt watch`: what arrives is sorted, told, and the command ends when it should."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.cli.common import Main, ok
from tests.unremovable import unremovable

FAST = ("--every", "0.05", "--weights", "random:0")


@pytest.fixture
def inbox(photos: Path, tmp_path: Path) -> Path:
    """Three photos and an empty file."""
    folder = tmp_path / "inbox"
    folder.mkdir()
    for i, file in enumerate(sorted((photos / "test").rglob("*.png"))[:3]):
        shutil.copy(file, folder / f"{i} [x].png")
    (folder / "bad.jpg").touch()
    return folder


def test_once_sorts_what_is_there_and_ends(
    main: Main, model: Path, inbox: Path, tmp_path: Path
) -> None:
    files = sorted(inbox.glob("*.png"))
    rows = json.loads(ok("predict", model, *files, "--json", "--weights", "random:0"))
    asked = ("watch", model, inbox, "--sort", tmp_path / "out", "--once", *FAST)
    code, told, _ = main(*asked)
    assert code == 3  # one cannot be read
    for file, row in zip(files, rows, strict=True):
        assert (tmp_path / "out" / row["label"] / file.name).is_file()
        assert f"{file.name} → {row['label']}/{file.name}, " in told
    assert "bad.jpg stays in the inbox: is empty" in told
    assert [path.name for path in inbox.iterdir()] == ["bad.jpg"]
    (inbox / "bad.jpg").unlink()
    assert ok(*asked) == ""


def test_a_photo_that_cannot_be_moved_is_named_and_the_others_are_sorted(
    main: Main, model: Path, inbox: Path, tmp_path: Path
) -> None:
    files = sorted(inbox.glob("*.png"))
    rows = json.loads(ok("predict", model, *files, "--json", "--weights", "random:0"))
    out = tmp_path / "out"
    out.mkdir()
    (out / rows[0]["label"]).touch()  # so no folder can be made there
    stuck = [f.name for f, row in zip(files, rows, strict=True) if row["label"] == rows[0]["label"]]
    code, told, errors = main("watch", model, inbox, "--sort", out, "--once", *FAST)
    for name in stuck:
        assert told.count(f"{name} stays in the inbox: cannot be copied into {out}") == 1
    assert sorted(p.name for p in inbox.glob("*.png")) == stuck
    assert len(list(out.rglob("*.png"))) == len(files) - len(stuck)
    assert code != 0
    assert f"{inbox}: " in errors


def test_photos_that_cannot_be_removed_are_named_once(
    main: Main, model: Path, inbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unremovable(inbox, monkeypatch)
    code, told, _ = main("watch", model, inbox, "--sort", tmp_path / "out", "--once", *FAST)
    assert code != 0
    assert len(list((tmp_path / "out").rglob("*.png"))) == 3
    assert told.count("but stays in the inbox: cannot be removed") == 3


def test_photos_that_arrive_and_a_model_that_learns_are_noticed(
    model: Path,
    photos: Path,
    inbox: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = tmp_path / "model"
    shutil.copytree(model, own)
    out = tmp_path / "out"

    events = ["arrive", "learn", "", "stop"]

    def next_event(seconds: float) -> None:
        if len(list(out.rglob("*.png"))) < 3 and len(events) == 4:
            return
        event = events.pop(0)
        if event == "arrive":
            shutil.copy(next(out.rglob("*.png")), inbox / "late.png")
        elif event == "learn":
            ok("learn", own, photos / "january", "--weights", "random:0")
        elif event == "stop":
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", next_event)
    told = ok("watch", own, inbox, "--sort", out, *FAST)
    assert "late.png → " in told
    assert "has learnt meanwhile: 5 classes" in told
    assert told.rstrip().endswith("still in the inbox")


def test_an_inbox_that_is_not_there_is_named(main: Main, model: Path) -> None:
    assert "nowhere: does not exist" in main.error("watch", model, "nowhere", "--sort", "out")
    assert not Path("out").exists()
