"""`cprompt undo`: the model before its last change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cprompt.classifier import model_folder
from tests.cli.common import Main, ok
from tests.cli.test_forget import names


def test_undo_goes_back_a_batch(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    first, second = ok("undo", folder).splitlines()
    assert first.startswith("batch 2 is taken back: 12 photos of '")
    assert second == f"{folder}: 3 classes from 1 batch"
    about = json.loads(ok("info", folder, "--json"))
    assert [b["number"] for b in about["history"]] == [1]
    assert about["classes"] == json.loads(ok("info", model, "--json"))["classes"][:3]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("rename", "{0}", "new name"), "class 'new name' is called '{0}' again"),
        (("forget", "{0}"), "class '{0}' is there again"),
    ],
)
def test_undo_says_which_change_it_took_back(
    change: tuple[str, ...], said: str, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    first = names(folder)[0]
    command, *rest = (each.format(first) for each in change)
    ok(command, folder, *rest)
    assert ok("undo", folder).splitlines() == [
        said.format(first),
        f"{folder}: 5 classes from 2 batches",
    ]


def test_a_model_of_a_newer_version_is_left_as_it_is(
    model: Path, tmp_path: Path, main: Main
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    newer = model_folder._text({**model_folder.read_about(folder), "version": 3})
    (folder / "model.json").write_bytes(newer)
    assert "has format version 3; this cprompt reads 1 and 2" in main.error("undo", folder)
    assert (folder / "model.json").read_bytes() == newer


def test_undo_of_a_damaged_version_says_so(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    (folder / "model.json").write_text("{}")
    assert ok("undo", folder).startswith("the damaged last version is gone\n")
