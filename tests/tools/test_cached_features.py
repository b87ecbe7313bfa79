"""tools/cached_features.py: features are computed once, and are those of the classifier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cprompt.data.image_set import ImageSet
from tests.classifier.common import photos, saved
from tests.scripts import load_tool


def test_features_are_computed_once_and_answer_as_the_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = load_tool("cached_features")
    monkeypatch.setattr(tool, "AT_ONCE", 5)
    laboratory = tool.Laboratory("test_vit", "random:0", "cpu")
    names = ("red", "green", "blue")
    files = [
        saved(tmp_path / name / f"{i}.png", each)
        for name in names
        for i, each in enumerate(photos(name, 5))
    ]
    labels = np.repeat([0, 1, 2], 5)
    images = ImageSet(files, labels, names)
    found = laboratory.features(images, "train", tmp_path / "cache", 4)
    assert found.target.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert len(found) == len(set(found.key.tolist())) == 12

    method = laboratory.method(3)
    method.count_features(found.feature.float(), found.target, found.key)
    method.solve()
    learnt = [i for i in range(15) if i % 5 < 4]
    laboratory.classifier.learn([files[i] for i in learnt], [names[labels[i]] for i in learnt])
    logits = method.respond_to_features(found.feature.float()).logits
    mine = logits.softmax(1).numpy()
    theirs = laboratory.classifier.predict_proba([files[i] for i in learnt])
    assert mine == pytest.approx(theirs, abs=0.05)  # features are in float16

    monkeypatch.setattr(laboratory, "_computed", lambda *_: pytest.fail("computed again"))
    again = laboratory.features(images, "train", tmp_path / "cache", 4)
    assert torch.equal(again.feature, found.feature)
