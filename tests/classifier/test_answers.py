"""Responses to images of any size, by batches."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cprompt import UNKNOWN, ContinualClassifier
from cprompt.classifier.answers import joined, responses
from cprompt.data.pipeline.decoded import DecodedImages
from cprompt.data.pipeline.views import build
from cprompt.methods.base import Method, Response, create_method
from cprompt.vit.promptable import Embedded, FrozenViT
from tests.classifier.common import batch, photos

CPU = torch.device("cpu")
PREPARATION = build("photo", 48, "inception")


def learnt(name: str, backbone: FrozenViT, **settings: Any) -> Method:
    method = create_method(name, backbone, settings)
    rng = torch.Generator().manual_seed(0)
    for size in (2, 3):
        method.begin_task(size, rng)
        with torch.no_grad():
            for parameter in method.parameters():
                parameter += torch.randn(parameter.shape, generator=rng)
        method.close_task()
    return method


def answered(method: Method, pixels: DecodedImages, **options: Any) -> Response:
    """The responses to all images as one."""
    parts = list(responses(method, pixels, PREPARATION, CPU, **options))
    logits, feature = joined([p.logits for p in parts]), joined([p.feature for p in parts])
    assert logits is not None
    assert feature is not None
    return Response(
        logits, feature, joined([p.query for p in parts]), joined([p.task for p in parts])
    )


def some_pixels(n: int = 9) -> tuple[DecodedImages, torch.Tensor]:
    """Images of different sizes, and what the network should see of them."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(40, 90, (n, 2))
    images = [rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in sizes]
    inputs = torch.stack([PREPARATION.prepare(Image.fromarray(p)) for p in images])
    return DecodedImages(images.__getitem__, n, sizes), inputs


@pytest.mark.parametrize("name", ["cprompt", "l2p", "finetune"])
def test_answers_are_the_method_s_own_for_any_batch_size(name: str, backbone: FrozenViT) -> None:
    method = learnt(name, backbone, length=2)
    pixels, inputs = some_pixels()
    with torch.no_grad():
        expected = method(inputs)
    for batch_size, threads in ((64, 0), (4, 0), (2, 3)):
        images = dataclasses.replace(pixels, threads=threads)
        answers = answered(method, images, batch_size=batch_size)
        torch.testing.assert_close(answers.logits, expected, rtol=1e-5, atol=1e-5)


def test_query_and_task_come_with_the_answer(backbone: FrozenViT) -> None:
    method = learnt("cprompt", backbone, length=2)
    pixels, inputs = some_pixels()
    answers = answered(method, pixels, batch_size=4)
    with torch.no_grad():
        query = backbone(inputs)
    assert answers.query is not None
    assert answers.task is not None
    torch.testing.assert_close(answers.query, query, rtol=1e-5, atol=1e-5)
    assert torch.equal(answers.task, method.choose(query))
    plain = answered(learnt("finetune", backbone, length=2), pixels)
    assert plain.query is None
    assert plain.task is None


def test_every_image_takes_two_passes(backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch) -> None:
    method = learnt("cprompt", backbone, length=2)
    passed: list[int] = []
    read = FrozenViT.read

    def counting(self: FrozenViT, embedded: Embedded, *args: Any) -> torch.Tensor:
        passed.append(len(embedded))
        return read(self, embedded, *args)

    monkeypatch.setattr(FrozenViT, "read", counting)
    answered(method, some_pixels()[0], batch_size=4)
    assert passed == [4, 4, 4, 4, 1, 1]


def test_bf16_is_near_fp32(backbone: FrozenViT) -> None:
    method = learnt("cprompt", backbone, length=2)
    pixels, _ = some_pixels()
    exact = answered(method, pixels)
    rough = answered(method, pixels, precision="bf16")
    assert rough.logits.dtype == torch.float32
    same = exact.task == rough.task  # a rounded query may find another key
    assert same.any()
    gap = (exact.logits - rough.logits)[same].abs().max() / exact.logits.abs().max()
    assert 0 < gap < 0.03


def test_no_images_no_answers(backbone: FrozenViT) -> None:
    method = learnt("cprompt", backbone, length=2)
    empty = DecodedImages(lambda i: np.zeros((1, 1, 3), np.uint8), 0, np.zeros((0, 2), int))
    assert list(responses(method, empty, PREPARATION, CPU)) == []
    assert joined([]) is None


@pytest.mark.parametrize("count", [1, 8])
def test_blank_black_and_single_pixels_are_unknown(count: int) -> None:
    """Also with so few photos that nothing else is called unknown."""
    classifier = ContinualClassifier(device="cpu").learn(*batch(0, white=count, black=count))
    blank = [
        np.zeros((60, 80, 3), np.uint8),
        np.full((60, 80, 3), 255, np.uint8),
        np.full((1, 1, 3), 128, np.uint8),
        Image.new("RGB", (64, 64), (200, 30, 30)),
    ]
    assert classifier.predict(blank) == [UNKNOWN] * len(blank)
    for each in classifier.explain(blank):
        assert (each.label, each.known, each.familiarity) == (UNKNOWN, False, 0.0)
    assert UNKNOWN not in classifier.predict(blank, unknown=False)
    told = classifier.evaluate(blank, ["white"] * len(blank))
    assert told.unknown_share == 1.0
    if count == 1:
        assert UNKNOWN not in classifier.predict(photos("white", 5, seed=3))
