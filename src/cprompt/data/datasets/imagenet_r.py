"""ImageNet-R: 200 ImageNet classes as art, cartoons, toys and the like."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cprompt.data import splits
from cprompt.data.datasets import folder
from cprompt.data.image_files import require_folder
from cprompt.data.image_set import Dataset
from cprompt.errors import DataError

_LISTS = (
    ("coda_train.txt", "coda_test.txt"),
    ("imagenet-r_train.yaml", "imagenet-r_test.yaml"),
)


def load(
    root: Path,
    *,
    split: Literal["coda", "random"] = "coda",
    split_train: Path | str | None = None,
    split_test: Path | str | None = None,
    seed: int = 0,
    missing: splits.Missing = "error",
) -> Dataset:
    """Read the class folders `WNID/`, in `root` or in `root/imagenet-r`.

    Results are published for CODA-Prompt's split: 24,000 images to learn from, 6,000 to test on.
    Neither it nor its label ids follow a rule, so both are read from list files: the two named,
    or `coda_train.txt` and `coda_test.txt`, or CODA-Prompt's own `imagenet-r_train.yaml` and
    `imagenet-r_test.yaml`, in `root` or beside the class folders.

    `split="random"` needs no lists: a fifth of each class, drawn by `seed`, is for testing, and
    labels number the sorted class folders. Its name differs, since its results cannot be compared.
    """
    named = splits.named_lists(split, ("coda", "random"), split_train, split_test)
    require_folder(root)
    place = root / "imagenet-r" if (root / "imagenet-r").is_dir() else root
    if split == "random":
        found = folder.read_classes(place)
        folder.require_images(found, place)
        parts = splits.split_classes(found, place, 0.2, seed)
        return splits.dataset(
            "imagenet_r-random-split", list(found), *(splits.listed(list(found), p) for p in parts)
        )
    train, test = named or _find_lists(root, place)
    return splits.listed_dataset("imagenet_r", place, train, test, depth=2, missing=missing)


def _find_lists(*places: Path) -> tuple[Path, Path]:
    for place in places:
        for train, test in _LISTS:
            if (place / train).is_file() and (place / test).is_file():
                return place / train, place / test
    raise DataError(
        "has no split lists, and the published split cannot be worked out from the images",
        file=places[0],
        hint="copy imagenet-r_train.yaml and imagenet-r_test.yaml from the CODA-Prompt repository "
        "(dataloaders/splits) there, or name two lists as split_train and split_test; "
        'split="random" makes another split, whose results cannot be compared',
    )
