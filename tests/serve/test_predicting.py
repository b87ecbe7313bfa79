"""A prediction request: what waits in memory, and what is answered."""

from __future__ import annotations

import io

import pytest

from cprompt.classifier.explanation import Explanation
from cprompt.serve.config import Limits
from cprompt.serve.predicting import _decode, _decoded_pixels, to_schema
from cprompt.serve.prediction_queue import Answered
from tests.serve.common import RED, encoded, image

ANSWER = Explanation(
    label="a",
    probability=0.5,
    known=True,
    ranking=[("a", 0.5), ("b", 0.3), ("c", 0.2)],
    prompt=2,
    nearest_keys=[("b", 0.9), ("a", 0.8), ("c", 0.1)],
    score=1.5,
)


@pytest.mark.parametrize("size", [(20, 20), (400, 300), (31, 1000)])
def test_the_pixels_that_are_counted_are_those_that_wait(size: tuple[int, int]) -> None:
    data = encoded(image(RED, size))
    decoded = _decode(io.BytesIO(data), "a.png", 32)
    counted = _decoded_pixels([(io.BytesIO(data), "a.png")] * 2, 32, Limits())
    assert counted == 2 * decoded.width * decoded.height
    assert min(decoded.size) == min(32, *size)


def test_top_cuts_and_explain_adds() -> None:
    answered = Answered("version", [ANSWER])
    (brief,) = to_schema(["x.png"], answered, top=2, explain=False).predictions
    assert [r.label for r in brief.ranking] == ["a", "b"]
    assert (brief.nearest_keys, brief.score) == (None, None)
    (full,) = to_schema(["x.png"], answered, top=1, explain=True).predictions
    assert [(k.label, k.cosine) for k in full.nearest_keys or []] == [("b", 0.9)]
    assert (full.file, full.score, full.prompt) == ("x.png", 1.5, 2)
