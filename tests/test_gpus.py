"""When torch cannot use a GPU that is there, one line says what to install."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from cprompt import gpus


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "absent")
    monkeypatch.setattr(gpus.shutil, "which", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def smi(monkeypatch: pytest.MonkeyPatch, printed: dict[str, str], status: int = 0) -> None:
    def run(words: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(words, status, printed[" ".join(words[1:])], "")

    monkeypatch.setattr(gpus.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(gpus.subprocess, "run", run)


BOTH = {"-L": "GPU 0: NVIDIA RTX (UUID: x)\n", "": "| Driver 550  CUDA Version: 12.7  |\n"}


def test_without_a_gpu_nothing_is_said(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.unused_gpu() is None
    smi(monkeypatch, {"-L": "", "": ""}, status=9)  # installed, but no driver answers
    assert gpus.unused_gpu() is None


def test_the_newest_torch_that_the_driver_runs_is_named(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(monkeypatch, BOTH)
    monkeypatch.setattr(torch, "__version__", "2.9.0+cpu")
    monkeypatch.setattr(torch.version, "cuda", None)
    line = gpus.unused_gpu()
    assert line is not None
    assert "torch 2.9.0+cpu is built without CUDA" in line
    assert line.endswith("--index-url https://download.pytorch.org/whl/cu126")
    assert "\n" not in line
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpus.unused_gpu() is None


def test_the_folder_of_the_driver_is_enough(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "gpus")
    assert gpus.has_nvidia_gpu()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "whl/cu130" in str(gpus.unused_gpu())


@pytest.mark.parametrize(
    ("built_for", "driver", "says"),
    [
        ("13.0", "12.6", "the driver runs up to 12.6: pip install --force-reinstall torch"),
        ("13.0", None, "cannot use it: update the GPU's driver"),
        (None, "11.4", "built without CUDA: update the GPU's driver"),
        (None, "11.8", "whl/cu118"),
    ],
)
def test_an_old_driver_gets_an_older_torch_or_an_update(
    built_for: str | None, driver: str | None, says: str
) -> None:
    assert says in gpus.advice("2.9.0", built_for, driver)
