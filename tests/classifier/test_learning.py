"""One batch: what is trained on, held out, calibrated and kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import cprompt
from cprompt import UNKNOWN
from cprompt.classifier import learning, model_folder
from cprompt.classifier.held_out import choose_held_out
from cprompt.data.pipeline.processes import SETTING
from tests.classifier.common import batch, learnt, photos, saved, tiny

TRAINED: dict[str, Any] = {"method": "cprompt", "settings": {"length": 2}}
"""A method that is trained, so that photos are held out."""


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
    learnt({"red": 20, "sea": 20}, {"moss": 20, "sun": 20}, **TRAINED)
    assert used[0].tolist() == [0, 0, 0, 1, 1, 1]  # 15 % of 20, all of them
    assert used[1].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]  # eight of twelve


def test_classes_of_one_to_three_photos_are_learnt_from_all_of_them() -> None:
    classifier = learnt({"red": 1, "sea": 2, "moss": 3, "sun": 4})
    (only,) = classifier.history_
    assert (only.held_out, only.calibrated, only.temperature) == (0, True, 1.0)
    left_out = classifier.method_.left_out()
    assert left_out is not None
    assert sorted(left_out.position.tolist()) == [1] * 2 + [2] * 3 + [3] * 4  # one cannot be spared
    new, truth = batch(9, red=5, sea=5, moss=5, sun=5)
    assert classifier.predict(new) == truth


def test_a_trained_method_holds_out_none_of_three_photos_and_one_of_four() -> None:
    (only,) = learnt({"red": 1, "sea": 2, "moss": 3, "sun": 4}, **TRAINED).history_
    assert (only.held_out, only.calibrated) == (1, False)
    assert (only.temperature, only.threshold) == (1.0, 0.0)


def test_too_few_photos_to_leave_out_give_no_threshold() -> None:
    (four,) = learnt({"red": 2, "sea": 2, "moss": 1}).history_
    assert (four.calibrated, four.threshold) == (False, 0.0)
    (five,) = learnt({"red": 3, "sea": 2, "moss": 1}).history_
    assert five.calibrated
    assert five.threshold > 0


def test_a_class_that_returns_keeps_what_it_knew_and_adds_to_it() -> None:
    classifier = learnt({"red": 6, "sea": 6}, {"moss": 6})
    before = {n: t.clone() for n, t in classifier.method_.state_dict().items()}
    classifier.learn([*photos("wine", 6), *photos("sun", 4)], ["red"] * 6 + ["sun"] * 4)
    assert classifier.classes_ == ["red", "sea", "moss", "sun"]
    assert classifier.name_of_ == [0, 1, 2, 3]
    after = classifier.method_.state_dict()
    views = 3
    assert before["moments.count"].tolist() == [6 * views, 6 * views, 6 * views]
    assert after["moments.count"].tolist() == [12 * views, 6 * views, 6 * views, 4 * views]
    assert torch.equal(after["moments.total"][1:3], before["moments.total"][1:3])
    # Photos of the old look and of the new one are both called by the one name.
    new = [*photos("red", 5, 9), *photos("wine", 5, 9), *photos("sea", 5, 9)]
    assert classifier.predict(new, unknown=False) == ["red"] * 10 + ["sea"] * 5


def test_with_a_trained_method_a_class_that_returns_gets_another_position() -> None:
    classifier = learnt({"red": 6, "sea": 6}, {"moss": 6}, **TRAINED)
    before = {n: t.clone() for n, t in classifier.method_.state_dict().items()}
    classifier.learn([*photos("wine", 6), *photos("sun", 4)], ["red"] * 6 + ["sun"] * 4)
    assert classifier.classes_ == ["red", "sea", "moss", "sun"]
    assert classifier.name_of_ == [0, 1, 2, 0, 3]
    after = classifier.method_.state_dict()
    for name in ("prompts.frozen", "heads.weight.frozen", "heads.bias.frozen", "keys.rows.frozen"):
        assert torch.equal(after[name][: len(before[name])], before[name]), name
    state = classifier._state
    assert state is not None
    assert state.probabilities(torch.zeros(1, 5)).tolist() == [[0.25, 0.25, 0.25, 0.25]]
    # The position of either look can speak for the name.
    for at in (0, 3):
        odds = torch.zeros(1, 5)
        odds[0, at] = math.log(2) * state.temperature
        np.testing.assert_allclose(state.probabilities(odds), [[0.4, 0.2, 0.2, 0.2]], rtol=1e-6)


def test_temperature_and_threshold_come_from_the_held_out_photos() -> None:
    counts = {"red": 20, "sea": 20, "moss": 20}
    images, labels = batch(0, **counts)
    rng = np.random.default_rng(0)
    # Noise that hides the colour of some: not all held-out photos are easy.
    images = [
        np.clip(0.4 * p + 0.6 * rng.integers(0, 256, p.shape), 0, 255).astype(np.uint8)
        for p in images
    ]
    classifier = tiny(hold_out=0.5, accept=0.8, **TRAINED).learn(images, labels)
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


def test_the_default_threshold_comes_from_photos_left_out_one_by_one() -> None:
    classifier = learnt({"red": 20, "sea": 20, "moss": 20}, accept=0.8)
    (only,) = classifier.history_
    assert (only.held_out, only.calibrated, only.temperature) == (0, True, 1.0)
    left_out = classifier.method_.left_out()
    assert left_out is not None
    familiar = left_out.familiar.double().numpy()
    assert np.bincount(left_out.position.numpy()).tolist() == [20, 20, 20]
    assert only.threshold == np.sort(familiar)[11]  # twelve of sixty are at most this familiar
    assert 0.8 <= np.mean(familiar >= only.threshold) < 0.82
    assert classifier.threshold_ == only.threshold


def test_kept_features_of_earlier_batches_calibrate_later_ones() -> None:
    classifier = learnt({"red": 30, "sea": 10}, **TRAINED)
    state = classifier._state
    assert state is not None
    assert state.kept_positions.tolist().count(0) == 3  # of four or five held out
    assert state.kept.shape == (5, 64)
    classifier.learn(*batch(1, moss=2))
    (_, second) = classifier.history_
    assert (second.held_out, second.calibrated) == (0, True)
    after = classifier._state
    assert after is not None
    assert torch.equal(after.kept, state.kept)
    classifier.learn(*batch(2, sun=5))
    assert classifier._state is not None
    assert classifier._state.kept_positions.tolist() == [*state.kept_positions.tolist(), 3]


HEAD = {"narrow_weight", "bias", "shares"}
FAMILIARITY = {"last_weight", "last_bias", "last_centre", "last_curve", "last_scale"}


@pytest.mark.parametrize(
    ("params", "learnt_parts"),
    [
        ({}, {"moments", "kept", *HEAD, *FAMILIARITY}),
        (TRAINED, {"prompts", "heads", "keys"}),
    ],
)
def test_nothing_of_a_single_photo_need_be_kept(
    tmp_path: Path, params: dict[str, Any], learnt_parts: set[str]
) -> None:
    classifier = learnt({"red": 10, "sea": 10}, {"moss": 10}, keep_held_out=0, **params)
    classifier.save(tmp_path)
    tensors = model_folder.read(tmp_path).tensors
    assert {name.split(".")[0] for name in tensors} == {
        "held_out/features",
        "held_out/positions",
        *(f"method/{part}" for part in learnt_parts),
    }
    for name, tensor in tensors.items():
        if name.startswith(("held_out/", "method/kept.")):
            assert len(tensor) == 0, name


def test_without_kept_photos_the_default_answers_but_is_never_unsure() -> None:
    classifier = learnt({"red": 10, "sea": 10}, {"moss": 10}, keep_held_out=0)
    assert [(b.calibrated, b.threshold) for b in classifier.history_] == [(False, 0.0)] * 2
    new, truth = batch(9, red=5, sea=5, moss=5)
    assert classifier.predict(new) == truth
    assert UNKNOWN not in classifier.predict(photos("pink", 5))


@pytest.mark.parametrize("params", [{}, TRAINED], ids=["counted", "trained"])
def test_what_is_learnt_does_not_depend_on_who_decodes(
    params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, names = batch(red=5, blue=5)
    files = [saved(tmp_path / f"{i}.png", image) for i, image in enumerate(images)]
    found = []
    for processes in (0, 2):
        monkeypatch.setenv(SETTING, str(processes))
        model = tiny(**params).learn(files, names)
        found.append((model.threshold_, model.predict_proba(files).tolist()))
    assert found[0] == found[1]


def test_photos_that_were_looked_at_are_reported_while_counting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Heard(cprompt.Observer):
        def counted(self, done: int, total: int) -> None:
            heard.append((done, total))

    heard: list[tuple[int, int]] = []
    monkeypatch.setattr(learning, "inputs_at_once", lambda _: 12)  # of three views: four images
    monkeypatch.setattr(learning, "DECODED_AT_ONCE", 6)
    tiny().learn(*batch(0, red=5, green=5), observer=Heard())
    done = [each for each, _ in heard]
    assert done == sorted(done)
    assert len(done) > 2
    assert heard[-1] == (10, 10)
