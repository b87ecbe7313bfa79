"""What photos and labels can be given as."""

from __future__ import annotations

import io
import os
import tarfile
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

from cprompt.classifier.photo_sources import (
    LabelledPhotos,
    class_name,
    labelled,
    notice_layout,
    photos_of_class,
)
from cprompt.classifier.photos import load_photo
from cprompt.errors import DataError
from cprompt.training.observers import Observer
from tests.classifier.common import gradient, saved


def arrays(source: LabelledPhotos) -> list[np.ndarray]:
    return [np.asarray(load_photo(photo, f"item {i}")) for i, photo in enumerate(source.photos)]


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


def test_whole_numbers_become_digits() -> None:
    assert [class_name(n, "here") for n in (7, np.int64(-2))] == ["7", "-2"]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("", "the label is empty"),
        (" ", "the label is empty"),
        ("unknown", "no class can be called 'unknown'"),
        ("Unknown", "no class can be called 'Unknown'"),
        (" UNKNOWN ", "no class can be called ' UNKNOWN '"),
        ("a\nb", r"label 'a\\nb' has control"),
        ("a\0b", "control"),
        ("\udce9", r"'\\udce9' has control or undecodable"),
        (1.5, "1.5 is not a label"),
        (float("nan"), "nan is not a label"),
        (None, "NoneType is not a label"),
        (True, "True is not a label"),
        (["cat"], "list is not a label"),
    ],
)
def test_a_label_that_is_not_a_name_is_refused(label: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"item 3: .*{message}"):
        class_name(label, "item 3")


# --- labelled photos ----------------------------------------------------------------------------


def test_a_folder_has_a_folder_per_class_with_folders_below(tmp_path: Path) -> None:
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
            "has parts train/ and test/, .*; give .*train",
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
    with pytest.raises(DataError, match="nowhere: does not exist"):
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
        ([gradient()], ["a", "b"], "1 photo but 2 labels"),
        ([gradient()], None, r"item 0: is not a \(photo, label\) pair but ndarray"),
        (["a.png", "b.png"], None, "item 0: is not a .* pair but 'a.png'"),
        (7, None, "photos cannot be learnt from a int"),
        (Squares([2], ["a", "b"]), None, "item 0: label 2, but there are 2 classes"),
        (SimpleNamespace(columns=["file_name", "label"]), None, "expected label and one of path"),
        (SimpleNamespace(columns=["path"]), None, "the frame has columns path; expected label"),
        (torch.zeros(2, 3, 4, 4), None, "item 0 of the dataset: is not a"),
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


def test_an_image_beside_tar_files_lies_beside_no_class_folder(tmp_path: Path) -> None:
    class Told(Observer):
        def noticed(self, message: str) -> None:
            told.append(message)

    told: list[str] = []
    saved(tmp_path / "thumb.png")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "thumb.png", "1.png")
        label = tarfile.TarInfo("1.cls")
        label.size = 3
        tar.addfile(label, io.BytesIO(b"cat"))
    assert labelled(tmp_path).names == ["cat"]
    notice_layout(tmp_path, Told())
    assert told == []
    (tmp_path / "cat").mkdir()
    notice_layout(tmp_path, Told())
    assert len(told) == 1
    assert "1 image lies beside the class folders" in told[0]


def test_photos_of_a_class_come_from_its_folder_or_a_list(tmp_path: Path) -> None:
    here = saved(tmp_path / "batch" / "caf\u00e9" / "1.png")
    deep = saved(tmp_path / "batch" / "caf\u00e9" / "more" / "2.png")
    other = saved(tmp_path / "batch" / "dog" / "3.png")
    lines = [f"{file}\t{file.parent.name}" for file in (here, other)]
    (tmp_path / "list.txt").write_text("\n".join(lines), "utf-8")
    own = tmp_path / "batch" / "caf\u00e9"
    for place in (tmp_path / "batch", str(own), [own], [here, deep]):
        assert list(photos_of_class(place, "caf\u00e9")) == [here, deep]
    (found,) = photos_of_class(tmp_path / "list.txt", "dog")
    assert Path(str(found)) == other
    for place in (tmp_path / "batch", tmp_path / "list.txt"):
        with pytest.raises(DataError, match="'cat'"):
            photos_of_class(place, "cat")


def test_the_folder_of_a_class_may_be_a_link_or_the_one_it_is_asked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, below in enumerate(("a", "b")):
        saved(tmp_path / "felines" / below / f"{number}.png")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat").symlink_to(tmp_path / "felines")
    link = tmp_path / "photos" / "cat"
    assert labelled(tmp_path / "photos").names == ["cat", "cat"]
    for place in (tmp_path / "photos", link, f"{link}{os.sep}"):
        assert list(photos_of_class(place, "cat")) == [link / "a" / "0.png", link / "b" / "1.png"]
    monkeypatch.chdir(tmp_path / "felines")
    assert len(photos_of_class(".", "felines")) == 2


def test_all_of_a_class_folder_is_taken_also_if_a_folder_in_it_has_its_name(
    tmp_path: Path,
) -> None:
    here = saved(tmp_path / "cat" / "1.png")
    deep = saved(tmp_path / "cat" / "cat" / "2.png")
    assert list(photos_of_class(tmp_path / "cat", "cat")) == [here, deep]
    here.unlink()
    other = saved(tmp_path / "cat" / "dog" / "3.png")  # now it is the folder around classes
    assert list(photos_of_class(tmp_path / "cat", "cat")) == [deep]
    assert list(photos_of_class(tmp_path / "cat", "dog")) == [other]
