"""Two classes of one model become one, as if their photos had been learnt under one name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from cprompt.classifier.learning import with_threshold
from cprompt.classifier.state import LearntBatch, ModelState
from cprompt.methods.base import Method


def joined_classes(
    state: ModelState, empty: Method, name: str, into: str, accept: float
) -> ModelState:
    """The state with `name` and `into` as one class called `into`, without its id.

    The class stands where the first of the two stood. `empty` is a fresh method, which takes over
    all that the old one counted, under the new positions.
    """
    stays, goes = sorted((state.names.index(name), state.names.index(into)))
    names = [into if at == stays else each for at, each in enumerate(state.names) if at != goes]
    positions = [stays if at == goes else at - (at > goes) for at in range(len(state.names))]
    sizes = list(state.method.task_sizes)
    sizes[_task_of(goes, sizes)] -= 1
    for size in sizes[:-1]:
        empty.begin_task(size, torch.Generator())
    empty.merge(state.method, positions, sizes[-1])
    empty.close_task()
    found = dataclasses.replace(
        state,
        method=empty,
        names=tuple(names),
        name_of=tuple(range(len(names))),
        history=tuple(_history(state.history, name, into)),
    )
    return with_threshold(found, accept)[0]


def _task_of(position: int, sizes: Sequence[int]) -> int:
    end = 0
    for task, size in enumerate(sizes):
        end += size
        if position < end:
            return task
    raise IndexError(position)


def _history(history: Sequence[LearntBatch], name: str, into: str) -> list[LearntBatch]:
    """The batches as if `name` had always been `into`, which is new only in the first of them."""
    found, seen = [], False
    for batch in history:
        photos: dict[str, int] = {}
        for label, count in batch.photos.items():
            label = into if label == name else label
            photos[label] = photos.get(label, 0) + count
        new = [label for label in batch.new if label not in (name, into)]
        returning = [label for label in batch.returning if label not in (name, into)]
        if into in photos:
            (returning if seen else new).append(into)
            seen = True
        found.append(dataclasses.replace(batch, photos=photos, new=new, returning=returning))
    return found
