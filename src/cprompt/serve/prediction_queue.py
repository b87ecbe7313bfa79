"""Concurrent prediction requests, answered together in few passes of the model."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from cprompt.serve.errors import busy

ImageT = TypeVar("ImageT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class Answered(Generic[AnswerT]):
    """The answers to one request's images, all by the same version of the model."""

    model: str
    answers: list[AnswerT]


Answer: TypeAlias = Callable[[list[ImageT]], Answered[AnswerT]]
"""One version of the model, as a function of images."""


@dataclass
class _Waiting(Generic[ImageT, AnswerT]):
    """A request whose images wait for their answers."""

    images: list[ImageT]
    future: asyncio.Future[Answered[AnswerT]]


@dataclass(eq=False)
class _Pass(Generic[ImageT, AnswerT]):
    """Requests that are answered together, and the task that does it."""

    requests: list[_Waiting[ImageT, AnswerT]]
    task: asyncio.Task[None] | None = None


class PredictionQueue(Generic[ImageT, AnswerT]):
    """Collects the images of concurrent requests and answers them in joint passes of the model.

    `begin` gives the present version of the model as a function of at most `max_pass` images. It is
    told whether the pass has the machine for itself, or shares it with others that run or wait.
    All images of a request go to the same version, even if there are more than `max_pass`.
    """

    def __init__(
        self,
        begin: Callable[[bool], Answer[ImageT, AnswerT]],
        *,
        passes: int = 1,
        max_pass: int,
        max_waiting: int,
        seconds: float,
        on_pass: Callable[[int], None] = lambda images: None,
    ) -> None:
        """At most `passes` run, and `max_waiting` requests are admitted, at a time.

        A pass waits up to `seconds` for requests that are still arriving. `on_pass` is called with
        the number of images in each pass.
        """
        self._begin = begin
        self._max_pass = max_pass
        self._max_waiting = max_waiting
        self._seconds = seconds
        self._on_pass = on_pass
        self._admitted = 0
        self._waiting: deque[_Waiting[ImageT, AnswerT]] = deque()
        self._under_way: set[_Pass[ImageT, AnswerT]] = set()
        self._free = asyncio.Semaphore(passes)
        self._arrived = asyncio.Event()
        self._enough = asyncio.Event()
        self._threads = ThreadPoolExecutor(passes, thread_name_prefix="cprompt-model")
        self._task: asyncio.Task[None] | None = None

    @property
    def admitted(self) -> int:
        """Requests under way, from when they have arrived to their answer."""
        return self._admitted

    @property
    def running(self) -> bool:
        """Whether requests are being answered."""
        return self._task is not None and not self._task.done()

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Count a request once its body has arrived; 503 if too many are under way.

        Not before: clients that send slowly would keep the others out.
        """
        self.check_room()
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    def check_room(self) -> None:
        """Raise 503 if too many requests are under way."""
        if self._admitted >= self._max_waiting:
            raise busy(f"{self._max_waiting} prediction requests are under way; try again shortly")

    async def submit(self, images: Sequence[ImageT]) -> Answered[AnswerT]:
        """The answers to a request's images, in their order."""
        waiting: _Waiting[ImageT, AnswerT] = _Waiting(
            list(images), asyncio.get_running_loop().create_future()
        )
        self._waiting.append(waiting)
        self._arrived.set()
        if self._waiting_images() >= self._max_pass:
            self._enough.set()
        return await waiting.future

    def start(self) -> None:
        """Begin to answer; call it on the event loop."""
        self._task = asyncio.create_task(self._answer_all())

    async def close(self) -> None:
        """Stop; requests that still wait are refused."""
        assert self._task is not None
        under_way = [each for run in self._under_way for each in run.requests]
        tasks = [self._task, *(run.task for run in self._under_way if run.task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for waiting in (*under_way, *self._waiting):
            if not waiting.future.done():
                waiting.future.set_exception(busy("the service is stopping"))
        self._threads.shutdown(wait=True)

    async def _answer_all(self) -> None:
        while True:
            await self._free.acquire()
            await self._arrived.wait()
            if not self._enough.is_set() and self._admitted > len(self._waiting):
                # More requests are still arriving: give them a moment to join this pass.
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._enough.wait(), self._seconds)
            run = _Pass(self._take())
            self._under_way.add(run)
            run.task = asyncio.create_task(self._answer_some(run))

    async def _answer_some(self, run: _Pass[ImageT, AnswerT]) -> None:
        """One pass, and its answers to those who wait for them."""
        try:
            if not run.requests:
                return
            alone = len(self._under_way) == 1 and not self._waiting
            images = [waiting.images for waiting in run.requests]
            loop = asyncio.get_running_loop()
            results = await loop.run_in_executor(self._threads, self._pass, images, alone)
            for waiting, result in zip(run.requests, results, strict=True):
                if waiting.future.done():  # its client has gone, or its time is up
                    continue
                if isinstance(result, Exception):
                    waiting.future.set_exception(result)
                else:
                    waiting.future.set_result(result)
        finally:
            self._under_way.discard(run)
            self._free.release()

    def _take(self) -> list[_Waiting[ImageT, AnswerT]]:
        """Requests from the front that fit into one pass; one that is too large goes alone."""
        taken: list[_Waiting[ImageT, AnswerT]] = []
        size = 0
        while self._waiting and (
            not taken or size + len(self._waiting[0].images) <= self._max_pass
        ):
            waiting = self._waiting.popleft()
            if not waiting.future.done():
                taken.append(waiting)
                size += len(waiting.images)
        if not self._waiting:
            self._arrived.clear()
        if self._waiting_images() < self._max_pass:
            self._enough.clear()
        return taken

    def _waiting_images(self) -> int:
        return sum(len(waiting.images) for waiting in self._waiting)

    def _pass(
        self, requests: list[list[ImageT]], alone: bool
    ) -> list[Answered[AnswerT] | Exception]:
        """Answer requests together; if that fails, each by itself, so that one spoils no other.

        Runs in a thread.
        """
        try:
            answer = self._begin(alone)
            joined = self._answer(answer, [p for images in requests for p in images])
        except Exception as error:
            if len(requests) == 1:
                return [error]
            return [self._pass([images], alone)[0] for images in requests]
        rest = iter(joined.answers)
        return [Answered(joined.model, [next(rest) for _ in images]) for images in requests]

    def _answer(self, answer: Answer[ImageT, AnswerT], images: list[ImageT]) -> Answered[AnswerT]:
        parts: list[Answered[AnswerT]] = []
        for start in range(0, len(images), self._max_pass):
            part = images[start : start + self._max_pass]
            parts.append(answer(part))
            self._on_pass(len(part))
        return Answered(parts[0].model, [a for part in parts for a in part.answers])
