"""An observer that stops a run, as Ctrl-C does."""

from __future__ import annotations

from torch import Tensor

from cprompt.training.observers import Observer


class StopAt(Observer):
    """Raises after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def stepped(self, epoch: int, names: tuple[str, ...], losses: Tensor) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
