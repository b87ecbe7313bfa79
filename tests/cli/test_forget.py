"""`cprompt forget`: a class is gone, and undo brings it back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cprompt.classifier import model_folder
from tests.cli.common import QUICK, Main, ok


def names(folder: Path) -> list[str]:
    return [each["name"] for each in json.loads(ok("info", folder, "--json"))["classes"]]


def test_a_class_is_forgotten_and_comes_back(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    before = names(folder)
    said = ok("forget", folder, before[1])
    assert said == f"{folder}: {before[1]} is forgotten, {len(before) - 1} classes stay\n"
    assert names(folder) == [before[0], *before[2:]]
    ok("undo", folder)
    assert names(folder) == before


@pytest.mark.parametrize("inside", [False, True], ids=["around", "itself"])
def test_with_its_folder_nothing_of_a_class_is_left(
    inside: bool, model: Path, photos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    name = names(folder)[0]
    place = photos / "january" / name if inside else photos / "january"
    ok("forget", folder, name, "--photos", place)
    assert name not in names(folder)
    left = model_folder.read(folder).tensors["method/moments.left"]
    assert float(left) == 0


def test_a_class_learnt_in_two_batches_has_two_folders(
    main: Main, photos: Path, tmp_path: Path
) -> None:
    name = sorted(path.name for path in (photos / "january").iterdir())[0]
    ok("learn", "model", photos / "january", *QUICK)
    ok("learn", "model", photos / "test", "--weights", "random:0")
    both = [photos / part / name for part in ("january", "test")]
    assert "learnt from 8 photos, not from 6" in main.error(
        "forget", "model", name, "--photos", both[0]
    )
    ok("forget", "model", name, "--photos", both[0], "--photos", both[1])
    assert name not in names(Path("model"))


def test_a_folder_without_the_class_is_not_taken_for_it(
    main: Main, model: Path, photos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    name = names(folder)[0]
    said = main.error("forget", folder, name, "--photos", photos / "february")
    assert f"has no folder {name!r}" in said
    assert name in names(folder)


def test_a_class_that_is_not_there(main: Main, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    assert "the model has no class 'nothing'" in main.error("forget", folder, "nothing")
