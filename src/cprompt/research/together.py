"""Several runs in one process that take turns, so that together they fill a GPU.

A step of a small backbone is a chain of short kernels that leave much of a GPU idle. Processes that
share the GPU do not help, as it computes for one of them at a time. Here each run has a thread and
a CUDA stream of its own. Only one thread runs at any moment: after each step it hands over to the
next, while the GPU still computes what it was given. So nothing in a run has to be safe for
threads, and every run draws the random numbers that it would draw alone.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from cprompt.training.observers import Observer

K = TypeVar("K")

ENOUGH_QUEUES = ("CUDA_DEVICE_MAX_CONNECTIONS", "32")
"""From how many streams a GPU takes work at the same time. A step uses three, and CUDA's default
is 8. It is read from the environment when CUDA begins."""


class Stopped(KeyboardInterrupt):
    """Raised in a run that is to stop because all of them are."""


class Turns:
    """Lets one of several threads run at a time.

    `pass_on` hands over to the one that has waited longest. torch's global random state belongs to
    the thread whose turn it is.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._line: deque[threading.Event] = deque()  # the first one's event is set
        self._stopping = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the first turn; afterwards the next thread has it."""
        turn = threading.Event()
        with self._changing:
            self._line.append(turn)
            self._line[0].set()
        turn.wait()
        try:
            self._check()
            yield
        finally:
            with self._changing:
                self._line.popleft()
                if self._line:
                    self._line[0].set()

    def pass_on(self) -> None:
        """Let all others run once, if there are any; raises `Stopped` if all are to stop."""
        self._check()
        if len(self._line) == 1:
            return
        state = torch.get_rng_state()
        of_gpu = torch.cuda.get_rng_state() if _uses_cuda() else None
        with self._changing:
            turn = self._line.popleft()
            turn.clear()
            self._line.append(turn)
            self._line[0].set()
        turn.wait()
        torch.set_rng_state(state)
        if of_gpu is not None:
            torch.cuda.set_rng_state(of_gpu)
        self._check()

    def stop(self) -> None:
        """Raise `Stopped` in every thread, when it next has its turn or passes it on."""
        self._stopping = True

    def _check(self) -> None:
        if self._stopping:
            raise Stopped


class _PassesOn(Observer):
    """Hands over after every step and every batch of test images."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def stepped(self, epoch: int, names: tuple[str, ...], losses: Tensor) -> None:
        self._turns.pass_on()

    def evaluated_batch(self) -> None:
        self._turns.pass_on()


def run_together(
    runs: Mapping[K, Callable[[Observer], None]], at_a_time: int, device: torch.device
) -> dict[K, Exception]:
    """Call every one of `runs` with an observer that it must tell of its steps; return the errors.

    `at_a_time` of them are under way together; when one ends, the next begins. One that fails does
    not stop the others. Each must have a backbone of its own, because captured steps of a run read
    its tensors, and another run may replace those.
    """
    os.environ.setdefault(*ENOUGH_QUEUES)
    turns = Turns()

    def call(run: Callable[[Observer], None]) -> None:
        with turns.taken(), own_stream(device):
            run(_PassesOn(turns))

    gpus = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=gpus),  # leaves the caller's random state unchanged
        ThreadPoolExecutor(at_a_time, thread_name_prefix="run") as threads,
    ):
        begun: dict[K, Future[None]] = {k: threads.submit(call, run) for k, run in runs.items()}
        try:
            left = set(begun.values())
            while left:  # in short waits, so that Ctrl-C is seen
                left = wait(left, timeout=0.5).not_done
        except BaseException:
            turns.stop()
            threads.shutdown(cancel_futures=True)
            raise
    return {k: e for k, ended in begun.items() if isinstance(e := ended.exception(), Exception)}


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def own_stream(device: torch.device) -> AbstractContextManager[object]:
    """A context in which work goes to a new stream; nothing but a context without CUDA."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
