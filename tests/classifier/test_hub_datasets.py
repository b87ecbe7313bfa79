"""Hugging Face datasets: one with the same interface, which counts what is read, and real ones."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from cprompt.classifier.hub_datasets import hub_labels, hub_photos, is_hub_dataset
from cprompt.classifier.photo_sources import as_photos, labelled
from cprompt.classifier.photos import load_photo
from cprompt.errors import DataError
from tests.classifier.common import batch, gradient, tiny


class Feature:
    """A feature of `datasets`; its kind is in `_type`."""

    def __init__(self, kind: str, names: list[str] | None = None) -> None:
        self._type = kind
        if names is not None:
            self.names = names


class Rows:
    """Columns read as `datasets.Dataset` reads them: rows are dicts, columns are lists."""

    def __init__(self, features: dict[str, Feature], columns: dict[str, list[Any]]) -> None:
        self.features = features
        self._columns = columns
        self.reads: list[str] = []

    @property
    def column_names(self) -> list[str]:
        return list(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            self.reads.append(key)
            return self._columns[key]
        return {name: values[key] for name, values in self._columns.items()}

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def select_columns(self, names: list[str]) -> Rows:
        kept = {name: self.features[name] for name in names}
        return Rows(kept, {name: self._columns[name] for name in names})


IMAGE, TEXT = Feature("Image"), Feature("Value")


def file_bytes(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def pixels(photos: Any) -> list[np.ndarray]:
    return [np.asarray(load_photo(photo, f"item {i}")) for i, photo in enumerate(photos)]


def two(labels: list[Any], label: Feature, column: str = "label", **more: Any) -> Rows:
    images = [Image.fromarray(each) for each in (gradient(), 255 - gradient())]
    features = {"img": IMAGE, column: label, **{name: f for name, (f, _) in more.items()}}
    return Rows(features, {"img": images, column: labels, **{n: v for n, (_, v) in more.items()}})


def test_images_and_the_names_of_their_labels_are_read() -> None:
    dataset = two([1, 0], Feature("ClassLabel", ["dog", "cat"]), "species", id=(TEXT, [7, 8]))
    found = labelled(dataset)
    assert found.names == ["cat", "dog"]
    for one, expected in zip(pixels(found.photos), (gradient(), 255 - gradient()), strict=True):
        np.testing.assert_array_equal(one, expected)
    assert dataset.reads == ["species"]  # labels are read without decoding an image


def test_a_plain_column_called_label_is_taken_as_it_is() -> None:
    assert labelled(two(["x", "y"], TEXT)).names == ["x", "y"]
    both = two(
        [0, 1], Feature("ClassLabel", ["a", "b"]), fine=(Feature("ClassLabel", ["z"]), [0, 0])
    )
    assert labelled(both).names == ["a", "b"]


def test_images_that_are_not_decoded_are_bytes_or_paths(tmp_path: Any) -> None:
    (tmp_path / "a.png").write_bytes(file_bytes(255 - gradient()))
    stored = [
        {"bytes": file_bytes(gradient()), "path": "gone.png"},
        {"bytes": None, "path": str(tmp_path / "a.png")},
    ]
    photos = as_photos(Rows({"image": IMAGE}, {"image": stored}))
    first, second = pixels(photos)
    np.testing.assert_array_equal(first, gradient())
    np.testing.assert_array_equal(second, 255 - gradient())
    assert len(photos[1:]) == 1


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (two([0, 2], Feature("ClassLabel", ["a", "b"])), "item 1: has the label 2 .* 2 classes"),
        (two([-1, 0], Feature("ClassLabel", ["a"])), "item 0: has the label -1"),
        (two([None, 0], Feature("ClassLabel", ["a"])), "item 0: has the label None"),
        (two([0, 0], TEXT, "caption"), "feature ClassLabel, but has none"),
        (
            two(
                [0, 0],
                Feature("ClassLabel", ["a"]),
                "fine",
                coarse=(Feature("ClassLabel", ["b"]), [0, 0]),
            ),
            "columns 'fine', 'coarse'; rename",
        ),
    ],
)
def test_labels_that_are_not_clear_are_refused(dataset: Rows, message: str) -> None:
    with pytest.raises(DataError, match=message):
        hub_labels(dataset)


def test_several_datasets_and_streams_are_refused_by_name() -> None:
    class Splits(dict[str, Any]):
        column_names = MappingProxyType({"train": ["image"]})

    class Stream:
        column_names = ("image",)
        features = MappingProxyType({"image": IMAGE})

    with pytest.raises(DataError, match=r"several: 'train'; choose one"):
        labelled(Splits(train=two([0, 0], TEXT)))
    with pytest.raises(DataError, match="streamed"):
        hub_photos(Stream())
    with pytest.raises(DataError, match="feature Image, but has columns 'a', 'b'"):
        hub_photos(Rows({"a": IMAGE, "b": IMAGE}, {"a": [], "b": []}))


@pytest.mark.parametrize("other", [[1], {"a": 1}, gradient(), "folder", None])
def test_other_sources_are_not_taken_for_one(other: Any) -> None:
    assert not is_hub_dataset(other)


def test_the_classifier_learns_and_answers_datasets_and_bytes() -> None:
    images, names = batch(0, red=4, sea=4)
    label = Feature("ClassLabel", ["sea", "red"])
    numbers = [label.names.index(name) for name in names]
    columns = {"image": [Image.fromarray(each) for each in images], "label": numbers}
    dataset = Rows({"image": IMAGE, "label": label}, columns)
    one = tiny().learn(dataset)
    other = tiny().learn([file_bytes(each) for each in images], names)
    assert one.classes_ == other.classes_ == ["red", "sea"]
    expected = one.predict_proba(images)
    np.testing.assert_array_equal(one.predict_proba(dataset), expected)
    np.testing.assert_array_equal(other.predict_proba(images), expected)
    assert one.predict(file_bytes(images[0])) == one.predict(images[0])
    assert one.evaluate(dataset).photos == 8


def test_a_real_dataset_is_read() -> None:
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["dog", "cat"])}
    )
    images = [Image.fromarray(gradient()), Image.fromarray(255 - gradient())]
    dataset = datasets.Dataset.from_dict({"image": images, "label": [1, 0]}, features=features)
    found = labelled(dataset)
    assert found.names == ["cat", "dog"]
    np.testing.assert_array_equal(pixels(found.photos)[1], 255 - gradient())
    stored = dataset.cast_column("image", datasets.Image(decode=False))
    np.testing.assert_array_equal(pixels(as_photos(stored))[0], gradient())


def test_a_real_dataset_is_learnt_and_answered_like_its_photos() -> None:
    images, names = batch(0, red=4, sea=4)
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["sea", "red"])}
    )
    rows = {
        "image": [Image.fromarray(image) for image in images],
        "label": [["sea", "red"].index(name) for name in names],
    }
    dataset = datasets.Dataset.from_dict(rows, features=features)
    one, other = tiny().learn(dataset), tiny().learn(images, names)
    np.testing.assert_array_equal(one.predict_proba(dataset), other.predict_proba(images))
    assert one.evaluate(dataset).accuracy == other.evaluate(images, names).accuracy
