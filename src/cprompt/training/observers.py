"""What can be shown of a run while it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor


class Observer:
    """Told what happens, to show it to a person; this one shows nothing."""

    def stream_begins(self, n_tasks: int) -> None:
        """A run over so many tasks starts or resumes."""

    def decoded(self, done: int, total: int) -> None:
        """So many of a set's images were decoded, which happens once."""

    def task_begins(self, task: int, n_classes: int, steps: int, done: int) -> None:
        """Training of a task of `steps` steps starts, or resumes after `done` of them."""

    def stepped(self, epoch: int, names: tuple[str, ...], losses: Tensor) -> None:
        """A step was taken. Reading the losses waits for the device: do it seldom."""

    def epoch_ends(self, task: int, epoch: int, losses: Mapping[str, float]) -> None:
        """The mean loss terms of an epoch are known, which may be an epoch later."""

    def evaluating(self, task: int, batches: int) -> None:
        """Evaluation after `task` starts."""

    def evaluated_batch(self) -> None:
        """One batch of test images was answered."""

    def task_ends(
        self, task: int, summary: Mapping[str, float], accuracies: Sequence[float]
    ) -> None:
        """A task was learnt and evaluated; metrics so far, and each task's accuracy now."""


class Observers(Observer):
    """Tells several observers."""

    def __init__(self, *observers: Observer) -> None:
        self._all = observers

    def stream_begins(self, n_tasks: int) -> None:
        """See `Observer`."""
        for observer in self._all:
            observer.stream_begins(n_tasks)

    def decoded(self, done: int, total: int) -> None:
        """See `Observer`."""
        for observer in self._all:
            observer.decoded(done, total)

    def task_begins(self, task: int, n_classes: int, steps: int, done: int) -> None:
        """See `Observer`."""
        for observer in self._all:
            observer.task_begins(task, n_classes, steps, done)

    def stepped(self, epoch: int, names: tuple[str, ...], losses: Tensor) -> None:
        """See `Observer`."""
        for observer in self._all:
            observer.stepped(epoch, names, losses)

    def epoch_ends(self, task: int, epoch: int, losses: Mapping[str, float]) -> None:
        """See `Observer`."""
        for observer in self._all:
            observer.epoch_ends(task, epoch, losses)

    def evaluating(self, task: int, batches: int) -> None:
        """See `Observer`."""
        for observer in self._all:
            observer.evaluating(task, batches)

    def evaluated_batch(self) -> None:
        """See `Observer`."""
        for observer in self._all:
            observer.evaluated_batch()

    def task_ends(
        self, task: int, summary: Mapping[str, float], accuracies: Sequence[float]
    ) -> None:
        """See `Observer`."""
        for observer in self._all:
            observer.task_ends(task, summary, accuracies)
