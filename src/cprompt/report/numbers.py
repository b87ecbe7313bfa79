"""The numbers that figures and tables show, computed from records; nothing is drawn here.

Every function takes the records of one series, which share task sizes. Means are over runs, task
by task in order of arrival: with different class orders, task 2 of one run holds other classes
than task 2 of another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cprompt.report.captions import hardware_of
from cprompt.research import metrics
from cprompt.research.evaluation import selection_accuracy
from cprompt.research.metrics import Floats, mean_std
from cprompt.research.record import Record
from cprompt.research.tables import Cell

RecordsByLabel = Mapping[str, Sequence[Record]]
"""The records of each series that a figure or table shows, by the series' label."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Accuracy over all classes seen after each task, each (tasks,): mean and range over runs."""

    mean: Floats
    low: Floats
    high: Floats


def curve(records: Sequence[Record]) -> Curve:
    """`metrics.seen_accuracy` of runs that finished the same number of tasks."""
    runs = np.stack([metrics.seen_accuracy(r.matrix()) for r in records])
    return Curve(runs.mean(0), runs.min(0), runs.max(0))


def mean_matrix(records: Sequence[Record], mode: str = "selected") -> Floats:
    """a[i,j] in percent, (tasks, tasks), mean over runs; NaN above the diagonal."""
    mean: Floats = np.mean([metrics.accuracy_matrix(r.matrix(mode)) for r in records], axis=0)
    return mean


@dataclass(frozen=True, eq=False)
class TaskForgetting:
    """For every task but the last, each (t-1,), means over runs in percent.

    learnt: a[j,j], right after learning. best: max_{j≤i≤t-1} a[i,j]. end: a[t,j]. The mean of
    `forgetting` over tasks is `metrics.forgetting_paper`; that of `end - learnt` is
    `metrics.backward_transfer`.
    """

    learnt: Floats
    best: Floats
    end: Floats

    @property
    def forgetting(self) -> Floats:
        """Best before the last task minus end; negative where the last task helped."""
        difference: Floats = self.best - self.end
        return difference


def forgetting_by_task(records: Sequence[Record]) -> TaskForgetting:
    """Accuracy on each earlier task, then and at the end; empty for a stream of one task."""
    runs = np.stack([metrics.accuracy_matrix(r.matrix()) for r in records])
    earlier = runs[:, :, :-1]
    learnt = np.diagonal(runs, axis1=1, axis2=2)[:, :-1]
    best = np.nanmax(earlier[:, :-1], axis=1) if runs.shape[1] > 1 else learnt
    return TaskForgetting(learnt.mean(0), best.mean(0), earlier[:, -1].mean(0))


def pick_shares(records: Sequence[Record]) -> tuple[Floats, float] | None:
    """After the last task: which prompts answered, and how often that was the right one.

    Shares are (tasks, tasks): row j, column i is the share of task j's images that the prompt of
    task i answered. In percent, means over runs. None for a method that does not select.
    """
    last = [r.rows[-1] for r in records]
    picks = [np.asarray(row.picks, dtype=np.float64) for row in last if row.picks is not None]
    if len(picks) < len(last):
        return None
    shares = np.mean([100 * p / p.sum(1, keepdims=True) for p in picks], axis=0)
    return shares, float(np.mean([selection_accuracy(row) for row in last]))


def class_accuracy_by_task(record: Record) -> list[Floats]:
    """At the end, in percent: the accuracies of each task's classes, best first.

    Classes without test images are left out.
    """
    row = record.rows[-1]
    count = np.asarray(row.count, dtype=np.float64)
    right = np.asarray(row.correct["selected"], dtype=np.float64)
    task_of = record.stream.task_of_position[: len(count)]
    accuracies = []
    for task in range(len(record.rows)):
        of_task = (task_of == task) & (count > 0)
        accuracies.append(-np.sort(-100 * right[of_task] / count[of_task]))
    return accuracies


@dataclass(frozen=True)
class ClassAccuracy:
    """At the end, over all runs together: `right` answers on `images` test images of a class."""

    name: str
    right: int
    images: int

    @property
    def percent(self) -> float:
        """Share of the images that were answered right."""
        return 100 * self.right / self.images


