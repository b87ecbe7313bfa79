"""The version of the model that answers, and how a newer one in the folder takes its place."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

from cprompt.classifier import model_folder
from cprompt.classifier.classifier import ContinualClassifier
from cprompt.errors import CPromptError, ModelError
from cprompt.serve.errors import RequestError
from cprompt.serve.job import Job

Load: TypeAlias = Callable[[Path], ContinualClassifier]

LOOK_SECONDS = 0.25
"""How often the folder is looked at."""

_RETRY_SECONDS = 5.0
_WAIT_SECONDS = 0.1
_log = logging.getLogger(__name__)

_State: TypeAlias = tuple[int, int, int]


def loading(device: str = "auto", precision: str = "fp32", weights: str | None = None) -> Load:
    """`ContinualClassifier.load`; what `precision` "auto" stands for is settled by the first call.

    Measured again, beside a job and on fewer threads, it could turn out otherwise.
    """
    settled = precision

    def load(folder: Path) -> ContinualClassifier:
        nonlocal settled
        classifier = ContinualClassifier.load(
            folder, device=device, precision=settled, weights=weights
        )
        settled = classifier.precision
        return classifier

    return load


class StaleError(ModelError):
    """A change was meant for another version of the model than the present one."""


class ServedModel:
    """`current` is the version that answers. Any process may change the folder at any time."""

    def __init__(self, folder: Path, load: Load) -> None:
        self.folder = folder
        self._load = load
        self._loading = threading.Lock()  # a backbone of random weights uses the global generator
        self._changing = False
        self._seen = _state(folder)  # before loading: a change meanwhile is seen as one
        self.current = load(folder)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._retry = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to follow the folder."""
        self._thread = threading.Thread(target=self._follow, name="cprompt-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Follow it no longer."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def load(self) -> ContinualClassifier:
        """Another copy of what is in the folder, for a job to work on."""
        with self._loading:
            return self._load(self.folder)

    def answer_with(self, classifier: ContinualClassifier) -> None:
        """Answer with this version from now on; call it under `changing`, once it is saved."""
        with self._lock:
            self.current = classifier

    def look(self) -> None:
        """Load the folder's model if it is not the one that answers."""
        with self._lock:
            state = _state(self.folder)
            if state is None or state == self._seen or time.monotonic() < self._retry:
                return
            if self._changing:  # the job that holds the folder's lock will say what answers next
                return
            try:
                if model_folder.read_about(self.folder)["model"] != self.current.model_id:
                    self.current = self.load()
            except Exception as error:  # a MemoryError, say: the folder is still to be followed
                self._retry = time.monotonic() + _RETRY_SECONDS
                foreseen = isinstance(error, (CPromptError, OSError))
                _log.warning(
                    "the changed model cannot be loaded, the old one answers: %s",
                    error if foreseen else repr(error),
                    exc_info=not foreseen,
                )
                return
            self._seen = state

    def refuse_stale(self, named: str | None) -> None:
        """Refuse a request with 409 if it names another version than the present one."""
        try:
            self.check(named)
        except StaleError as error:
            raise RequestError(409, "stale", error.message) from error

    @contextmanager
    def changing(self, job: Job) -> Iterator[None]:
        """Hold the folder's lock, waiting for whoever has it."""
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(model_folder.writing(self.folder))
                    break
                except model_folder.LockedError:
                    job.show("waiting for another program")
                    job.stop.wait(_WAIT_SECONDS)
            self._changing = True
            try:
                yield
            finally:
                self._changing = False

    def check(self, named: str | None) -> None:
        """Raise a StaleError if `named` is not the version in the folder."""
        if named is None:
            return
        present = model_folder.read_about(self.folder)["model"]
        if named != present:
            raise StaleError(
                f"this was meant for version {named} of the model, but {present} is there now; "
                "look at it again"
            )

    def _follow(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self.look()


def _state(folder: Path) -> _State | None:
    """What tells one `model.json` from another; None if there is none."""
    try:
        found = (folder / model_folder.FILE).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
