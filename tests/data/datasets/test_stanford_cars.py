from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from cprompt.data.datasets.stanford_cars import load
from cprompt.data.image_set import ImageSet
from cprompt.data.splits import MissingImagesError
from cprompt.errors import DataError

Touch = Callable[..., None]
Rows = Callable[[ImageSet], list[tuple[str, int]]]

# In the official order, which is not the alphabetical one; a folder cannot have the slash.
NAMES = ["Zonda Coupe 2012", "Acura RL 2012", "Ram C/V Van 2012"]
FOLDERS = ["Zonda Coupe 2012", "Acura RL 2012", "Ram C_V Van 2012"]


def cell(values: list[str]) -> np.ndarray:
    """A MATLAB cell array of texts, 1×N."""
    array = np.empty((1, len(values)), dtype=object)
    array[0, :] = values
    return array


def structs(rows: list[dict[str, object]]) -> np.ndarray:
    """A MATLAB struct array, 1×N."""
    array = np.empty((1, len(rows)), dtype=[(field, object) for field in rows[0]])
    for i, row in enumerate(rows):
        array[0, i] = tuple(row.values())
    return array


BOX = {"bbox_x1": 1, "bbox_y1": 2, "bbox_x2": 30, "bbox_y2": 40}


def combined(rows: list[tuple[str, int, int]]) -> dict[str, np.ndarray]:
    """The content of cars_annos.mat: (file, class from 1, test flag)."""
    annotations = [
        {"relative_im_path": f"car_ims/{name}", **BOX, "class": label, "test": test}
        for name, label, test in rows
    ]
    return {"annotations": structs(annotations), "class_names": cell(NAMES)}


COMBINED = [
    ("000001.jpg", 1, 0),
    ("000002.jpg", 1, 1),
    ("000003.jpg", 2, 1),
    ("000004.jpg", 2, 0),
    ("000005.jpg", 3, 0),
    ("000006.jpg", 3, 1),
]


def test_the_combined_archive_gives_labels_from_0_and_the_official_split(
    tmp_path: Path, touch: Touch, rows: Rows
) -> None:
    touch(*(f"car_ims/{name}" for name, _, _ in COMBINED))
    savemat(tmp_path / "cars_annos.mat", combined(COMBINED))
    data = load(tmp_path)
    assert data.name == "stanford_cars"
    assert data.classes == tuple(NAMES)
    assert rows(data.train) == [
        ("car_ims/000001.jpg", 0),
        ("car_ims/000004.jpg", 1),
        ("car_ims/000005.jpg", 2),
    ]
    assert rows(data.test) == [
        ("car_ims/000002.jpg", 0),
        ("car_ims/000003.jpg", 1),
        ("car_ims/000006.jpg", 2),
    ]


def test_annotated_images_that_are_missing_are_named_or_skipped(
    tmp_path: Path, touch: Touch
) -> None:
    touch(*(f"car_ims/{name}" for name, _, _ in COMBINED[:-1]))
    savemat(tmp_path / "cars_annos.mat", combined(COMBINED))
    with pytest.raises(MissingImagesError, match=r"1 listed image is missing: .*000006\.jpg"):
        load(tmp_path)
    assert load(tmp_path, missing="skip").test.per_class().tolist() == [1, 1, 0]


def test_images_without_annotations_are_refused_with_what_to_get(
    tmp_path: Path, touch: Touch
) -> None:
    touch("car_ims/000001.jpg")
    with pytest.raises(DataError, match=r"cars_annos\.mat: does not exist"):
        load(tmp_path)


def test_a_damaged_or_foreign_annotation_file_is_named(tmp_path: Path, touch: Touch) -> None:
    touch("car_ims/000001.jpg")
    file = tmp_path / "cars_annos.mat"
    file.write_bytes(b"no matlab" * 50)
    with pytest.raises(DataError, match=r"cars_annos\.mat: is damaged or not a MATLAB file"):
        load(tmp_path)
    savemat(file, {"class_names": cell(NAMES)})
    with pytest.raises(DataError, match="struct array `annotations` with the fields relative_im"):
        load(tmp_path)
    savemat(file, {"annotations": structs([{"fname": "1.jpg", "class": 1}])})
    with pytest.raises(DataError, match="struct array `annotations`"):
        load(tmp_path)
    savemat(file, {"annotations": combined(COMBINED)["annotations"]})
    with pytest.raises(DataError, match="cell array `class_names`"):
        load(tmp_path)


def two_folders(root: Path, touch: Touch, devkit: str, inner: bool = False) -> None:
    """Both folders have files of the same names, for different cars."""
    (root / devkit).mkdir(exist_ok=True)
    for part, labels, file in (
        ("cars_train", [3, 1, 2], "cars_train_annos.mat"),
        ("cars_test", [2, 2, 1], "cars_test_annos_withlabels.mat"),
    ):
        files = [f"{i:05}.jpg" for i in range(1, 4)]
        touch(*(f"{part}/{part if inner else '.'}/{f}" for f in files))
        pairs = zip(labels, files, strict=True)
        annotations = structs([{**BOX, "class": c, "fname": f} for c, f in pairs])
        savemat(root / devkit / file, {"annotations": annotations})
    savemat(root / devkit / "cars_meta.mat", {"class_names": cell(NAMES)})


