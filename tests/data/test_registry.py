from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cprompt.data.registry import DATASETS, load_dataset
from cprompt.errors import ConfigError, DataError


@pytest.mark.parametrize("name", DATASETS)
def test_the_options_described_are_those_that_the_loader_takes(name: str) -> None:
    info = DATASETS[name]
    root, *options = inspect.signature(info.load).parameters.values()
    assert root.name == "root"
    assert [p.name for p in options] == list(info.options)
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in options)
    assert info.name == name
    assert info.summary
    assert info.layout


def test_a_dataset_is_loaded_by_name_with_its_options(
    tmp_path: Path, touch: Callable[..., None]
) -> None:
    touch("a/1.jpg", "b/1.jpg", "b/2.jpg")
    data = load_dataset("folder", str(tmp_path), classes=["b", "a"])
    assert data.classes == ("b", "a")


def test_an_unknown_dataset_is_refused_with_the_names_there_are() -> None:
    names = "shapes, folder, cifar100, imagenet_r, stanford_cars, domainnet"
    with pytest.raises(ConfigError, match=f"no dataset 'cifar10'; there are {names}"):
        load_dataset("cifar10")


def test_an_unknown_option_is_refused_with_the_valid_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no option 'fold'; it has classes, test_fraction, seed"):
        load_dataset("folder", tmp_path, fold=1)
    with pytest.raises(ConfigError, match="'cifar100' has no option 'seed'; it has none"):
        load_dataset("cifar100", tmp_path, seed=1)


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        ("shapes", {"size": "abc"}, "shapes.size: 'abc' is not a whole number"),
        ("shapes", {"classes": 2.5}, "shapes.classes: 2.5 is not a whole number"),
        ("folder", {"test_fraction": "half"}, "folder.test_fraction: 'half' is not a number"),
        ("folder", {"classes": "cat"}, "folder.classes: 'cat' is not a list (each text) or empty"),
        ("imagenet_r", {"split": "b"}, "imagenet_r.split: 'b' is not one of 'coda', 'random'"),
        ("stanford_cars", {"class_list": 3}, "stanford_cars.class_list: 3 is not Path or text or"),
    ],
)
def test_an_option_of_the_wrong_type_is_refused(
    tmp_path: Path, dataset: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_dataset(dataset, tmp_path, **options)


def test_only_a_drawn_dataset_needs_no_folder() -> None:
    with pytest.raises(
        ConfigError, match="'folder' needs the folder of its images: pass --data FOLDER"
    ):
        load_dataset("folder")
    data = load_dataset("shapes", classes=2, train_per_class=3, test_per_class=1, size=16)
    assert data.train.per_class().tolist() == [3, 3]


@pytest.mark.parametrize("name", [n for n, info in DATASETS.items() if info.needs_root])
def test_a_missing_folder_is_named_by_every_loader(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone: does not exist; check the path"):
        load_dataset(name, tmp_path / "gone")
