"""Every answer belongs to its image, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cprompt.serve.errors import RequestError
from cprompt.serve.prediction_queue import Answered, PredictionQueue

Squares = PredictionQueue[int, int]


class Model:
    """Squares numbers; `version` can change at any time, as after a learning job."""

    def __init__(self) -> None:
        self.version = 1
        self.passes: list[list[int]] = []
        self.threads: set[int] = set()
        self.alone: list[bool] = []
        self.at_pass: Callable[[], object] = lambda: None

    def begin(self, alone: bool) -> Callable[[list[int]], Answered[int]]:
        version = self.version
        self.alone.append(alone)

        def answer(images: list[int]) -> Answered[int]:
            self.threads.add(threading.get_ident())
            self.passes.append(images)
            self.at_pass()
            if -1 in images:
                raise ValueError("no square root of a bad image")
            return Answered(str(version), [p * p for p in images])

        return answer


def prediction_queue(model: Model, **options: Any) -> Squares:
    settings = {"max_pass": 8, "max_waiting": 1000, "seconds": 0.01, **options}
    return PredictionQueue(model.begin, **settings)


def run(queue: Squares, work: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        queue.start()
        try:
            return await work()
        finally:
            await queue.close()

    return asyncio.run(main())


async def request(queue: Squares, images: list[int]) -> list[int]:
    with queue.admission():
        return (await queue.submit(images)).answers


def test_answers_belong_to_their_images_whatever_arrives_when() -> None:
    model = Model()
    queue = prediction_queue(model, seconds=0.001)
    rng = random.Random(0)
    asked = [
        [rng.randrange(10**6) for _ in range(rng.choice((1, 1, 1, 2, 3, 12)))] for _ in range(300)
    ]

    async def late(images: list[int]) -> list[int]:
        await asyncio.sleep(rng.random() * 0.02)
        return await request(queue, images)

    async def work() -> list[list[int]]:
        return await asyncio.gather(*map(late, asked))

    assert run(queue, work) == [[p * p for p in images] for images in asked]
    assert len(model.threads) == 1
    assert max(map(len, model.passes)) <= 8
    assert len(model.passes) < len(asked)
    assert queue.admitted == 0


def test_requests_that_arrive_together_are_answered_in_one_pass() -> None:
    model = Model()
    queue = prediction_queue(model)

    async def work() -> Any:
        return await asyncio.gather(*(request(queue, [i]) for i in range(8)))

    run(queue, work)
    assert sorted(map(len, model.passes)) == [8]


def test_a_request_larger_than_a_pass_is_answered_by_one_version() -> None:
    model = Model()
    queue = prediction_queue(model, max_pass=2)

    def learn() -> None:
        model.version += 1

    model.at_pass = learn

    async def work() -> Answered[int]:
        with queue.admission():
            return await queue.submit([1, 2, 3, 4, 5])

    answered = run(queue, work)
    assert answered == Answered("1", [1, 4, 9, 16, 25])
    assert model.passes == [[1, 2], [3, 4], [5]]


def test_a_request_is_not_split_between_passes() -> None:
    model = Model()
    queue = prediction_queue(model, max_pass=4)

    async def work() -> Any:
        return await asyncio.gather(*(request(queue, [i] * 3) for i in (1, 2, 3)))

    assert run(queue, work) == [[1] * 3, [4] * 3, [9] * 3]
    assert model.passes == [[1] * 3, [2] * 3, [3] * 3]


def test_an_image_that_breaks_the_model_spoils_only_its_own_request() -> None:
    queue = prediction_queue(Model())

    async def work() -> Any:
        asked = ([1, 2], [3, -1], [4])
        return await asyncio.gather(*(request(queue, p) for p in asked), return_exceptions=True)

    first, second, third = run(queue, work)
    assert (first, third) == ([1, 4], [16])
    assert isinstance(second, ValueError)


def test_past_the_bound_a_request_is_refused_at_once() -> None:
    model = Model()
    release = threading.Event()
    model.at_pass = lambda: release.wait(10)
    queue = prediction_queue(model, max_waiting=3)

    async def work() -> Any:
        waiting = [asyncio.create_task(request(queue, [i])) for i in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as refused:
            await request(queue, [9])
        release.set()
        return refused.value, await asyncio.gather(*waiting)

    refused, answers = run(queue, work)
    assert (refused.status, refused.code, refused.headers["Retry-After"]) == (503, "busy", "1")
    assert answers == [[0], [1], [4]]
    assert [9] not in model.passes


def test_a_request_that_gave_up_is_not_answered_and_blocks_nobody() -> None:
    model = Model()
    release = threading.Event()
    model.at_pass = lambda: release.wait(10)
    queue = prediction_queue(model, max_pass=1)

    async def work() -> Any:
        first = asyncio.create_task(request(queue, [1]))
        second = asyncio.create_task(request(queue, [2]))
        third = asyncio.create_task(request(queue, [3]))
        await asyncio.sleep(0.05)
        first.cancel()  # its pass is under way
        second.cancel()  # it waits
        await asyncio.sleep(0)
        release.set()
        return await third

    assert run(queue, work) == [9]
    assert model.passes == [[1], [3]]
    assert queue.admitted == 0


def test_a_lone_request_does_not_wait_for_company() -> None:
    queue = prediction_queue(Model(), seconds=100.0)

    async def work() -> Any:
        return await asyncio.wait_for(request(queue, [3]), 10)

    assert run(queue, work) == [9]


def test_closing_refuses_those_who_still_wait() -> None:
    model = Model()
    release = threading.Event()
    model.at_pass = lambda: release.wait(10)
    queue = prediction_queue(model, max_pass=1)

    async def main() -> Any:
        queue.start()
        tasks = [asyncio.create_task(request(queue, [i])) for i in range(2)]
        await asyncio.sleep(0.05)
        release.set()
        await queue.close()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    answers = asyncio.run(main())
    assert not queue.running
    assert all(isinstance(a, (RequestError, list)) for a in answers)


def test_two_passes_run_at_the_same_time_and_are_told_so() -> None:
    model = Model()
    both = threading.Barrier(2)
    model.at_pass = lambda: both.wait(10)  # breaks unless two threads meet here
    queue = prediction_queue(model, max_pass=1, passes=2)

    async def work() -> Any:
        return await asyncio.gather(*(request(queue, [i]) for i in range(6)))

    assert run(queue, work) == [[i * i] for i in range(6)]
    assert len(model.threads) == 2
    assert model.alone == [False] * 6


def test_a_pass_that_runs_alone_is_told_so() -> None:
    model = Model()
    queue = prediction_queue(model, passes=2)

    async def work() -> Any:
        return [await request(queue, [i]) for i in range(3)]

    assert run(queue, work) == [[0], [1], [4]]
    assert model.alone == [True] * 3


def test_closing_ends_all_passes_under_way() -> None:
    model = Model()
    release = threading.Event()
    model.at_pass = lambda: release.wait(10)
    queue = prediction_queue(model, max_pass=1, passes=2)

    async def main() -> Any:
        queue.start()
        tasks = [asyncio.create_task(request(queue, [i])) for i in range(3)]
        await asyncio.sleep(0.05)
        assert len(model.passes) == 2
        asyncio.get_running_loop().call_later(0.05, release.set)
        await asyncio.to_thread(release.wait, 10)
        await queue.close()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    answers = asyncio.run(main())
    assert all(isinstance(a, (RequestError, list)) for a in answers)
    assert queue.admitted == 0
