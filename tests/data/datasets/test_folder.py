from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from cprompt.data.datasets.folder import load
from cprompt.data.image_set import ImageSet
from cprompt.errors import ConfigError, DataError

Touch = Callable[..., None]
Rows = Callable[[ImageSet], list[tuple[str, int]]]


def test_train_and_test_folders_are_read_with_nested_folders_inside_a_class(
    tmp_path: Path, touch: Touch, rows: Rows
) -> None:
    touch("train/b/2.jpg", "train/b/deep/er/1.png", "train/a/1.jpg", "test/b/9.jpg")
    touch("test/a/8.jpg", "train/a/notes.txt", "train/.cache/x.jpg", "README.md")
    data = load(tmp_path)
    assert data.name == tmp_path.name
    assert data.classes == ("a", "b")
    assert rows(data.train) == [
        ("train/a/1.jpg", 0),
        ("train/b/2.jpg", 1),
        ("train/b/deep/er/1.png", 1),
    ]
    assert rows(data.test) == [("test/a/8.jpg", 0), ("test/b/9.jpg", 1)]


@pytest.mark.parametrize("name", ["test", "val", "valid", "validation", "Test"])
def test_a_validation_folder_stands_in_for_test(
    tmp_path: Path, name: str, touch: Touch, rows: Rows
) -> None:
    touch("train/a/1.jpg", f"{name}/a/2.jpg")
    assert rows(load(tmp_path).test) == [(f"{name}/a/2.jpg", 0)]


def test_test_wins_over_validation(tmp_path: Path, touch: Touch, rows: Rows) -> None:
    touch("train/a/1.jpg", "val/a/2.jpg", "test/a/3.jpg")
    assert rows(load(tmp_path).test) == [("test/a/3.jpg", 0)]


def test_a_class_called_train_is_a_class_where_there_is_no_test_folder(
    tmp_path: Path, touch: Touch
) -> None:
    touch("train/1.jpg", "tram/1.jpg")
    assert load(tmp_path).classes == ("train", "tram")


def test_plain_class_folders_are_split_per_class_and_always_alike(
    tmp_path: Path, touch: Touch, rows: Rows
) -> None:
    touch(*(f"a/{i}.jpg" for i in range(10)), *(f"b/{i}.jpg" for i in range(3)))
    touch("c/only.jpg")
    data = load(tmp_path)
    assert data.train.per_class().tolist() == [8, 2, 1]
    assert data.test.per_class().tolist() == [2, 1, 0]
    names = [name for name, _ in rows(data.train) + rows(data.test)]
    assert len(set(names)) == 14
    assert rows(load(tmp_path).test) == rows(data.test)
    drawn = {tuple(rows(load(tmp_path, seed=s).test)) for s in range(5)}
    assert len(drawn) > 1
    assert load(tmp_path, test_fraction=0.5).test.per_class().tolist() == [5, 2, 0]


def test_class_names_of_any_script_are_one_class_however_accents_are_stored(
    tmp_path: Path, touch: Touch
) -> None:
    split, joined = (unicodedata.normalize(form, "fenêtre") for form in ("NFD", "NFC"))
    assert split != joined
    touch(f"train/{split}/1.jpg", f"test/{joined}/2.jpg", "train/猫/1.jpg")
    data = load(tmp_path)
    assert data.classes == (joined, "猫")
    assert data.test.labels.tolist() == [0]


def test_a_class_list_gives_the_labels(tmp_path: Path, touch: Touch, rows: Rows) -> None:
    touch(*(f"{c}/{i}.jpg" for c in "abc" for i in range(2)))
    data = load(tmp_path, classes=["b", "c", "a"])
    assert data.classes == ("b", "c", "a")
    assert {name[0]: label for name, label in rows(data.train)} == {"b": 0, "c": 1, "a": 2}


@pytest.mark.parametrize(
    ("classes", "error", "message"),
    [
        (["a"], DataError, "has a folder 'b', which `classes` does not name"),
        (["a", "b", "c"], DataError, "no folder for class 'c'"),
        (["a", "b", "a"], ConfigError, "'a' more than once"),
        ("ab", ConfigError, "expected a list of class names"),
    ],
)
def test_a_class_list_that_does_not_fit_is_refused(
    tmp_path: Path, classes: list[str], error: type[Exception], message: str, touch: Touch
) -> None:
    touch("a/1.jpg", "b/1.jpg")
    with pytest.raises(error, match=message):
        load(tmp_path, classes=classes)


def test_a_class_without_test_images_is_allowed(tmp_path: Path, touch: Touch) -> None:
    touch("train/a/1.jpg", "train/b/1.jpg", "test/a/1.jpg")
    (tmp_path / "test" / "b").mkdir()
    assert load(tmp_path).test.per_class().tolist() == [1, 0]


def test_a_missing_folder_or_an_archive_is_named(tmp_path: Path, touch: Touch) -> None:
    with pytest.raises(DataError, match="gone: does not exist"):
        load(tmp_path / "gone")
    (tmp_path / "photos.zip").touch()
    with pytest.raises(DataError, match=r"photos\.zip: is a file, not a folder; unpack it"):
        load(tmp_path / "photos.zip")


def test_images_without_a_class_folder_are_refused(tmp_path: Path, touch: Touch) -> None:
    touch("1.jpg")
    with pytest.raises(DataError, match="has no class folder; put the images of each class"):
        load(tmp_path)


@pytest.mark.parametrize("names", [["train"], ["Training", "test"], ["test", "val"]])
def test_parts_without_a_pair_are_not_taken_for_classes(
    tmp_path: Path, touch: Touch, names: list[str]
) -> None:
    touch(*(f"{name}/{c}/1.jpg" for name in names for c in "ab"))
    with pytest.raises(DataError, match=rf"has only '{names[0]}'.*expected train/ with one"):
        load(tmp_path)


@pytest.mark.parametrize("layout", ["", "train/"])
def test_an_empty_class_is_named_with_the_files_that_lie_there(
    tmp_path: Path, layout: str, touch: Touch
) -> None:
    touch(f"{layout}a/1.jpg", f"{layout}b/1.cr2", f"{layout}b/in/2.CR2", "test/a/1.jpg")
    with pytest.raises(DataError, match=r"in class 'b', only other files \(2 × \.cr2\); convert"):
        load(tmp_path)


def test_an_empty_class_folder_is_named(tmp_path: Path, touch: Touch) -> None:
    touch("a/1.jpg")
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match="in class 'b'; add images, or delete the folder"):
        load(tmp_path)


def test_a_class_of_the_test_part_alone_is_named(tmp_path: Path, touch: Touch) -> None:
    touch("train/a/1.jpg", "test/a/2.jpg", "test/z/1.jpg")
    with pytest.raises(DataError, match=r"test: has class 'z', which .*train lacks"):
        load(tmp_path)
