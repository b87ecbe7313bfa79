"""Photos as pixels: loading one photo of any kind as upright RGB, and decoding many.

Decoded photos are kept in memory only, never on disk. Large ones are reduced to twice the size of
the network's input, both for learning and for predicting.
"""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, TypeAlias, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from cprompt.data.image_files import (
    MAX_PIXELS,
    damaged,
    decode_image,
    too_many_pixels,
    upright_rgb,
)
from cprompt.data.pipeline.decode_worker import decode_file
from cprompt.data.pipeline.decoded import DecodedImages, ImageArray, Progress
from cprompt.data.pipeline.inspection import NO_INSPECTION, Inspection
from cprompt.data.pipeline.parallel import DECODING_THREADS, ahead, map_in_order
from cprompt.data.pipeline.processes import decode_in_processes, processes_for
from cprompt.data.pipeline.reduced import MAX_ASPECT, read_reduced, reduced
from cprompt.data.tar_shards import TarImage
from cprompt.errors import DataError

DETAIL = 2
"""Short side of a decoded image, in multiples of the network's input size."""

MEMORY = 2 * 2**30
"""Bytes of photos kept in memory; further ones are decoded again when needed."""

PhotoLike: TypeAlias = (
    str | os.PathLike[str] | TarImage | bytes | Image.Image | NDArray[Any] | torch.Tensor
)
"""A path or a URL, an image in a tar file, the bytes of an image file, a PIL image, an array
(H, W), (H, W, 3) or a tensor (3, H, W), (1, H, W), (H, W).

Arrays and tensors hold whole numbers 0..255 or floats 0..1.
"""


# --- many photos --------------------------------------------------------------------------------


class PhotosOneByOne(Sequence[PhotoLike]):
    """The photos of a dataset, each loaded when it is asked for; `photo` says how."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @overload
    def __getitem__(self, index: int) -> PhotoLike: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PhotoLike]: ...
    def __getitem__(self, index: int | slice) -> PhotoLike | Sequence[PhotoLike]:
        if isinstance(index, slice):
            return [self.photo(i) for i in range(*index.indices(len(self)))]
        return self.photo(index)

    def photo(self, index: int) -> PhotoLike:
        """Load one photo."""
        raise NotImplementedError


def decode(
    photos: Sequence[PhotoLike],
    side: int,
    progress: Progress | None = None,
    memory: int = MEMORY,
    inspection: Inspection = NO_INSPECTION,
) -> DecodedImages:
    """Decode all photos, so that a bad one is reported before any other work.

    `side` is the size of the network's input. Photos beyond `memory` bytes are not kept but decoded
    again at each use. Files are decoded in threads, or many of them in other processes; see
    `cprompt.data.pipeline.processes`. `inspection` is made of each photo once.

    >>> decode([np.zeros((80, 120, 3), np.uint8)], side=16).sizes.tolist()
    [[32, 48]]
    """
    return _lazily(photos, side, inspection).in_memory(progress, limit=memory)


def decode_in_parts(
    photos: Sequence[PhotoLike],
    side: int,
    size: int,
    progress: Progress | None = None,
    inspection: Inspection = NO_INSPECTION,
    device: torch.device | None = None,
) -> Iterator[DecodedImages]:
    """Decode `size` photos at a time, in order, so that memory does not limit their number.

    `progress` counts all photos, not those of one part. `inspection` is as for `decode`. While
    a `device` other than the CPU computes, the files of the next part are decoded; `progress` and
    `inspection` are then called in another thread.
    """
    images = _lazily(photos, side, inspection)
    parts = images.in_parts(size, progress, limit=MEMORY)
    return ahead(parts) if images.threads and works_beside_cpu(device) else parts


def works_beside_cpu(device: torch.device | None) -> bool:
    """Whether the device leaves the CPU's cores free for decoding."""
    return device is not None and device.type != "cpu"


