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
from tests.classifier.common import batch, learnt, photos, tiny


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


def test_classes_of_one_to_three_photos_are_learnt_from_all_of_them() -> None:
    classifier = learnt({"red": 1, "sea": 2, "moss": 3, "sun": 4})
    (only,) = classifier.history_
    assert only.held_out == 1
    assert not only.calibrated
    assert (only.temperature, only.threshold) == (10.0, 0.0)
    new, truth = batch(9, red=5, sea=5, moss=5, sun=5)
    assert classifier.predict(new) == truth


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
