"""CIFAR-100: the original binary files, or one PNG per image in class folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cprompt.data import splits
from cprompt.data.datasets import folder
from cprompt.data.image_files import require_folder
from cprompt.data.image_set import Dataset, ImageSet
from cprompt.errors import DataError, some

_NAMES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus "
    "butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach "
    "couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster "
    "house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree "
    "motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear "
    "pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road "
    "rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar "
    "sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip "
    "turtle wardrobe whale willow_tree wolf woman worm"
)
FINE_LABELS = tuple(_NAMES.split())
"""The class names; a label is the place of its name here, which is the alphabetical order."""

_ROW = 1 + 1 + 3 * 32 * 32  # coarse label, fine label, and the red, green and blue planes

_GET = "get the 'CIFAR-100 binary version' (cifar-100-binary.tar.gz) and unpack it"


def load(root: Path) -> Dataset:
    """Read `cifar-100-binary/{train,test}.bin` or `{train,test}/CLASS/*.png`, in or as `root`."""
    require_folder(root)
    for place in (root, root / "cifar-100-binary"):
        if (place / "train.bin").is_file():
            return Dataset(
                "cifar100", _read_binary(place / "train.bin"), _read_binary(place / "test.bin")
            )
    if (root / "train").is_dir() and (root / "test").is_dir():
        return _read_tree(root)
    if (root / "cifar-100-python").is_dir() or (root / "train").is_file():
        raise DataError(
            "has the Python version of CIFAR-100, a pickle, which is not read because unpickling "
            "can run any code that the file contains",
            file=root,
            hint=f"{_GET} there",
        )
    raise DataError(
        "has neither train.bin, cifar-100-binary/train.bin, nor train/ and test/ with class "
        "folders",
        file=root,
        hint=f"{_GET} there",
    )


def _read_binary(file: Path) -> ImageSet:
    """The rows of a binary file as images of shape (N, 32, 32, 3)."""
    try:
        content = np.fromfile(file, dtype=np.uint8)
    except OSError as error:
        raise DataError(
            f"cannot be read ({error.strerror})", file=file, hint=f"{_GET} again"
        ) from error
    if content.size == 0 or content.size % _ROW:
        raise DataError(
            f"has {content.size} bytes, not a multiple of {_ROW}: it is cut short or not CIFAR-100",
            file=file,
            hint=f"{_GET} again",
        )
    rows = content.reshape(-1, _ROW)
    labels = rows[:, 1].astype(np.int64)
    if labels.max() >= len(FINE_LABELS):
        raise DataError(
            f"has label {labels.max()}, but CIFAR-100 has {len(FINE_LABELS)} classes: it is "
            "damaged or not CIFAR-100",
            file=file,
            hint=f"{_GET} again",
        )
    planes = rows[:, 2:].reshape(-1, 3, 32, 32)
    return ImageSet(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels, FINE_LABELS)


def _read_tree(root: Path) -> Dataset:
    """The class folders, by name; case, spaces and hyphens in the names do not matter."""
    parts = []
    for place in ("train", "test"):
        found = folder.read_classes(root / place)
        named = {name.lower().replace(" ", "_").replace("-", "_"): p for name, p in found.items()}
        odd = [name for name in named if name not in FINE_LABELS]
        absent = [name for name in FINE_LABELS if not named.get(name)]
        if odd or absent:
            raise DataError(
                f"does not have the {len(FINE_LABELS)} classes of CIFAR-100: "
                + "; ".join(
                    ([f"unknown folder {some(odd)}"] if odd else [])
                    + ([f"no image for {some(absent)}"] if absent else [])
                ),
                file=root / place,
                hint='for a part of it, use the "folder" dataset',
            )
        parts.append(splits.listed(FINE_LABELS, named))
    return splits.dataset("cifar100", FINE_LABELS, *parts)
