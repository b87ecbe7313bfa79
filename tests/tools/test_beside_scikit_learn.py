"""tools/beside_scikit_learn.py: what is compared, and how numbers are made of it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from cprompt.vit.promptable import FrozenViT
from tests.classifier.common import photos, tiny
from tests.scripts import load_tool


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("beside_scikit_learn")


def test_milliseconds_are_per_view_and_per_photo(tool: ModuleType) -> None:
    assert tool.row(0.875, learning=6.0, views=300, predicting=0.025) == {
        "accuracy": 87.5,
        "learning_ms_per_view": 20.0,
        "predicting_ms_per_photo": 25.0,
    }
    runs = [{"seed": s, "cprompt": {"accuracy": a}} for s, a in ((0, 80.0), (1, 90.0))]
    assert tool.summary(runs) == {"cprompt": {"accuracy": 85.0}}


def test_all_contenders_learn_and_answer_the_same_photos(tool: ModuleType, tmp_path: Path) -> None:
    both = []
    for seed in (0, 1):
        folders: dict[str, list[Path]] = {}
        for name in ("red", "sea", "moss"):
            for i, photo in enumerate(photos(name, 6, seed)):
                file = tmp_path / str(seed) / name / f"{i}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(photo).save(file)
                folders.setdefault(name, []).append(file)
        both.append(folders)
    classifier = tiny()
    vit = classifier._load()
    assert isinstance(vit, FrozenViT)
    found = tool.compared(classifier, vit, *both)
    assert list(found) == ["cprompt", "logistic regression", "LDA"]
    assert classifier.classes_ == ["red", "sea", "moss"]
    for each in found.values():
        assert each["accuracy"] == 100.0  # the colours are far apart
        assert min(each.values()) > 0
    files = both[1]["red"]
    tokens = tool.class_tokens(vit, classifier.preparation_, files)
    image = classifier.preparation_.prepare(Image.open(files[2]))
    with torch.no_grad():
        expected = vit(image[None], tap="post_norm")[0]
    np.testing.assert_allclose(tokens[2], expected, atol=1e-4)
