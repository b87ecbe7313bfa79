"""tools/unknown_promise.py, whose numbers the guide shows."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from cprompt.files import read_json
from tests.classifier.common import photos
from tests.scripts import load_tool

CLASSES = ("red", "sea", "moss", "sun", "mud", "sky", "clay")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("unknown_promise")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for seed, part in enumerate(("train", "test")):
        for name in CLASSES:
            (root / part / name).mkdir(parents=True)
            for i, photo in enumerate(photos(name, 6, seed)):
                Image.fromarray(photo).save(root / part / name / f"{i}.png")
    return root


def test_strangers_are_of_other_classes_and_nothing_is_asked_that_was_learnt(
    tool: ModuleType,
) -> None:
    learnt = {name: [Path("train", name, str(i)) for i in range(9)] for name in CLASSES}
    tested = {name: [Path("test", name, str(i)) for i in range(9)] for name in CLASSES}
    draws = [tool.drawn(learnt, tested, 3, 4, 10, seed) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    teach, ask, foreign = draws[0]
    assert list(teach) == list(ask)
    assert [len(files) for files in teach.values()] == [4, 4, 4]
    assert [len(files) for files in ask.values()] == [8, 8, 8]
    assert len(foreign) == 10
    strangers = {file.parts[1] for file in foreign}
    assert len(strangers) == 2  # half of the four other classes
    assert not strangers & set(teach)


def test_it_counts_what_the_classifier_refuses(
    tool: ModuleType, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["tool", "--data", str(tree), "--backbone", "vit_micro_patch8_64.tiny_imagenet"]
    words += ["--classes", "3", "--photos", "6", "--seeds", "1", "--keep", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path), "--name", "found"])
    assert tool.main() == 0
    record = read_json(tmp_path / "found.json")
    (run,) = record["runs"]
    assert record["mean"]["refused"] == run["refused"]
    learnt, tested = tool.read_parts(tree / "train", tree / "test")
    teach, ask, foreign = tool.drawn(learnt, tested, 3, 6, 500, 1)
    classifier = tool.ContinualClassifier(
        "vit_micro_patch8_64.tiny_imagenet", accept=0.9, device="cpu"
    )
    classifier.learn(*([list(each) for each in zip(*_pairs(teach), strict=True)]))
    files, truth = zip(*_pairs(ask), strict=True)
    answers = classifier.predict(list(files))
    refused = run["refused"]["0.9"]
    assert refused["known"] == round(100 * np.mean([a == "unknown" for a in answers]), 2)
    others = classifier.predict(foreign)
    assert refused["foreign"] == round(100 * np.mean([a == "unknown" for a in others]), 2)
    by_class = {
        name: np.mean([a == "unknown" for a, b in zip(answers, truth, strict=True) if b == name])
        for name in teach
    }
    assert refused["worst_class"] == round(100 * max(by_class.values()), 2)
    best = classifier.predict(list(files), unknown=False)
    right = [a == b for a, b in zip(best, truth, strict=True)]
    assert run["accuracy"] == round(100 * np.mean(right), 2)
    top = classifier.predict_proba(list(files)).max(axis=1)
    gap = 0.0
    for low in range(10):
        inside = (top > low / 10) & (top <= (low + 1) / 10)
        gap += abs(float(np.asarray(right)[inside].sum() - top[inside].sum()))
    assert run["ece"] == pytest.approx(100 * gap / len(top), abs=0.01)


def _pairs(photos: dict[str, list[Path]]) -> list[tuple[Path, str]]:
    return [(file, name) for name, files in photos.items() for file in files]
