"""`cprompt info`: a model's past."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cprompt.cli import info
from tests.cli.common import Main, ok
from tests.cli.test_forget import names


def test_info_tells_the_past_of_a_model(model: Path) -> None:
    told = ok("info", model)
    assert "5 classes; strata on test_vit" in told
    about = json.loads(ok("info", model, "--json"))
    assert [sum(b["photos"].values()) for b in about["history"]] == [18, 12]
    assert [len(b["new"]) for b in about["history"]] == [3, 2]


def test_all_classes_are_listed_by_name(model: Path) -> None:
    lines = ok("info", model, "--classes").splitlines()[1:6]
    assert [line.rsplit(maxsplit=2) for line in lines] == [
        [name, "6", "1" if at < 3 else "2"] for at, name in enumerate(names(model))
    ]
    shown = info._first([f"it's {number}" for number in range(7)])
    assert shown == "it's 0, it's 1, it's 2, it's 3, it's 4 and 2 more (--classes)"


@pytest.mark.parametrize("how", [(), ("--json",), ("--classes",)])
def test_a_model_whose_tensors_are_cut_or_gone_does_not_look_sound(
    how: tuple[str, ...], main: Main, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    tensors = folder / "learnt-000002.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:100])
    assert "learnt-000002.safetensors: has 100 bytes, but " in main.error("info", folder, *how)
    tensors.unlink()
    assert "is missing; " in main.error("info", folder, *how)
    ok("undo", folder)
    ok("info", folder, *how)


def test_a_folder_without_a_model_is_named(main: Main, tmp_path: Path) -> None:
    assert str(tmp_path) in main.error("info", tmp_path)
