"""Pages with many photos: each is as it was, small, and none is kept at full size."""

from __future__ import annotations

import base64
import gc
import io
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from cprompt.classifier import photos as photos_module
from cprompt.classifier.doubtful_labels import DoubtfulLabel
from cprompt.classifier.evaluation import assess
from cprompt.classifier.label_check import LabelCheck
from cprompt.classifier.suggestions import Suggestion
from cprompt.cli import evaluate, label_page, suggest


def of_doctor(files: list[Path]) -> str:
    doubtful = [DoubtfulLabel(i, "cat", 0.001, "dog", 0.9) for i in range(2)]
    check = LabelCheck(doubtful, judged=len(files), unknown_labels=[])
    return label_page.page(check, files, [" = ".join(map(str, files[2:]))], files[0].parent)


def of_suggest(files: list[Path]) -> str:
    chosen = [Suggestion(i, "cat", "cat", 0.5, 0.5, 0.5) for i in range(len(files))]
    return suggest._page(files, chosen, Path("model"))


def of_evaluate(files: list[Path]) -> str:
    p = np.tile([0.1, 0.9], (len(files), 1))
    known = np.ones(len(files), dtype=np.bool_)
    found = assess(p, ["cat", "dog"], {"cat": 1, "dog": 1}, known, ["cat"] * len(files))
    return evaluate._page(found, files, files[0].parent, "title", "about")


PAGES = [
    (of_doctor, ImageOps.contain),
    (of_suggest, ImageOps.contain),
    (of_evaluate, ImageOps.fit),
]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    pixels = np.random.default_rng(0).integers(0, 255, (4, 30, 50, 3), dtype=np.uint8)
    found = [tmp_path / f"{i}.png" for i in range(len(pixels))]
    for i, (file, image) in enumerate(zip(found, pixels, strict=True)):
        Image.fromarray(image).resize((400, 300 + 200 * i)).save(file)
    return found


@pytest.mark.parametrize("page", [page for page, _ in PAGES])
def test_no_photo_is_kept_at_full_size(
    files: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    page: Callable[[list[Path]], str],
) -> None:
    loaded: list[weakref.ref[Image.Image]] = []
    kept: list[int] = []
    load = photos_module.load_photo

    def watched(*args: Any) -> Image.Image:
        gc.collect()
        kept.append(sum(each() is not None for each in loaded))
        image = load(*args)
        loaded.append(weakref.ref(image))
        return image

    monkeypatch.setattr(photos_module, "load_photo", watched)
    page(files)
    assert kept == [0] * len(files)


@pytest.mark.parametrize(("page", "small"), PAGES)
def test_what_is_shown_is_the_photo_reduced_in_one_step(
    files: list[Path],
    page: Callable[[list[Path]], str],
    small: Callable[[Image.Image, tuple[int, int]], Image.Image],
) -> None:
    shown = re.findall(r'src="data:image/png;base64,([^"]*)"', page(files))
    assert len(shown) == len(files)
    for encoded, file in zip(shown, files, strict=True):
        with Image.open(io.BytesIO(base64.b64decode(encoded))) as found, Image.open(file) as whole:
            expected = small(whole, (160, 160))
            np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
