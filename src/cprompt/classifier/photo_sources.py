"""What photos and labels can be given as, and how they become pixels in memory.

Photos are decoded into memory and nowhere else. Large ones are made smaller on the way in, to a
few times what the network sees, in learning and in answering alike.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from cprompt.data.datasets import folder
from cprompt.data.image_files import (
    MAX_PIXELS,
    damaged,
    read_image,
    require_folder,
    too_many_pixels,
    upright_rgb,
)
from cprompt.data.pipeline.pixels import DECODING_THREADS, Picture, Pixels, in_order
from cprompt.errors import DataError

UNKNOWN = "unknown"
"""What a classifier answers below its threshold; no class can be called this."""

MAX_ASPECT = 50
"""Length over width from which an image is refused: resized by its short side, as images are
before the central square is cut out, a line of pixels would fill the memory."""

DETAIL = 2
"""Short side of an image that is kept, in sides of the network's input."""

MEMORY = 2 * 2**30
"""Bytes of photos that are kept; further ones are read again whenever they are needed."""

_IMAGE_COLUMNS = ("path", "image", "file", "filename")

PhotoLike: TypeAlias = str | os.PathLike[str] | Image.Image | NDArray[Any] | torch.Tensor
"""A path, a PIL image, an array (H, W), (H, W, 3) or a tensor (3, H, W), (1, H, W), (H, W).

Arrays and tensors hold whole numbers 0..255 or floats 0..1.
"""


@dataclass(frozen=True)
class Photos:
    """Photos that can be loaded one by one; `names[i]` is what photo i shows, where known."""

    load: Callable[[int], Image.Image]
    """Photo i as RGB, upright; a DataError names one that cannot be read."""
    count: int
    names: list[str] | None = None
    threads: int = 0
    """How many may be loaded at the same time."""

    def __len__(self) -> int:
        return self.count

    def parts(self, size: int) -> Iterator[Photos]:
        """The photos in order, so many at a time."""
        for first in range(0, self.count, size):
            numbers = range(first, min(first + size, self.count))
            yield Photos(partial(self._load_one, numbers), len(numbers), None, self.threads)

    def _load_one(self, numbers: Sequence[int], i: int) -> Image.Image:
        return self.load(numbers[i])

    def pixels(
        self,
        side: int,
        progress: Callable[[int, int], None] | None = None,
        memory: int = MEMORY,
    ) -> Pixels:
        """All photos decoded, each at least once, so that a bad one is named before any work.

        `side` is that of the network's input. `progress(done, total)` is told of every photo.
        Past `memory` bytes a photo is not kept but loaded anew whenever it is asked for.
        """
        kept: list[Picture | None] = []
        room = memory

        def load(i: int) -> Picture:
            return np.asarray(shrunk(self.load(i), DETAIL * side))

        for picture in in_order(load, range(self.count), self.threads):
            fits = picture.nbytes <= room
            room -= picture.nbytes if fits else 0
            kept.append(picture if fits else None)
            if progress:
                progress(len(kept), self.count)

        def get(i: int) -> Picture:
            picture = kept[i]
            return load(i) if picture is None else picture

        sizes = None
        if all(p is not None for p in kept):
            sizes = np.array([p.shape[:2] for p in kept if p is not None], np.int64).reshape(-1, 2)
        return Pixels(get, sizes, np.arange(self.count))


def shrunk(image: Image.Image, side: int) -> Image.Image:
    """The image with its short side at most `side` long, proportions kept."""
    scale = side / min(image.size)
    if scale >= 1:
        return image
    width, height = (max(1, round(scale * length)) for length in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)


# --- labelled photos ----------------------------------------------------------------------------