@pytest.mark.parametrize(("devkit", "inner"), [("devkit", False), (".", True)])
def test_the_two_folder_download_is_read_with_its_devkit(
    tmp_path: Path, touch: Touch, rows: Rows, devkit: str, inner: bool
) -> None:
    two_folders(tmp_path, touch, devkit, inner)
    data = load(tmp_path)
    between = {part: f"{part}/{part}" if inner else part for part in ("cars_train", "cars_test")}
    assert data.name == "stanford_cars"
    assert data.classes == tuple(NAMES)
    assert rows(data.train) == [
        (f"{between['cars_train']}/0000{i}.jpg", label) for i, label in ((1, 2), (2, 0), (3, 1))
    ]
    assert rows(data.test) == [
        (f"{between['cars_test']}/0000{i}.jpg", label) for i, label in ((1, 1), (2, 1), (3, 0))
    ]


@pytest.mark.parametrize(
    "name", ["cars_meta.mat", "cars_train_annos.mat", "cars_test_annos_withlabels.mat"]
)
def test_a_missing_devkit_file_is_named_with_why_it_is_needed(
    tmp_path: Path, touch: Touch, name: str
) -> None:
    two_folders(tmp_path, touch, "devkit")
    (tmp_path / "devkit" / name).unlink()
    with pytest.raises(DataError, match=rf"{name}: does not exist\. .*00001\.jpg.*car_ims\.tgz"):
        load(tmp_path)


def class_folders(touch: Touch, digits: int = 6) -> None:
    """Numbered as in the combined archive, which is sorted by class; one class is in two runs."""
    for place, numbers in enumerate(([1, 2, 3, 9], [4, 5], [6, 7, 8])):
        for n in numbers:
            touch(f"{'test' if n % 2 else 'train'}/{FOLDERS[place]}/{n:0{digits}}.jpg")


def test_class_folders_get_the_official_labels_from_the_archive_numbers(
    tmp_path: Path, touch: Touch, rows: Rows
) -> None:
    class_folders(touch)
    data = load(tmp_path)
    assert data.name == "stanford_cars"
    assert list(data.classes) == FOLDERS != sorted(FOLDERS)
    assert {name.split("/")[1]: label for name, label in rows(data.train) + rows(data.test)} == {
        name: label for label, name in enumerate(FOLDERS)
    }
    assert data.train.per_class().tolist() == [1, 1, 2]
    assert data.test.per_class().tolist() == [3, 1, 1]


def test_class_folders_without_archive_numbers_say_so_in_the_name(
    tmp_path: Path, touch: Touch
) -> None:
    class_folders(touch, digits=5)
    data = load(tmp_path)
    assert data.name == "stanford_cars-sorted-labels"
    assert list(data.classes) == sorted(FOLDERS)


def test_numbers_that_occur_twice_are_not_those_of_the_archive(
    tmp_path: Path, touch: Touch
) -> None:
    class_folders(touch)
    touch("test/Acura RL 2012/000001.jpg")
    assert load(tmp_path).name == "stanford_cars-sorted-labels"


@pytest.mark.parametrize(("number", "known"), [(90, True), (153, True), (89, False), (154, False)])
def test_a_copy_with_numbers_of_its_own_is_told_from_the_archive(
    tmp_path: Path, touch: Touch, number: int, known: bool
) -> None:
    """The second class of the archive has the images 000090 to 000153."""
    for part, at in (("train", number), ("test", 100)):
        touch(f"{part}/Acura RL Sedan 2012/{at:06}.jpg")
        touch(f"{part}/AM General Hummer SUV 2000/{1 if part == 'train' else 2:06}.jpg")
    assert load(tmp_path).name == ("stanford_cars" if known else "stanford_cars-sorted-labels")


def test_a_class_list_gives_the_labels_whatever_stands_for_the_slash(
    tmp_path: Path, touch: Touch
) -> None:
    class_folders(touch, digits=5)
    (tmp_path / "names.txt").write_text("\n".join(NAMES) + "\n")
    data = load(tmp_path, class_list=str(tmp_path / "names.txt"))
    assert data.name == "stanford_cars"
    assert list(data.classes) == FOLDERS


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (NAMES[:2], r"2 names for 3 class folders; not in the list: 'Ram C_V Van 2012'"),
        ([*NAMES, "Lada"], r"4 names for 3 class folders; no folder for 'Lada'"),
        ([*NAMES, NAMES[0]], r"4 names for 3 class folders; it must have"),
    ],
)
def test_a_class_list_that_does_not_fit_is_refused(
    tmp_path: Path, touch: Touch, lines: list[str], message: str
) -> None:
    class_folders(touch)
    (tmp_path / "names.txt").write_text("\n".join(lines))
    with pytest.raises(DataError, match=message):
        load(tmp_path, class_list=tmp_path / "names.txt")


def test_a_missing_class_list_is_named(tmp_path: Path, touch: Touch) -> None:
    class_folders(touch)
    with pytest.raises(DataError, match=r"gone\.txt: the class_list cannot be read"):
        load(tmp_path, class_list=tmp_path / "gone.txt")


def test_an_unknown_layout_is_refused_with_the_three_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither car_ims/ and .* nor cars_train/.* nor train/"):
        load(tmp_path)
