"""Observers of a run, which show its progress to a person or pass it to another program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor


class Observer:
    """Receives the events of a run and ignores them; override the methods you need.

    >>> class PrintTasks(Observer):
    ...     def task_begins(self, task, n_classes, steps, done):
    ...         print(f"task {task + 1}: {n_classes} classes")
    >>> PrintTasks().task_begins(0, n_classes=20, steps=100, done=0)
    task 1: 20 classes
    """

    def stream_begins(self, n_tasks: int) -> None:
        """A run over `n_tasks` tasks starts or resumes."""

    def decoded(self, done: int, total: int) -> None:
        """`done` of a set's `total` images are decoded; each is decoded once."""

    def noticed(self, message: str) -> None:
        """Something is odd in the data or the training; `message` is for a person. It goes on."""

    def task_begins(self, task: int, n_classes: int, steps: int, done: int) -> None:
        """Training of a task of `steps` steps starts, or resumes after `done` of them.

        `steps` is 0 for a method that is not trained.
        """

    def stepped(self, epoch: int, names: tuple[str, ...], losses: Tensor) -> None:
        """One step is done. Reading `losses` waits for the device, so do it rarely."""

    def counted(self, done: int, total: int) -> None:
        """`done` of `total` images have been looked at, by a method that counts and is not trained.

        They are decoded a part at a time, so `decoded` may come in between.
        """

    def epoch_ends(self, task: int, epoch: int, losses: Mapping[str, float]) -> None:
        """The mean loss terms of an epoch are known, possibly only after the next epoch."""

    def evaluating(self, task: int, batches: int) -> None:
        """Evaluation after `task` starts."""

    def evaluated_batch(self) -> None:
        """One batch of test images was answered."""

    def task_ends(
        self, task: int, summary: Mapping[str, float], accuracies: Sequence[float]
    ) -> None:
        """A task is learnt and evaluated; `summary` is all metrics, `accuracies` one per task."""


class Observers(Observer):
    """Passes every event on to several observers, in order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers


def _forward(event: str) -> Callable[..., None]:
    def forward(self: Observers, *args: Any, **named: Any) -> None:
        for observer in self._observers:
            getattr(observer, event)(*args, **named)

    return forward


for _event in [name for name in vars(Observer) if not name.startswith("_")]:
    setattr(Observers, _event, _forward(_event))
