"""The classifier on tiny images whose classes are colours."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from cprompt import METHODS, UNKNOWN, ContinualClassifier, ModelError
from cprompt.classifier import classifier as classifier_module
from cprompt.classifier import learning, model_folder
from cprompt.errors import BackboneError, ConfigError, DataError
from cprompt.methods.base import Response
from cprompt.training.observers import Observer
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import Precision, PromptableViT
from tests.classifier.common import batch, learnt, photos, tiny
from tests.classifier.test_model_folder import resealed
from tests.methods.test_every_method import SMALL

TRAINED: dict[str, Any] = {"method": "cprompt", "settings": {"length": 2}}
"""A method that is trained, and chooses prompts by keys."""


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
    assert [(b.held_out, b.steps, b.temperature) for b in classifier.history_] == [(0, 0, 1.0)] * 3
    assert all(b.when.endswith("+00:00") and b.seconds > 0 for b in classifier.history_)
    assert classifier.name_of_ == [0, 1, 2, 3, 4]
    assert len({classifier.model_id, *(b.before for b in classifier.history_)}) == 4

    new, names = batch(9, red=5, sea=5, moss=5, sun=5, ash=5)
    assert classifier.predict(new, unknown=False) == names
    p = classifier.predict_proba(new)
    assert p.shape == (25, 5)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert repr(classifier) == "<ContinualClassifier strata on test_vit: 5 classes from 3 batches>"


def test_a_trained_method_holds_photos_out_and_takes_steps() -> None:
    batches: tuple[dict[str, int], ...]
    batches = ({"red": 6, "sea": 8}, {"moss": 5}, {"sun": 2, "red": 7, "ash": 1})
    classifier = learnt(*batches, **TRAINED)
    assert classifier.classes_ == ["red", "sea", "moss", "sun", "ash"]
    # One of each class with four photos or more; the others in steps of eight.
    assert [b.held_out for b in classifier.history_] == [2, 1, 1]
    assert [b.steps for b in classifier.history_] == [2, 1, 2]
    assert classifier.name_of_ == [0, 1, 2, 3, 0, 4]
    p = classifier.predict_proba(photos("red", 4, 9))
    assert p.shape == (4, 5)
    np.testing.assert_allclose(p.sum(axis=1), 1)


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


@pytest.mark.parametrize("params", [{}, TRAINED], ids=["default", "trained"])
def test_saved_and_loaded_it_answers_the_same_bit_for_bit(
    tmp_path: Path, params: dict[str, Any]
) -> None:
    classifier = learnt({"red": 6, "sea": 8}, {"moss": 5, "red": 4}, **params)
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
    one, same, other = (learnt(*batches, seed=s, **TRAINED).explain(new) for s in (1, 1, 2))
    assert one == same
    assert [e.score for e in one] != [e.score for e in other]


def test_by_default_nothing_is_left_to_chance() -> None:
    new, _ = batch(5, red=3, sea=3)
    one, other = (learnt({"red": 6, "sea": 8}, {"moss": 5}, seed=s).explain(new) for s in (1, 2))
    assert one == other


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
        with pytest.raises(ModelError, match=r"no change to take back in memory.*cprompt undo"):
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


@pytest.mark.parametrize("name", sorted(name for name in METHODS if not METHODS[name].single_task))
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
    with pytest.raises(ConfigError, match="joint sees all classes in one task"):
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
        for i, pixels in enumerate(photos(name[:3], 5)):
            Image.fromarray(pixels).save(folder / f"{i}.png")
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
    with pytest.raises(DataError, match="no photos to learn from"):
        classifier.learn([])
    assert classifier.model_id == before


class Stops(Observer):
    """Breaks off at a step, or when so many photos are decoded."""

    def __init__(self, at: int, decoded: int | None = None) -> None:
        self.left = at
        self.last = decoded
        self.seen: list[str] = []

    def decoded(self, done: int, total: int) -> None:
        self.seen.append(f"decoded {done}/{total}")
        if done == self.last:
            raise KeyboardInterrupt

    def task_begins(self, task: int, n_classes: int, steps: int, done: int) -> None:
        self.seen.append(f"task {task}: {n_classes} classes, {steps} steps")

    def stepped(self, *args: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", [1, 10, 18])
def test_stopped_in_the_middle_it_is_as_it_was(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "DECODED_AT_ONCE", 4)  # so that earlier parts are counted by then
    classifier = learnt({"red": 6, "sea": 6})
    new, _ = batch(5, red=3, sea=3)
    before = classifier.model_id, classifier.predict_proba(new)
    observer = Stops(0, decoded=at)
    with pytest.raises(KeyboardInterrupt):
        classifier.learn(*batch(1, moss=9, red=9), observer=observer)
    assert classifier.model_id == before[0]
    assert np.array_equal(classifier.predict_proba(new), before[1])
    begins = "task 1: 1 classes, 0 steps"
    assert observer.seen == [begins, *(f"decoded {i}/18" for i in range(1, at + 1))]
    classifier.learn(*batch(1, moss=9, red=9), observer=Stops(0))
    assert classifier.classes_ == ["red", "sea", "moss"]
    undisturbed = learnt({"red": 6, "sea": 6}, {"moss": 9, "red": 9})
    np.testing.assert_allclose(
        classifier.predict_proba(new), undisturbed.predict_proba(new), atol=1e-6
    )


@pytest.mark.parametrize("at", [0, 1])
def test_training_that_is_stopped_in_the_middle_leaves_it_as_it_was(at: int) -> None:
    classifier = learnt({"red": 6, "sea": 6}, **TRAINED)
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


def test_below_the_threshold_the_answer_is_unknown_unless_a_name_is_wanted() -> None:
    classifier = learnt({"red": 2, "sea": 2})
    new, _ = batch(5, red=3, pink=20, teal=20, plum=20)
    assert classifier.history_[-1].calibrated is False
    assert classifier.threshold_ == 0
    assert UNKNOWN not in classifier.predict(new)
    classifier.learn(*batch(1, red=6, sea=6, moss=8, sun=8, ash=8))
    assert classifier.history_[-1].calibrated is True
    assert classifier.threshold_ > 0
    answers, reasons = classifier.predict(new), classifier.explain(new)
    familiar = np.array([each.familiarity for each in reasons])
    assert [a == UNKNOWN for a in answers] == (familiar < classifier.threshold_).tolist()
    assert [each.label for each in reasons] == answers
    assert answers == ["red"] * 3 + [UNKNOWN] * 60
    assert UNKNOWN not in classifier.predict(new, unknown=False)


def test_with_a_trained_method_familiar_is_what_is_probable() -> None:
    classifier = learnt({"red": 8, "sea": 8, "moss": 8, "sun": 8}, **TRAINED)
    assert classifier.history_[-1].calibrated is False  # four held out
    classifier.learn(*batch(1, ash=8))
    assert classifier.history_[-1].calibrated is True  # and now five
    assert classifier.threshold_ > 0
    new, _ = batch(5, red=20, sea=20, ash=20)
    top = classifier.predict_proba(new).max(axis=1)
    assert [each.familiarity for each in classifier.explain(new)] == top.tolist()
    state = classifier._state
    assert state is not None
    classifier._state = dataclasses.replace(state, threshold=float(np.median(top)))
    answers = classifier.predict(new)
    assert [a == UNKNOWN for a in answers] == (top < classifier.threshold_).tolist()
    assert 0 < answers.count(UNKNOWN) < len(answers)
    assert UNKNOWN not in classifier.predict(new, unknown=False)


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
    with pytest.raises(
        BackboneError, match=r"weights from the file 0.safetensors, which is not.*--weights FILE"
    ):
        ContinualClassifier.load(tmp_path / "m")
    moved = ContinualClassifier.load(tmp_path / "m", weights=str(tmp_path / "moved.safetensors"))
    assert np.array_equal(moved.predict_proba(new), expected)
    with pytest.raises(ModelError, match="other weights"):
        ContinualClassifier.load(tmp_path / "m", weights=str(tmp_path / "1.safetensors"))


@pytest.mark.parametrize(
    ("name", "more"), [("cprompt", {"align": True}), ("aligned", {}), ("strata", {})]
)
def test_a_model_of_version_1_whose_method_is_gone_is_refused_with_the_way_over(
    tmp_path: Path, name: str, more: dict[str, Any]
) -> None:
    learnt({"red": 6, "sea": 6}, **TRAINED).save(tmp_path)
    settings = {**model_folder.read_about(tmp_path)["method"]["settings"], **more}
    resealed(tmp_path, version=1, method={"name": name, "settings": settings})
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ModelError, match=f"learnt with '{name}' of an earlier cprompt") as caught:
        ContinualClassifier.load(tmp_path)
    assert caught.value.file == str(tmp_path)
    assert caught.value.hint is not None
    assert "learn the photos again into a new folder" in caught.value.hint
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_model_of_version_1_whose_method_is_still_there_is_read_and_goes_on(
    tmp_path: Path,
) -> None:
    classifier = learnt({"red": 6, "sea": 6}, {"moss": 6}, **TRAINED)
    classifier.save(tmp_path)
    resealed(tmp_path, version=1)
    loaded = ContinualClassifier.load(tmp_path)
    assert (loaded.method, loaded.model_id) == ("cprompt", classifier.model_id)
    new = photos("moss", 3, seed=5)
    assert np.array_equal(loaded.predict_proba(new), classifier.predict_proba(new))
    loaded.learn(photos("sun", 4), ["sun"] * 4).save(tmp_path)
    assert model_folder.read_about(tmp_path)["version"] == 2
    assert ContinualClassifier.load(tmp_path).classes_ == ["red", "sea", "moss", "sun"]
    model_folder.undo(tmp_path)
    assert model_folder.read_about(tmp_path)["version"] == 1
    assert ContinualClassifier.load(tmp_path).model_id == classifier.model_id


def test_what_is_asked_of_a_good_model_wrongly_is_not_blamed_on_it(tmp_path: Path) -> None:
    learnt({"red": 3, "sea": 3}).save(tmp_path / "m")
    with pytest.raises(ConfigError, match=r"training.precision: 'bf17' is not one of"):
        ContinualClassifier.load(tmp_path / "m", precision="bf17")
    with pytest.raises(ConfigError, match="device 'cudaa' cannot be used here"):
        ContinualClassifier.load(tmp_path / "m", device="cudaa")


@pytest.mark.parametrize("faster", ["fp32", "bf16"])
def test_auto_takes_the_faster_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: Precision
) -> None:
    learnt({"red": 3, "sea": 3}).save(tmp_path)
    monkeypatch.setattr(classifier_module, "fastest_precision", lambda vit, device: faster)
    mine, chosen = (
        ContinualClassifier.load(tmp_path, precision=precision) for precision in ("auto", faster)
    )
    assert mine.precision == faster
    new = photos("moss", 3, seed=5)
    assert np.array_equal(mine.predict_proba(new), chosen.predict_proba(new))


def test_features_of_photos_that_were_answered_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    classifier, inner = learnt({"red": 4, "blue": 4}), classifier_module.responses
    kept: list[weakref.ref[Tensor]] = []

    def watched(*given: Any, **how: Any) -> Iterator[Response]:
        assert all(feature() is None for feature in kept)
        for response in inner(*given, **how):
            kept.append(weakref.ref(response.feature))
            yield response

    monkeypatch.setattr(classifier_module, "responses", watched)
    monkeypatch.setattr(classifier_module, "DECODED_AT_ONCE", 2)
    classifier.predict(photos("red", 6, seed=5))
    assert len(kept) == 3


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


# Three views are counted, one is answered. Training: the current prompt, and at most once an old
# one; then query and feature once each.
@pytest.mark.parametrize(
    ("params", "learning_takes", "answering_takes"),
    [({}, (3, 3), 1), ({**TRAINED, "keep_held_out": 1}, (2, 4), 2)],
    ids=["default", "trained"],
)
def test_work_a_photo_and_bytes_a_batch_do_not_grow(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    params: dict[str, Any],
    learning_takes: tuple[int, int],
    answering_takes: int,
) -> None:
    seen = Passes(monkeypatch)
    classifier = tiny(**params)
    a_photo, sizes = [], []
    for number in range(40):
        before = seen.images
        classifier.learn(*batch(number, **{f"c{number}": 3, f"d{number}": 3}))
        a_photo.append((seen.images - before) / 6)
        state = classifier._state
        assert state is not None
        sizes.append(sum(t.numel() for t in state.method.state_dict().values()))
    least, most = learning_takes
    assert least <= min(a_photo) <= max(a_photo) <= most
    growth = np.diff(sizes)
    assert len(set(growth.tolist())) == 1
    before = seen.images
    assert len(set(classifier.predict(photos("c3", 4), unknown=False))) >= 1
    assert seen.images - before == 4 * answering_takes
    classifier.save(tmp_path)
    assert len(ContinualClassifier.load(tmp_path).classes_) == 80


def test_fit_forgets_and_partial_fit_goes_on() -> None:
    classifier = tiny().partial_fit(*batch(0, red=4), classes=["red", "sea"])
    classifier.partial_fit(*batch(1, sea=4))
    assert classifier.classes_ == ["red", "sea"]
    with pytest.raises(DataError):
        classifier.fit([], [])
    assert classifier.classes_ == ["red", "sea"]
    assert classifier.fit(*batch(2, moss=4)).classes_ == ["moss"]
    assert len(classifier.history_) == 1
    classifier.undo()
    assert classifier.classes_ == ["red", "sea"]


def test_bf16_answers_nearly_the_same() -> None:
    classifier = learnt({"red": 4, "sea": 4})
    new, _ = batch(5, red=3, sea=3)
    exact = [e.score for e in classifier.explain(new)]
    classifier.set_params(precision="bf16")
    rough = [e.score for e in classifier.explain(new)]
    assert rough != exact
    assert rough == pytest.approx(exact, rel=0.2)
