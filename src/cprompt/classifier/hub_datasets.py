"""Photos and labels of a Hugging Face `datasets.Dataset`, by its interface alone.

The package `datasets` is not imported: whatever has features, column names and rows as dicts is
read the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cprompt.classifier.photos import PhotoLike, PhotosOneByOne
from cprompt.errors import DataError, some

_LABEL = "label"


def is_hub_dataset(source: Any) -> bool:
    """Whether it looks like a `datasets.Dataset`, or like a `DatasetDict` of several."""
    return hasattr(source, "column_names") and (
        hasattr(source, "features") or isinstance(source, Mapping)
    )


def hub_photos(dataset: Any) -> Sequence[PhotoLike]:
    """The photos, each decoded when it is used."""
    features = _features(dataset)
    column = _only([name for name in features if _kind(features[name]) == "Image"], "Image")
    if hasattr(dataset, "select_columns"):
        dataset = dataset.select_columns([column])  # nothing else is read with each photo
    return _Column(dataset, column)


def hub_labels(dataset: Any) -> list[Any]:
    """The label of each photo: the name of a ClassLabel, or what the column `label` holds."""
    features = _features(dataset)
    named = [name for name in features if _kind(features[name]) == "ClassLabel"]
    column = _LABEL if _LABEL in features else _only(named, "ClassLabel")
    values = list(dataset[column])
    if _kind(features[column]) != "ClassLabel":
        return values
    names = list(features[column].names)
    for i, value in enumerate(values):
        if value is None or not 0 <= int(value) < len(names):
            raise DataError(
                f"has the label {value!r} in column {column!r}, which has {len(names)} classes",
                file=f"item {i}",
                hint="leave out photos without a label",
            )
    return [names[int(value)] for value in values]


class _Column(PhotosOneByOne):
    """The images of one column."""

    def __init__(self, dataset: Any, column: str) -> None:
        super().__init__(dataset)
        self._column = column

    def photo(self, index: int) -> PhotoLike:
        """The image in row `index`."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        image = self._dataset[int(index)][self._column]
        if isinstance(image, Mapping):  # Image(decode=False): the file, or where it is
            image = image["path"] if image.get("bytes") is None else image["bytes"]
        photo: PhotoLike = image
        return photo


def _features(dataset: Any) -> Mapping[str, Any]:
    if isinstance(dataset, Mapping):
        raise DataError(
            f"is not one dataset but several: {some(list(dataset))}",
            file="the dataset",
            hint="choose one, such as dataset['train']",
        )
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise DataError(
            "is streamed, so its items have no numbers",
            file="the dataset",
            hint="load it without streaming=True",
        )
    features: Mapping[str, Any] = dataset.features
    return features


def _kind(feature: Any) -> str:
    return str(getattr(feature, "_type", None) or type(feature).__name__)


def _only(columns: Sequence[str], kind: str) -> str:
    if len(columns) != 1:
        found = f"columns {some(columns)}" if columns else "none"
        hint = "rename the one to learn to 'label'" if kind == "ClassLabel" else "keep only one"
        raise DataError(
            f"needs one column of the feature {kind}, but has {found}",
            file="the dataset",
            hint=hint if columns else f"cast a column to {kind}",
        )
    return columns[0]
