"""Records that figures are drawn from."""

from __future__ import annotations

import copy

from cprompt.research.record import Record
from cprompt.research.stream import TaskStream

SEEN = [80, 1100 / 15, 50]
"""Accuracy of `hand_record` over all classes seen, after each task."""


def better(record: Record) -> Record:
    """The same run with every image of the first task right throughout."""
    other = copy.deepcopy(record)
    for row in other.rows:
        row.correct["selected"][:2] = [4, 6]
    return other


def longer(record: Record, tasks: int, classes: int = 1) -> Record:
    """A run over so many tasks with two images per class, one of them right."""
    other = copy.deepcopy(record)
    n = tasks * classes
    other.stream = TaskStream(tuple(range(n)), (classes,) * tasks)
    other.classes = tuple(f"c{i}" for i in range(n))
    other.rows = [
        type(record.rows[0])([2] * k, {"selected": [1] * k}, None, [[1] * t for _ in range(t)])
        for t in range(1, tasks + 1)
        for k in [t * classes]
    ]
    return other


def joint(record: Record) -> Record:
    """The same classes in one task: 9 of 18 right."""
    other = copy.deepcopy(record)
    other.stream = TaskStream(other.stream.order, (5,))
    other.rows = other.rows[-1:]
    return other
