"""Datasets by name: built in, from installed packages, or registered by a plugin.

Names can be listed without importing a dataset's module; that happens when it is loaded.
"""

from __future__ import annotations

import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cprompt import plugins
from cprompt.errors import ConfigError
from cprompt.settings import keywords, suggest

if TYPE_CHECKING:
    from cprompt.data.image_set import Dataset


SORTED_LABELS = "-sorted-labels"
"""Ends the name of a dataset whose labels number the sorted class names, not the official way."""


class Counts(NamedTuple):
    """How many images and classes a dataset has."""

    train: int
    test: int
    classes: int


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset that can be asked for by name.

    `load` is called with the folder of the images and the options as keywords. As text,
    "package.module:function", it is imported when first needed. `layout` says which files the
    folder must hold, `options` what each keyword means. `expected` is what a complete copy has; it
    applies to a loaded dataset that is called `name`, so variants whose results cannot be compared
    are called something else. `needs_root` is false for a dataset that reads nothing from disk.
    `sorted_labels` says whether the official labels number the sorted class names, if that is
    known.

    >>> DatasetInfo("pets", "our_package.pets:load", "cats and dogs", "CLASS/*.jpg", {}).needs_root
    True
    """

    name: str
    load: Callable[..., Dataset] | str
    summary: str
    layout: str
    options: Mapping[str, str]
    expected: Counts | None = None
    needs_root: bool = True
    sorted_labels: bool | None = None

    def loader(self) -> Callable[..., Dataset]:
        """The function that loads the dataset, imported if need be."""
        if isinstance(self.load, str):
            function: Callable[..., Dataset] = pkgutil.resolve_name(self.load)
            return function
        return self.load


_SEED = "draws the split"
_LISTS = {
    "split_train": "file that lists the training images",
    "split_test": "file that lists the test images",
}
_MISSING = {"missing": '"skip" goes on without listed images that are not on disk'}

_BUILT_IN = (
    DatasetInfo(
        "shapes",
        "cprompt.data.datasets.shapes:load",
        "coloured, textured shapes, drawn on the spot",
        "nothing is read from disk",
        {
            "classes": "how many classes",
            "train_per_class": "training images per class",
            "test_per_class": "test images per class",
            "size": "side of an image, in pixels",
            "seed": "draws the images",
            "difficulty": "how much the images of a class vary",
        },
        needs_root=False,
    ),
    DatasetInfo(
        "folder",
        "cprompt.data.datasets.folder:load",
        "your own images, a folder per class",
        "CLASS/…\nor train/CLASS/… and test/CLASS/… (val, valid or validation if there is no test)",
        {
            "classes": "class names in the order of their labels (otherwise sorted)",
            "test_fraction": "share of each class that is for testing, where there is no test part",
            "seed": _SEED,
        },
    ),
    DatasetInfo(
        "hub",
        "cprompt.data.datasets.hub:load",
        "a Hugging Face dataset that save_to_disk wrote",
        "what `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote",
        {
            "image": "column of the images (otherwise the only one of the feature Image)",
            "label": "column of the labels (otherwise the only one of the feature ClassLabel)",
            "test_fraction": "share of each class that is for testing, where there is no test part",
            "seed": _SEED,
        },
    ),
    DatasetInfo(
        "cifar100",
        "cprompt.data.datasets.cifar100:load",
        "CIFAR-100: 60,000 images of 32×32 in 100 classes",
        "cifar-100-binary/train.bin and cifar-100-binary/test.bin (the binary version)\n"
        "or train/CLASS/*.png and test/CLASS/*.png",
        {},
        Counts(50_000, 10_000, 100),
    ),
    DatasetInfo(
        "imagenet_r",
        "cprompt.data.datasets.imagenet_r:load",
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
        "cprompt.data.datasets.stanford_cars:load",
        "Stanford Cars: 16,185 images of 196 models of car",
        "car_ims/*.jpg and cars_annos.mat\n"
        "or cars_train/*.jpg, cars_test/*.jpg and devkit/*.mat\n"
        "or train/CLASS/*.jpg and test/CLASS/*.jpg",
        {
            "class_list": "file with one class name per line, in the order of the official labels",
            **_MISSING,
        },
        Counts(8_144, 8_041, 196),
        sorted_labels=False,
    ),
    DatasetInfo(
        "domainnet",
        "cprompt.data.datasets.domainnet:load",
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


class DatasetRegistry(Mapping[str, DatasetInfo]):
    """Datasets by name; one of an installed package is imported when it is first asked for."""

    def __init__(self) -> None:
        self._infos = {info.name: info for info in _BUILT_IN}
        self._offers: defaultdict[str, list[EntryPoint]] = defaultdict(list)
        for entry in entry_points(group=plugins.DATASETS_GROUP):
            self._offers[entry.name].append(entry)

    def __getitem__(self, name: str) -> DatasetInfo:
        offers = self._offers.get(name, [])
        others = [plugins.provider(entry) for entry in offers]
        if name in self._infos and others:
            raise _clash(name, ["cprompt", *others])
        if len(others) > 1:
            raise _clash(name, others)
        if name not in self._infos and offers:
            return _offered(offers[0])
        return self._infos[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._infos, **self._offers})

    def __len__(self) -> int:
        return len({**self._infos, **self._offers})

    def __contains__(self, name: object) -> bool:
        return name in self._infos or name in self._offers

    def info(self, name: str) -> DatasetInfo:
        """What is known of a dataset without importing it, for lists; never fails on a plugin."""
        if name in self._infos:
            return self._infos[name]
        entry = self._offers[name][0]
        return DatasetInfo(name, entry.value, f"from {plugins.provider(entry)}", "", {})

    def add(self, info: DatasetInfo) -> None:
        """Take in a dataset; its name must be new."""
        if info.name in self:
            others = ", ".join(map(plugins.provider, self._offers.get(info.name, [])))
            raise ConfigError(
                f"two datasets are called {info.name!r}{others and ', one from '}{others}",
                hint="register it under another name",
            )
        self._infos[info.name] = info


def _offered(entry: EntryPoint) -> DatasetInfo:
    """The dataset that an installed package offers."""
    found = plugins.load(entry)
    if not isinstance(found, DatasetInfo) or found.name != entry.name:
        what = f"{found.name!r}" if isinstance(found, DatasetInfo) else type(found).__name__
        raise ConfigError(
            f"{entry.name!r} of {plugins.provider(entry)} is {what}",
            hint=f"{entry.value} must be a DatasetInfo called {entry.name!r}",
        )
    return found


def _clash(name: str, providers: list[str]) -> ConfigError:
    return ConfigError(
        f"{' and '.join(providers)} all have a dataset called {name!r}",
        hint="uninstall all but one of them",
    )


DATASETS = DatasetRegistry()
"""Every dataset, by name."""


def register_dataset(info: DatasetInfo) -> DatasetInfo:
    """Make a dataset known by its name; a module named by `--plugin` calls this.

    >>> pets = DatasetInfo("pets", "our_package.pets:load", "cats and dogs", "CLASS/*.jpg", {})
    >>> register_dataset(pets).name in DATASETS
    True
    """
    DATASETS.add(info)
    return info


def numbered_officially(dataset: str, classes: Sequence[str]) -> bool | None:
    """Whether a loaded dataset of that name has the official labels; None if nobody can tell.

    Class orders are drawn over labels, so others make another stream of the same seed. `classes`
    are the names by label.

    >>> numbered_officially("stanford_cars", ["Audi A5", "Acura RL", "BMW M3"])
    True
    >>> numbered_officially("stanford_cars", ["Acura RL", "Audi A5", "BMW M3"])
    False
    """
    if dataset.endswith(SORTED_LABELS):
        return False
    sorted_labels = DATASETS.info(dataset).sorted_labels if dataset in DATASETS else None
    return None if sorted_labels is None else sorted_labels == (list(classes) == sorted(classes))


def load_dataset(name: str, root: Path | str | None = None, **options: Any) -> Dataset:
    """The dataset called `name`, from the folder `root`; `options` are those of its loader.

    >>> load_dataset("shapes", classes=2, train_per_class=3, test_per_class=1, size=16).classes
    ('disc', 'five-point star')
    """
    if name not in DATASETS:
        raise ConfigError(
            f"no dataset is called {name!r}",
            hint=f"{suggest(name, list(DATASETS))} "
            "(a dataset in a file of your own needs --plugin MODULE)",
        )
    info = DATASETS[name]
    for option in options:
        if option not in info.options:
            known = f"it has {', '.join(info.options)}" if info.options else "it has none"
            raise ConfigError(f"dataset {name!r} has no option {option!r}", hint=known)
    if root is None and info.needs_root:
        raise ConfigError(
            f"dataset {name!r} needs the folder of its images", hint="pass --data FOLDER"
        )
    load = info.loader()
    checked = keywords(load, options, name)
    return load(None if root is None else Path(root).expanduser(), **checked)
