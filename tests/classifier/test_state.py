"""What was learnt, to files and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cprompt import ContinualClassifier, ModelError
from cprompt.classifier import model_folder
from cprompt.classifier.state import LearntBatch
from tests.classifier.common import forged, learnt


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good model of two classes."""
    folder = tmp_path_factory.mktemp("good") / "m"
    learnt({"red": 5, "sea": 5}).save(folder)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good model of a method that is trained, with the feature of a held-out photo per class."""
    folder = tmp_path_factory.mktemp("trained") / "m"
    learnt({"red": 5, "sea": 5}, method="cprompt", settings={"length": 2}).save(folder)
    return folder


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"classes": [{"name": "red", "positions": [0]}]}, "2 classes, but 1 batches and 1 pos"),
        ({"classes": [{"name": "red", "positions": [0, 1, 2]}]}, "and 3 positions"),
        ({"classes": [{"name": "r", "positions": [0]}] * 2}, "not unique"),
        ({"classes": [{"name": "r", "positions": [5, 6]}]}, "not unique"),
        ({"classes": None}, "is inconsistent"),
        ({"task_sizes": [1, 1]}, "2 tasks of 2 classes, but 1 batches"),
        ({"task_sizes": [10**12]}, "tasks of 1000000000000 classes"),
        ({"history": [{"number": 1}]}, "is inconsistent"),
        ({"calibration": {}}, "is inconsistent"),
        ({"backbone": {}}, "is inconsistent"),
        (
            {"method": {"name": "magic", "settings": {}}},
            "with the method 'magic', which is not known",
        ),
        (
            {"method": {"name": "aligned", "settings": {}}},
            "with the method 'aligned', which is not known",
        ),
        ({"method": {"name": "strata", "settings": {"tokens": "class"}}}, "size mis"),
        ({"method": {"name": "l2p", "settings": {}}}, "is inconsistent"),
        ({"transform": "exec"}, "transform 'exec'"),
        ({"hold_out": "x"}, "is inconsistent"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(
    model: Path, tmp_path: Path, about: dict[str, Any], message: str
) -> None:
    copy = forged(model, tmp_path / "forged", about)
    with pytest.raises(ModelError, match=message) as caught:
        ContinualClassifier.load(copy)
    assert caught.value.file == str(copy)
    assert caught.value.hint is not None


def test_settings_that_the_tensors_do_not_fit_are_refused(trained: Path, tmp_path: Path) -> None:
    method = {"name": "cprompt", "settings": {"length": 7}}
    with pytest.raises(ModelError, match="size mis"):
        ContinualClassifier.load(forged(trained, tmp_path / "forged", {"method": method}))


@pytest.mark.parametrize("part", ["moments.count", "kept.key", "narrow_weight"])
def test_tensors_of_the_default_that_do_not_fit_are_refused(
    model: Path, tmp_path: Path, part: str
) -> None:
    tensors = model_folder.read(model).tensors
    name = f"method/{part}"
    for number, wrong in enumerate(
        (
            {},
            {n: t for n, t in tensors.items() if n != name},
            {**tensors, name: torch.zeros(5, 5, 5)},
            {**tensors, "method/extra": torch.zeros(1)},
            {**tensors, "held_out/positions": torch.tensor([0])},
        )
    ):
        copy = forged(model, tmp_path / str(number), {}, wrong)
        with pytest.raises(ModelError, match="inconsistent"):
            ContinualClassifier.load(copy)


def test_tensors_that_do_not_fit_are_refused(trained: Path, tmp_path: Path) -> None:
    tensors = model_folder.read(trained).tensors
    assert tensors["held_out/positions"].tolist() == [0, 1]
    for number, wrong in enumerate(
        (
            {},
            {n: t for n, t in tensors.items() if "keys" not in n},
            {**tensors, "method/extra": torch.zeros(1)},
            {**tensors, "held_out/positions": torch.tensor([0, 9])},
            {**tensors, "held_out/positions": torch.tensor([0])},
        )
    ):
        copy = forged(trained, tmp_path / str(number), {}, wrong)
        with pytest.raises(ModelError, match="inconsistent"):
            ContinualClassifier.load(copy)


def test_history_is_plain() -> None:
    (only,) = learnt({"red": 3}).history_
    assert LearntBatch(**json.loads(json.dumps(dataclasses.asdict(only)))) == only
