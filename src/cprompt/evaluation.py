"""Answers on the test pictures of all classes seen, counted by class.

Everything that tables and figures show comes from these counts; nothing is rounded or averaged
here. A picture's answer depends on that picture alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cprompt.data.loader import BatchLoader
from cprompt.errors import ConfigError
from cprompt.methods.base import Method
from cprompt.metrics import AccuracyMatrix
from cprompt.settings import check, setting
from cprompt.stream import TaskStream

Mode = Literal["selected", "given", "first"]
"""Whose prompt answers: the one selected, that of the picture's own task, or the first task's."""


@dataclass(frozen=True)
class EvaluationConfig:
    """What is measured after each task."""

    modes: tuple[Mode, ...] = setting(
        ("selected",), "prompts to answer with: selected; given (the right one); first (task 1's)"
    )
    top_k: int = setting(5, "also count answers among the k best")

    def __post_init__(self) -> None:
        check("selected" in self.modes, "modes must include 'selected'")
        check(self.top_k >= 2, f"top_k {self.top_k} must be at least 2; top-1 is always counted")


@dataclass(frozen=True)
class Row:
    """Counts after one task, by class in order of arrival.

    count[c] test pictures; correct[mode][c] of them right; top_k[c] right among the k best of the
    selected answer, None while no more than k classes are seen; picks[j][i] pictures of task j
    answered through task i's prompt, None where a method does not select.
    """

    count: list[int]
    correct: dict[str, list[int]]
    top_k: list[int] | None
    picks: list[list[int]] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Row:
        """The row that `to_dict` described."""
        return cls(**values)


@torch.inference_mode()
def evaluate(
    method: Method,
    test: BatchLoader,
    stream: TaskStream,
    config: EvaluationConfig,
    device: torch.device,
    on_batch: Callable[[], None] = lambda: None,
) -> Row:
    """Answer every test picture of the classes seen; `test` gives targets by arrival position."""
    modes = usable_modes(method, config.modes)
    n_classes, n_tasks = method.n_classes, method.n_tasks
    task_of = torch.tensor(stream.task_of_position)[:n_classes].to(device)
    count = torch.zeros(n_classes, dtype=torch.long, device=device)
    correct = {mode: torch.zeros_like(count) for mode in modes}
    top_k = torch.zeros_like(count)
    picks = torch.zeros(n_tasks * n_tasks, dtype=torch.long, device=device)

    for images, targets in test.epoch(0):
        images, targets = images.to(device), targets.to(device)
        count += torch.bincount(targets, minlength=n_classes)
        own = task_of[targets]
        chosen = method.choose(images) if method.selects_task else None
        if chosen is not None:
            picks += torch.bincount(own * n_tasks + chosen, minlength=len(picks))
        for mode, logits in _answers(method, images, modes, own, chosen).items():
            right = logits.argmax(-1) == targets
            correct[mode] += torch.bincount(targets[right], minlength=n_classes)
            if mode == "selected" and n_classes > config.top_k:
                best = logits.topk(config.top_k, dim=-1).indices
                among = (best == targets[:, None]).any(-1)
                top_k += torch.bincount(targets[among], minlength=n_classes)
        on_batch()

    return Row(
        count=count.tolist(),
        correct={mode: c.tolist() for mode, c in correct.items()},
        top_k=top_k.tolist() if n_classes > config.top_k else None,
        picks=picks.view(n_tasks, n_tasks).tolist() if method.selects_task else None,
    )


def usable_modes(method: Method, modes: Sequence[Mode]) -> Sequence[Mode]:
    """The modes, if the method has prompts to give; else an error."""
    if not method.selects_task and set(modes) != {"selected"}:
        raise ConfigError(
            f"evaluation.modes {list(modes)}: {method.name} does not select a task's prompt, "
            "so only 'selected' makes sense"
        )
    return modes


def _answers(
    method: Method, images: Tensor, modes: Sequence[Mode], own: Tensor, chosen: Tensor | None
) -> dict[Mode, Tensor]:
    """Logits by mode; each (picture, prompt) pair is computed once."""
    if chosen is None:
        return {"selected": method(images)}
    wanted: dict[Mode, Tensor] = {"selected": chosen, "given": own, "first": torch.zeros_like(own)}
    prompts = torch.stack([wanted[mode] for mode in modes])  # (modes, B)
    picture = torch.arange(len(images), device=images.device).expand_as(prompts)
    pairs, where = torch.unique(
        torch.stack([picture.flatten(), prompts.flatten()]), dim=1, return_inverse=True
    )
    logits = method(images[pairs[0]], task=pairs[1])
    return dict(zip(modes, logits[where].view(*prompts.shape, -1), strict=True))


def matrix_of(
    rows: Sequence[Row], stream: TaskStream, mode: str = "selected", skip: int = 0
) -> AccuracyMatrix:
    """The counts behind a[i,j] of the tasks done so far.

    `skip` leaves out the first tasks, both as rows and as columns: the paper's analysis with the
    first prompt always speaks of tasks 2 to T.
    """
    done = len(rows)
    task_of = stream.task_of_position
    correct = [_by_task(row.correct[mode], task_of, done) for row in rows]
    count = _by_task(rows[-1].count, task_of, done)
    return AccuracyMatrix(np.stack(correct)[skip:, skip:], count[skip:])


def selection_accuracy(row: Row) -> float:
    """Percent of test pictures for which the prompt of their own task was picked."""
    picks = np.asarray(row.picks)
    return float(100 * np.trace(picks) / picks.sum())


def _by_task(
    per_class: Sequence[int], task_of: NDArray[np.int64], n_tasks: int
) -> NDArray[np.int64]:
    sums = np.zeros(n_tasks, dtype=np.int64)
    np.add.at(sums, task_of[: len(per_class)], per_class)
    return sums
