from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cprompt.data import registry
from cprompt.data.registry import (
    DATASETS,
    DatasetInfo,
    DatasetRegistry,
    load_dataset,
    numbered_officially,
    register_dataset,
)
from cprompt.errors import ConfigError, DataError


@pytest.mark.parametrize("name", DATASETS)
def test_the_options_described_are_those_that_the_loader_takes(name: str) -> None:
    info = DATASETS[name]
    root, *options = inspect.signature(info.loader()).parameters.values()
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
    with pytest.raises(ConfigError, match="'cifar10'; did you mean 'cifar100'") as caught:
        load_dataset("cifar10")
    assert "--plugin MODULE" in str(caught.value.hint)
    with pytest.raises(ConfigError, match=f"'birds'; there are {', '.join(DATASETS)}"):
        load_dataset("birds")


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
        ("folder", {"classes": 3}, "folder.classes: 3 is not a list (each text) or empty"),
        ("imagenet_r", {"split": "b"}, "imagenet_r.split: 'b' is not one of 'coda', 'random'"),
        ("stanford_cars", {"class_list": 3}, "stanford_cars.class_list: 3 is not Path or text or"),
    ],
)
def test_an_option_of_the_wrong_type_is_refused(
    tmp_path: Path, dataset: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_dataset(dataset, tmp_path, **options)


@pytest.mark.parametrize(
    ("dataset", "classes", "official"),
    [
        ("stanford_cars", "bac", True),
        ("stanford_cars", "abc", False),
        ("stanford_cars-sorted-labels", "abc", False),
        ("folder", "abc", None),
        ("forgotten", "abc", None),
    ],
)
def test_whether_labels_are_the_official_ones(
    dataset: str, classes: str, official: bool | None
) -> None:
    assert numbered_officially(dataset, tuple(classes)) is official


def test_only_a_drawn_dataset_needs_no_folder() -> None:
    with pytest.raises(ConfigError, match="'folder' needs the folder") as caught:
        load_dataset("folder")
    assert "--data" in str(caught.value.hint)
    data = load_dataset("shapes", classes=2, train_per_class=3, test_per_class=1, size=16)
    assert data.train.per_class().tolist() == [3, 3]


@pytest.mark.parametrize("name", [n for n, info in DATASETS.items() if info.needs_root])
def test_a_missing_folder_is_named_by_every_loader(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone: does not exist; check the path"):
        load_dataset(name, tmp_path / "gone")


# --- datasets from outside ----------------------------------------------------------------------


def drawn(root: Path | None, *, size: int = 16) -> Any:
    return load_dataset("shapes", classes=2, train_per_class=1, test_per_class=1, size=size)


DOTS = DatasetInfo("dots", drawn, "two figures", "nothing", {"size": "side"}, needs_root=False)
NOT_A_DATASET = "words"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> DatasetRegistry:
    """The registry, which forgets afterwards what a test adds."""
    monkeypatch.setattr(DATASETS, "_infos", dict(DATASETS._infos))
    return DATASETS


def test_a_registered_dataset_is_loaded_with_its_options(known: DatasetRegistry) -> None:
    assert "dots" not in known
    register_dataset(DOTS)
    assert list(known)[-1] == "dots"
    assert load_dataset("dots", size=20).train.load(0).size == (20, 20)
    with pytest.raises(ConfigError, match="no option 'side'; it has size"):
        load_dataset("dots", side=20)


@pytest.mark.parametrize("name", ["dots", "cifar100"])
def test_a_name_can_be_registered_once(known: DatasetRegistry, name: str) -> None:
    register_dataset(DOTS)
    with pytest.raises(ConfigError, match=f"two datasets are called '{name}'"):
        register_dataset(DatasetInfo(name, drawn, "", "", {}))


def offering(monkeypatch: pytest.MonkeyPatch, *offers: tuple[str, str, str]) -> DatasetRegistry:
    """A registry where packages offer (name, attribute of this module, package)."""
    entries = []
    for name, attribute, package in offers:
        entry = EntryPoint(name, f"{__name__}:{attribute}", registry.plugins.DATASETS_GROUP)
        vars(entry).update(dist=SimpleNamespace(name=package))
        entries.append(entry)
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    made = DatasetRegistry()
    monkeypatch.setattr(registry, "DATASETS", made)
    return made


def test_a_dataset_of_an_installed_package_is_imported_when_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = offering(monkeypatch, ("dots", "DOTS", "cprompt-dots"))
    assert list(made) == [*DATASETS, "dots"]
    assert made.info("dots").summary == "from the package cprompt-dots"
    assert made["dots"] is DOTS
    assert load_dataset("dots").classes == ("disc", "five-point star")


@pytest.mark.parametrize(
    ("name", "attribute"),
    [("dots", "GONE"), ("dots", "NOT_A_DATASET"), ("points", "DOTS")],
)
def test_a_broken_package_is_named_when_its_dataset_is_asked_for(
    name: str, attribute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = offering(monkeypatch, (name, attribute, "cprompt-dots"))
    assert name in made
    with pytest.raises(ConfigError, match=f"'{name}' of the package cprompt-dots"):
        load_dataset(name)
    assert load_dataset("shapes", classes=1, train_per_class=1, test_per_class=1, size=16)


def test_two_datasets_of_one_name_are_refused_with_their_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = offering(
        monkeypatch, ("dots", "DOTS", "a"), ("dots", "DOTS", "b"), ("cifar100", "DOTS", "c")
    )
    with pytest.raises(ConfigError, match=r"the package a and the package b .* 'dots'"):
        made["dots"]
    with pytest.raises(ConfigError, match=r"cprompt and the package c .* 'cifar100'"):
        made["cifar100"]
    with pytest.raises(ConfigError, match=r"'dots', one from the package a, the package b"):
        made.add(DOTS)
    assert len(made) == len(set(made)) == len(DATASETS) + 1


def test_names_are_listed_and_drawn_without_torch_or_a_dataset_module(
    python_without_torch: Callable[..., Any],
) -> None:
    done = python_without_torch(
        "from cprompt.data.registry import DATASETS, load_dataset\n"
        "print(*DATASETS)\n"
        "assert not any(name.startswith('cprompt.data.datasets') for name in sys.modules)\n"
        "load_dataset('shapes', classes=1, train_per_class=1, test_per_class=1, size=16)\n"
    )
    assert (done.stderr, done.stdout.split()) == ("", list(DATASETS))
