"""Image files decoded in other processes.

In threads much of what Python and Pillow do for an image is done on one core at a time, so that a
few cores are as fast as many. Processes are plain children that talk through pipes. So the user's
main module is not imported again, as multiprocessing would, and nothing is left in shared memory,
of which containers have little.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

import numpy as np

from cprompt.data.pipeline import decode_worker
from cprompt.data.pipeline.decoded import ImageArray
from cprompt.data.pipeline.parallel import map_in_order, usable_cores
from cprompt.data.pipeline.reduced import ImageFile
from cprompt.data.tar_shards import TarImage
from cprompt.data.urls import is_url
from cprompt.errors import ConfigError, DataError

SETTING = "CPROMPT_DECODING_PROCESSES"
"""The environment variable that says how many processes decode, whatever there is to do; 0: none,
but threads."""

FEWEST_CORES = 4
"""With fewer, threads keep them as busy."""
FEWEST_FILES = 500
"""With fewer, threads are done before processes have started and caught up."""
MOST_PROCESSES = 16
"""More would decode faster than one process can take images from them."""

_THREADS_INSTEAD = f"set {SETTING}=0 to decode in threads"

_AT_ONCE = 4
"""Files in one request, so that a process need not wait for the next one after each image."""
_PIPE = 2**20
"""Bytes that a pipe can hold, so that most images pass in one piece; the most that Linux allows."""

T = TypeVar("T")
Found: TypeAlias = tuple[ImageArray, Any]
Find: TypeAlias = Callable[[ImageArray], Any]


_allowed: ContextVar[bool] = ContextVar("_allowed", default=True)


@contextmanager
def only_threads() -> Iterator[None]:
    """Start no processes in this block, as far as this thread runs it."""
    before = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(before)


def processes_for(files: Sequence[object]) -> int:
    """How many processes should decode these; 0 where threads do better, or must.

    Only local files: another process need not have the same access to URLs as this one.
    """
    if not (_allowed.get() and _can_start() and all(_is_local(file) for file in files)):
        return 0
    told = os.environ.get(SETTING)
    if told is not None:
        if not told.isdecimal():
            raise ConfigError(f"{SETTING} is {told!r}", hint="set it to a whole number, or not")
        return int(told)
    cores = usable_cores()
    pays = cores >= FEWEST_CORES and len(files) >= FEWEST_FILES
    return min(cores, MOST_PROCESSES) if pays else 0


def decode_in_processes(
    files: Sequence[ImageFile],
    side: int,
    find: Find,
    processes: int,
    otherwise: Callable[[ImageFile], T],
) -> Generator[Found | T, None, None]:
    """Yield the pixels of each image, reduced, and what `find` says of them, in order.

    `otherwise` is called here, in its place, with a file that a process cannot decode; it meets the
    error itself. `find` is a function that a process can import. As with `map_in_order`, some
    images wait to be read, and when this generator is closed, its processes have ended.
    """
    requests = [files[i : i + _AT_ONCE] for i in range(0, len(files), _AT_ONCE)]
    workers: list[_Worker] = []
    idle: SimpleQueue[_Worker] = SimpleQueue()

    def ask(request: Sequence[ImageFile]) -> list[Found | DataError | None]:
        worker = idle.get()
        try:
            return worker.decode(request)
        finally:
            idle.put(worker)

    answers = map_in_order(ask, requests, threads=min(processes, len(requests)))
    try:
        for _ in range(min(processes, len(requests))):
            workers.append(_started(side, find))
            idle.put(workers[-1])
        for request, found in zip(requests, answers, strict=True):
            for file, each in zip(request, found, strict=True):
                if isinstance(each, DataError):
                    raise each
                yield otherwise(file) if each is None else each
    finally:
        for worker in workers:
            worker.kill()
        answers.close()  # its threads do not wait for an answer any more
        for worker in workers:
            worker.close()


class _Worker:
    """A process that runs `decode_worker`; used by one thread at a time."""

    def __init__(self, side: int, find: Find) -> None:
        path = [each for each in sys.path if isinstance(each, str)]
        run = f"import sys; sys.path[:] = {path!r}; import {decode_worker.__name__} as w; w.main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", run],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for this process, which then ends the other
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        _widen(self._replies.fileno())
        self._send((side, find))

    def decode(self, files: Sequence[ImageFile]) -> list[Found | DataError | None]:
        """The image and what was found for each file; None if that failed, an error if the process
        has ended."""
        found: list[Found | DataError | None] = []
        try:
            self._send(files)
            for _ in files:
                found.append(self._receive())
        except (OSError, EOFError, pickle.UnpicklingError):
            self.kill()
            error = _ended(files[len(found)], self._process.wait())
            found += [error] * (len(files) - len(found))
        return found

    def kill(self) -> None:
        """End the process; it has nothing to tidy up."""
        self._process.kill()

    def close(self) -> None:
        """Wait until the process has ended, and close its pipes."""
        self._process.wait()
        self._replies.close()
        with suppress(OSError):  # a request may be left that nobody reads
            self._requests.close()

    def _send(self, request: object) -> None:
        with suppress(BrokenPipeError):  # the missing reply tells
            pickle.dump(request, self._requests)
            self._requests.flush()

    def _receive(self) -> Found | None:
        reply = pickle.load(self._replies)
        if reply is None:
            return None
        shape, found = reply
        image = np.empty(shape, np.uint8)
        if self._replies.readinto(image.reshape(-1).data) < image.nbytes:  # type: ignore[attr-defined]
            raise EOFError
        image.flags.writeable = False
        return image, found


def _started(side: int, find: Find) -> _Worker:
    try:
        return _Worker(side, find)
    except OSError as error:
        raise DataError(
            f"no process can be started to decode images ({error.strerror or error})",
            hint=f"end others, or {_THREADS_INSTEAD}",
        ) from error


def _ended(file: ImageFile, code: int) -> DataError:
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return DataError(
        f"was not read: the process that decodes it has ended ({how})",
        file=str(file),
        hint=f"free some memory, or {_THREADS_INSTEAD}",
    )


def _is_local(file: object) -> bool:
    place = file.tar if isinstance(file, TarImage) else file
    return isinstance(place, (str, os.PathLike)) and not is_url(place)


def _can_start() -> bool:
    """Whether this program is a Python that can be started again, not one with Python inside."""
    name = Path(sys.executable or "").name.lower()
    return not getattr(sys, "frozen", False) and name.startswith(("python", "pypy"))


def _widen(pipe: int) -> None:
    with suppress(ImportError, AttributeError, OSError):  # only Linux can, up to a limit per user
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)
