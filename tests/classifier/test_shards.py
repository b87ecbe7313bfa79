"""Shards: whatever the number, what they count adds up to what one process counts."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cprompt.classifier.learning import DECODED_AT_ONCE
from cprompt.classifier.photos import PhotoLike
from cprompt.classifier.shards import (
    Counts,
    Plan,
    Shard,
    ShardCounter,
    ShardReport,
    _parts,
    concluded,
    cut,
    method_of,
)
from cprompt.errors import BackboneError, DataError, ModelError
from cprompt.training.observers import Observer
from tests.classifier.common import batch, learnt, photos, saved, tiny


def one_by_one(number: int) -> object:
    """Counts so many shards in this process, through pickles as another process would."""

    def count(
        plan: Plan, photos: Sequence[PhotoLike], labels: Sequence[str], observer: Observer
    ) -> tuple[Counts, list[ShardReport]]:
        counter = ShardCounter(pickle.loads(pickle.dumps(plan)))
        total, reports = None, []
        ranges = cut(len(photos), number, plan.extra_views, torch.device("cpu"))
        assert len(ranges) == number
        for part in ranges:
            chosen = slice(part.start, part.stop)
            shard = Shard(part.start, photos[chosen], labels[chosen])
            counts, report = pickle.loads(pickle.dumps(counter.count(shard)))
            total = counts if total is None else counter.add(total, counts)
            reports.append(report)
        assert total is not None
        return total, reports

    return count


@pytest.mark.parametrize(
    ("photos", "shards", "views"), [(1, 1, 2), (22, 2, 2), (300, 7, 2), (300, 99, 0), (600, 3, 2)]
)
@pytest.mark.parametrize(("device", "inputs"), [("cpu", 64), ("cuda", 256)])
def test_every_photo_is_in_one_shard_and_no_batch_is_cut(
    photos: int, shards: int, views: int, device: str, inputs: int
) -> None:
    found = cut(photos, shards, views, torch.device(device))
    assert [i for part in found for i in part] == list(range(photos))
    assert len(found) <= shards
    per_batch = math.ceil(inputs / (1 + views))
    for part in found:
        assert part.start % 256 % per_batch == 0
    if photos == 600:
        assert [len(part) for part in found] == pytest.approx([200] * 3, abs=2 * per_batch)


@pytest.mark.parametrize(
    ("device", "views", "passes"),
    [("cuda", 2, [86, 86, 84]), ("cuda", 0, [256]), ("cpu", 2, [22] * 11 + [14])],
)
def test_no_pass_is_left_with_a_photo_or_two(device: str, views: int, passes: list[int]) -> None:
    assert [len(part) for part in cut(256, 99, views, torch.device(device))] == passes


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_counts_of_shards_are_those_of_one_process(shards: int) -> None:
    """With a class that returns, and one that spans shards; seven batches of 21 photos and more."""
    first = {"red": 5, "blue": 4}
    images, names = batch(1, blue=60, green=100)
    whole, parts = learnt(first), learnt(first)
    whole.learn(images, names)
    parts.learn_counted(list(zip(images, names, strict=True)), one_by_one(shards))
    assert parts.classes_ == whole.classes_ == ["red", "blue", "green"]
    expected = whole.method_.state_dict()
    for name, value in parts.method_.state_dict().items():
        if name.startswith("moments."):
            difference = (value - expected[name]).abs().max()
            assert float(difference) <= 1e-9 * float(expected[name].abs().max()), name
        if name.startswith("kept."):
            assert torch.equal(value, expected[name]), name
    asked = photos("green", 5, seed=9) + photos("red", 5, seed=9) + photos("cyan", 5, seed=9)
    assert parts.predict(asked) == whole.predict(asked)
    np.testing.assert_allclose(parts.predict_proba(asked), whole.predict_proba(asked), atol=1e-6)
    assert parts.threshold_ == pytest.approx(whole.threshold_, rel=1e-6)
    assert parts.history_[-1].photos == whole.history_[-1].photos == {"blue": 60, "green": 100}


def test_photos_that_cannot_be_read_are_left_out_and_named_together(tmp_path: Path) -> None:
    images, names = batch(0, red=40, blue=25)
    files = [saved(tmp_path / f"{i:02}.png", image) for i, image in enumerate(images)]
    bad = [3, 22, 64]
    for i in bad:
        files[i].write_bytes(b"no image")
    pairs = list(zip(files, names, strict=True))
    classifier = tiny()
    with pytest.raises(DataError, match=r"3 of 65 photos .*03\.png"):
        classifier.learn_counted(pairs, one_by_one(3), strict=True)
    assert classifier.classes_ == []
    unread = classifier.learn_counted(pairs, one_by_one(3))
    assert [error.file for error in unread] == [str(files[i]) for i in bad]
    assert classifier.history_[-1].photos == {"red": 38, "blue": 24}
    good = tiny().learn([pair for i, pair in enumerate(pairs) if i not in bad])
    count = {"moments.count", "moments.total"}
    for name in count:
        mine, theirs = (c.method_.state_dict()[name] for c in (classifier, good))
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_a_class_of_which_nothing_can_be_read_does_not_appear(tmp_path: Path) -> None:
    pairs = [(saved(tmp_path / f"{i}.png", p), "red") for i, p in enumerate(photos("red", 3))]
    classifier = tiny()
    classifier.learn_counted([(b"no image", "ghost"), *pairs], one_by_one(1))
    assert classifier.classes_ == ["red"]


def test_a_photo_in_two_classes_is_found_across_shards() -> None:
    images, names = batch(0, red=25, blue=25)
    images[49] = images[0]
    with pytest.raises(DataError, match=r"same photo as item 0.*'blue'.*'red'"):
        tiny().learn_counted(list(zip(images, names, strict=True)), one_by_one(3))


def test_photos_learnt_in_an_earlier_batch_are_told_as_in_one_process() -> None:
    class Told(Observer):
        def __init__(self) -> None:
            self.messages: list[str] = []

        def noticed(self, message: str) -> None:
            self.messages.append(message)

    whole, parts = Told(), Told()
    images, names = batch(1, red=25, blue=25)
    again = photos("red", 2)
    pairs = list(zip(images + again, [*names, "red", "red"], strict=True))
    learnt({"red": 5, "sea": 4}).learn(pairs, observer=whole)
    learnt({"red": 5, "sea": 4}).learn_counted(pairs, one_by_one(3), observer=parts)
    assert parts.messages == whole.messages
    (told,) = parts.messages
    assert told.startswith("at least 2 photos were learnt in an earlier batch, so they count twice")


def test_a_shard_of_which_nothing_exists_is_an_error_of_its_place(tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.png" for i in range(3)]
    with pytest.raises(DataError, match="nor does any other of 3 photos") as error:
        tiny().learn_counted([(file, "red") for file in files], one_by_one(1))
    assert error.value.file == str(files[0])


def test_one_photo_that_does_not_exist_is_left_out_as_others(tmp_path: Path) -> None:
    files = [saved(tmp_path / f"{i}.png", p) for i, p in enumerate(photos("red", 3))]
    files[1].unlink()
    classifier = tiny()
    unread = classifier.learn_counted([(file, "red") for file in files], one_by_one(1))
    assert [error.file for error in unread] == [str(files[1])]
    assert classifier.history_[-1].photos == {"red": 2}


def test_photos_are_decoded_together_as_in_one_process() -> None:
    """Wherever a shard begins: so they pass through the backbone in the same batches."""
    assert _parts(0, 2 * DECODED_AT_ONCE + 1) == [
        (0, DECODED_AT_ONCE),
        (DECODED_AT_ONCE, 2 * DECODED_AT_ONCE),
        (2 * DECODED_AT_ONCE, 2 * DECODED_AT_ONCE + 1),
    ]
    first = DECODED_AT_ONCE - 3
    assert _parts(first, 10) == [(first, DECODED_AT_ONCE), (DECODED_AT_ONCE, first + 10)]
    assert _parts(DECODED_AT_ONCE, 5) == [(DECODED_AT_ONCE, DECODED_AT_ONCE + 5)]


def test_nothing_is_learnt_from_photos_of_which_none_can_be_read() -> None:
    errors = {0: DataError("is empty"), 1: DataError("is cut")}
    with pytest.raises(DataError, match="none of 2 photos can be read; the first: is empty"):
        concluded([ShardReport(2, errors)], ["a", "b"], ["x", "x"], Observer())


def test_another_backbone_than_planned_is_refused() -> None:
    classifier = tiny()
    plan = Plan.of(classifier, classifier._load(), 2, 10)
    other = replace(plan, parameters={**plan.parameters, "weights": "random:1"})
    with pytest.raises(BackboneError, match="started with: this is test_vit with other"):
        ShardCounter(other)
    fewer = replace(plan, identity={**plan.identity, "layers": [8]})
    with pytest.raises(BackboneError, match=r"reads other layers of it: .*, not \[8\]"):
        ShardCounter(fewer)


@pytest.mark.parametrize(
    "params", [{"method": "l2p"}, {"settings": {"adaptation": "prompt"}}], ids=str
)
def test_methods_that_are_trained_are_refused_before_anything_is_counted(
    params: dict[str, object],
) -> None:
    def count(*args: object) -> object:
        raise AssertionError("something was counted")

    with pytest.raises(ModelError):
        tiny(**params).learn_counted(list(zip(*batch(0, red=3), strict=True)), count)


def test_a_method_of_counts_has_just_these() -> None:
    classifier = tiny()
    plan = Plan.of(classifier, classifier._load(), 2, 4)
    counter = ShardCounter(plan)
    counts, _ = counter.count(Shard(0, photos("red", 4), ["red"] * 4))
    method = method_of(counts, counter._empty())
    assert method.n_classes == 1
    assert method.state_dict()["moments.count"].tolist() == [4 * (1 + plan.extra_views)]


def test_a_package_that_a_machine_lacks_is_not_the_fault_of_its_photos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker reads them; so they are not left out."""

    def missing(url: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    good = saved(tmp_path / "1.png", photos("red", 1)[0])
    classifier = tiny()
    with pytest.raises(DataError, match=r"s3://b/2\.png: needs a package .*s3fs"):
        classifier.learn_counted([(good, "red"), ("s3://b/2.png", "red")], one_by_one(1))
    assert classifier.classes_ == []
