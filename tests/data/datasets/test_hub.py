"""Hugging Face datasets saved to disk, with the real package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from cprompt.data.datasets import hub
from cprompt.errors import DataError
from cprompt.research.config import resolve
from cprompt.research.experiment import run

NAMES = ["cat", "a/b", "dog"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cprompt" / "hub"


def level(label: int, number: int) -> int:
    return 10 + 60 * label + number


def part(per_class: int, names: list[str] = NAMES, **columns: Any) -> datasets.Dataset:
    labels = [label for _ in range(per_class) for label in range(len(names))]
    images = [
        Image.new("RGB", (9, 7), (level(label, number // len(names)), 0, 0))
        for number, label in enumerate(labels)
    ]
    features = datasets.Features(
        {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=names)}
    )
    return datasets.Dataset.from_dict({"picture": images, "kind": labels}, features=features)


def levels(images: Any) -> list[tuple[int, int]]:
    """Label and red level of each image, sorted."""
    found = [
        (int(label), int(np.asarray(images.load(i))[0, 0, 0]))
        for i, label in enumerate(images.labels)
    ]
    return sorted(found)


def test_both_parts_are_read_with_their_class_names(tmp_path: Path, cache: Path) -> None:
    datasets.DatasetDict({"train": part(3), "validation": part(2)}).save_to_disk(tmp_path / "pets")
    found = hub.load(tmp_path / "pets")
    assert found.name == "pets"
    assert found.classes == tuple(NAMES)
    expected = [(label, level(label, n)) for label in range(3) for n in range(3)]
    assert levels(found.train) == expected
    assert levels(found.test) == [pair for pair in expected if pair[1] - 60 * pair[0] < 12]
    assert len(list(cache.iterdir())) == 1
    before = sorted(cache.rglob("*.img"))
    assert levels(hub.load(tmp_path / "pets").train) == expected
    assert sorted(cache.rglob("*.img")) == before
    assert not list(cache.rglob("*.part"))


def test_one_part_is_split_class_by_class(tmp_path: Path) -> None:
    part(10).save_to_disk(tmp_path / "pets")
    found = hub.load(tmp_path / "pets", test_fraction=0.3)
    assert found.test.per_class().tolist() == [3, 3, 3]
    both = levels(found.train) + levels(found.test)
    assert sorted(both) == [(label, level(label, n)) for label in range(3) for n in range(10)]


def test_saved_anew_it_is_read_anew(tmp_path: Path) -> None:
    part(2).save_to_disk(tmp_path / "pets")
    assert len(hub.load(tmp_path / "pets").train) == 3
    part(5).save_to_disk(tmp_path / "pets")
    assert len(hub.load(tmp_path / "pets").train) == 12


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="not a dataset that save_to_disk wrote"):
        hub.load(tmp_path / "folder")
    part(2).save_to_disk(tmp_path / "pets")
    with pytest.raises(DataError, match="no column 'colour' of the feature ClassLabel, only"):
        hub.load(tmp_path / "pets", label="colour")
    part(2).remove_columns("kind").save_to_disk(tmp_path / "unlabelled")
    with pytest.raises(DataError, match="has no column of the feature ClassLabel"):
        hub.load(tmp_path / "unlabelled")
    datasets.DatasetDict({"a": part(2), "b": part(2)}).save_to_disk(tmp_path / "odd")
    with pytest.raises(DataError, match="parts 'a', 'b'; expected train and one of test"):
        hub.load(tmp_path / "odd")


def test_a_run_learns_it(tmp_path: Path, tiny: dict[str, Any]) -> None:
    datasets.DatasetDict({"train": part(4), "test": part(2)}).save_to_disk(tmp_path / "pets")
    small = {name: value for name, value in tiny.items() if not name.startswith("data.")}
    small |= {"data.dataset": "hub", "data.root": str(tmp_path / "pets"), "stream.sizes": [2, 1]}
    record = run(resolve("folder", "nearest_mean", overrides=small), tmp_path / "run")
    assert record.finished
    assert record.dataset == "pets"
    assert [sum(row.count) for row in record.rows] == [4, 6]
