"""`cprompt export`: what is checked first, and what is told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cprompt.classifier import onnx_export
from cprompt.errors import ConfigError
from tests.cli.common import ok


def test_a_file_that_cannot_be_written_is_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*args: object, **options: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("cprompt.ContinualClassifier.load", load)
    with pytest.raises(ConfigError, match="is a folder") as error:
        ok("export", "model", "--onnx", tmp_path)
    assert error.value.file == str(tmp_path)


def test_the_model_the_file_and_the_photos_are_passed_on(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def export_onnx(classifier: Any, path: Path, **options: Any) -> SimpleNamespace:
        asked.update(options, classes=classifier.classes_, path=path)
        return SimpleNamespace(
            path=path,
            bytes=3 << 19,
            opset=options["opset"],
            difference=2e-6,
            checked=len(options["check"]),
            metadata={"input_size": "64", "class_names": '["a", "b"]'},
        )

    monkeypatch.setattr(onnx_export, "export_onnx", export_onnx)
    out = tmp_path / "it.onnx"
    (tmp_path / "a.jpg").touch()
    told = ok(
        *("export", model, "--onnx", out, "--weights", "random:0"),
        *("--check", photos / "test", "--check", tmp_path / "a.jpg"),
    )
    assert (asked["opset"], asked["path"], len(asked["classes"])) == (onnx_export.OPSET, out, 5)
    assert len(asked["check"]) == 11
    assert f"{out}: 1.5 MiB, 2 classes, images of 64×64 pixels, opset {onnx_export.OPSET}" in told
    assert "agrees to 2e-06 on random images and 11 photos" in told


def test_help_names_the_default_operators() -> None:
    assert f"default: ({onnx_export.OPSET}," in ok("export", "--help")