def classes_by_accuracy(records: Sequence[Record]) -> list[ClassAccuracy]:
    """Every class that was seen and has test images, best first; ties in order of label."""
    right = np.zeros(len(records[0].classes), dtype=np.int64)
    images = np.zeros_like(right)
    for record in records:
        row = record.rows[-1]
        labels = np.asarray(record.stream.order[: len(row.count)])
        right[labels] += row.correct["selected"]
        images[labels] += row.count
    found = [
        ClassAccuracy(name, int(r), int(n))
        for name, r, n in zip(records[0].classes, right, images, strict=True)
        if n
    ]
    return sorted(found, key=lambda one: -one.percent)


@dataclass(frozen=True, eq=False)
class LossCurves:
    """Loss terms over the whole stream, tasks one after another, means over runs.

    epochs: (points,) place on the axis, in epochs since the start; one NaN between two tasks, so
    that no line joins them. terms: (points,) each, NaN where a task has no such term. ends: the
    last epoch of each task. together: how many epochs one point averages.
    """

    epochs: Floats
    terms: Mapping[str, Floats]
    ends: list[int]
    together: int


def loss_curves(records: Sequence[Record], most: int = 300) -> LossCurves | None:
    """Means over runs; neighbouring epochs of a task are averaged beyond `most` points.

    None where there is nothing to show: no record has an epoch with a loss term, as with methods
    that do not train.
    """
    losses = [r.losses for r in records if any(any(task) for task in r.losses)]
    n_tasks = min(map(len, losses), default=0)
    lengths = [min(len(run[task]) for run in losses) for task in range(n_tasks)]
    names = list(dict.fromkeys(n for run in losses for task in run for e in task for n in e))
    if not sum(lengths) or not names:
        return None
    together = math.ceil(sum(lengths) / most)
    epochs: list[float] = []
    terms: dict[str, list[float]] = {name: [] for name in names}
    ends: list[int] = []
    start = 0
    for task, length in enumerate(lengths):
        if epochs:
            epochs.append(math.nan)
            for values in terms.values():
                values.append(math.nan)
        for first in range(0, length, together):
            part = range(first, min(first + together, length))
            epochs.append(start + (part[0] + part[-1]) / 2 + 1)
            for name, values in terms.items():
                known = [run[task][e][name] for run in losses for e in part if name in run[task][e]]
                values.append(float(np.mean(known)) if known else math.nan)
        start += length
        ends.append(start)
    return LossCurves(
        np.asarray(epochs), {name: np.asarray(v) for name, v in terms.items()}, ends, together
    )


@dataclass(frozen=True)
class MeasuredCost:
    """What a run of the series took; quantities that no record has are left out.

    seconds: means, by part; `training` without the part spent `waiting` for images. memory:
    largest peak of all runs, in bytes. passes: through the backbone over the whole stream, per
    test image, means.
    """

    seconds: dict[str, float]
    memory: dict[str, int]
    parameters: dict[str, int]
    passes: dict[str, float]
    hardware: str


def measured_cost(records: Sequence[Record]) -> MeasuredCost:
    """Time, memory, parameters and passes."""
    apart = []
    for record in records:
        seconds = dict(record.seconds)
        if "training" in seconds:
            seconds["training"] -= seconds.get("waiting", 0.0)
        apart.append(seconds)
    passes = [
        {kind: n / r.images["test"] for kind, n in r.test_passes.items()}
        for r in records
        if r.images.get("test")
    ]
    return MeasuredCost(
        seconds=_means(apart),
        memory={
            place: max(r.memory[place] for r in records if place in r.memory)
            for place in ("process", "device")
            if any(place in r.memory for r in records)
        },
        parameters=dict(records[-1].parameters),
        passes=_means(passes),
        hardware="; ".join(sorted({hardware_of(r) for r in records})),
    )


def _means(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in values for name in one)
    return {name: float(np.mean([one[name] for one in values if name in one])) for name in names}


def cell(values: Sequence[float]) -> Cell:
    """Mean, sample std and number of values; an empty cell for no values."""
    if not values:
        return Cell(None, None, 0, None)
    mean, std = mean_std(values)
    return Cell(mean, std if len(values) > 1 else None, len(values), None)


def summary_cells(records: Sequence[Record]) -> dict[str, Cell]:
    """Every metric of `Record.summary`, over finished runs."""
    summaries = [r.summary() for r in records]
    names = dict.fromkeys(name for one in summaries for name in one)
    return {name: cell([one[name] for one in summaries if name in one]) for name in names}


def end_by_task(record: Record) -> tuple[Floats, NDArray[np.int64]]:
    """a[t,j] in percent and the number of test images, each (tasks,), after the last task."""
    matrix = record.matrix()
    return metrics.accuracy_matrix(matrix)[-1], matrix.count
