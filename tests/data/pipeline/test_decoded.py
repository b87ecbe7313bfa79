"""Decoded images by number."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cprompt.data.pipeline.decoded import DecodedImages, ImageArray, from_array, from_files
from cprompt.errors import DataError


class Loader:
    """Image i is i + 1 pixels high and full of i; remembers what was asked for, and where."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.threads: set[int] = set()

    def __call__(self, i: int) -> ImageArray:
        self.asked.append(i)
        self.threads.add(threading.get_ident())
        return np.full((i + 1, 2, 3), i, np.uint8)


def numbers(images: DecodedImages) -> list[int]:
    return [int(images[i].max()) for i in range(len(images))]


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    loader = Loader()
    images = DecodedImages(loader, 5).subset([4, 2, 2])
    assert len(images) == 3
    assert loader.asked == []
    assert numbers(images) == [4, 2, 2]
    assert loader.asked == [4, 2, 2]


def test_a_subset_of_a_subset_has_the_right_images_and_sizes() -> None:
    sizes = np.array([[i + 1, 2] for i in range(5)])
    part = DecodedImages(Loader(), 5, sizes).subset(np.array([4, 0, 3])).subset([2, 0])
    assert numbers(part) == [3, 4]
    assert part.sizes is not None
    assert part.sizes.tolist() == [[4, 2], [5, 2]]
    assert len(part.subset([])) == 0


def test_in_memory_every_image_is_loaded_once_and_its_size_is_known() -> None:
    loader, told = Loader(), []
    images = DecodedImages(loader, 3).in_memory(lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert numbers(images) == numbers(images) == [0, 1, 2]
    assert loader.asked == [0, 1, 2]
    assert images.sizes is not None
    assert images.sizes.tolist() == [[1, 2], [2, 2], [3, 2]]


def test_past_the_limit_images_are_loaded_again() -> None:
    loader = Loader()
    images = DecodedImages(loader, 3).in_memory(limit=6 + 12)  # the bytes of the first two
    loader.asked.clear()
    assert numbers(images) == [0, 1, 2]
    assert loader.asked == [2]
    assert images.sizes is None


@pytest.mark.parametrize("threads", [0, 2])
def test_parts_hold_the_images_in_order_and_the_limit_is_of_each(threads: int) -> None:
    loader, told = Loader(), []
    images = DecodedImages(loader, 3, threads=threads)
    parts = list(images.in_parts(2, lambda done, total: told.append((done, total)), limit=6))
    assert [numbers(part) for part in parts] == [[0, 1], [2]]
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert sorted(loader.asked) == [0, 1, 1, 2, 2]  # of 6, 12 and 18 bytes: only the first is kept


def test_threads_load_the_next_part_while_the_reader_has_one() -> None:
    begun = [threading.Event() for _ in range(4)]

    def load(i: int) -> ImageArray:
        begun[i].set()
        return np.zeros((1, 1, 3), np.uint8)

    parts = DecodedImages(load, 4, threads=2).in_parts(2)
    next(parts)
    assert all(event.wait(20) for event in begun)
    before = threading.active_count()
    parts.close()
    assert threading.active_count() < before


@pytest.mark.parametrize(("threads", "here"), [(0, True), (2, False)])
def test_loading_stays_in_this_thread_unless_more_are_allowed(threads: int, here: bool) -> None:
    loader = Loader()
    DecodedImages(loader, 3, threads=threads).subset([0, 1]).in_memory()
    assert (loader.threads == {threading.get_ident()}) == here


def test_an_array_is_not_copied_and_knows_its_sizes() -> None:
    array = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    images = from_array(array)
    assert np.shares_memory(images[1], array)
    assert images.sizes is not None
    assert images.sizes.tolist() == [[3, 4], [3, 4]]


def test_files_are_decoded_at_each_access_and_a_bad_one_is_named(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    Image.new("RGB", (3, 2), (7, 7, 7)).save(good)
    bad.write_bytes(b"words")
    images = from_files([good, bad])
    assert images[0].tolist() == [[[7, 7, 7]] * 3] * 2
    Image.new("RGB", (3, 2), (9, 9, 9)).save(good)
    assert images[0].max() == 9
    with pytest.raises(DataError) as caught:
        images.in_memory()
    assert caught.value.file == str(bad)
