"""Which classes arrive when: class order, task sizes and the table from class to task.

There are three numberings. A *label* is the dataset's own class number. A *position* is the place
of that class in order of arrival; heads, keys and predictions are indexed by position. A *task* is
a run of consecutive positions. Tasks are counted from 0, where the papers count from 1. Task sizes
may differ, so a task is always looked up in `TaskStream.task_of_position`, never divided out.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cprompt.errors import ConfigError, DataError, some


def class_order(n_classes: int, order: int | str | Sequence[int]) -> tuple[int, ...]:
    """Labels in order of arrival.

    An integer is a seed of numpy's legacy generator, as the released code draws its orders (1993,
    87 and 1013 in the paper); numpy's global state does not change. "natural" is 0, 1, 2, …. A
    sequence is used as it is; it must be a permutation of 0 … n_classes - 1.
    """
    _at_least_one("the number of classes", n_classes)
    if isinstance(order, str):
        if order != "natural":
            raise ConfigError(
                f"class order {order!r} is unknown",
                hint=f"use an integer seed, 'natural' or a list of all {n_classes} labels",
            )
        return tuple(range(n_classes))
    if isinstance(order, int):
        if not 0 <= order < 2**32:
            raise ConfigError(f"class-order seed {order} is not between 0 and {2**32 - 1}")
        return tuple(np.random.RandomState(order).permutation(n_classes).tolist())
    return _permutation(_integers("class order", order), n_classes)


def task_sizes(
    n_classes: int,
    *,
    increment: int | None = None,
    first: int | None = None,
    tasks: int | None = None,
    sizes: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """The number of classes in each task; the sizes sum to `n_classes`.

    Give exactly one of:

    - `increment`: the number of classes per task; the last task gets the remainder. `first` sets
      another size for the first task.
    - `tasks`: the number of tasks, each with ⌈n_classes / tasks⌉ classes; the last one gets the
      remainder (196 classes in 10 tasks are nine times 20 and 16, the released split of Stanford
      Cars). If that would give fewer tasks (10 classes in 6 tasks), sizes differ by at most one
      instead, larger ones first.
    - `sizes`: the size of every task.
    """
    _at_least_one("the number of classes", n_classes)
    if sum(given is not None for given in (increment, tasks, sizes)) != 1:
        raise ConfigError(
            "task sizes need exactly one of increment, tasks and sizes; "
            f"got increment={increment}, tasks={tasks}, sizes={sizes}"
        )
    if first is not None and increment is None:
        raise ConfigError(f"first={first} goes with increment, not with tasks or sizes")
    if increment is not None:
        return _greedy(n_classes, increment if first is None else first, increment)
    if tasks is not None:
        return _equal(n_classes, tasks)
    return _partition(_integers("task sizes", sizes), n_classes)


@dataclass(frozen=True)
class TaskStream:
    """Classes in order of arrival, split into tasks.

    `order[p]` is the label that arrives at position p; `sizes[t]` is how many classes task t has.
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        order = _integers("class order", self.order)
        _at_least_one("the number of classes", len(order))
        sizes = _integers("task sizes", self.sizes)
        object.__setattr__(self, "order", _permutation(order, len(order)))
        object.__setattr__(self, "sizes", _partition(sizes, len(order)))

    @property
    def n_classes(self) -> int:
        """Classes in the whole stream."""
        return len(self.order)

    @property
    def n_tasks(self) -> int:
        """Tasks in the whole stream."""
        return len(self.sizes)

    @cached_property
    def position(self) -> NDArray[np.int64]:
        """(n_classes,), read-only: dataset label -> position."""
        table = np.empty(self.n_classes, dtype=np.int64)
        table[np.array(self.order)] = np.arange(self.n_classes)
        table.flags.writeable = False
        return table

    @cached_property
    def task_of_position(self) -> NDArray[np.int64]:
        """(n_classes,), read-only: position -> task. The only place where this is computed."""
        table = np.repeat(np.arange(self.n_tasks, dtype=np.int64), self.sizes)
        table.flags.writeable = False
        return table

    def known(self, task: int) -> int:
        """The number of classes before `task`; also the position of its first class."""
        self._check_task(task)
        return sum(self.sizes[:task])

    def positions(self, task: int) -> range:
        """Positions of the task's classes; `.stop` is the number of classes seen after it."""
        start = self.known(task)
        return range(start, start + self.sizes[task])

    def labels(self, task: int) -> tuple[int, ...]:
        """Dataset labels of the task's classes, in order of arrival."""
        positions = self.positions(task)
        return self.order[positions.start : positions.stop]

    def targets(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions of dataset labels, in the same shape."""
        if labels.size and not 0 <= labels.min() <= labels.max() < self.n_classes:
            raise DataError(
                f"labels run from {labels.min()} to {labels.max()}, "
                f"but the stream has classes 0 to {self.n_classes - 1}"
            )
        return self.position[labels]

    def indices(self, labels: NDArray[np.int64], task: int) -> NDArray[np.int64]:
        """Ascending indices into `labels` of the images whose class belongs to `task`."""
        self._check_task(task)
        return np.flatnonzero(self.task_of_position[self.targets(labels)] == task)

    def seen_indices(self, labels: NDArray[np.int64], task: int) -> NDArray[np.int64]:
        """Ascending indices into `labels` of the images of `task` and every task before it."""
        self._check_task(task)
        return np.flatnonzero(self.task_of_position[self.targets(labels)] <= task)

    def to_dict(self) -> dict[str, list[int]]:
        """Plain lists, fit for JSON."""
        return {"order": list(self.order), "sizes": list(self.sizes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TaskStream:
        """The inverse of `to_dict`; everything is checked again."""
        if set(data) != {"order", "sizes"}:
            raise ConfigError(
                f"a task stream has the keys 'order' and 'sizes'; got {sorted(map(str, data))}"
            )
        return cls(order=data["order"], sizes=data["sizes"])

    def _check_task(self, task: int) -> None:
        if not 0 <= task < self.n_tasks:
            raise ConfigError(
                f"task {task} does not exist; the stream has tasks 0 to {self.n_tasks - 1}"
            )


def _greedy(n_classes: int, first: int, increment: int) -> tuple[int, ...]:
    _at_least_one("the size of the first task", first)
    _at_least_one("increment", increment)
    if first > n_classes:
        raise ConfigError(
            f"the first task would have {first} classes, but there are only {n_classes}"
        )
    sizes = [first]
    while sum(sizes) + increment < n_classes:
        sizes.append(increment)
    remainder = n_classes - sum(sizes)
    return (*sizes, remainder) if remainder else tuple(sizes)


def _equal(n_classes: int, tasks: int) -> tuple[int, ...]:
    _at_least_one("the number of tasks", tasks)
    if tasks > n_classes:
        raise ConfigError(
            f"{tasks} tasks need at least {tasks} classes, but there are only {n_classes}"
        )
    step = -(-n_classes // tasks)
    sizes = _greedy(n_classes, step, step)
    if len(sizes) == tasks:
        return sizes
    small, larger = divmod(n_classes, tasks)
    return (small + 1,) * larger + (small,) * (tasks - larger)


def _integers(name: str, values: Any) -> tuple[int, ...]:
    """`values` as Python integers; a ConfigError if they are anything else."""
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError:
        raise ConfigError(f"{name} must be a list of whole numbers; got {values!r}") from None


def _permutation(order: tuple[int, ...], n_classes: int) -> tuple[int, ...]:
    counts = Counter(order)
    faults = {
        "missing": [label for label in range(n_classes) if label not in counts],
        "duplicated": sorted(label for label, count in counts.items() if count > 1),
        "out of range": sorted(label for label in counts if not 0 <= label < n_classes),
    }
    named = "; ".join(f"{fault}: {some(found)}" for fault, found in faults.items() if found)
    if named:
        raise ConfigError(
            f"class order must name each label from 0 to {n_classes - 1} once; {named}"
        )
    return order


def _partition(sizes: tuple[int, ...], n_classes: int) -> tuple[int, ...]:
    for task, size in enumerate(sizes):
        _at_least_one(f"the size of task {task}", size)
    if sum(sizes) != n_classes:
        raise ConfigError(
            f"task sizes {list(sizes)} sum to {sum(sizes)}, but there are {n_classes} classes"
        )
    return sizes


def _at_least_one(name: str, value: int) -> None:
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1; got {value!r}")
