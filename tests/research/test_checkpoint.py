"""Checkpoint files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cprompt.errors import CheckpointError
from cprompt.research.checkpoint import (
    CHECKPOINT,
    RunCheckpoint,
    check_backbone,
    load_checkpoint,
    load_run,
    save_checkpoint,
)
from cprompt.research.record import Record
from cprompt.training.learner import LearnerState
from cprompt.vit.promptable import FrozenViT


def test_a_file_of_another_kind_or_version_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="not a checkpoint of cprompt"):
        load_checkpoint(path)
    save_file({"a": torch.zeros(1)}, path, {"format": "cprompt-checkpoint", "version": "99"})
    with pytest.raises(CheckpointError, match="format version 99; this cprompt reads version 1"):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match="does not exist") as caught:
        load_checkpoint(tmp_path / "none")
    assert caught.value.file == str(tmp_path / "none")


def test_checkpoints_hold_any_tensor_to_the_bit(tmp_path: Path) -> None:
    tensors = {
        "f": torch.randn(3, 4),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "i": torch.arange(3),
        "empty": torch.empty(0, 7),
        "view": torch.randn(6, 6).T[::2],
    }
    save_checkpoint(tmp_path / "c", tensors, {"names": ["é", "名"]})
    loaded, about = load_checkpoint(tmp_path / "c")
    assert about == {"names": ["é", "名"]}
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor)
        assert loaded[name].dtype == tensor.dtype


def test_a_checkpoint_of_a_run_holds_its_state_and_record(
    hand_record: Record, tmp_path: Path
) -> None:
    state = LearnerState({"method/a": torch.arange(3.0)}, {"task_sizes": [2], "position": {}})
    checkpoint = RunCheckpoint(tmp_path / CHECKPOINT, hand_record, seconds=60)
    checkpoint.save(state)
    loaded, record = load_run(tmp_path / CHECKPOINT)
    assert torch.equal(loaded.tensors["method/a"], torch.arange(3.0))
    assert loaded.about["task_sizes"] == [2]
    assert record.to_dict() == hand_record.to_dict()


def test_within_a_task_it_is_saved_only_after_some_time(
    hand_record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("cprompt.research.checkpoint.time.monotonic", lambda: clock[0])
    checkpoint = RunCheckpoint(tmp_path / CHECKPOINT, hand_record, seconds=60)
    asked = 0

    def state() -> LearnerState:
        nonlocal asked
        asked += 1
        return LearnerState({"a": torch.zeros(1)}, {})

    for seconds, expected in ((159.0, 0), (160.0, 1), (219.0, 1), (220.0, 2)):
        clock[0] = seconds
        checkpoint.after_step(state)
        assert asked == expected
    checkpoint.task_trained(state)  # at once, whenever it was saved last
    assert asked == 3


def test_another_backbone_is_refused(backbone: FrozenViT) -> None:
    check_backbone(backbone.identity, backbone, Path("run/c"))
    other = {**backbone.identity, "weights": "random:1", "fingerprint": "0" * 64}
    with pytest.raises(CheckpointError, match="random:1") as caught:
        check_backbone(other, backbone, Path("run/c"))
    assert caught.value.file == str(Path("run/c"))
