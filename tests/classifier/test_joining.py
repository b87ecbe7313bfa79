"""Two classes made one are what learning them under one name would have given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cprompt import ContinualClassifier
from cprompt.errors import ModelError

COLOURS = {"red": (200, 40, 40), "mug": (40, 190, 60), "blue": (50, 60, 200), "cup": (60, 180, 80)}


def photos(name: str, count: int = 4) -> list[Image.Image]:
    rng = np.random.default_rng(list(COLOURS).index(name))
    shades = np.clip(np.array(COLOURS[name]) + rng.integers(-30, 31, (count, 1, 1, 3)), 0, 255)
    noise = rng.integers(-8, 9, (count, 24, 24, 3))
    return [Image.fromarray(np.clip(p, 0, 255).astype(np.uint8)) for p in shades + noise]


def learnt(*batches: Sequence[str], called: Mapping[str, str] | None = None) -> ContinualClassifier:
    """A tiny model that learnt these classes batch by batch, some under other names."""
    classifier = ContinualClassifier(
        "test_vit", weights="random:0", image_size=48, transform="plain", device="cpu"
    )
    for batch in batches:
        pairs = [(photo, (called or {}).get(n, n)) for n in batch for photo in photos(n)]
        classifier.learn(pairs)
    return classifier


@pytest.mark.parametrize(("name", "into"), [("mug", "cup"), ("cup", "mug")])
def test_two_classes_become_what_one_name_from_the_start_would_be(name: str, into: str) -> None:
    batches = [["red", "mug"], ["blue", "cup", "red"]]
    joined = learnt(*batches).merge_classes(name, into)
    expected = learnt(*batches, called={name: into})
    asked = [photo for each in COLOURS for photo in photos(each, 6)[4:]]
    assert joined.classes_ == expected.classes_ == ["red", into, "blue"]
    assert joined.predict_proba(asked) == pytest.approx(expected.predict_proba(asked), abs=1e-5)
    assert joined.threshold_ == pytest.approx(expected.threshold_, abs=1e-5)
    for found, right in zip(joined.history_, expected.history_, strict=True):
        assert (found.photos, set(found.new)) == (right.photos, set(right.new))
        assert set(found.returning) == set(right.returning)
    assert joined.method_.task_sizes == expected.method_.task_sizes == [2, 1]


@pytest.mark.parametrize(
    "batches", [[["red", "mug", "cup"], ["blue"]], [["mug", "red"], ["cup", "blue"]]]
)
def test_two_classes_of_one_batch_or_the_first_of_a_batch_become_one(
    batches: list[list[str]],
) -> None:
    joined = learnt(*batches).merge_classes("cup", "mug")
    expected = learnt(*batches, called={"cup": "mug"})
    assert joined.classes_ == expected.classes_
    assert joined.method_.task_sizes == expected.method_.task_sizes
    assert [each.photos for each in joined.history_] == [each.photos for each in expected.history_]
    assert sum(each.photos.get("mug", 0) for each in joined.history_) == 8


def test_it_can_be_saved_loaded_undone_and_taught_again(tmp_path: Path) -> None:
    classifier = learnt(["red", "mug", "cup"])
    classifier.save(tmp_path / "model")
    before = classifier.model_id
    classifier.merge_classes("cup", "mug").save(tmp_path / "model")
    again = ContinualClassifier.load(tmp_path / "model", device="cpu")
    assert (again.classes_, again.model_id) == (["red", "mug"], classifier.model_id)
    again.learn([(photo, "cup") for photo in photos("blue")])
    assert again.classes_ == ["red", "mug", "cup"]
    classifier.undo()
    assert (classifier.classes_, classifier.model_id) == (["red", "mug", "cup"], before)


def test_a_class_that_is_not_there_or_the_same_one_is_refused() -> None:
    classifier = learnt(["red", "mug"])
    before = classifier.model_id
    for name, into in (("red", "mugs"), ("mugs", "red"), ("red", "red")):
        with pytest.raises(ModelError):
            classifier.merge_classes(name, into)
    assert classifier.model_id == before
