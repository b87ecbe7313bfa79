"""The classifier on tiny images whose classes are colours."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

import cprompt
from cprompt import METHODS, UNKNOWN, ContinualClassifier, ModelError
from cprompt.classifier import learning, model_folder
from cprompt.classifier.evaluation import ClassResult
from cprompt.classifier.held_out import choose_held_out
from cprompt.classifier.parameters import epochs_for, normalization_of
from cprompt.classifier.state import LearntBatch
from cprompt.errors import BackboneError, ConfigError, DataError
from cprompt.settings import to_mapping
from cprompt.training.observers import Observer
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import PromptableViT
from tests.methods.test_every_method import SMALL

SIDE = 24


def tiny(**params: Any) -> ContinualClassifier:
    usual: dict[str, Any] = {
        "weights": "random:0",
        "image_size": 48,
        "training": {"epochs": 1, "batch_size": 8},
        "transform": "plain",
        "device": "cpu",
    }
    return ContinualClassifier("test_vit", **{**usual, **params})


def photos(name: str, count: int, seed: int = 0) -> list[np.ndarray]:
    """Noise around a colour that the name stands for."""
    colour = np.random.default_rng(zlib.crc32(name.encode())).integers(40, 216, 3)
    noise = np.random.default_rng([seed, zlib.crc32(name.encode())]).normal(
        0, 8, (count, SIDE, SIDE, 3)
    )
    return list((colour + noise).clip(0, 255).astype(np.uint8))


def batch(seed: int = 0, **counts: int) -> tuple[list[np.ndarray], list[str]]:
    images = [p for name, n in counts.items() for p in photos(name, n, seed)]
    return images, [name for name, n in counts.items() for _ in range(n)]


def learnt(*batches: dict[str, int], **params: Any) -> ContinualClassifier:
    classifier = tiny(**params)
    for number, counts in enumerate(batches):
        classifier.learn(*batch(number, **counts))
    return classifier


def test_batches_as_they_come_are_learnt_and_told_apart() -> None:
    classifier = learnt({"red": 6, "sea": 8}, {"moss": 5}, {"sun": 2, "red": 7, "ash": 1})
    assert classifier.classes_ == ["red", "sea", "moss", "sun", "ash"]
    first, second, third = classifier.history_
    assert (first.number, first.photos, first.new, first.returning) == (
        1,
        {"red": 6, "sea": 8},
        ["red", "sea"],
        [],
    )
    assert (second.number, second.photos, second.new) == (2, {"moss": 5}, ["moss"])
    assert (third.photos, third.new, third.returning) == (
        {"sun": 2, "red": 7, "ash": 1},
        ["sun", "ash"],
        ["red"],
    )
    assert [b.held_out for b in classifier.history_] == [2, 1, 1]
    assert all(b.when.endswith("+00:00") and b.seconds > 0 for b in classifier.history_)
    assert [b.steps for b in classifier.history_] == [2, 1, 2]
    assert len({classifier.model_id, *(b.before for b in classifier.history_)}) == 4

    new, names = batch(9, red=5, sea=5, moss=5, sun=5, ash=5)
    assert classifier.predict(new, unknown=False) == names
    p = classifier.predict_proba(new)
    assert p.shape == (25, 5)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert repr(classifier) == "<ContinualClassifier aligned on test_vit: 5 classes from 3 batches>"


def test_an_answer_does_not_depend_on_the_other_photos() -> None:
    classifier = learnt({"red": 6, "sea": 6}, {"moss": 6}, {"sun": 6, "ash": 6})
    new, _ = batch(5, red=20, ash=20, moss=20, pink=20)
    whole = classifier.predict_proba(new)
    alone = np.concatenate([classifier.predict_proba(p) for p in new])
    np.testing.assert_allclose(alone, whole, rtol=1e-3, atol=1e-5)
    assert [classifier.predict(p)[0] for p in new] == classifier.predict(new)
    order = np.random.default_rng(0).permutation(len(new))
    shuffled = classifier.predict_proba([new[i] for i in order])
    np.testing.assert_allclose(shuffled, whole[order], rtol=1e-3, atol=1e-5)


def test_calibration_uses_so_many_photos_at_most_spread_over_the_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[NDArray[np.int64]] = []
    fit = learning.calibration.fit_temperature

    def watch(logits: Any, names: Any, name_of: Any, n_names: int) -> float:
        used.append(names)
        return fit(logits, names, name_of, n_names)

    monkeypatch.setattr(learning.calibration, "fit_temperature", watch)
    monkeypatch.setattr(learning, "MOST", 8)
    learnt({"red": 20, "sea": 20}, {"moss": 20, "sun": 20})
    assert used[0].tolist() == [0, 0, 0, 1, 1, 1]  # 15 % of 20, all of them
    assert used[1].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]  # eight of twelve


def test_saved_and_loaded_it_answers_the_same_bit_for_bit(tmp_path: Path) -> None:
    classifier = learnt({"red": 6, "sea": 8}, {"moss": 5, "red": 4})
    classifier.save(tmp_path / "m")
    loaded = ContinualClassifier.load(tmp_path / "m", device="cpu")
    new, _ = batch(5, red=4, sea=4, moss=4, pink=4)
    assert np.array_equal(loaded.predict_proba(new), classifier.predict_proba(new))
    assert loaded.predict(new) == classifier.predict(new)
    assert loaded.explain(new) == classifier.explain(new)
    assert loaded.history_ == classifier.history_
    assert loaded.classes_ == classifier.classes_
    assert loaded.model_id == classifier.model_id
    assert (loaded.temperature_, loaded.threshold_) == (
        classifier.temperature_,
        classifier.threshold_,
    )
    # And what both learn next is the same, too.
    for each in (loaded, classifier):
        each.learn(*batch(7, sun=5))
    assert np.array_equal(loaded.predict_proba(new), classifier.predict_proba(new))


def test_the_same_seed_gives_the_same_answers_and_another_one_others() -> None:
    new, _ = batch(5, red=3, sea=3)
    batches: tuple[dict[str, int], ...] = ({"red": 6, "sea": 8}, {"moss": 5})
    one, same, other = (learnt(*batches, seed=s).explain(new) for s in (1, 1, 2))
    assert one == same
    assert [e.score for e in one] != [e.score for e in other]


def test_undo_is_exact_and_happens_once() -> None:
    classifier = learnt({"red": 6, "sea": 6})
    new, _ = batch(5, red=3, sea=3)
    before = classifier.model_id, classifier.history_, classifier.predict_proba(new)
    for _ in range(2):
        classifier.learn(*batch(1, moss=5, red=3))
        classifier.undo()
        assert (classifier.model_id, classifier.history_) == before[:2]
        assert np.array_equal(classifier.predict_proba(new), before[2])
        assert classifier.classes_ == ["red", "sea"]
        with pytest.raises(ModelError, match=r"no batch to take back.*cprompt undo"):
            classifier.undo()


def test_undoing_the_first_batch_leaves_nothing() -> None:
    classifier = learnt({"red": 3})
    classifier.undo()
    assert (classifier.classes_, classifier.history_, classifier.model_id) == ([], [], "")
    with pytest.raises(ModelError, match="nothing was learnt yet"):
        classifier.predict(photos("red", 1))


# --- batches of all kinds -----------------------------------------------------------------------


def test_one_class_comes_first_and_then_one_at_a_time() -> None:
    classifier = learnt({"red": 5})
    assert classifier.predict(photos("sea", 2)) == ["red", "red"]
    names = ["red", "sea", "moss", "sun", "ash", "wine"]
    for number, name in enumerate(names[1:]):
        classifier.learn(*batch(number, **{name: 5}))
    new, truth = batch(9, **dict.fromkeys(names, 6))
    result = classifier.evaluate(new, truth)
    assert {name: r.right + r.unknown for name, r in result.per_class.items()} == dict.fromkeys(
        names, 6
    )
    assert result.accuracy is not None
    assert result.accuracy > 0.85


def test_classes_of_one_to_three_photos_are_learnt_from_all_of_them() -> None:
    classifier = learnt({"red": 1, "sea": 2, "moss": 3, "sun": 4})
    (only,) = classifier.history_
    assert only.held_out == 1
    assert not only.calibrated
    assert (only.temperature, only.threshold) == (10.0, 0.0)
    new, truth = batch(9, red=5, sea=5, moss=5, sun=5)
    assert classifier.predict(new) == truth


def test_what_is_held_out_of_each_class() -> None:
    targets = np.repeat([5, 6, 7, 8, 9], [1, 3, 4, 10, 100])
    chosen = choose_held_out(targets, 0.15, seed=1)
    assert [int(chosen[targets == t].sum()) for t in (5, 6, 7, 8, 9)] == [0, 0, 1, 2, 15]
    assert np.array_equal(chosen, choose_held_out(targets, 0.15, seed=1))
    assert not np.array_equal(chosen, choose_held_out(targets, 0.15, seed=2))
    assert choose_held_out(targets, 0.9, seed=1)[targets == 7].sum() == 3
    assert not choose_held_out(targets, 0.0, seed=1).any()


def test_a_class_that_returns_keeps_what_it_knew_and_adds_to_it() -> None:
    classifier = learnt({"red": 6, "sea": 6}, {"moss": 6})
    before = {n: t.clone() for n, t in classifier.method_.state_dict().items()}
    classifier.learn([*photos("wine", 6), *photos("sun", 4)], ["red"] * 6 + ["sun"] * 4)
    assert classifier.classes_ == ["red", "sea", "moss", "sun"]
    state = classifier._state
    assert state is not None
    assert classifier.name_of_ == [0, 1, 2, 0, 3]
    after = classifier.method_.state_dict()
    for name in ("prompts.frozen", "heads.weight.frozen", "heads.bias.frozen", "features.mean"):
        assert torch.equal(after[name][: len(before[name])], before[name]), name
    # Photos of the old look and of the new one are both called by the one name.
    new = [*photos("red", 5, 9), *photos("wine", 5, 9), *photos("sea", 5, 9)]
    assert classifier.predict(new, unknown=False) == ["red"] * 10 + ["sea"] * 5
    logits = torch.zeros(1, 5)
    assert state.probabilities(logits).tolist() == [[0.4, 0.2, 0.2, 0.2]]


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"joint"}))
def test_any_method_can_be_asked_for(name: str, tmp_path: Path) -> None:
    settings = SMALL.get(name, {})
    classifier = learnt({"red": 5, "sea": 6}, {"moss": 4, "red": 4}, method=name, settings=settings)
    classifier.save(tmp_path)
    loaded = ContinualClassifier.load(tmp_path, device="cpu")
    new, _ = batch(5, red=3, sea=3, moss=3)
    assert np.array_equal(loaded.predict_proba(new), classifier.predict_proba(new))
    assert set(loaded.predict(new)) <= {"red", "sea", "moss", UNKNOWN}
    (explanation,) = loaded.explain(new[:1])
    assert (explanation.prompt is None) is not METHODS[name].selects_task


def test_a_method_that_cannot_go_on_says_so_and_changes_nothing() -> None:
    classifier = learnt({"red": 4, "sea": 4}, method="joint", settings=SMALL.get("joint", {}))
    new, _ = batch(5, red=3, sea=3)
    before = classifier.model_id, classifier.predict_proba(new)
    with pytest.raises(ConfigError, match="joint training sees all classes in one task"):
        classifier.learn(*batch(1, moss=4))
    assert classifier.model_id == before[0]
    assert np.array_equal(classifier.predict_proba(new), before[1])


NAMES = ["猫", "قطة", "🐈‍⬛", "..", "con", "a/b\\c", "né", 'line\'s "end"', "-rf ~", "0"]


def test_names_in_any_script_and_with_any_sign_survive(tmp_path: Path) -> None:
    images = [p for name in NAMES for p in photos(name, 2)]
    labels = [name for name in NAMES for _ in range(2)]
    classifier = tiny().learn(images, labels)
    classifier.save(tmp_path / "m")
    loaded = ContinualClassifier.load(tmp_path / "m")
    assert loaded.classes_ == NAMES
    assert set(loaded.predict(images)) <= {*NAMES, UNKNOWN}
    assert {p.name for p in tmp_path.iterdir()} == {"m"}


def test_a_folder_of_photos_is_learnt_without_leaving_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    for name in ("red", "sea/nested/deeply"):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for i, picture in enumerate(photos(name[:3], 5)):
            Image.fromarray(picture).save(folder / f"{i}.png")
    classifier = tiny().learn(tmp_path / "photos")
    assert classifier.classes_ == ["red", "sea"]
    assert not cache.exists()
    assert classifier.predict(sorted((tmp_path / "photos" / "red").iterdir()), unknown=False) == (
        ["red"] * 5
    )
    result = classifier.evaluate(tmp_path / "photos")
    assert result.photos == 10


def test_a_bad_photo_is_named_and_nothing_is_learnt(tmp_path: Path) -> None:
    classifier = learnt({"red": 4, "sea": 4})
    before = classifier.model_id
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad.jpg: is not an image"):
        classifier.learn([(photos("red", 1)[0], "red"), (tmp_path / "bad.jpg", "moss")])
    with pytest.raises(DataError, match="no photo to learn from"):
        classifier.learn([])
    assert classifier.model_id == before


class Stops(Observer):
    """Breaks off at a step, or after decoding."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.seen: list[str] = []

    def decoded(self, done: int, total: int) -> None:
        self.seen.append(f"decoded {done}/{total}")

    def task_begins(self, task: int, n_classes: int, steps: int, done: int) -> None:
        self.seen.append(f"task {task}: {n_classes} classes, {steps} steps")

    def stepped(self, *args: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", [0, 1])
def test_stopped_in_the_middle_it_is_as_it_was(at: int) -> None:
    classifier = learnt({"red": 6, "sea": 6})
    new, _ = batch(5, red=3, sea=3)
    before = classifier.model_id, classifier.predict_proba(new)
    observer = Stops(at)
    with pytest.raises(KeyboardInterrupt):
        classifier.learn(*batch(1, moss=9, sun=9), observer=observer)
    assert classifier.model_id == before[0]
    assert np.array_equal(classifier.predict_proba(new), before[1])
    assert observer.seen[17:] == ["decoded 18/18", "task 1: 2 classes, 2 steps"]
    classifier.learn(*batch(1, moss=9, sun=9), observer=Stops(100))
    assert classifier.classes_ == ["red", "sea", "moss", "sun"]


# --- knowing what it does not know --------------------------------------------------------------


def test_temperature_and_threshold_come_from_the_held_out_photos() -> None:
    counts = {"red": 20, "sea": 20, "moss": 20}
    images, labels = batch(0, **counts)
    rng = np.random.default_rng(0)
    # Noise that hides the colour of some: not all held-out photos are easy.
    images = [
        np.clip(0.4 * p + 0.6 * rng.integers(0, 256, p.shape), 0, 255).astype(np.uint8)
        for p in images
    ]
    classifier = tiny(hold_out=0.5, accept=0.8).learn(images, labels)
    (only,) = classifier.history_
    assert (only.held_out, only.calibrated) == (30, True)

    targets = np.repeat([0, 1, 2], 20)
    chosen = choose_held_out(targets, 0.5, cprompt.seeds.mix(0, 0))
    state = classifier._state
    assert state is not None
    kept = [p for p, c in zip(images, chosen, strict=True) if c]
    with torch.no_grad():
        prepared = torch.stack([classifier.preparation_.prepare(Image.fromarray(p)) for p in kept])
        logits = state.method(prepared).double().numpy()

    def loss(temperature: float) -> float:
        total = 0.0
        for row, target in zip(logits / temperature, targets[chosen], strict=True):
            log_p = row - row.max() - math.log(np.exp(row - row.max()).sum())
            others = [log_p[c] for c in range(3) if c != target]
            total -= 31 / 32 * log_p[target] + 1 / 32 * sum(others) / 2
        return total

    assert loss(only.temperature) < min(loss(only.temperature * f) for f in (0.97, 1.03))
    top = classifier.predict_proba(kept).max(axis=1)
    assert only.threshold == pytest.approx(np.sort(top)[6 - 1], rel=1e-3)
    share = np.mean([a != UNKNOWN for a in classifier.predict(kept)])
    assert 0.8 <= share <= 0.9


def test_below_the_threshold_the_answer_is_unknown_unless_a_name_is_wanted() -> None:
    classifier = learnt({"red": 8, "sea": 8, "moss": 8, "sun": 8})
    assert classifier.history_[-1].calibrated is False
    classifier.learn(*batch(1, ash=8))
    assert classifier.history_[-1].calibrated is True
    assert classifier.threshold_ > 0
    new, _ = batch(5, red=3, pink=20, teal=20, plum=20)
    top = classifier.predict_proba(new).max(axis=1)
    answers = classifier.predict(new)
    assert [a == UNKNOWN for a in answers] == (top < classifier.threshold_).tolist()
    assert UNKNOWN in answers
    assert UNKNOWN not in classifier.predict(new, unknown=False)


def test_kept_features_of_earlier_batches_calibrate_later_ones() -> None:
    classifier = learnt({"red": 30, "sea": 10})
    state = classifier._state
    assert state is not None
    assert state.kept_positions.tolist().count(0) == 3  # of four or five held out
    assert state.kept.shape == (5, 128)
    classifier.learn(*batch(1, moss=2))
    (_, second) = classifier.history_
    assert (second.held_out, second.calibrated) == (0, True)
    after = classifier._state
    assert after is not None
    assert torch.equal(after.kept, state.kept)
    classifier.learn(*batch(2, sun=5))
    assert classifier._state is not None
    assert classifier._state.kept_positions.tolist() == [*state.kept_positions.tolist(), 3]


def test_nothing_of_a_single_photo_need_be_kept(tmp_path: Path) -> None:
    classifier = learnt({"red": 10, "sea": 10}, {"moss": 10}, keep_held_out=0)
    classifier.save(tmp_path)
    tensors = model_folder.read(tmp_path).tensors
    assert len(tensors["held_out/features"]) == 0
    assert {name.split(".")[0] for name in tensors} == {
        "held_out/features",
        "held_out/positions",
        "method/aligned_bias",
        "method/aligned_weight",
        "method/features",
        "method/heads",
        "method/keys",
        "method/prompts",
    }


def test_an_evaluation_counts_what_predict_says() -> None:
    classifier = learnt({"red": 12, "sea": 12}, {"moss": 12, "red": 8}, {"sun": 12}, accept=0.9)
    new, truth = batch(5, red=9, sea=9, moss=9, sun=9, pink=6, teal=5)
    rng = np.random.default_rng(0)
    new = [np.clip(p.astype(int) + rng.integers(-60, 60, 3), 0, 255).astype(np.uint8) for p in new]
    result = classifier.evaluate(new, truth)
    answers, p = classifier.predict(new), classifier.predict_proba(new)
    seen = [i for i, name in enumerate(truth) if name in classifier.classes_]
    right = [i for i in seen if answers[i] == truth[i]]
    unknown = [i for i in seen if answers[i] == UNKNOWN]
    assert 0 < len(unknown) < len(seen)
    assert len(right) < len(seen) - len(unknown)
    assert result.photos == 47
    assert result.accuracy == len(right) / 36
    assert result.accuracy_if_answered == len(right) / (36 - len(unknown))
    assert result.unknown_share == len(unknown) / 36
    for name in classifier.classes_:
        assert result.per_class[name] == ClassResult(
            9,
            sum(truth[i] == name for i in right),
            sum(truth[i] == name for i in unknown),
        )
    by_batch = {1: ("red", "sea"), 2: ("moss",), 3: ("sun",)}
    assert result.per_batch == {
        number: sum((result.per_class[n] for n in names), ClassResult())
        for number, names in by_batch.items()
    }
    assert result.unseen.photos == 11
    assert result.unseen.unknown == sum(
        a == UNKNOWN for a, t in zip(answers, truth, strict=True) if t in ("pink", "teal")
    )
    confusion = result.confusion
    assert confusion.truth == ["red", "sea", "moss", "sun", "pink", "teal"]
    assert confusion.answer == ["red", "sea", "moss", "sun", UNKNOWN]
    for i, t in enumerate(confusion.truth):
        for j, a in enumerate(confusion.answer):
            both = sum(x == t and y == a for x, y in zip(truth, answers, strict=True))
            assert confusion.counts[i][j] == both
    # Expected calibration error, bin by bin, of the seen photos' best names.
    error = 0.0
    for low in range(10):
        inside = [i for i in seen if low / 10 < p[i].max() <= (low + 1) / 10]
        if inside:
            sure = np.mean([p[i].max() for i in inside])
            hits = np.mean([classifier.classes_[int(p[i].argmax())] == truth[i] for i in inside])
            error += len(inside) / 36 * abs(sure - hits)
    assert result.ece == pytest.approx(error)
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["per_class"]["red"]["photos"] == 9
    assert plain["per_batch"]["2"]["photos"] == 9


def test_an_evaluation_of_unseen_classes_alone_has_no_accuracy() -> None:
    result = learnt({"red": 3, "sea": 3}).evaluate(*batch(1, pink=4))
    assert (result.accuracy, result.accuracy_if_answered, result.unknown_share) == (None,) * 3
    assert result.unseen == ClassResult(4, 0, 0)
    assert result.ece == 0.0


def test_an_explanation_says_what_the_answer_rests_on() -> None:
    classifier = learnt({"red": 8, "sea": 8}, {"moss": 8, "red": 6}, {"sun": 8})
    new, truth = batch(5, red=4, sea=4, moss=4, sun=4)
    p, answers = classifier.predict_proba(new), classifier.predict(new)
    state = classifier._state
    assert state is not None
    for row, answer, name, photo in zip(p, answers, truth, new, strict=True):
        (found,) = classifier.explain(photo, top=2)
        if abs(row.max() - classifier.threshold_) > 1e-3:
            assert found.label == answer
        assert found.known == (found.label != UNKNOWN)
        assert found.probability == pytest.approx(row.max(), rel=1e-3)
        best = np.argsort(-row)[:2]
        assert [n for n, _ in found.ranking] == [classifier.classes_[i] for i in best]
        assert [q for _, q in found.ranking] == pytest.approx(row[best].tolist(), rel=1e-2)
        assert len(found.nearest_keys) == 2
        assert len({n for n, _ in found.nearest_keys}) == 2
        cosines = [c for _, c in found.nearest_keys]
        assert cosines == sorted(cosines, reverse=True)
        assert all(-1 <= c <= 1 for c in cosines)
        assert found.nearest_keys[0][0] == name
        came_with = {"red": (1, 2), "sea": (1,), "moss": (2,), "sun": (3,)}
        assert found.prompt in came_with[name]
        with torch.no_grad():
            image = classifier.preparation_.prepare(Image.fromarray(photo))
            assert found.score == pytest.approx(float(state.method(image[None]).max()), rel=1e-3)


# --- files --------------------------------------------------------------------------------------


def test_saving_keeps_the_version_before_and_undo_on_disk_brings_it_back(tmp_path: Path) -> None:
    classifier = learnt({"red": 4, "sea": 4})
    classifier.save(tmp_path)
    first = classifier.model_id
    classifier.learn(*batch(1, moss=4)).save(tmp_path)
    classifier.save(tmp_path)
    assert model_folder.read_about(tmp_path)["generation"] == 2
    model_folder.undo(tmp_path)
    assert ContinualClassifier.load(tmp_path).model_id == first
    classifier.undo()
    classifier.save(tmp_path)
    assert ContinualClassifier.load(tmp_path).model_id == first
    classifier.learn(*batch(2, sun=4)).save(tmp_path)
    assert ContinualClassifier.load(tmp_path).classes_ == ["red", "sea", "sun"]


def test_undone_in_memory_and_saved_it_is_undone_on_disk(tmp_path: Path) -> None:
    classifier = learnt({"red": 4})
    classifier.save(tmp_path)
    classifier.learn(*batch(1, sea=4)).save(tmp_path)
    classifier.undo()
    classifier.save(tmp_path)
    about = model_folder.read_about(tmp_path)
    assert (about["generation"], about["model"]) == (1, classifier.model_id)


def test_a_model_that_another_one_taught_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    learnt({"red": 4, "sea": 4}).save(tmp_path)
    one, two = (ContinualClassifier.load(tmp_path) for _ in range(2))
    one.learn(*batch(1, moss=4)).save(tmp_path)
    two.learn(*batch(1, sun=4))
    with pytest.raises(ModelError, match="has learnt more since"):
        two.save(tmp_path)
    with pytest.raises(ModelError, match="holds another model"):
        learnt({"red": 3}).save(tmp_path)
    assert ContinualClassifier.load(tmp_path).classes_ == ["red", "sea", "moss"]


def test_nothing_learnt_cannot_be_saved_or_asked(tmp_path: Path) -> None:
    for ask in (
        lambda: tiny().save(tmp_path / "m"),
        lambda: tiny().predict(photos("red", 1)),
        lambda: tiny().predict_proba([]),
        lambda: tiny().evaluate(*batch(0, red=1)),
    ):
        with pytest.raises(ModelError, match="nothing was learnt yet"):
            ask()
    assert not (tmp_path / "m").exists()


def test_more_photos_than_are_decoded_at_once_are_answered_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    classifier = learnt({"red": 5, "sea": 5})
    new, truth = batch(5, red=3, sea=4, moss=2)
    whole, told = classifier.explain(new), Stops(0)
    monkeypatch.setattr("cprompt.classifier.classifier.DECODED_AT_ONCE", 2)
    assert [e.label for e in classifier.explain(new)] == [e.label for e in whole]
    assert [e.score for e in classifier.explain(new)] == pytest.approx(
        [e.score for e in whole], rel=1e-3
    )
    classifier.evaluate(new, truth, observer=told)
    assert told.seen == [f"decoded {i}/9" for i in range(1, 10)]


def test_no_photos_have_no_answers() -> None:
    classifier = learnt({"red": 3, "sea": 3})
    assert classifier.predict([]) == []
    assert classifier.predict_proba([]).shape == (0, 2)
    assert classifier.explain([]) == []


def test_a_wrong_backbone_is_refused(tmp_path: Path) -> None:
    learnt({"red": 3, "sea": 3}).save(tmp_path)
    with pytest.raises(ModelError, match=r"learnt on test_vit \(random:0, .* other weights"):
        ContinualClassifier.load(tmp_path, weights="random:1")


def test_weights_from_a_file_are_found_again_or_asked_for(tmp_path: Path) -> None:
    for seed in (0, 1):
        state = load_backbone("test_vit", f"random:{seed}", 48).vit.state_dict()
        save_file(state, tmp_path / f"{seed}.safetensors")
    file = tmp_path / "0.safetensors"
    classifier = learnt({"red": 3, "sea": 3}, weights=str(file))
    classifier.save(tmp_path / "m")
    new, _ = batch(1, red=2, sea=2)
    expected = classifier.predict_proba(new)
    assert np.array_equal(ContinualClassifier.load(tmp_path / "m").predict_proba(new), expected)
    file.rename(tmp_path / "moved.safetensors")
    with pytest.raises(BackboneError, match=r"weights from the file 0.safetensors, which is not"):
        ContinualClassifier.load(tmp_path / "m")
    moved = ContinualClassifier.load(tmp_path / "m", weights=str(tmp_path / "moved.safetensors"))
    assert np.array_equal(moved.predict_proba(new), expected)
    with pytest.raises(ModelError, match="other weights"):
        ContinualClassifier.load(tmp_path / "m", weights=str(tmp_path / "1.safetensors"))


def forged(folder: Path, about: dict[str, Any], tensors: dict[str, Tensor] | None = None) -> Path:
    """The same model under another description, well written as far as the folder can tell."""
    stored = model_folder.read(folder)
    plain = {**stored.about, **about, "model": "forged"}
    for name in ("format", "version", "generation", "files"):
        plain.pop(name)
    copy = folder.parent / "forged"
    model_folder.write(copy, plain, stored.tensors if tensors is None else tensors)
    return copy


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"classes": [{"name": "red", "positions": [0]}]}, "2 classes, but 1 batches and 1 pos"),
        ({"classes": [{"name": "red", "positions": [0, 1, 2]}]}, "and 3 positions"),
        ({"classes": [{"name": "r", "positions": [0]}] * 2}, "one name and one position each"),
        ({"classes": [{"name": "r", "positions": [5, 6]}]}, "one name and one position each"),
        ({"classes": None}, "does not fit together"),
        ({"task_sizes": [1, 1]}, "2 tasks of 2 classes, but 1 batches"),
        ({"task_sizes": [10**12]}, "tasks of 1000000000000 classes"),
        ({"history": [{"number": 1}]}, "does not fit together"),
        ({"calibration": {}}, "does not fit together"),
        ({"backbone": {}}, "does not fit together"),
        ({"method": {"name": "magic", "settings": {}}}, "no method is called 'magic'"),
        ({"method": {"name": "aligned", "settings": {"length": 7}}}, "size mis"),
        ({"method": {"name": "l2p", "settings": {}}}, "does not fit together"),
        ({"transform": "exec"}, "transform 'exec'"),
        ({"hold_out": "x"}, "does not fit together"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(
    tmp_path: Path, about: dict[str, Any], message: str
) -> None:
    learnt({"red": 3, "sea": 3}).save(tmp_path / "m")
    with pytest.raises(ModelError, match=message):
        ContinualClassifier.load(forged(tmp_path / "m", about))


def test_a_model_written_when_alignment_was_a_setting_of_cprompt_is_read(tmp_path: Path) -> None:
    classifier = learnt({"red": 6, "sea": 6}, {"moss": 6})
    classifier.save(tmp_path / "m")
    settings = {**to_mapping(classifier.method_.config), "align": True}
    old = forged(tmp_path / "m", {"method": {"name": "cprompt", "settings": settings}})
    loaded = ContinualClassifier.load(old)
    assert loaded.method == "aligned"
    new = photos("moss", 3, seed=5)
    assert np.array_equal(loaded.predict_proba(new), classifier.predict_proba(new))
    assert loaded.learn(photos("sun", 4), ["sun"] * 4).classes_ == ["red", "sea", "moss", "sun"]


def test_what_is_asked_of_a_good_model_wrongly_is_not_blamed_on_it(tmp_path: Path) -> None:
    learnt({"red": 3, "sea": 3}).save(tmp_path / "m")
    with pytest.raises(ConfigError, match=r"training.precision: 'bf17' is not one of"):
        ContinualClassifier.load(tmp_path / "m", precision="bf17")
    with pytest.raises(ConfigError, match="device 'cudaa' cannot be used here"):
        ContinualClassifier.load(tmp_path / "m", device="cudaa")


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    learnt({"red": 5, "sea": 5}).save(tmp_path / "m")
    tensors = model_folder.read(tmp_path / "m").tensors
    for wrong in (
        {},
        {n: t for n, t in tensors.items() if "keys" not in n},
        {**tensors, "method/extra": torch.zeros(1)},
        {**tensors, "held_out/positions": torch.tensor([0, 9])},
        {**tensors, "held_out/positions": torch.tensor([0])},
    ):
        with pytest.raises(ModelError, match="does not fit together"):
            ContinualClassifier.load(forged(tmp_path / "m", {}, wrong))
        for file in (tmp_path / "forged").iterdir():
            file.unlink()


def test_killed_at_random_moments_it_is_the_old_model_or_the_new(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "tools" / "kill_while_learning.py"
    done = subprocess.run(
        [sys.executable, script, str(tmp_path / "m"), "--kills", "10", "--seed", "3"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["killed"] == 10
    assert counts["old"] + counts["new"] == 10
    assert counts["neither"] == 0


# --- size ---------------------------------------------------------------------------------------


class Passes:
    """Counts images that go through the backbone, with gradient and without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images = 0
        original = PromptableViT._pass

        def counted(vit: PromptableViT, embedded: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            self.images += len(embedded)
            return original(vit, embedded, *args, **kwargs)

        monkeypatch.setattr(PromptableViT, "_pass", counted)


def test_work_a_photo_and_bytes_a_batch_do_not_grow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passes = Passes(monkeypatch)
    classifier = tiny(settings={"length": 2}, keep_held_out=1)
    a_photo, sizes = [], []
    for number in range(40):
        before = passes.images
        classifier.learn(*batch(number, **{f"c{number}": 3, f"d{number}": 3}))
        a_photo.append((passes.images - before) / 6)
        state = classifier._state
        assert state is not None
        sizes.append(sum(t.numel() for t in state.method.state_dict().values()))
    # Training: the current prompt, and at most once an old one; then query and feature once each.
    assert max(a_photo) <= 4
    growth = np.diff(sizes)
    assert len(set(growth.tolist())) == 1
    before = passes.images
    assert len(set(classifier.predict(photos("c3", 4), unknown=False))) >= 1
    assert passes.images - before == 8
    classifier.save(tmp_path)
    assert len(ContinualClassifier.load(tmp_path).classes_) == 80


def test_large_batches_are_gone_through_less_often() -> None:
    assert [epochs_for(n) for n in (1, 80, 500, 750, 1000, 1500, 10**6)] == [6, 6, 6, 4, 3, 2, 2]
    classifier = tiny(training={"batch_size": 4}).learn(*batch(0, red=9))
    assert classifier.history_[0].steps == 6 * 2


# --- parameters ---------------------------------------------------------------------------------


def test_parameters_are_as_given_so_that_it_can_be_cloned() -> None:
    classifier = tiny(accept=0.9, settings={"length": 4})
    params = classifier.get_params()
    assert set(params) == {
        "backbone", "method", "weights", "image_size", "settings", "training", "transform",
        "normalization", "hold_out", "accept", "keep_held_out", "seed", "device", "precision",
    }  # fmt: skip
    clone = ContinualClassifier(**params)
    assert all(clone.get_params()[name] is value for name, value in params.items())
    classifier.set_params(seed=3, transform="photo")
    assert (classifier.seed, classifier.transform) == (3, "photo")


def test_what_was_learnt_forbids_another_backbone_or_method() -> None:
    classifier = learnt({"red": 3})
    with pytest.raises(ConfigError, match="image_size cannot change after something was learnt"):
        classifier.set_params(image_size=64)
    classifier.set_params(accept=0.5)
    with pytest.raises(ConfigError, match="no parameter 'accpt'"):
        classifier.set_params(accpt=0.5)
    with pytest.raises(ConfigError, match=r"hold_out 1.5 must be in"):
        classifier.set_params(accept=0.7, hold_out=1.5)
    assert (classifier.accept, classifier.hold_out) == (0.5, 0.15)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"method": "magic"}, "no method is called 'magic'"),
        ({"settings": {"lenght": 1}}, "did you mean 'length'"),
        ({"training": {"epochs": -1}}, "epochs -1 must not be negative"),
        ({"training": {"batch_size": "x"}}, "'x' is not a whole number"),
        ({"transform": "magic"}, "transform 'magic' is not one of photo"),
        ({"normalization": "magic"}, "normalization 'magic' is not auto or one of none"),
        ({"hold_out": 1.0}, "hold_out 1.0 must be in"),
        ({"accept": 0.0}, "accept 0.0 must be in"),
        ({"keep_held_out": -1}, "keep_held_out -1 must be 0 or more"),
        ({"precision": "fp8"}, "'fp8' is not one of 'fp32', 'bf16'"),
    ],
)
def test_parameters_that_make_no_sense_are_named_at_once(
    params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(**params)


def test_fit_forgets_and_partial_fit_goes_on() -> None:
    classifier = tiny().partial_fit(*batch(0, red=4), classes=["red", "sea"])
    classifier.partial_fit(*batch(1, sea=4))
    assert classifier.classes_ == ["red", "sea"]
    with pytest.raises(DataError):
        classifier.fit([], [])
    assert classifier.classes_ == ["red", "sea"]
    assert classifier.fit(*batch(2, moss=4)).classes_ == ["moss"]
    assert len(classifier.history_) == 1


def test_normalization_is_the_backbones_own() -> None:
    assert normalization_of("vit_micro_patch8_64.tiny_imagenet") == "inception"
    assert normalization_of("vit_base_patch16_224.augreg_in21k_ft_in1k") == "inception"
    assert normalization_of("vit_small_patch16_224.dino") == "imagenet"
    assert normalization_of("test_vit") in ("inception", "imagenet")
    assert tiny(normalization="none").preparation_.mean == (0.0, 0.0, 0.0)


def test_bf16_answers_nearly_the_same() -> None:
    classifier = learnt({"red": 4, "sea": 4})
    new, _ = batch(5, red=3, sea=3)
    exact = [e.score for e in classifier.explain(new)]
    classifier.set_params(precision="bf16")
    rough = [e.score for e in classifier.explain(new)]
    assert rough != exact
    assert rough == pytest.approx(exact, rel=0.2)


def test_history_is_plain() -> None:
    (only,) = learnt({"red": 3}).history_
    assert LearntBatch(**json.loads(json.dumps(dataclasses.asdict(only)))) == only
