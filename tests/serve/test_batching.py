"""Batching: every answer belongs to its image, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cprompt.serve.batching import Answered, Batcher, Budget
from cprompt.serve.errors import RequestError

Squares = Batcher[int, int]


class Model:
    """Squares numbers; `version` can change at any time, as after a learning job."""

    def __init__(self) -> None:
        self.version = 1
        self.passes: list[list[int]] = []
        self.threads: set[int] = set()
        self.at_pass: Callable[[], object] = lambda: None

    def begin(self) -> Callable[[list[int]], Answered[int]]:
        version = self.version

        def answer(images: list[int]) -> Answered[int]:
            self.threads.add(threading.get_ident())
            self.passes.append(images)
            self.at_pass()
            if -1 in images:
                raise ValueError("no square root of a bad image")
            return Answered(str(version), [p * p for p in images])

        return answer


def batcher(model: Model, **options: Any) -> Squares:
    settings = {"max_batch": 8, "max_waiting": 1000, "seconds": 0.01, **options}
    return Batcher(model.begin, **settings)


def run(batches: Squares, work: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        batches.start()
        try:
            return await work()
        finally:
            await batches.close()

    return asyncio.run(main())


async def request(batches: Squares, images: list[int]) -> list[int]:
    with batches.admission():
        return (await batches.submit(images)).answers


def test_answers_belong_to_their_images_whatever_arrives_when() -> None:
    model = Model()
    batches = batcher(model, seconds=0.001)
    rng = random.Random(0)
    asked = [
        [rng.randrange(10**6) for _ in range(rng.choice((1, 1, 1, 2, 3, 12)))] for _ in range(300)
    ]

    async def late(images: list[int]) -> list[int]:
        await asyncio.sleep(rng.random() * 0.02)
        return await request(batches, images)

    async def work() -> list[list[int]]:
        return await asyncio.gather(*map(late, asked))

    assert run(batches, work) == [[p * p for p in images] for images in asked]
    assert len(model.threads) == 1
    assert max(map(len, model.passes)) <= 8
    assert len(model.passes) < len(asked)
    assert batches.admitted == 0


def test_requests_that_arrive_together_are_answered_in_one_pass() -> None:
    model = Model()
    batches = batcher(model)

    async def work() -> Any:
        return await asyncio.gather(*(request(batches, [i]) for i in range(8)))

    run(batches, work)
    assert sorted(map(len, model.passes)) == [8]


def test_a_request_larger_than_a_pass_is_answered_by_one_version() -> None:
    model = Model()
    batches = batcher(model, max_batch=2)

    def learn() -> None:
        model.version += 1

    model.at_pass = learn

    async def work() -> Answered[int]:
        with batches.admission():
            return await batches.submit([1, 2, 3, 4, 5])

    answered = run(batches, work)
    assert answered == Answered("1", [1, 4, 9, 16, 25])
    assert model.passes == [[1, 2], [3, 4], [5]]


def test_a_request_is_not_split_between_passes() -> None:
    model = Model()
    batches = batcher(model, max_batch=4)

    async def work() -> Any:
        return await asyncio.gather(*(request(batches, [i] * 3) for i in (1, 2, 3)))

    assert run(batches, work) == [[1] * 3, [4] * 3, [9] * 3]
    assert model.passes == [[1] * 3, [2] * 3, [3] * 3]


def test_an_image_that_breaks_the_model_spoils_only_its_own_request() -> None:
    batches = batcher(Model())

    async def work() -> Any:
        asked = ([1, 2], [3, -1], [4])
        return await asyncio.gather(*(request(batches, p) for p in asked), return_exceptions=True)

    first, second, third = run(batches, work)
    assert (first, third) == ([1, 4], [16])
    assert isinstance(second, ValueError)


def test_past_the_bound_a_request_is_refused_at_once() -> None:
    model = Model()
    release = threading.Event()
    model.at_pass = lambda: release.wait(10)
    batches = batcher(model, max_waiting=3)

    async def work() -> Any:
        waiting = [asyncio.create_task(request(batches, [i])) for i in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as refused:
            await request(batches, [9])
        release.set()
        return refused.value, await asyncio.gather(*waiting)

    refused, answers = run(batches, work)
    assert (refused.status, refused.code, refused.headers["Retry-After"]) == (503, "busy", "1")
    assert answers == [[0], [1], [4]]
    assert [9] not in model.passes


def test_a_request_that_gave_up_is_not_answered_and_blocks_nobody() -> None:
    model = Model()
    release = threading.Event()
    model.at_pass = lambda: release.wait(10)
    batches = batcher(model, max_batch=1)

    async def work() -> Any:
        first = asyncio.create_task(request(batches, [1]))
        second = asyncio.create_task(request(batches, [2]))
        third = asyncio.create_task(request(batches, [3]))
        await asyncio.sleep(0.05)
        first.cancel()  # its pass is under way
        second.cancel()  # it waits
        await asyncio.sleep(0)
        release.set()
        return await third

    assert run(batches, work) == [9]
    assert model.passes == [[1], [3]]
    assert batches.admitted == 0


def test_a_lone_request_does_not_wait_for_company() -> None:
    batches = batcher(Model(), seconds=100.0)

    async def work() -> Any:
        return await asyncio.wait_for(request(batches, [3]), 10)

    assert run(batches, work) == [9]


def test_closing_refuses_those_who_still_wait() -> None:
    model = Model()
    release = threading.Event()
    model.at_pass = lambda: release.wait(10)
    batches = batcher(model, max_batch=1)

    async def main() -> Any:
        batches.start()
        tasks = [asyncio.create_task(request(batches, [i])) for i in range(2)]
        await asyncio.sleep(0.05)
        release.set()
        await batches.close()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    answers = asyncio.run(main())
    assert not batches.running
    assert all(isinstance(a, (RequestError, list)) for a in answers)


def test_a_budget_is_handed_out_in_order_and_given_back() -> None:
    budget = Budget(10)
    order: list[str] = []

    async def take(name: str, units: int, release: asyncio.Event) -> None:
        async with budget.taking(units):
            order.append(name)
            await release.wait()

    async def main() -> None:
        first, rest = asyncio.Event(), asyncio.Event()
        a = asyncio.create_task(take("a", 8, first))
        b = asyncio.create_task(take("b", 5, rest))
        c = asyncio.create_task(take("c", 1, rest))  # would fit, but b asked before
        gone = asyncio.create_task(take("gone", 10, rest))
        await asyncio.sleep(0.01)
        assert order == ["a"]
        gone.cancel()
        first.set()
        await a
        await asyncio.sleep(0.01)
        assert order == ["a", "b", "c"]
        rest.set()
        await asyncio.gather(b, c)
        await asyncio.wait_for(take("all", 10, rest), 5)

    asyncio.run(main())
    assert order == ["a", "b", "c", "all"]
