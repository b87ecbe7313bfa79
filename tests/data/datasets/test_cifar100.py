from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cprompt.data.datasets.cifar100 import FINE_LABELS, load
from cprompt.data.image_set import ImageSet
from cprompt.errors import DataError

Touch = Callable[..., None]
Rows = Callable[[ImageSet], list[tuple[str, int]]]


def binary(labels: list[int], seed: int = 0) -> bytes:
    """A binary file of random images; the coarse labels are nonsense and must not matter."""
    noise = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return b"".join(
        bytes([99 - label, label]) + row.tobytes() for label, row in zip(labels, noise, strict=True)
    )


def test_the_labels_are_a_hundred_names_in_alphabetical_order() -> None:
    assert len(set(FINE_LABELS)) == 100
    assert list(FINE_LABELS) == sorted(FINE_LABELS)
    assert [FINE_LABELS[i] for i in (0, 1, 47, 68, 99)] == [
        "apple",
        "aquarium_fish",
        "maple_tree",
        "road",
        "worm",
    ]


@pytest.mark.parametrize("inner", ["", "cifar-100-binary"])
def test_binary_files_give_images_with_fine_labels(tmp_path: Path, inner: str) -> None:
    place = tmp_path / inner
    place.mkdir(exist_ok=True)
    every = list(range(100))
    (place / "train.bin").write_bytes(binary(every[::-1]))
    (place / "test.bin").write_bytes(binary([68, 0], seed=1))
    data = load(tmp_path)
    assert data.name == "cifar100"
    assert data.classes == FINE_LABELS
    assert data.train.labels.tolist() == every[::-1]
    assert data.test.labels.tolist() == [68, 0]
    content = (place / "test.bin").read_bytes()
    row, column = 5, 17
    pixel = [content[3074 + 2 + plane * 1024 + row * 32 + column] for plane in range(3)]
    assert data.test.load(1).size == (32, 32)
    assert list(data.test.load(1).getpixel((column, row))) == pixel


def test_class_folders_get_labels_by_name(tmp_path: Path, touch: Touch, rows: Rows) -> None:
    for name in FINE_LABELS:
        touch(f"train/{name}/1.png", f"train/{name}/2.png", f"test/{name}/3.png")
    data = load(tmp_path)
    assert data.classes == FINE_LABELS
    assert len(data.train) == 200
    for name, label in rows(data.train) + rows(data.test):
        assert FINE_LABELS[label] == name.split("/")[1]


def test_folder_names_may_have_spaces_and_capitals(tmp_path: Path, touch: Touch) -> None:
    for name in FINE_LABELS:
        touch(f"train/{name.replace('_', ' ').title()}/1.png", f"test/{name}/2.png")
    data = load(tmp_path)
    assert data.train.labels.tolist() == data.test.labels.tolist() == list(range(100))


def test_unknown_and_missing_class_folders_are_named(tmp_path: Path, touch: Touch) -> None:
    for name in FINE_LABELS[:-1]:
        touch(f"train/{name}/1.png", f"test/{name}/2.png")
    with pytest.raises(DataError, match=r"train: does not have .* no image for 'worm'"):
        load(tmp_path)
    touch("train/wurm/1.png")
    with pytest.raises(DataError, match="unknown folder 'wurm'; no image for 'worm'"):
        load(tmp_path)


def test_a_class_without_test_images_is_named(tmp_path: Path, touch: Touch) -> None:
    for name in FINE_LABELS:
        touch(f"train/{name}/1.png")
    for name in FINE_LABELS[1:]:
        touch(f"test/{name}/2.png")
    with pytest.raises(DataError, match=r"test: does not have .* no image for 'apple'"):
        load(tmp_path)


@pytest.mark.parametrize("names", [["cifar-100-python/train"], ["train", "test", "meta"]])
def test_the_pickled_version_is_refused_with_what_to_get(
    tmp_path: Path, touch: Touch, names: list[str]
) -> None:
    touch(*names)
    with pytest.raises(DataError, match=r"pickle.*cifar-100-binary\.tar\.gz"):
        load(tmp_path)


def test_an_empty_folder_is_refused_with_what_to_get(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has neither train\.bin.*cifar-100-binary\.tar\.gz"):
        load(tmp_path)
    with pytest.raises(DataError, match="gone: does not exist"):
        load(tmp_path / "gone")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (binary([1, 2])[:-1], r"test\.bin: has 6147 bytes, not a multiple of 3074"),
        (b"", r"test\.bin: has 0 bytes"),
        (bytes([0, 100]) + bytes(3072), r"test\.bin: has label 100, but CIFAR-100 has 100 classes"),
        (None, r"test\.bin: cannot be read \(No such file"),
    ],
)
def test_a_damaged_binary_file_is_named(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    (tmp_path / "train.bin").write_bytes(binary(list(range(100))))
    if content is not None:
        (tmp_path / "test.bin").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load(tmp_path)
