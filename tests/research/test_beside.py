"""Images that are decoded beside a run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cprompt.data.image_set import ImageSet
from cprompt.data.pipeline.decoded import DecodedImages, Progress, from_array
from cprompt.errors import DataError
from cprompt.research.beside import DecodedBeside
from cprompt.research.experiment import run
from tests.research.test_experiment import settings


def images(n: int) -> ImageSet:
    return ImageSet(np.zeros((n, 2, 2, 3), np.uint8), np.zeros(n, np.int64), ("a",))


class Slowly:
    """Opens sets; one of three images waits until it may go on."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.begun: list[int] = []

    def __call__(self, of: ImageSet, progress: Progress) -> DecodedImages:
        n = len(of)
        self.begun.append(n)
        if n == 3:
            progress(1, n)
            assert self.may_go_on.wait(10)
        for done in range(1, n + 1):
            progress(done, n)
        assert isinstance(of.images, np.ndarray)
        return from_array(of.images)


def step(beside: DecodedBeside) -> None:
    beside.stepped(0, (), torch.zeros(0))


def test_a_later_set_is_decoded_while_the_first_is_used_and_shown_only_if_waited_for() -> None:
    opening, shown = Slowly(), []
    train, test = images(2), images(3)
    with DecodedBeside(opening, lambda done, total: shown.append((done, total))) as beside:
        beside.begin(train)
        beside.begin(test)
        assert len(beside.wait_for(train)) == 2
        step(beside)
        told = list(shown)
        assert {total for _, total in told} <= {2}
        opening.may_go_on.set()
        assert len(beside.wait_for(test)) == 3
    assert opening.begun == [2, 3]
    if len(shown) > len(told):  # the thread may have been done before anyone waited
        assert shown[len(told)] == (1, 3)
        assert shown[-1] == (3, 3)


def test_now_means_before_anything_else_in_this_thread() -> None:
    threads = []

    def opening(of: ImageSet, progress: Progress) -> DecodedImages:
        threads.append(threading.current_thread())
        progress(1, 1)
        return from_array(np.zeros((len(of), 2, 2, 3), np.uint8))

    shown: list[tuple[int, int]] = []
    with DecodedBeside(opening, lambda *event: shown.append(event)) as beside:
        beside.begin(images(1), now=True)
        assert threads == [threading.current_thread()]
    assert shown == [(1, 1)]


def test_a_step_fails_with_the_reason_why_a_set_could_not_be_opened() -> None:
    damaged, fine = images(1), images(2)

    def opening(of: ImageSet, progress: Progress) -> DecodedImages:
        if of is damaged:
            raise DataError("is damaged", file=Path("x.jpg"))
        return from_array(np.zeros((len(of), 2, 2, 3), np.uint8))

    with DecodedBeside(opening, lambda *_: None) as beside:
        beside.begin(damaged)
        beside.begin(fine)
        beside.wait_for(fine)  # which comes after the other
        with pytest.raises(DataError, match="is damaged"):
            step(beside)


def test_leaving_stops_what_is_under_way() -> None:
    opening = Slowly()
    with DecodedBeside(opening, lambda *_: None) as beside:
        beside.begin(images(3))
        beside.begin(images(4))
        while not opening.begun:
            pass
        threading.Timer(0.05, opening.may_go_on.set).start()
    assert opening.begun == [3]


def test_a_run_whose_test_images_are_damaged_stops_before_its_first_task_is_learnt(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """It has more steps than it can take while a damaged file is found."""
    config = settings(tiny, training__epochs=100_000)
    dataset = config.data.load(1)
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(b"no image")
    files = [damaged] * len(dataset.test)
    broken = type(dataset)(
        dataset.name, dataset.train, ImageSet(files, dataset.test.labels, dataset.test.classes)
    )
    with pytest.raises(DataError, match=r"damaged\.jpg"):
        run(config, tmp_path / "run", dataset=broken)
