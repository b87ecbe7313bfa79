"""Live progress of a run in the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from cprompt.cli.output import LiveDisplay
from cprompt.files import shown_path
from cprompt.training.observers import Observer

if TYPE_CHECKING:
    from torch import Tensor


class ProgressBars(LiveDisplay, Observer):
    """An observer that draws one bar at a time: decoding, training with its losses, evaluation."""

    def __init__(
        self,
        label: str = "",
        console: Console | None = None,
        *,
        lines: bool = True,
        if_stopped: str = "stopped",
    ) -> None:
        """`lines` leaves a line per finished task; `if_stopped` is printed on Ctrl-C."""
        self._n_tasks = 0
        self._lines = lines
        self._label = f"{label} " if label else ""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[losses]}"),
            console=console or Console(),
            transient=True,
        )
        super().__init__(self._progress, if_stopped)
        self._bar: TaskID | None = None
        self._shown = 0.0
        self._counting = False

    def stream_begins(self, n_tasks: int) -> None:
        """Remember how many tasks there are, for "task 2/6"."""
        self._n_tasks = n_tasks

    def decoded(self, done: int, total: int) -> None:
        """Show one bar per set of images; they are decoded before the first task.

        Other processes may report many at a time.
        """
        if done == 1 or self._bar is None:
            self._new_bar(f"{self._label}decoding images, once", total, 0)
        if not self._counting:
            assert self._bar is not None
            self._progress.update(self._bar, completed=done)

    def counted(self, done: int, total: int) -> None:
        """Show one bar from the first images on, whatever is decoded meanwhile."""
        if not self._counting or self._bar is None:
            self._new_bar(f"{self._label}looking at images", total, 0)
            self._counting = True
        assert self._bar is not None
        self._progress.update(self._bar, completed=done)

    def noticed(self, message: str) -> None:
        """Leave a line that stays."""
        self._progress.console.print(
            "[bold yellow]warning:[/]",
            escape(shown_path(message)),
            highlight=False,
            soft_wrap=True,
        )

    def task_begins(self, task: int, n_classes: int, steps: int, done: int) -> None:
        """Start the training bar; without steps it moves, and counts nothing."""
        what = f"{self._label}task {task + 1}/{self._n_tasks}, learning"
        self._new_bar(what, steps or None, done)

    def stepped(self, epoch: int, names: tuple[str, ...], losses: Tensor) -> None:
        """Advance; losses are read five times a second at most, as reading waits for the device."""
        assert self._bar is not None
        self._progress.advance(self._bar)
        if time.monotonic() - self._shown > 0.2:
            values = zip(names, losses.tolist(), strict=True)
            text = "  ".join(f"{name} {value:.3f}" for name, value in values)
            self._progress.update(self._bar, losses=f"epoch {epoch + 1}  {text}")
            self._shown = time.monotonic()

    def evaluating(self, task: int, batches: int) -> None:
        """Start the evaluation bar."""
        self._new_bar(f"{self._label}task {task + 1}/{self._n_tasks}, testing", batches, 0)

    def evaluated_batch(self) -> None:
        """Advance."""
        assert self._bar is not None
        self._progress.advance(self._bar)

    def task_ends(
        self, task: int, summary: Mapping[str, float], accuracies: Sequence[float]
    ) -> None:
        """Leave one line for the finished task."""
        if not self._lines:
            return
        selected = summary.get("selection_accuracy")
        about_prompt = "" if selected is None else f", right prompt selected {selected:.0f} %"
        self._progress.console.print(
            f"{self._label}task {task + 1}/{self._n_tasks}: accuracy on all classes so far "
            f"{summary['last_accuracy']:.1f} %{about_prompt}",
            highlight=False,
            soft_wrap=True,
        )

    def _new_bar(self, description: str, total: int | None, done: int) -> None:
        self._counting = False
        if self._bar is not None:
            self._progress.remove_task(self._bar)
        self._bar = self._progress.add_task(description, total=total, completed=done, losses="")


class AnswerProgress(LiveDisplay):
    """One line for many answers: how many, how fast, how long still, how many unknown."""

    def __init__(self, total: int, console: Console) -> None:
        self._progress = Progress(
            TextColumn("photos answered"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]} photos/s, left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[unknown]} unknown"),
            console=console,
            transient=True,
        )
        super().__init__(
            self._progress, "stopped; the same command answers the parts that are missing"
        )
        self._bar = self._progress.add_task("", total=total, rate="-", unknown=0)
        self._done = 0
        self._since = time.monotonic()

    def advance(self, photos: int, unknown: int) -> None:
        """So many more are answered; `unknown` counts all so far."""
        self._done += photos
        rate = f"{self._done / max(time.monotonic() - self._since, 1e-9):.1f}"
        self._progress.update(self._bar, completed=self._done, rate=rate, unknown=unknown)
