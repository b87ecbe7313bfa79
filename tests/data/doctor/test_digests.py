"""Images reduced to digests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from cprompt.data.doctor.digests import digest_images
from cprompt.data.image_set import Dataset, ImageSet


def test_digests_tell_equal_files_from_equal_pixels(tmp_path: Path) -> None:
    levels = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    files = [tmp_path / name for name in ("a.png", "copy.png", "other.bmp", "changed.png", "bad")]
    for file in files[:3]:
        Image.fromarray(levels).save(file)
    Image.fromarray(255 - levels).save(files[3])
    files[4].write_bytes(b"")
    train = ImageSet(files[:2], np.array([0, 0]), ("thing",))
    test = ImageSet(files[2:], np.array([0, 0, 0]), ("thing",))
    told: list[tuple[int, int]] = []
    found = digest_images(Dataset("d", train, test), 2, lambda *counts: told.append(counts))
    a, copy, other, changed, bad = found
    assert [each.part for each in found] == ["train", "train", "test", "test", "test"]
    assert a.stored == copy.stored != other.stored
    assert a.pixels == copy.pixels == other.pixels != changed.pixels
    assert bad.error == f"{files[4]}: is empty (0 bytes)"
    assert told == [(i, 5) for i in range(1, 6)]


def test_images_of_an_array_are_named_by_part_and_number() -> None:
    images = ImageSet(np.zeros((2, 4, 4, 3), np.uint8), np.array([0, 0]), ("thing",))
    found = digest_images(Dataset("d", images, images), 1, lambda done, total: None)
    assert [each.name for each in found] == ["train[0]", "train[1]", "test[0]", "test[1]"]
    assert len({each.pixels for each in found}) == 1
