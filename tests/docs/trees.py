"""Small data under the names that the pages use, each with the true layout."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from scipy.io import savemat

from cprompt import ContinualClassifier
from cprompt.data.datasets.cifar100 import FINE_LABELS
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT
from tests.data.datasets.test_stanford_cars import BOX, cell, structs
from tests.serve.live import make_model

CLASSES = 22
"""Enough for two tasks of the paper's benchmarks, whose tasks have 10 or 20 classes."""


def jpeg(seed: int) -> bytes:
    """Noise around a colour; another seed gives another image."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, 3) // 2 + rng.integers(0, 100, (40, 48, 3))
    file = io.BytesIO()
    Image.fromarray(noise.astype(np.uint8)).save(file, "JPEG")
    return file.getvalue()


def photos(folder: Path, classes: dict[str, int], seed: int = 0) -> None:
    """So many photos of each class, in a folder for each."""
    for label, (name, count) in enumerate(classes.items()):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            (folder / name / f"{i}.jpg").write_bytes(jpeg(seed + 1000 * label + i))


def cars(root: Path) -> None:
    (root / "car_ims").mkdir(parents=True)
    rows = []
    for i in range(3 * CLASSES):
        name = f"car_ims/{i + 1:06d}.jpg"
        (root / name).write_bytes(jpeg(i))
        rows.append({"relative_im_path": name, **BOX, "class": i // 3 + 1, "test": int(i % 3 == 2)})
    names = [f"Car {c} 2012" for c in range(CLASSES)]
    savemat(root / "cars_annos.mat", {"annotations": structs(rows), "class_names": cell(names)})


def imagenet_r(root: Path) -> None:
    photos(root / "imagenet-r", {f"n{c:08d}": 3 for c in range(CLASSES)})
    listed = [(f"imagenet-r/n{c:08d}/{i}.jpg {c}", i) for c in range(CLASSES) for i in range(3)]
    for file, part in (("coda_train.txt", (0, 1)), ("coda_test.txt", (2,))):
        (root / file).write_text("".join(f"{line}\n" for line, i in listed if i in part))


def domainnet(root: Path) -> None:
    names = [f"{'real' if c < CLASSES // 2 else 'sketch'}/thing{c}" for c in range(CLASSES)]
    photos(root, dict.fromkeys(names, 3))
    listed = [(f"{name}/{i}.jpg {c}", i) for c, name in enumerate(names) for i in range(3)]
    for file, part in (("train.txt", (0, 1)), ("test.txt", (2,))):
        (root / file).write_text("".join(f"{line}\n" for line, i in listed if i in part))


def cifar(root: Path) -> None:
    root.mkdir()
    for part, seed in (("train", 0), ("test", 1)):
        rng = np.random.default_rng(seed)
        rows = (
            bytes([0, label]) + rng.integers(0, 256, 3072, dtype=np.uint8).tobytes()
            for label in range(len(FINE_LABELS))
        )
        (root / f"{part}.bin").write_bytes(b"".join(rows))


def folder_of_photos(root: Path) -> None:
    photos(root, dict.fromkeys(("кошка", "собака", "長頸鹿", "owl", "żubr"), 6))


def photo(path: Path) -> None:
    path.write_bytes(jpeg(7))


def archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for label, name in enumerate(("red", "blue")):
            for i in range(3):
                file.writestr(f"{name}/{i}.jpg", jpeg(1000 * label + i))


def two_blocks(*_: Any) -> FrozenViT:
    """timm's test ViT without its last four blocks, since tracing takes its time for each."""
    backbone = load_backbone("test_vit", weights="random:0", image_size=48)
    backbone.vit.blocks = backbone.vit.blocks[:2]
    return backbone


@contextmanager
def small_export(folder: Path) -> Iterator[None]:
    """In place of a model: one of two blocks that answers with a single pass; its graph is small.

    The graph is not optimised.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with (
        patch("cprompt.classifier.classifier.load_backbone", two_blocks),
        patch("torch.onnx.export", partial(torch.onnx.export, optimize=False)),
    ):
        classifier = ContinualClassifier(
            "test_vit", "finetune", weights="random:0", training={"epochs": 1}, device="cpu"
        )
        classifier.learn([Image.open(io.BytesIO(jpeg(i))) for i in range(8)], ["red", "blue"] * 4)
        classifier.save(folder)
        yield


PLACES: dict[str, Callable[[Path], None]] = {
    "CARS": cars,
    "IMAGENET_R": imagenet_r,
    "DOMAINNET": domainnet,
    "CIFAR": cifar,
    "PHOTOS": folder_of_photos,
    "MODEL": make_model,
    "photos.zip": archive,
    "test.zip": archive,
    **dict.fromkeys(("a.jpg", "b.jpg", "1.jpg", "2.jpg", "photo.jpg"), photo),
}
"""What the pages call their data, and how to make a small one of it."""
