"""Photos of any kind as pixels, decoded into memory."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cprompt.classifier.photo_sources import as_photos
from cprompt.classifier.photos import PhotosOneByOne, decode, decode_in_parts, load_photo
from cprompt.data.pipeline.inspection import Inspection, is_blank
from cprompt.data.pipeline.processes import SETTING
from cprompt.errors import DataError
from tests.classifier.common import gradient, saved


def arrays(photos: Any) -> list[np.ndarray]:
    """One photo or many, each as an array."""
    return [np.asarray(load_photo(photo, f"item {i}")) for i, photo in enumerate(as_photos(photos))]


# --- photos -------------------------------------------------------------------------------------


def every_kind(tmp_path: Path) -> dict[str, Any]:
    image = gradient()
    file = saved(tmp_path / "a.png")
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    return {
        "str": str(file),
        "path": file,
        "pil": Image.fromarray(image),
        "opened": Image.open(file),
        "uint8": image,
        "int64": image.astype(np.int64),
        "float64": image / 255,
        "float32": (image / 255).astype(np.float32),
        "tensor": tensor,
        "float tensor": tensor / 255,
        "half tensor": (tensor / 255).half(),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "str", "path", "pil", "opened", "uint8", "int64", "float64", "float32", "tensor",
        "float tensor", "half tensor",
    ],
)  # fmt: skip
def test_one_photo_of_any_kind_is_the_same_image(tmp_path: Path, kind: str) -> None:
    photo = every_kind(tmp_path)[kind]
    (one,) = arrays(photo)
    np.testing.assert_array_equal(one, gradient())
    for many in ([photo, photo], (photo, photo), iter([photo, photo])):
        for each in arrays(many):
            np.testing.assert_array_equal(each, gradient())


def test_arrays_and_tensors_of_many_photos_are_many() -> None:
    batch = np.stack([gradient(), 255 - gradient()])
    for many in (batch, torch.from_numpy(batch).permute(0, 3, 1, 2), list(batch)):
        found = arrays(many)
        assert len(found) == 2
        np.testing.assert_array_equal(found[1], 255 - gradient())
    assert len(as_photos(np.array(["a.png", "b.png"]))) == 2
    assert len(as_photos([])) == 0
    assert len(as_photos(np.zeros((0, 4, 4, 3), np.uint8))) == 0


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1)])
def test_grey_arrays_become_three_equal_channels(shape: tuple[int, ...]) -> None:
    grey = np.arange(24, dtype=np.uint8).reshape(shape)
    (found,) = arrays(grey)
    for channel in range(3):
        np.testing.assert_array_equal(found[..., channel], grey.reshape(4, 6))
    tensor = torch.from_numpy(grey.reshape(1, 4, 6))
    np.testing.assert_array_equal(arrays(tensor)[0], found)
    np.testing.assert_array_equal(arrays(tensor[0])[0], found)


def test_a_pil_image_is_turned_upright_and_laid_on_white(tmp_path: Path) -> None:
    turned = Image.fromarray(gradient(4, 6))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=exif)
    from_path, from_pil = arrays([tmp_path / "turned.png", Image.open(tmp_path / "turned.png")])
    assert from_pil.shape == (6, 4, 3)
    np.testing.assert_array_equal(from_path, from_pil)
    clear = Image.new("RGBA", (3, 2), (9, 9, 9, 0))
    assert (arrays(clear)[0] == 255).all()


@pytest.mark.parametrize(
    ("photo", "message"),
    [
        (np.zeros((4, 4, 2), np.uint8), r"item 0: has shape \(4, 4, 2\); expected"),
        (np.zeros((0, 4, 3), np.uint8), r"shape \(0, 4, 3\)"),
        (np.zeros((4,)), r"shape \(4,\)"),
        (np.zeros((4, 4, 3)) - 0.1, "values from -0.1 to -0.1; float64 photos run from 0 to 1"),
        (np.full((4, 4, 3), 300), "values from 300 to 300; int64 photos run from 0 to 255"),
        (np.full((4, 4, 3), np.nan), "values from nan"),
        (np.full((4, 4, 3), np.inf), "values from inf"),
        (torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0)), "not normalised"),
        (torch.zeros(3, 4, 4, dtype=torch.bfloat16), "bfloat16"),
        (np.zeros((4, 4, 3), bool), "type bool; expected uint8, or floats of 0 to 1"),
        (np.zeros((4, 4, 3), complex), "type complex128"),
        (Image.new("RGB", (0, 0)), "item 0: has 0×0 pixels"),
        (Image.new("RGB", (50_000, 1)), "50000×1 pixels; one side may be at most 50 times"),
        (Image.new("RGB", (1, 51)), "1×51 pixels"),
        (Image.new("1", (20_000, 20_000)), "more than 178 million pixels"),
        (3, "3 is not a photo"),
        ([None], "item 0: NoneType is not a photo"),
        ([gradient(), {"a": 1}], "item 1: dict is not a photo"),
        ("nowhere.jpg", "nowhere.jpg: does not exist"),
    ],
)
def test_a_bad_photo_is_named_with_what_is_wrong(photo: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        arrays(photo)


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    whole = saved(tmp_path / "a.png", gradient(40, 40)).read_bytes()
    for content, message in [
        (whole[: len(whole) // 2], "bad.png: is damaged or cut short"),
        (b"", "bad.png: is empty"),
        (b"<svg/>", "bad.png: is not an image"),
    ]:
        (tmp_path / "bad.png").write_bytes(content)
        with pytest.raises(DataError, match=message):
            decode([tmp_path / "bad.png"], 8)


def test_a_long_line_of_pixels_in_a_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "line.png", np.zeros((1, 50_000, 3), np.uint8))
    with pytest.raises(DataError, match=r"line.png: has 50000×1 pixels"):
        decode([path], 8)


def test_a_truncated_image_that_pil_opened_is_named(tmp_path: Path) -> None:
    whole = saved(tmp_path / "a.png", gradient(40, 40)).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="item 0: is damaged or cut short"):
        arrays(Image.open(tmp_path / "cut.png"))


# --- pixels -------------------------------------------------------------------------------------


def test_large_photos_are_made_smaller_and_small_ones_stay() -> None:
    images = decode([np.zeros((80, 120, 3), np.uint8), gradient()], side=16)
    assert images.sizes is not None
    assert images.sizes.tolist() == [[32, 48], [5, 7]]


def test_an_array_that_is_as_it_should_be_is_not_copied() -> None:
    fits, large = np.zeros((32, 40, 3), np.uint8), np.zeros((33, 40, 3), np.uint8)
    images = decode([fits, fits[:, ::2], large], side=16)
    assert np.shares_memory(images[0], fits)
    assert images.sizes is not None
    assert images.sizes.tolist() == [[32, 40], [32, 20], [32, 39]]
    with pytest.raises(DataError, match=r"item 0: has 51×1 pixels"):
        decode([np.zeros((1, 51, 3), np.uint8)], side=16)


def test_what_does_not_fit_into_memory_is_loaded_again(tmp_path: Path) -> None:
    files = [saved(tmp_path / f"{i}.png", np.full((4, 4, 3), i, np.uint8)) for i in range(4)]
    told: list[tuple[int, int]] = []
    images = decode(files, 8, lambda done, total: told.append((done, total)), memory=100)
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert images.sizes is None
    for file in files[:2]:
        file.unlink()
    saved(files[3], np.full((4, 4, 3), 77, np.uint8))
    assert [int(images[i][0, 0, 0]) for i in (0, 1, 2, 3)] == [0, 1, 2, 77]
    assert [int(images.subset([3, 1])[i][0, 0, 0]) for i in (0, 1)] == [77, 1]


def test_photos_come_some_at_a_time() -> None:
    told: list[tuple[int, int]] = []
    photos = [np.full((4, 4, 3), i, np.uint8) for i in range(5)]
    parts = list(decode_in_parts(photos, 8, 2, lambda done, total: told.append((done, total))))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert [int(part[i][0, 0, 0]) for part in parts for i in range(len(part))] == [0, 1, 2, 3, 4]
    assert told == [(i, 5) for i in range(1, 6)]


@pytest.mark.parametrize(("device", "beside"), [("cpu", False), ("cuda", True)])
def test_files_of_the_next_part_are_decoded_while_a_gpu_computes(
    device: str, beside: bool, tmp_path: Path
) -> None:
    files = [saved(tmp_path / f"{i}.png", np.full((4, 4, 3), i, np.uint8)) for i in range(5)]
    second = threading.Event()

    def told(done: int, total: int) -> None:
        if done == 4:
            second.set()

    parts = decode_in_parts(files, 8, 2, told, device=torch.device(device))
    first = next(parts)
    assert second.wait(20 if beside else 0.2) == beside
    found = [first, *parts]
    assert [int(part[i][0, 0, 0]) for part in found for i in range(len(part))] == [0, 1, 2, 3, 4]


def test_a_bad_photo_in_a_later_part_is_named_by_its_place_among_all() -> None:
    photos = [gradient(), gradient(), None]
    parts = decode_in_parts(photos, 8, 2)  # type: ignore[arg-type]
    assert len(next(parts)) == 2
    with pytest.raises(DataError) as caught:
        next(parts)
    assert caught.value.file == "item 2"


@pytest.mark.parametrize("processes", [0, 2])
def test_files_are_inspected_in_order_in_threads_and_in_processes(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTING, str(processes))
    levels = [np.full((4, 4, 3), i, np.uint8) for i in range(5)]
    levels[3][0, 0] = 200
    files = [saved(tmp_path / f"{i}.png", each) for i, each in enumerate(levels)]
    told: list[object] = []
    inspection = Inspection(is_blank, lambda number, blank: told.append((number, blank)))
    parts = decode_in_parts(files, 8, 2, lambda *done: told.append(done), inspection)
    for image, expected in zip((p[i] for p in parts for i in range(len(p))), levels, strict=True):
        np.testing.assert_array_equal(image, expected)
    found = [[(i, i != 3), (i + 1, 5)] for i in range(5)]
    assert told == [each for pair in found for each in pair]
    files[4].write_bytes(b"")
    with pytest.raises(DataError, match=r"4.png: is empty"):
        decode(files, 8)


def test_no_photo_is_no_part() -> None:
    assert list(decode_in_parts([], 8, 2)) == []
    assert len(decode([], 8)) == 0


def test_the_bytes_of_a_file_are_read_as_the_file_is(tmp_path: Path) -> None:
    content = saved(tmp_path / "a.png").read_bytes()
    np.testing.assert_array_equal(np.asarray(load_photo(content, "item 0")), gradient())
    with pytest.raises(DataError, match="item 0: is damaged"):
        load_photo(content[:-30], "item 0")
    with pytest.raises(DataError, match="item 0: is empty"):
        load_photo(b"", "item 0")


def test_photos_of_a_dataset_are_loaded_only_when_asked_for() -> None:
    asked = []

    class Numbered(PhotosOneByOne):
        def photo(self, index: int) -> str:
            asked.append(index)
            return f"{index}.png"

    photos = Numbered(range(5))
    assert len(photos) == 5
    assert asked == []
    assert photos[3] == "3.png"
    assert photos[4:0:-2] == ["4.png", "2.png"]
    assert asked == [3, 4, 2]
