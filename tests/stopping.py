"""Observers that count the steps of a run, and that stop one as Ctrl-C does."""

from __future__ import annotations

from torch import Tensor

from cprompt.training.observers import Observer


class CountSteps(Observer):
    """Counts the steps of a run."""

    taken = 0

    def stepped(self, epoch: int, names: tuple[str, ...], losses: Tensor) -> None:
        self.taken += 1


class StopAt(Observer):
    """Raises after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def stepped(self, epoch: int, names: tuple[str, ...], losses: Tensor) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


class StopAtTask(Observer):
    """Raises when the task of this number, from 0, has begun."""

    def __init__(self, task: int) -> None:
        self.task = task

    def task_begins(self, task: int, n_classes: int, steps: int, done: int) -> None:
        if task == self.task:
            raise KeyboardInterrupt