def labelled(source: Any, labels: Any = None) -> Photos:
    """Photos with names, out of any of these:

    - a folder of class folders (folders below a class folder belong to that class),
    - photos and, as `labels`, as many names,
    - (photo, label) pairs: a list of them, or a torch Dataset; whole-number labels stand for its
      `classes`, if it has them,
    - a pandas frame with a column `label` and one of path, image, file or filename.

    A label that is a whole number and stands for no name becomes its decimal figures.
    """
    if labels is not None:
        photos, names = _many(source), list(labels)
        if len(photos) != len(names):
            raise DataError(f"{len(photos)} photos but {len(names)} labels")
        return _from_items(photos, names)
    if isinstance(source, (str, os.PathLike)):
        return _from_folder(Path(source))
    if hasattr(source, "columns"):
        return _from_frame(source)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not _is_list(source):
        return _from_dataset(source)
    if not isinstance(source, Iterable):
        raise DataError(
            f"photos cannot be learnt from a {type(source).__name__}; give a folder, (photo, label)"
            " pairs, a torch Dataset, a pandas frame, or photos and labels"
        )
    pairs = list(source)
    for number, pair in enumerate(pairs):
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise DataError(
                f"item {number} is no (photo, label) pair but {_short(pair)}; "
                "pass labels as a second argument, or pairs"
            )
    return _from_items([p for p, _ in pairs], [label for _, label in pairs])


def class_name(label: Any, where: str) -> str:
    """A label as a class name: Unicode's composed form, so that the same name is always one name.

    Any script and any sign but control characters will do; `where` is for the error.
    """
    if isinstance(label, (bool, np.bool_)) or not isinstance(label, (str, int, np.integer)):
        raise DataError(f"{where}: {_short(label)} is no label; use a text or a whole number")
    name = unicodedata.normalize("NFC", str(label))
    if not name.strip():
        raise DataError(f"{where}: the label is empty; give the class a name")
    if any(unicodedata.category(sign) in ("Cc", "Cs") for sign in name):
        raise DataError(
            f"{where}: label {name!a} has control or undecodable characters; rename the class"
        )
    if name == UNKNOWN:
        raise DataError(
            f"{where}: no class can be called {UNKNOWN!r}, which is the answer for a photo of "
            "none; rename the class"
        )
    return name


def _from_folder(root: Path) -> Photos:
    require_folder(root)
    parts = folder.train_and_test(root)
    if parts is not None:
        raise DataError(
            f"{root} has parts, {parts[0].name}/ and {parts[1].name}/, where class folders were "
            f"expected; give {parts[0]} to learn from or {parts[1]} to evaluate on"
        )
    found = folder.read_classes(root)
    folder.require_images(found, root)
    files = [file for paths in found.values() for file in paths]
    names = [name for each in found for name in [class_name(each, str(root))] * len(found[each])]
    return Photos(
        lambda i: checked(read_image(files[i]), str(files[i])), len(files), names, DECODING_THREADS
    )


def _from_items(photos: Sequence[Any], labels: Sequence[Any]) -> Photos:
    names = [class_name(label, f"item {i}") for i, label in enumerate(labels)]
    loaded = images(photos)
    return Photos(loaded.load, loaded.count, names, loaded.threads)


def _from_frame(frame: Any) -> Photos:
    columns = [str(name) for name in frame.columns]
    column = next((name for name in _IMAGE_COLUMNS if name in columns), None)
    if column is None or "label" not in columns:
        raise DataError(
            f"the frame has columns {', '.join(columns)}; expected label and one of "
            f"{', '.join(_IMAGE_COLUMNS)}"
        )
    return _from_items(list(frame[column]), list(frame["label"]))


def _from_dataset(dataset: Any) -> Photos:
    """A torch Dataset: loaded item by item, in this thread, since it may not allow another.

    It is gone through once for the labels and then as often as photos are needed.
    """
    classes = _classes_of(dataset)

    def item(i: int) -> tuple[Any, Any]:
        found = dataset[i]
        if not (isinstance(found, (tuple, list)) and len(found) >= 2):
            raise DataError(f"item {i} of the dataset is no (photo, label) pair: {_short(found)}")
        return found[0], found[1]

    def name(i: int) -> str:
        label = item(i)[1]
        label = label.item() if isinstance(label, (torch.Tensor, np.generic)) else label
        if classes is not None and isinstance(label, int):
            if not 0 <= label < len(classes):
                raise DataError(f"item {i}: label {label}, but there are {len(classes)} classes")
            label = classes[label]
        return class_name(label, f"item {i}")

    names = [name(i) for i in range(len(dataset))]
    return Photos(lambda i: _image(item(i)[0], i), len(names), names)


