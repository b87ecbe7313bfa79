"""What photos and labels can be given as."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset

from cprompt.classifier.photo_sources import Photos, class_name, images, labelled, shrunk
from cprompt.errors import DataError


def gradient(height: int = 5, width: int = 7) -> np.ndarray:
    """An image whose every pixel differs."""
    at = np.arange(height * width * 3) * 7 % 251
    return at.reshape(height, width, 3).astype(np.uint8)


def saved(path: Path, image: np.ndarray | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(gradient() if image is None else image).save(path)
    return path


def arrays(photos: Photos) -> list[np.ndarray]:
    return [np.asarray(photos.load(i)) for i in range(len(photos))]


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
    (one,) = arrays(images(photo))
    np.testing.assert_array_equal(one, gradient())
    for many in ([photo, photo], (photo, photo), iter([photo, photo])):
        for each in arrays(images(many)):
            np.testing.assert_array_equal(each, gradient())


def test_arrays_and_tensors_of_many_photos_are_many() -> None:
    batch = np.stack([gradient(), 255 - gradient()])
    for many in (batch, torch.from_numpy(batch).permute(0, 3, 1, 2), list(batch)):
        found = arrays(images(many))
        assert len(found) == 2
        np.testing.assert_array_equal(found[1], 255 - gradient())
    assert len(images(np.array(["a.png", "b.png"]))) == 2
    assert len(images([])) == 0
    assert len(images(np.zeros((0, 4, 4, 3), np.uint8))) == 0


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1)])
def test_grey_arrays_become_three_equal_channels(shape: tuple[int, ...]) -> None:
    grey = np.arange(24, dtype=np.uint8).reshape(shape)
    (found,) = arrays(images(grey))
    for channel in range(3):
        np.testing.assert_array_equal(found[..., channel], grey.reshape(4, 6))
    tensor = torch.from_numpy(grey.reshape(1, 4, 6))
    np.testing.assert_array_equal(arrays(images(tensor))[0], found)
    np.testing.assert_array_equal(arrays(images(tensor[0]))[0], found)


def test_a_pil_image_is_turned_upright_and_laid_on_white(tmp_path: Path) -> None:
    turned = Image.fromarray(gradient(4, 6))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=exif)
    from_path, from_pil = arrays(
        images([tmp_path / "turned.png", Image.open(tmp_path / "turned.png")])
    )
    assert from_pil.shape == (6, 4, 3)
    np.testing.assert_array_equal(from_path, from_pil)
    clear = Image.new("RGBA", (3, 2), (9, 9, 9, 0))
    assert (arrays(images(clear))[0] == 255).all()


@pytest.mark.parametrize(
    ("photo", "message"),
    [
        (np.zeros((4, 4, 2), np.uint8), r"item 0 has shape \(4, 4, 2\); expected"),
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
        (3, "3 is no photo"),
        ([None], "item 0: NoneType is no photo"),
        ([gradient(), {"a": 1}], "item 1: dict is no photo"),
        ("nowhere.jpg", "nowhere.jpg: does not exist"),
    ],
)
def test_a_bad_photo_is_named_with_what_is_wrong(photo: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        arrays(images(photo))


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    whole = saved(tmp_path / "a.png", gradient(40, 40)).read_bytes()
    for content, message in [
        (whole[: len(whole) // 2], "bad.png: is damaged or cut short"),
        (b"", "bad.png: is empty"),
        (b"<svg/>", "bad.png: is not an image"),
    ]:
        (tmp_path / "bad.png").write_bytes(content)
        with pytest.raises(DataError, match=message):
            images(tmp_path / "bad.png").pixels(8)


def test_a_long_line_of_pixels_in_a_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "line.png", np.zeros((1, 50_000, 3), np.uint8))
    with pytest.raises(DataError, match=r"line.png: has 50000×1 pixels"):
        images(path).pixels(8)


def test_a_truncated_image_that_pil_opened_is_named(tmp_path: Path) -> None:
    whole = saved(tmp_path / "a.png", gradient(40, 40)).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="item 0: is damaged or cut short"):
        arrays(images(Image.open(tmp_path / "cut.png")))


# --- pixels -------------------------------------------------------------------------------------


def test_large_photos_are_made_smaller_and_small_ones_stay() -> None:
    assert shrunk(Image.new("RGB", (400, 100)), 50).size == (200, 50)
    assert shrunk(Image.new("RGB", (100, 401)), 50).size == (50, 200)
    small = Image.new("RGB", (40, 90))
    assert shrunk(small, 50) is small
    pixels = images([np.zeros((80, 120, 3), np.uint8), gradient()]).pixels(side=16)
    assert pixels.sizes is not None
    assert pixels.sizes.tolist() == [[32, 48], [5, 7]]


def test_what_does_not_fit_into_memory_is_loaded_again(tmp_path: Path) -> None:
    files = [saved(tmp_path / f"{i}.png", np.full((4, 4, 3), i, np.uint8)) for i in range(4)]
    told: list[tuple[int, int]] = []
    pixels = images(files).pixels(8, lambda done, total: told.append((done, total)), memory=100)
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert pixels.sizes is None
    for file in files[:2]:
        file.unlink()
    saved(files[3], np.full((4, 4, 3), 77, np.uint8))
    assert [int(pixels[i][0, 0, 0]) for i in (0, 1, 2, 3)] == [0, 1, 2, 77]
    assert [int(pixels.subset([3, 1])[i][0, 0, 0]) for i in (0, 1)] == [77, 1]


def test_photos_come_some_at_a_time() -> None:
    photos = images([np.full((4, 4, 3), i, np.uint8) for i in range(5)])
    parts = list(photos.parts(2))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert [int(a[0, 0, 0]) for part in parts for a in arrays(part)] == [0, 1, 2, 3, 4]


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["猫", "قطة", "🐈‍⬛", "..", "con", "a/b\\c", "  x ", "-rf", "né", "None", "a" * 300]
)
def test_names_in_any_script_stay_as_they_are(name: str) -> None:
    assert class_name(name, "here") == name


def test_the_same_name_is_one_name_however_its_accents_are_stored() -> None:
    split = unicodedata.normalize("NFD", "né")
    assert split != "né"
    assert class_name(split, "here") == "né"


def test_whole_numbers_become_figures() -> None:
    assert [class_name(n, "here") for n in (7, np.int64(-2))] == ["7", "-2"]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("", "the label is empty"),
        (" ", "the label is empty"),
        ("unknown", "no class can be called 'unknown'"),
        ("a\nb", r"label 'a\\nb' has control"),
        ("a\0b", "control"),
        ("\udce9", r"'\\udce9' has control or undecodable"),
        (1.5, "1.5 is no label"),
        (float("nan"), "nan is no label"),
        (None, "NoneType is no label"),
        (True, "True is no label"),
        (["cat"], "list is no label"),
    ],
)
def test_a_label_that_is_no_name_is_refused(label: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"item 3: .*{message}"):
        class_name(label, "item 3")


# --- labelled photos ----------------------------------------------------------------------------


def test_a_folder_has_a_folder_a_class_with_folders_below(tmp_path: Path) -> None:
    saved(tmp_path / "cat" / "a.png")
    saved(tmp_path / "cat" / "deep" / "er" / "b.png", 255 - gradient())
    saved(tmp_path / "🐕 قطة" / "c.PNG")
    (tmp_path / "cat" / "notes.txt").write_text("x")
    (tmp_path / ".hidden").mkdir()
    photos = labelled(tmp_path)
    assert photos.names == ["cat", "cat", "🐕 قطة"]
    np.testing.assert_array_equal(arrays(photos)[1], 255 - gradient())
    assert labelled(str(tmp_path)).names == photos.names


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: (root / "cat").mkdir(), "no image .* in class 'cat'"),
        (lambda root: saved(root / "a.png"), "has no class folder"),
        (lambda root: saved(root / "unknown" / "a.png"), "no class can be called 'unknown'"),
        (
            lambda root: [saved(root / p / "cat" / "a.png") for p in ("train", "test")],
            "has parts, train/ and test/, where class folders were expected; give .*train",
        ),
    ],
)
def test_a_folder_that_is_none_of_classes_is_refused(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=message):
        labelled(tmp_path)


def test_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere does not exist"):
        labelled(tmp_path / "nowhere")
    with pytest.raises(DataError, match="is a file"):
        labelled(saved(tmp_path / "a.png"))


def test_pairs_photos_with_labels_and_frames_are_alike(tmp_path: Path) -> None:
    files = [saved(tmp_path / "a.png"), saved(tmp_path / "b.png", 255 - gradient())]
    labels = ["a/b", ".."]
    table = {"path": files, "label": labels}
    frame = type(
        "Frame", (), {"columns": ["label", "path"], "__getitem__": lambda s, k: table[k]}
    )()
    for source in (
        labelled(list(zip(files, labels, strict=True))),
        labelled(zip(map(str, files), labels, strict=True)),
        labelled([list(pair) for pair in zip(files, labels, strict=True)]),
        labelled(files, labels),
        labelled([gradient(), 255 - gradient()], np.array(labels)),
        labelled(np.stack([gradient(), 255 - gradient()]), labels),
        labelled(frame),
    ):
        assert source.names == labels
        np.testing.assert_array_equal(arrays(source)[1], 255 - gradient())


class Squares(Dataset[Any]):
    """Three images; labels as given."""

    def __init__(self, labels: list[Any], classes: Any = None) -> None:
        self.labels = labels
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> Any:
        return Image.new("RGB", (4, 4), (i, i, i)), self.labels[i]


def test_a_torch_dataset_gives_photos_and_names() -> None:
    for dataset, names in [
        (Squares([1, 0, 1], ["dog", "cat"]), ["cat", "dog", "cat"]),
        (Squares(["x", "y", "x"]), ["x", "y", "x"]),
        (Squares([5, 2, 5]), ["5", "2", "5"]),
        (Squares([torch.tensor(1), np.int64(0), 1], ("dog", "cat")), ["cat", "dog", "cat"]),
    ]:
        photos = labelled(dataset)
        assert photos.names == names
        assert [int(a[0, 0, 0]) for a in arrays(photos)] == [0, 1, 2]
    part = labelled(Subset(Squares([1, 0, 1], ["dog", "cat"]), [2, 1]))
    assert part.names == ["cat", "dog"]
    assert [int(a[0, 0, 0]) for a in arrays(part)] == [2, 1]
    tensors = TensorDataset(torch.zeros(2, 3, 4, 4), torch.tensor([3, 4]))
    assert labelled(tensors).names == ["3", "4"]


@pytest.mark.parametrize(
    ("source", "labels", "message"),
    [
        ([gradient()], ["a", "b"], "1 photos but 2 labels"),
        ([gradient()], None, r"item 0 is no \(photo, label\) pair but ndarray"),
        (["a.png", "b.png"], None, "item 0 is no .* pair but 'a.png'"),
        (7, None, "photos cannot be learnt from a int"),
        (Squares([2], ["a", "b"]), None, "item 0: label 2, but there are 2 classes"),
        (SimpleNamespace(columns=["file_name", "label"]), None, "expected label and one of path"),
        (SimpleNamespace(columns=["path"]), None, "the frame has columns path; expected label"),
        (torch.zeros(2, 3, 4, 4), None, "item 0 of the dataset is no"),
    ],
)
def test_a_source_that_is_none_says_what_was_expected(
    source: Any, labels: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        labelled(source, labels)


def test_a_frame_may_hold_images() -> None:
    table = {"image": [gradient()], "label": ["x"]}
    frame = type("Frame", (), {"columns": ["image", "label"], "__getitem__": lambda s, k: table[k]})
    np.testing.assert_array_equal(arrays(labelled(frame()))[0], gradient())
