"""Evaluation on the test images of all classes seen: counts of right answers per class.

All numbers in tables and figures come from these counts; nothing is rounded or averaged here. The
answer to an image does not depend on other images.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cprompt.data.pipeline.loader import BatchLoader
from cprompt.errors import ConfigError
from cprompt.methods.base import Method
from cprompt.ranks import ALONE, Ranks
from cprompt.research.metrics import AccuracyMatrix
from cprompt.research.stream import TaskStream
from cprompt.settings import check, setting
from cprompt.vit.promptable import Precision

Mode = Literal["selected", "given", "first"]
"""Which prompt is used: the selected one, that of the image's own task, or the first task's."""


@dataclass(frozen=True)
class EvaluationConfig:
    """What is measured after each task."""

    modes: tuple[Mode, ...] = setting(
        ("selected",), "which prompt is used: selected, given (the right one), first (task 1's)"
    )
    top_k: int = setting(5, "also count images whose class is among the k best answers")

    def __post_init__(self) -> None:
        check("selected" in self.modes, "modes must include 'selected'")
        check(self.top_k >= 2, f"top_k {self.top_k} must be at least 2; top-1 is always counted")


@dataclass(frozen=True)
class TaskCounts:
    """Counts after one task, per class in order of arrival.

    count[c]: test images. correct[mode][c]: images answered right. top_k[c]: images whose class is
    among the k best with the selected prompt; None until more than k classes are seen.
    picks[j][i]: images of task j for which task i's prompt was selected; None for a method that
    does not select.
    """

    count: list[int]
    correct: dict[str, list[int]]
    top_k: list[int] | None
    picks: list[list[int]] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TaskCounts:
        """The inverse of `to_dict`."""
        return cls(**values)


class Evaluator:
    """Answers the test images after each task, and stores what no later task can change.

    An image's query never changes. Its feature under the prompt of a learnt task does not change
    either, if `Method.features_are_final`. Each of these passes runs at most once per stream. Only
    heads and keys, which do change, are applied after every task.
    """

    def __init__(
        self,
        method: Method,
        test: BatchLoader,
        stream: TaskStream,
        config: EvaluationConfig,
        device: torch.device,
        *,
        precision: Precision = "fp32",
        memory_gib: float = 4.0,
        folder: Path | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """`test` has the images of all classes, with arrival positions as targets.

        Features that exceed `memory_gib` go to a temporary file in `folder`. Several `ranks` each
        answer a part of the images, always the same, and add up their counts.
        """
        self.ranks = ranks if method.answers_singly else ALONE
        self.method = method
        self.test = test
        self.modes = usable_modes(method, config.modes)
        self.config = config
        self.device = device
        self.precision = precision
        self.targets = test.targets
        self.task_of_image = stream.task_of_position[self.targets]
        self.passes = {"query": 0, "prompted": 0}
        """Passes of test images through the backbone so far, on this rank."""
        limit = int(memory_gib * 2**30) // 2
        self._queries = RowStore(limit, folder)
        self._query_row = np.full(len(self.targets), -1)
        self._features = RowStore(limit, folder)
        self._feature_row = np.full((len(self.targets), stream.n_tasks), -1)

    @torch.no_grad()  # not inference mode: what was compiled for training serves here too
    def evaluate(
        self,
        on_start: Callable[[int], None] = lambda batches: None,
        on_batch: Callable[[], None] = lambda: None,
    ) -> TaskCounts:
        """Answer every test image of the classes seen so far.

        Queries, if the method uses them, come first, then answers. `on_start` is called before
        each of the two with its number of batches, `on_batch` after each batch.
        """
        method, n_tasks = self.method, self.method.n_tasks
        seen = np.flatnonzero(self.targets < method.n_classes)
        seen = seen[seen % self.ranks.count == self.ranks.rank]
        chosen = None
        if method.uses_query:
            self._ask(seen[self._query_row[seen] < 0], on_start, on_batch)
        if method.selects_task:
            queries = (self._query(part) for part in self._parts(seen))
            nothing = np.zeros(0, dtype=np.int64)  # a rank may have no image of the first classes
            chosen = np.concatenate([nothing, *(method.choose(q).cpu().numpy() for q in queries)])

        own = self.task_of_image[seen]
        prompts: dict[str, NDArray[np.int64]] = {
            "selected": np.zeros_like(own) if chosen is None else chosen,
            "given": own,
            "first": np.zeros_like(own),
        }
        wanted = np.stack([prompts[mode] for mode in self.modes])  # (modes, images)
        asked = np.tile(seen, len(self.modes)) * n_tasks + wanted.ravel()
        pairs, where = np.unique(asked, return_inverse=True)
        right, among = self._answer(pairs // n_tasks, pairs % n_tasks, on_start, on_batch)
        by_mode = dict(zip(self.modes, where.reshape(wanted.shape), strict=True))

        def by_class(which: NDArray[np.bool_]) -> list[int]:
            counts = np.bincount(self.targets[seen[which]], minlength=method.n_classes)
            total: list[int] = self._over_ranks(counts)
            return total

        return TaskCounts(
            count=by_class(np.ones(len(seen), dtype=bool)),
            correct={mode: by_class(right[at]) for mode, at in by_mode.items()},
            top_k=by_class(among[by_mode["selected"]])
            if method.n_classes > self.config.top_k
            else None,
            picks=None
            if chosen is None
            else self._over_ranks(
                np.bincount(own * n_tasks + chosen, minlength=n_tasks**2).reshape(n_tasks, n_tasks)
            ),
        )

    def total_passes(self) -> dict[str, int]:
        """Passes of test images through the backbone so far, of all ranks."""
        return dict(
            zip(self.passes, self._over_ranks(np.array([*self.passes.values()])), strict=True)
        )

    def _over_ranks(self, counts: NDArray[np.int64]) -> Any:
        """The sum over ranks, as plain numbers."""
        total = torch.from_numpy(counts)
        self.ranks.sum_(total)
        return total.tolist()

    def _ask(
        self,
        numbers: NDArray[np.int64],
        on_start: Callable[[int], None],
        on_batch: Callable[[], None],
    ) -> None:
        """Compute and store the queries of these images."""
        parts = self._parts(numbers)
        on_start(len(parts))
        for part, images in zip(parts, self.test.batches(parts), strict=True):
            query = self.method.ask(images, self.precision)
            self._query_row[part] = self._queries.add(query)
            self.passes["query"] += len(part)
            on_batch()

    def _answer(
        self,
        numbers: NDArray[np.int64],
        tasks: NDArray[np.int64],
        on_start: Callable[[int], None],
        on_batch: Callable[[], None],
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether each (image, prompt) pair is answered right, and right among the k best."""
        method = self.method
        right, among = np.zeros(len(numbers), dtype=bool), np.zeros(len(numbers), dtype=bool)

        def judge(pairs: NDArray[np.int64], logits: Tensor) -> None:
            target = torch.from_numpy(self.targets[numbers[pairs]]).to(logits.device)[:, None]
            best = logits.topk(min(self.config.top_k, logits.shape[-1]), dim=-1).indices
            right[pairs] = (logits.argmax(-1, keepdim=True) == target)[:, 0].cpu().numpy()
            among[pairs] = (best == target).any(-1).cpu().numpy()

        rows = self._feature_row[numbers, tasks]
        for pairs in self._parts(np.flatnonzero(rows >= 0)):
            judge(pairs, method.answer(self._features[rows[pairs]].to(self.device)))
        parts = self._parts(np.flatnonzero(rows < 0))
        on_start(len(parts))
        for pairs, images in zip(parts, self.test.batches(numbers[p] for p in parts), strict=True):
            query = self._query(numbers[pairs]) if method.uses_query else None
            task = torch.from_numpy(tasks[pairs]).to(self.device) if method.selects_task else None
            response = method.respond(images, query=query, task=task, precision=self.precision)
            self.passes["prompted"] += len(pairs)
            if method.features_are_final:
                rows_of = self._features.add(response.feature)
                self._feature_row[numbers[pairs], tasks[pairs]] = rows_of
            judge(pairs, response.logits)
            on_batch()
        return right, among

    def _query(self, numbers: NDArray[np.int64]) -> Tensor:
        return self._queries[self._query_row[numbers]].to(self.device)

    def _parts(self, items: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        size = self.test.batch_size
        return [items[i : i + size] for i in range(0, len(items), size)]


class RowStore:
    """Float32 rows of one shape, each written once; above a limit they go from memory to a file."""

    def __init__(self, limit_bytes: int, folder: Path | None = None) -> None:
        self._limit = limit_bytes
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._rows: NDArray[np.float32] | None = None
        self._count = 0

    def add(self, rows: Tensor) -> NDArray[np.int64]:
        """Store `rows` (n, …) and return their numbers (n,)."""
        new = rows.float().cpu().numpy()
        first, last = self._count, self._count + len(new)
        if self._rows is None or last > len(self._rows):
            self._grow(max(last, 2 * first, 1024), new.shape[1:])
        assert self._rows is not None
        self._rows[first:last] = new
        self._count = last
        return np.arange(first, last)

    def __getitem__(self, numbers: NDArray[np.int64]) -> Tensor:
        assert self._rows is not None
        return torch.from_numpy(np.asarray(self._rows[numbers]))

    @property
    def on_disk(self) -> bool:
        """Whether the rows exceeded the memory limit."""
        return self._file is not None

    def _grow(self, capacity: int, shape: tuple[int, ...]) -> None:
        size = 4 * capacity * math.prod(shape)
        old = self._rows
        if size <= self._limit:
            self._rows = np.empty((capacity, *shape), dtype=np.float32)
        else:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            else:
                old = None  # the file has them already
            self._file.truncate(size)
            self._rows = np.memmap(self._file, np.float32, "r+", shape=(capacity, *shape))
        if old is not None:
            self._rows[: self._count] = old[: self._count]


def usable_modes(method: Method, modes: Sequence[Mode]) -> Sequence[Mode]:
    """`modes`, or a ConfigError if the method cannot be evaluated in them."""
    if not method.selects_task and set(modes) != {"selected"}:
        raise ConfigError(
            f"evaluation.modes {list(modes)}: {method.name} does not select a task's prompt",
            hint="use only 'selected'",
        )
    return modes


def matrix_of(
    rows: Sequence[TaskCounts], stream: TaskStream, mode: str = "selected", skip: int = 0
) -> AccuracyMatrix:
    """The counts behind a[i,j] of the tasks done so far.

    The first `skip` tasks are left out, both as rows and as columns. The paper's analysis with the
    first task's prompt covers tasks 2 to T.
    """
    done = len(rows)
    task_of = stream.task_of_position
    correct = [_by_task(row.correct[mode], task_of, done) for row in rows]
    count = _by_task(rows[-1].count, task_of, done)
    return AccuracyMatrix(np.stack(correct)[skip:, skip:], count[skip:])


def selection_accuracy(row: TaskCounts) -> float:
    """Percent of test images for which the prompt of their own task was selected."""
    picks = np.asarray(row.picks)
    return float(100 * np.trace(picks) / picks.sum())


def _by_task(
    per_class: Sequence[int], task_of: NDArray[np.int64], n_tasks: int
) -> NDArray[np.int64]:
    sums = np.zeros(n_tasks, dtype=np.int64)
    np.add.at(sums, task_of[: len(per_class)], per_class)
    return sums
