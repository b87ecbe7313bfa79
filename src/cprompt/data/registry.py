"""Datasets by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cprompt.data.datasets import cifar100, domainnet, folder, imagenet_r, shapes, stanford_cars
from cprompt.data.image_set import Dataset, ImageSet
from cprompt.errors import ConfigError
from cprompt.settings import keywords

__all__ = ["DATASETS", "Counts", "Dataset", "DatasetInfo", "ImageSet", "load_dataset"]


class Counts(NamedTuple):
    """How many images and classes a dataset has."""

    train: int
    test: int
    classes: int


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset that can be asked for by name.

    `options` says what each keyword of `load` means. `expected` is what a complete copy has, and
    holds for a loaded dataset that is called `name`; variants that results cannot be compared for
    are called otherwise. `needs_root` is false for one that reads nothing from disk.
    """

    name: str
    load: Callable[..., Dataset]
    summary: str
    layout: str
    options: Mapping[str, str]
    expected: Counts | None = None
    needs_root: bool = True


_SEED = "draws the split"
_LISTS = {
    "split_train": "file that lists the training images",
    "split_test": "file that lists the test images",
}
_MISSING = {"missing": '"skip" goes on without listed images that are not on disk'}

_ALL = (
    DatasetInfo(
        "shapes",
        shapes.load,
        "coloured, textured shapes, drawn on the spot",
        "nothing is read from disk",
        {
            "classes": "how many classes",
            "train_per_class": "training images of each class",
            "test_per_class": "test images of each class",
            "size": "side of an image, in pixels",
            "seed": "draws the images",
            "difficulty": "how much the images of a class vary",
        },
        needs_root=False,
    ),
    DatasetInfo(
        "folder",
        folder.load,
        "your own images, a folder for each class",
        "CLASS/…\nor train/CLASS/… and test/CLASS/… (val, valid or validation if there is no test)",
        {
            "classes": "class names in the order of their labels (otherwise sorted)",
            "test_fraction": "share of each class that is for testing, where there is no test part",
            "seed": _SEED,
        },
    ),
    DatasetInfo(
        "cifar100",
        cifar100.load,
        "CIFAR-100: 60,000 images of 32×32 in 100 classes",
        "cifar-100-binary/train.bin and cifar-100-binary/test.bin (the binary version)\n"
        "or train/CLASS/*.png and test/CLASS/*.png",
        {},
        Counts(50_000, 10_000, 100),
    ),
    DatasetInfo(
        "imagenet_r",
        imagenet_r.load,
        "ImageNet-R: 30,000 renditions of 200 ImageNet classes, CODA-Prompt's split",
        "imagenet-r/WNID/*.jpg, with coda_train.txt and coda_test.txt\n"
        "or imagenet-r_train.yaml and imagenet-r_test.yaml",
        {
            "split": '"coda" reads lists; "random" draws a split of its own',
            **_LISTS,
            "seed": _SEED,
            **_MISSING,
        },
        Counts(24_000, 6_000, 200),
    ),
    DatasetInfo(
        "stanford_cars",
        stanford_cars.load,
        "Stanford Cars: 16,185 images of 196 models of car",
        "car_ims/*.jpg and cars_annos.mat\n"
        "or cars_train/*.jpg, cars_test/*.jpg and devkit/*.mat\n"
        "or train/CLASS/*.jpg and test/CLASS/*.jpg",
        {
            "class_list": "file with a class name a line, in the order of the official labels",
            **_MISSING,
        },
        Counts(8_144, 8_041, 196),
    ),
    DatasetInfo(
        "domainnet",
        domainnet.load,
        "DomainNet-200: 67,982 images of 200 classes, each from one of six domains",
        "DOMAIN/CLASS/*.jpg for clipart, infograph, painting, quickdraw, real and sketch",
        {
            "split": '"lists" reads lists; "rule" chooses the classes by a rule of its own',
            **_LISTS,
            "seed": _SEED,
            **_MISSING,
        },
        Counts(47_532, 20_450, 200),
    ),
)

DATASETS: dict[str, DatasetInfo] = {info.name: info for info in _ALL}
"""Every dataset, by name."""


def load_dataset(name: str, root: Path | str | None = None, **options: Any) -> Dataset:
    """The dataset called `name`, from the folder `root`; `options` are those of its `load`."""
    info = DATASETS.get(name)
    if info is None:
        raise ConfigError(f"no dataset {name!r}; there are {', '.join(DATASETS)}")
    for option in options:
        if option not in info.options:
            known = f"it has {', '.join(info.options)}" if info.options else "it has none"
            raise ConfigError(f"dataset {name!r} has no option {option!r}; {known}")
    if root is None and info.needs_root:
        raise ConfigError(f"dataset {name!r} needs the folder of its images: pass --data FOLDER")
    checked = keywords(info.load, options, name)
    return info.load(None if root is None else Path(root).expanduser(), **checked)