def _lazily(
    photos: Sequence[PhotoLike], side: int, inspection: Inspection = NO_INSPECTION
) -> DecodedImages:
    """The photos, each decoded and reduced when it is used; inspected only in order."""
    # Threads only for files: a torch Dataset may not allow more than one.
    listed = photos if isinstance(photos, list) else []
    files = [each for each in listed if isinstance(each, (str, os.PathLike, TarImage))]
    only_files = len(files) == len(photos)
    threads = DECODING_THREADS if only_files else 0
    processes = processes_for(files) if only_files else 0

    def load(i: int) -> ImageArray:
        return _pixels(photos[i], f"item {i}", DETAIL * side)

    def load_inspected(i: int) -> tuple[ImageArray, Any]:
        image = load(i)
        return image, inspection.find(image)

    def in_order() -> Generator[ImageArray, None, None]:
        if processes:
            here = partial(decode_file, side=DETAIL * side, find=inspection.find)
            found = decode_in_processes(files, DETAIL * side, inspection.find, processes, here)
        else:
            found = map_in_order(load_inspected, range(len(photos)), threads)
        with closing(found):
            for i, (image, told) in enumerate(found):
                inspection.tell(i, told)
                yield image

    return DecodedImages(load, len(photos), threads=threads, in_order=in_order)


# --- one photo ----------------------------------------------------------------------------------


def load_photo(photo: Any, name: str, side: int | None = None) -> Image.Image:
    """One photo of any kind in `PhotoLike`, as upright RGB; with `side`, reduced as by `shrunk`.

    A DataError names the file at fault, or `name` if the photo is not a file.
    """
    if isinstance(photo, (str, os.PathLike, TarImage)):
        return read_reduced(photo, side)
    return reduced(_loaded(photo, name, side), name, side)


def _pixels(photo: Any, name: str, side: int) -> ImageArray:
    """One photo as an array, reduced; an array that is as it should be is not copied."""
    if isinstance(photo, np.ndarray) and photo.dtype == np.uint8 and photo.ndim == 3:
        height, width, channels = photo.shape
        short, long = sorted((height, width))
        if channels == 3 and 0 < short <= side and long <= MAX_ASPECT * short:
            return np.ascontiguousarray(photo)
    return np.asarray(load_photo(photo, name, side))


def _loaded(photo: Any, name: str, side: int | None) -> Image.Image:
    if isinstance(photo, bytes):
        return decode_image(io.BytesIO(photo), name, side)
    if isinstance(photo, Image.Image):
        return _from_pil(photo, name)
    if isinstance(photo, torch.Tensor):
        if photo.dtype == torch.bfloat16:
            raise DataError("is a bfloat16 tensor", file=name, hint="use uint8, or floats 0 to 1")
        array = photo.detach().cpu().numpy()
        if array.ndim == 3:
            array = np.moveaxis(array, 0, -1)
        return _from_array(array, name)
    if isinstance(photo, np.ndarray):
        return _from_array(photo, name)
    raise DataError(
        f"{short(photo)} is not a photo",
        file=name,
        hint="give a path, the bytes of an image file, a PIL image, an array or a tensor",
    )


def _from_pil(image: Image.Image, name: str) -> Image.Image:
    if image.width * image.height > MAX_PIXELS:
        raise too_many_pixels(name)
    try:
        return upright_rgb(image)
    except MemoryError:
        raise
    except Exception as error:  # decoders can raise almost anything
        raise damaged(name, error) from error


def _from_array(array: NDArray[Any], name: str) -> Image.Image:
    """(H, W), (H, W, 1) or (H, W, 3), whole numbers 0..255 or floats 0..1."""
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3) or 0 in array.shape:
        raise DataError(
            f"has shape {array.shape}; expected an array (H, W, 3) or (H, W), "
            "or a tensor (3, H, W) or (1, H, W)",
            file=name,
        )
    whole = np.issubdtype(array.dtype, np.integer)
    if not (whole or np.issubdtype(array.dtype, np.floating)):
        raise DataError(f"is of type {array.dtype}; expected uint8, or floats of 0 to 1", file=name)
    top = 255 if whole else 1
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= top):
        raise DataError(
            f"has values from {low} to {high}; {array.dtype} photos run from 0 to {top}",
            file=name,
            hint="pass photos as they are, not normalised",
        )
    if not whole:
        array = np.rint(array.astype(np.float64) * 255)
    levels = array.astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(np.broadcast_to(levels, (*levels.shape[:2], 3))))


def short(value: Any) -> str:
    """A value, or the name of its type, in at most 60 characters, for a message."""
    text = repr(value) if isinstance(value, (str, int, float, bool)) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
