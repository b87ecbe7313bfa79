"""Photos and labels from paths, lists, arrays, Datasets of torch and Hugging Face, pandas frames.

The result is always a sequence of photos for `photos.decode` and, for labelled photos, a class name
for each.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from cprompt.classifier.hub_datasets import hub_labels, hub_photos, is_hub_dataset
from cprompt.classifier.photo_places import IMAGE_COLUMNS, photos_at
from cprompt.classifier.photos import PhotoLike, PhotosOneByOne, short
from cprompt.data.datasets import folder
from cprompt.data.image_files import subfolders
from cprompt.data.tar_shards import TarImage
from cprompt.errors import DataError, counted, plural, some
from cprompt.training.observers import Observer

UNKNOWN = "unknown"
"""The answer below the threshold; no class can have this name, however it is spelt."""


class LabelledPhotos(NamedTuple):
    """Photos that are not decoded yet, and the class name of each."""

    photos: Sequence[PhotoLike]
    names: list[str]


def labelled(source: Any, labels: Any = None) -> LabelledPhotos:
    """Photos and their class names, from any of these:

    - a folder of class folders (folders below a class folder belong to that class), or a manifest
      or tar files, local or at a URL; see `cprompt.classifier.photo_places`,
    - photos and, as `labels`, one name for each,
    - (photo, label) pairs: a list of them, or a torch Dataset; whole-number labels are indices
      into its `classes`, if it has them,
    - a pandas frame with a column `label` and one of path, image, file or filename,
    - a Hugging Face `datasets.Dataset` with a column of the feature Image, and one of ClassLabel or
      one called `label`.

    Any other whole-number label becomes text: 7 is the class "7".

    >>> labelled([("a.jpg", "cat"), ("b.jpg", 7)]).names
    ['cat', '7']
    """
    if labels is not None:
        photos, given = as_photos(source), list(labels)
        if len(photos) != len(given):
            raise DataError(f"{counted(len(photos), 'photo')} but {counted(len(given), 'label')}")
        return _from_items(photos, given)
    if isinstance(source, (str, os.PathLike)):
        found = photos_at(source, labelled=True)
        name_of = {label: class_name(label, os.fspath(source)) for label in {*found.labels}}
        return LabelledPhotos(found.photos, [name_of[label] for label in found.labels])
    if is_hub_dataset(source):
        return _from_items(hub_photos(source), hub_labels(source))
    if hasattr(source, "columns"):
        return _from_frame(source)
    is_list = isinstance(source, (list, tuple))
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not is_list:
        return _from_dataset(source)
    if not isinstance(source, Iterable):
        raise DataError(
            f"photos cannot be learnt from a {type(source).__name__}",
            hint="give a folder, (photo, label) pairs, a torch Dataset, a pandas frame, or photos "
            "and labels",
        )
    pairs = list(source)
    for number, pair in enumerate(pairs):
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise DataError(
                f"is not a (photo, label) pair but {short(pair)}",
                file=f"item {number}",
                hint="pass labels as a second argument, or pairs",
            )
    return _from_items([p for p, _ in pairs], [label for _, label in pairs])


def notice_layout(source: Any, observer: Observer) -> None:
    """Tell `observer` of what may not be meant in a folder of class folders."""
    if isinstance(source, (str, os.PathLike)) and os.path.isdir(source):
        for odd in folder.oddities(Path(source)):
            observer.noticed(f"{odd.message}: {some(odd.places, 3)}; {odd.hint}")


def as_photos(photos: Any) -> Sequence[PhotoLike]:
    """One photo or many as a sequence of photos, each of any kind in `PhotoLike`.

    >>> len(as_photos("a.jpg")), len(as_photos(np.zeros((5, 8, 8, 3), np.uint8)))
    (1, 5)
    """
    if isinstance(photos, (str, os.PathLike, TarImage, Image.Image, bytes)):
        return [photos]
    if is_hub_dataset(photos):
        return hub_photos(photos)
    if isinstance(photos, (np.ndarray, torch.Tensor)):
        texts = isinstance(photos, np.ndarray) and photos.dtype.kind in "OU"
        return list(photos) if photos.ndim == 4 or texts else [photos]
    if isinstance(photos, Iterable):
        return list(photos)
    raise DataError(
        f"{short(photos)} is not a photo",
        hint="give paths, bytes of files, PIL images, arrays or tensors, one or many",
    )


def photos_of_class(source: Any, name: str) -> Sequence[PhotoLike]:
    """All photos of one class, from photos as for `as_photos`, or from one or more places.

    A place is a folder of photos of the class, or a folder that has a folder of that name, or
    a manifest or tar files, of which the photos with that label are taken.
    """
    photos = as_photos(source)
    if not isinstance(photos, list):
        return photos
    found: list[PhotoLike] = []
    for each in photos:
        found += _of_class_at(each, name) if isinstance(each, (str, os.PathLike)) else [each]
    return found


def _of_class_at(place: str | os.PathLike[str], name: str) -> list[Any]:
    root = Path(place)
    inside = subfolders(root) if root.is_dir() else []
    # By the name as it is written, of a link say: `labelled` calls the class after that too.
    is_own = _composed(os.path.basename(os.path.abspath(root))) == name
    own = [sub for sub in inside if _composed(sub.name) == name]
    if own and not (is_own and folder.images_in(root)):
        return [photo for sub in own for photo in photos_at(sub, labelled=False).photos]
    if inside and not is_own and not folder.images_in(root):
        raise DataError(
            f"has no folder {name!r}",
            file=root,
            hint="give the folder with the photos of the class, or the folder around it",
        )
    found = photos_at(place, labelled=False)
    labels = [None if label is None else _composed(label) for label in found.labels]
    if not any(labels):
        return found.photos
    kept = [photo for photo, label in zip(found.photos, labels, strict=True) if label == name]
    if not kept:
        raise DataError(f"has no photo of class {name!r}", file=os.fspath(place))
    return kept


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def class_name(label: Any, where: str) -> str:
    """A label as a class name, in Unicode's composed form so that equal names compare equal.

    All characters except control characters are allowed; `where` is for the error.
    """
    if isinstance(label, (bool, np.bool_)) or not isinstance(label, (str, int, np.integer)):
        raise DataError(
            f"{short(label)} is not a label", file=where, hint="use a text or a whole number"
        )
    name = _composed(str(label))
    if not name.strip():
        raise DataError("the label is empty", file=where, hint="give the class a name")
    if any(unicodedata.category(sign) in ("Cc", "Cs") for sign in name):
        raise DataError(
            f"label {name!a} has control or undecodable characters",
            file=where,
            hint="rename the class",
        )
    if name.strip().casefold() == UNKNOWN:
        raise DataError(
            f"no class can be called {name!r}: {UNKNOWN!r} is the answer for other photos",
            file=where,
            hint="rename the class",
        )
    return name


def _from_items(photos: Sequence[PhotoLike], labels: Sequence[Any]) -> LabelledPhotos:
    names = [class_name(label, f"item {i}") for i, label in enumerate(labels)]
    return LabelledPhotos(photos, names)


def _from_frame(frame: Any) -> LabelledPhotos:
    columns = [str(name) for name in frame.columns]
    column = next((name for name in IMAGE_COLUMNS if name in columns), None)
    if column is None or "label" not in columns:
        raise DataError(
            f"the frame has columns {', '.join(columns)}; expected label and one of "
            f"{', '.join(IMAGE_COLUMNS)}"
        )
    return _from_items(list(frame[column]), list(frame["label"]))


def _from_dataset(dataset: Any) -> LabelledPhotos:
    """From a torch Dataset, which is read once for labels and again to decode photos."""
    photos = _DatasetPhotos(dataset)
    classes = _classes_of(dataset)

    def name(i: int) -> str:
        label = photos.pair(i)[1]
        label = label.item() if isinstance(label, (torch.Tensor, np.generic)) else label
        if classes is not None and isinstance(label, int):
            if not 0 <= label < len(classes):
                raise DataError(
                    f"label {label}, but {plural(len(classes), 'there is', 'there are')} "
                    f"{counted(len(classes), 'class')}",
                    file=f"item {i}",
                )
            label = classes[label]
        return class_name(label, f"item {i}")

    return LabelledPhotos(photos, [name(i) for i in range(len(photos))])


class _DatasetPhotos(PhotosOneByOne):
    """The photos of a torch Dataset of (photo, label) pairs."""

    def photo(self, index: int) -> PhotoLike:
        """The photo of item `index`."""
        photo: PhotoLike = self.pair(index)[0]
        return photo

    def pair(self, index: int) -> tuple[Any, Any]:
        """Photo and label of one item."""
        found = self._dataset[index]
        if not (isinstance(found, (tuple, list)) and len(found) >= 2):
            raise DataError(
                f"is not a (photo, label) pair but {short(found)}",
                file=f"item {index} of the dataset",
            )
        return found[0], found[1]


def _classes_of(dataset: Any) -> Sequence[Any] | None:
    """Class names by number; for a wrapper such as Subset, those of the wrapped dataset."""
    while dataset is not None:
        classes = getattr(dataset, "classes", None)
        if classes is not None:
            return list(classes)
        dataset = getattr(dataset, "dataset", None)
    return None
