"""A prediction request: what waits in memory, and what is answered."""

from __future__ import annotations

import io
import threading
import time
from typing import Any

import pytest
from PIL import Image

from cprompt.classifier.explanation import Explanation
from cprompt.serve import predicting
from cprompt.serve.config import Limits
from cprompt.serve.predicting import _checked_sizes, _decode, _pixels_shrunk, to_schema
from cprompt.serve.prediction_queue import Answered
from tests.serve.common import RED, ask, encoded, image, labels
from tests.serve.conftest import Serve

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
    assert _checked_sizes([(io.BytesIO(data), "a.png")] * 2, Limits()) == [size] * 2
    assert _pixels_shrunk(size, 32) == decoded.width * decoded.height
    assert min(decoded.size) == min(32, *size)


@pytest.mark.parametrize(
    ("size", "most"),
    [
        ((25, 20), 2),  # 500 of 1000 pixels
        ((26, 20), 1),
        ((40, 30), 1),  # more than all 1000: then alone
        ((10, 10), 4),  # one in each thread
    ],
)
def test_no_more_pixels_are_decoded_at_once_than_may_wait(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], most: int
) -> None:
    lock, now, at_once = threading.Lock(), [0], [0]

    def slowly(*arguments: Any) -> Image.Image:
        with lock:
            now[0] += 1
            at_once.append(now[0])
        time.sleep(0.1)
        try:
            return _decode(*arguments)
        finally:
            with lock:
                now[0] -= 1

    monkeypatch.setattr(predicting, "_decode", slowly)
    client = serve(limits={"decoders": 4, "max_decoded": 1000})
    assert labels(ask(client, *[encoded(image(RED, size))] * 6)) == ["red"] * 6
    assert max(at_once) <= most
    assert most == 1 or max(at_once) > 1


def test_top_cuts_and_explain_adds() -> None:
    answered = Answered("version", [ANSWER])
    (brief,) = to_schema(["x.png"], answered, top=2, explain=False).predictions
    assert [r.label for r in brief.ranking] == ["a", "b"]
    assert (brief.nearest_keys, brief.score) == (None, None)
    (full,) = to_schema(["x.png"], answered, top=1, explain=True).predictions
    assert [(k.label, k.cosine) for k in full.nearest_keys or []] == [("b", 0.9)]
    assert (full.file, full.score, full.prompt) == ("x.png", 1.5, 2)
