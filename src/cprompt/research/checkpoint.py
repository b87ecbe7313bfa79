"""Checkpoints: one safetensors file with what was learnt, and a JSON description in its header.

It is one file so that tensors and description always belong together. The header has a hash of the
tensors, because the format itself does not detect a changed bit. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cprompt.errors import CheckpointError
from cprompt.files import write_bytes
from cprompt.research.record import Clock, Record
from cprompt.training.learner import LearnerState
from cprompt.vit.backbone import Backbone

FORMAT = "cprompt-checkpoint"
VERSION = 1
CHECKPOINT = "checkpoint.safetensors"
"""Name of the file in a run's folder."""

_REMEDY = "delete it and start the run again, or restore it from a copy"


class RunCheckpoint:
    """The checkpoint file of a run: the learner's state and the record so far.

    Written between tasks, after a task's last step, and in the middle of a task at most every
    `seconds`. Times are added to the record before each save, so that a resumed run continues
    counting.
    """

    def __init__(self, path: Path, record: Record, seconds: float) -> None:
        self.path = path
        self.clock = Clock(record.seconds)
        self._record = record
        self._seconds = seconds
        self._last_save = time.monotonic()

    def after_step(self, state: Callable[[], LearnerState]) -> None:
        """Save in the middle of a task, if the last save is long enough ago."""
        if time.monotonic() - self._last_save >= self._seconds:
            self.task_trained(state)

    def task_trained(self, state: Callable[[], LearnerState]) -> None:
        """Save after a task's last step: what follows cannot be resumed in the middle."""
        self.clock.charge("training")
        self.save(state())

    def save(self, state: LearnerState) -> None:
        """Write the state with the record as it is now."""
        save_checkpoint(self.path, state.tensors, {**state.about, "record": self._record.to_dict()})
        self._last_save = time.monotonic()


def load_run(path: Path) -> tuple[LearnerState, Record]:
    """The learner's state and the record in a run's checkpoint."""
    tensors, about = load_checkpoint(path)
    return LearnerState(tensors, about), Record.from_dict(about["record"])


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and a JSON description as one file, atomically."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "sha256": _digest(plain),
        "about": json.dumps(about, ensure_ascii=False, allow_nan=False),
    }
    write_bytes(path, save(plain, metadata))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description; raises a CheckpointError for any other or damaged file."""
    if not path.is_file():
        raise CheckpointError("does not exist; expected the checkpoint of a run", file=path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"is corrupt ({error})", file=path, hint=_REMEDY) from error
    if metadata.get("format") != FORMAT:
        raise CheckpointError("is a safetensors file, but not a checkpoint of cprompt", file=path)
    if metadata.get("version") != str(VERSION):
        raise CheckpointError(
            f"has format version {metadata.get('version')}; this cprompt reads version {VERSION}",
            file=path,
        )
    if metadata.get("sha256") != _digest(tensors):
        raise CheckpointError(
            "is corrupt: its tensors do not match their hash", file=path, hint=_REMEDY
        )
    about: dict[str, Any] = json.loads(metadata["about"])
    return tensors, about


def check_backbone(about: Mapping[str, Any], backbone: Backbone, path: Path) -> None:
    """Raise a CheckpointError if the tensors were learnt on another backbone."""
    difference = backbone.difference(about)
    if difference:
        raise CheckpointError(
            f"was learnt on {about['name']} ({about['weights']}, {about['fingerprint'][:12]}), "
            f"but {difference}",
            file=path,
            hint="use the backbone it was learnt on, and the same version of timm",
        )


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
