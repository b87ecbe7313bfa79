"""Concurrent prediction requests, answered together by one thread that owns the model."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from cprompt.serve.errors import busy

P = TypeVar("P")
A = TypeVar("A")


@dataclass(frozen=True)
class Answered(Generic[A]):
    """The answers to one request's images, all by the same version of the model."""

    model: str
    answers: list[A]


@dataclass
class _Waiting(Generic[P, A]):
    images: list[P]
    future: asyncio.Future[Answered[A]]


class Batcher(Generic[P, A]):
    """Collects the images of concurrent requests and has them answered together.

    `begin` gives the present version of the model as a function of at most `max_batch` images.
    Both are called in one thread, never twice at the same time. All images of a request go to
    the same version, even if they are more than `max_batch`.
    """

    def __init__(
        self,
        begin: Callable[[], Callable[[list[P]], Answered[A]]],
        *,
        max_batch: int,
        max_waiting: int,
        seconds: float,
        on_pass: Callable[[int], None] = lambda images: None,
    ) -> None:
        """`on_pass` is told how many images each pass answers."""
        self._begin = begin
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._seconds = seconds
        self._on_pass = on_pass
        self._admitted = 0
        self._waiting: deque[_Waiting[P, A]] = deque()
        self._under_way: list[_Waiting[P, A]] = []
        self._arrived = asyncio.Event()
        self._enough = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cprompt-model")
        self._task: asyncio.Task[None] | None = None

    @property
    def admitted(self) -> int:
        """Requests under way, from their first byte to their answer."""
        return self._admitted

    @property
    def running(self) -> bool:
        """Whether requests are being answered."""
        return self._task is not None and not self._task.done()

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Count a request from before its body is read; 503 where too many are under way."""
        if self._admitted >= self._max_waiting:
            raise busy(f"{self._max_waiting} prediction requests are under way; try again shortly")
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    async def submit(self, images: Sequence[P]) -> Answered[A]:
        """The answers to a request's images, in their order."""
        waiting: _Waiting[P, A] = _Waiting(list(images), asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        if self._count() >= self._max_batch:
            self._enough.set()
        return await waiting.future

    def start(self) -> None:
        """Begin to answer; call it in the event loop."""
        self._task = asyncio.create_task(self._answer_all())

    async def close(self) -> None:
        """Stop; requests that still wait are refused."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for waiting in (*self._under_way, *self._waiting):
            if not waiting.future.done():
                waiting.future.set_exception(busy("the service is stopping"))
        self._thread.shutdown(wait=True)

    async def _answer_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if not self._enough.is_set() and self._admitted > len(self._waiting):
                with suppress(
                    asyncio.TimeoutError
                ):  # more are on their way, so wait a moment for them
                    await asyncio.wait_for(self._enough.wait(), self._seconds)
            self._under_way = batch = self._take()
            if not batch:
                continue
            images = [waiting.images for waiting in batch]
            results = await loop.run_in_executor(self._thread, self._pass, images)
            for waiting, result in zip(batch, results, strict=True):
                if waiting.future.done():  # its client has gone, or its time is up
                    continue
                if isinstance(result, Exception):
                    waiting.future.set_exception(result)
                else:
                    waiting.future.set_result(result)

    def _take(self) -> list[_Waiting[P, A]]:
        """Requests from the front that fit into one pass; one that is too large goes alone."""
        batch: list[_Waiting[P, A]] = []
        size = 0
        while self._waiting and (
            not batch or size + len(self._waiting[0].images) <= self._max_batch
        ):
            waiting = self._waiting.popleft()
            if not waiting.future.done():
                batch.append(waiting)
                size += len(waiting.images)
        if not self._waiting:
            self._arrived.clear()
        if self._count() < self._max_batch:
            self._enough.clear()
        return batch

    def _count(self) -> int:
        return sum(len(waiting.images) for waiting in self._waiting)

    def _pass(self, requests: list[list[P]]) -> list[Answered[A] | Exception]:
        """Answer requests together; where that fails, each alone, so that one cannot spoil others'.

        Runs in the model's thread.
        """
        try:
            answer = self._begin()
            joined = self._answer(answer, [p for images in requests for p in images])
        except Exception as error:
            if len(requests) == 1:
                return [error]
            return [self._pass([images])[0] for images in requests]
        rest = iter(joined.answers)
        return [Answered(joined.model, [next(rest) for _ in images]) for images in requests]

    def _answer(self, answer: Callable[[list[P]], Answered[A]], images: list[P]) -> Answered[A]:
        parts: list[Answered[A]] = []
        for start in range(0, len(images), self._max_batch):
            part = images[start : start + self._max_batch]
            parts.append(answer(part))
            self._on_pass(len(part))
        return Answered(parts[0].model, [a for part in parts for a in part.answers])


class Budget:
    """So many units for all who need some, handed out in order of asking."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._asking: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def taking(self, units: int) -> AsyncIterator[None]:
        """Hold `units`, not more than the total, as soon as they are free."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking.append((units, granted))
        self._grant()
        try:
            await granted
            yield
        finally:
            if granted.done() and not granted.cancelled():
                self._left += units
            self._grant()

    def _grant(self) -> None:
        while self._asking:
            units, granted = self._asking[0]
            if granted.cancelled():
                self._asking.popleft()
            elif units <= self._left:
                self._left -= units
                self._asking.popleft()
                granted.set_result(None)
            else:
                return
