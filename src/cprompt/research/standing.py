"""How far a run is, for whoever watches several of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cprompt.training.observers import Observer


@dataclass(frozen=True)
class Standing:
    """How far a run is."""

    state: Literal["waiting", "running", "finished", "failed"] = "waiting"
    task: int = 0
    tasks: int = 0
    where: str = ""
    """What it computes on: the address of a worker, or a device."""


class TellsStanding(Observer):
    """Calls `tell` when the run begins and with each task, and `warn` with what is odd in it."""

    def __init__(
        self,
        tell: Callable[[Standing], None],
        where: str,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._tell, self._where, self._warn, self._tasks = tell, where, warn, 0

    def noticed(self, message: str) -> None:
        """Something is odd in the data or the training."""
        self._warn(message)

    def stream_begins(self, n_tasks: int) -> None:
        """The run is at its first task, or will say where it resumes."""
        self._tasks = n_tasks
        self._at(0)

    def task_begins(self, task: int, n_classes: int, steps: int, done: int) -> None:
        """The run is at `task`."""
        self._at(task)

    def _at(self, task: int) -> None:
        self._tell(Standing("running", task, self._tasks, self._where))
