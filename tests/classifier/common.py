"""A tiny classifier, and photos whose classes are colours."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from cprompt import ContinualClassifier
from cprompt.classifier import model_folder

SIDE = 24


def tiny(**params: Any) -> ContinualClassifier:
    usual: dict[str, Any] = {
        "backbone": "test_vit",
        "weights": "random:0",
        "image_size": 48,
        "training": {"epochs": 1, "batch_size": 8},
        "transform": "plain",
        "device": "cpu",
    }
    return ContinualClassifier(**{**usual, **params})


def photos(name: str, count: int, seed: int = 0) -> list[np.ndarray]:
    """Noise around a colour that the name stands for."""
    colour = np.random.default_rng(zlib.crc32(name.encode())).integers(40, 216, 3)
    noise = np.random.default_rng([seed, zlib.crc32(name.encode())]).normal(
        0, 8, (count, SIDE, SIDE, 3)
    )
    return list((colour + noise).clip(0, 255).astype(np.uint8))


def batch(seed: int = 0, **counts: int) -> tuple[list[np.ndarray], list[str]]:
    images = [p for name, n in counts.items() for p in photos(name, n, seed)]
    return images, [name for name, n in counts.items() for _ in range(n)]


def learnt(*batches: dict[str, int], **params: Any) -> ContinualClassifier:
    classifier = tiny(**params)
    for number, counts in enumerate(batches):
        classifier.learn(*batch(number, **counts))
    return classifier


def forged(
    folder: Path, copy: Path, about: dict[str, Any], tensors: dict[str, Tensor] | None = None
) -> Path:
    """The same model under another description, well written as far as the folder can tell."""
    stored = model_folder.read(folder)
    plain = {**stored.about, **about, "model": "forged"}
    for name in ("format", "version", "generation", "files"):
        plain.pop(name)
    model_folder.write(copy, plain, stored.tensors if tensors is None else tensors)
    return copy


def gradient(height: int = 5, width: int = 7) -> np.ndarray:
    """An image whose every pixel differs."""
    at = np.arange(height * width * 3) * 7 % 251
    return at.reshape(height, width, 3).astype(np.uint8)


def saved(path: Path, image: np.ndarray | None = None) -> Path:
    """The image, or a small gradient, written to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(gradient() if image is None else image).save(path)
    return path
