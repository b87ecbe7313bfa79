"""What is found out about an image where it is decoded."""

from __future__ import annotations

import pickle

import numpy as np

from cprompt.data.pipeline.decoded import content_key
from cprompt.data.pipeline.inspection import FLAT, is_blank, nothing, sameness


def test_blank_is_what_hardly_varies_in_any_colour() -> None:
    rng = np.random.default_rng(0)
    images = [
        np.zeros((30, 40, 3), np.uint8),
        np.full((1, 1, 3), 77, np.uint8),
        np.tile(np.array([200, 10, 255], np.uint8), (9, 5, 1)),  # one colour, three levels
        (100 + rng.integers(0, FLAT + 1, (20, 20, 3))).astype(np.uint8),
        (100 + rng.integers(0, FLAT + 2, (20, 20, 3))).astype(np.uint8),
        rng.integers(0, 256, (7, 50, 3), dtype=np.uint8),
    ]
    one_dot = np.zeros((30, 40, 3), np.uint8)
    one_dot[29, 0, 1] = 250
    images.append(one_dot)
    naive = [
        all(int(each[..., c].max()) - int(each[..., c].min()) <= FLAT for c in range(3))
        for each in images
    ]
    found = [is_blank(each) for each in images]
    assert found == naive == [True, True, True, True, False, False, False]


def test_what_tells_images_apart_is_their_key_and_their_look() -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    found = sameness(image)
    assert found.key == content_key(image)
    assert found.look.shape == (16, 17, 3)
    turned = sameness(np.ascontiguousarray(image[::-1]))
    assert turned.key != found.key
    assert not np.array_equal(turned.look, found.look)


def test_functions_can_be_sent_to_another_process() -> None:
    for find in (is_blank, nothing, sameness):
        assert pickle.loads(pickle.dumps(find)) is find
