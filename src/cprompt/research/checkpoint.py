"""Checkpoints: one safetensors file with what was learnt, and JSON about it in its header.

One file, so that tensors and description can never be of different moments. Tensors carry a hash,
because the format itself would not notice a changed bit. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cprompt.errors import CheckpointError
from cprompt.files import write_bytes
from cprompt.vit.promptable import FrozenViT

FORMAT = "cprompt-checkpoint"
VERSION = 1


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and a JSON description as one file, beside and renamed."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "sha256": _digest(plain),
        "about": json.dumps(about, ensure_ascii=False, allow_nan=False),
    }
    write_bytes(path, save(plain, metadata))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description, after checking that the file is whole and ours."""
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint {path} is corrupt ({error}); delete it and start the run again, "
            "or restore it from a copy"
        ) from error
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} is a safetensors file, but not a checkpoint of cprompt")
    if metadata.get("version") != str(VERSION):
        raise CheckpointError(
            f"checkpoint {path} has format version {metadata.get('version')}; this cprompt reads "
            f"version {VERSION}"
        )
    if metadata.get("sha256") != _digest(tensors):
        raise CheckpointError(
            f"checkpoint {path} is corrupt: its tensors do not match their hash; delete it and "
            "start the run again, or restore it from a copy"
        )
    about: dict[str, Any] = json.loads(metadata["about"])
    return tensors, about


def check_backbone(about: Mapping[str, str], backbone: FrozenViT, path: Path) -> None:
    """Refuse to put learnt tensors on a backbone they were not learnt on."""
    if about["fingerprint"] != backbone.fingerprint:
        raise CheckpointError(
            f"{path} was learnt on {about['name']} ({about['weights']}, "
            f"{about['fingerprint'][:12]}), but the backbone at hand is {backbone.name} "
            f"({backbone.weights}, {backbone.fingerprint[:12]}); load the first one"
        )


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