def _classes_of(dataset: Any) -> Sequence[Any] | None:
    """Class names by number; a Subset and its like have those of what they wrap."""
    while dataset is not None:
        classes = getattr(dataset, "classes", None)
        if classes is not None:
            return list(classes)
        dataset = getattr(dataset, "dataset", None)
    return None


# --- photos alone -------------------------------------------------------------------------------


def images(photos: Any) -> Photos:
    """One photo or many, of any kind that `PhotoLike` names."""
    items = _many(photos)
    files = all(isinstance(item, (str, os.PathLike)) for item in items)
    return Photos(lambda i: _image(items[i], i), len(items), None, DECODING_THREADS if files else 0)


def _many(photos: Any) -> Sequence[Any]:
    """A sequence of photos, with one item for a single photo."""
    if isinstance(photos, (str, os.PathLike, Image.Image)):
        return [photos]
    if isinstance(photos, (np.ndarray, torch.Tensor)):
        texts = isinstance(photos, np.ndarray) and photos.dtype.kind in "OU"
        return list(photos) if photos.ndim == 4 or texts else [photos]
    if isinstance(photos, Iterable):
        return list(photos)
    raise DataError(
        f"{_short(photos)} is no photo; give paths, PIL images, arrays or tensors, one or many"
    )


def _image(photo: Any, number: int) -> Image.Image:
    if isinstance(photo, (str, os.PathLike)):
        return checked(read_image(Path(photo)), str(photo))
    name = f"item {number}"
    if isinstance(photo, Image.Image):
        return checked(_from_pil(photo, name), name)
    if isinstance(photo, torch.Tensor):
        array = photo.detach().cpu().numpy() if photo.dtype != torch.bfloat16 else None
        if array is None:
            raise DataError(f"{name}: a bfloat16 tensor; use uint8, or floats of 0 to 1")
        if array.ndim == 3:
            array = np.moveaxis(array, 0, -1)
        return checked(_from_array(array, name), name)
    if isinstance(photo, np.ndarray):
        return checked(_from_array(photo, name), name)
    raise DataError(
        f"{name}: {_short(photo)} is no photo; give a path, a PIL image, an array or a tensor"
    )


def _from_pil(image: Image.Image, name: str) -> Image.Image:
    if image.width * image.height > MAX_PIXELS:
        raise too_many_pixels(name)
    try:
        return upright_rgb(image)
    except MemoryError:
        raise
    except Exception as error:  # decoders meet broken files with almost any exception
        raise damaged(name, error) from error


def _from_array(array: NDArray[Any], name: str) -> Image.Image:
    """(H, W), (H, W, 1) or (H, W, 3), whole numbers 0..255 or floats 0..1."""
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3) or 0 in array.shape:
        raise DataError(
            f"{name} has shape {array.shape}; expected an array (H, W, 3) or (H, W), "
            "or a tensor (3, H, W) or (1, H, W)"
        )
    if array.dtype == np.bool_ or not (
        np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)
    ):
        raise DataError(f"{name} is of type {array.dtype}; expected uint8, or floats of 0 to 1")
    top = 255 if np.issubdtype(array.dtype, np.integer) else 1
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= top):
        raise DataError(
            f"{name} has values from {low} to {high}; {array.dtype} photos run from 0 to {top}. "
            "Pass photos as they are, not normalised"
        )
    if top == 1:
        array = np.rint(array.astype(np.float64) * 255)
    levels = array.astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(np.broadcast_to(levels, (*levels.shape[:2], 3))))


def checked(image: Image.Image, name: str) -> Image.Image:
    """The image, unless it is empty, or too long and narrow to be looked at as a square."""
    if min(image.size) < 1 or max(image.size) > MAX_ASPECT * min(image.size):
        raise DataError(
            f"has {image.width}×{image.height} pixels; one side may be at most {MAX_ASPECT} times "
            "the other",
            file=name,
            hint="crop it, or leave it out",
        )
    return image


def _is_list(source: Any) -> bool:
    return isinstance(source, (list, tuple))


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bool)) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
