"""Changes of what was learnt, other than learning: forgetting, renaming, merging."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from cprompt.classifier.learning import copy_of, counted_photos, with_threshold
from cprompt.classifier.parameters import Parameters
from cprompt.classifier.photos import PhotoLike
from cprompt.classifier.state import LearntBatch, ModelState
from cprompt.data.pipeline.views import Preparation
from cprompt.errors import ModelError, counted
from cprompt.methods.base import Method
from cprompt.training.observers import Observer


def forgotten(
    parameters: Parameters,
    state: ModelState,
    name: str,
    photos: Sequence[PhotoLike] | None,
    preparation: Preparation,
) -> ModelState:
    """The state without the class `name`, and without its id; `photos` are all of the class."""
    at = state.names.index(name)
    method = copy_of(state.method)
    if photos is None:
        method.forget(at)
    else:
        learnt = sum(batch.photos.get(name, 0) for batch in state.history)
        if len(photos) != learnt:  # told before they are read
            raise ModelError(
                f"{name!r} was learnt from {counted(learnt, 'photo')}, not from {len(photos):,}",
                hint="give exactly those, or forget the class without photos",
            )
        _forget_photos(parameters, method, at, photos, preparation)
    names = (*state.names[:at], *state.names[at + 1 :])
    history = [
        dataclasses.replace(
            batch,
            photos={label: n for label, n in batch.photos.items() if label != name},
            new=[label for label in batch.new if label != name],
            returning=[label for label in batch.returning if label != name],
        )
        for batch in state.history
    ]
    state = dataclasses.replace(
        state,
        method=method,
        names=names,
        name_of=tuple(range(len(names))),
        history=tuple(history),
    )
    return with_threshold(state, parameters.accept)[0]


def _forget_photos(
    parameters: Parameters,
    method: Method,
    at: int,
    photos: Sequence[PhotoLike],
    preparation: Preparation,
) -> None:
    """Drop class `at` and what its photos left.

    They may have been counted in another precision than the one that is set now, say by a service.
    """
    positions = [at] * len(photos)
    refused: ModelError | None = None
    for precision in dict.fromkeys([parameters.precision, "fp32", "bf16"]):
        how = copy.copy(parameters)
        how.precision = precision
        try:
            method.forget(
                at, counted_photos(how, method, photos, positions, preparation, Observer())
            )
            return
        except ModelError as error:  # the method is as it was
            refused = refused or error
    assert refused is not None
    raise refused


def renamed(state: ModelState, name: str, new: str) -> ModelState:
    """The state with the class `name` called `new`, without its id."""

    def changed(labels: Iterable[str]) -> list[str]:
        return [new if label == name else label for label in labels]

    history = [
        dataclasses.replace(
            batch,
            photos=dict(zip(changed(batch.photos), batch.photos.values(), strict=True)),
            new=changed(batch.new),
            returning=changed(batch.returning),
        )
        for batch in state.history
    ]
    return dataclasses.replace(state, names=tuple(changed(state.names)), history=tuple(history))


def differ(part: str, mine: Any, theirs: Any) -> bool:
    """Whether two models that differ so in a part of their descriptions cannot be merged.

    Where the weights of a backbone lie does not matter: the fingerprint says which they are.
    """
    if part == "backbone":
        return any(mine[name] != theirs[name] for name in mine if name not in ("weights", "file"))
    return bool(mine != theirs)


def difference(part: str, mine: Any, theirs: Any) -> str:
    """In what two models differ, as briefly as it can be said; `part` is of their descriptions.

    >>> difference("training", {"epochs": 1, "lr": 0.1}, {"epochs": 2, "lr": 0.1})
    'epochs 1 and 2'
    """
    if part == "backbone":
        if mine["name"] != theirs["name"]:
            return f"{mine['name']} and {theirs['name']}"
        if mine["image_size"] != theirs["image_size"]:  # it is part of the fingerprint
            return f"image_size {mine['image_size']} and {theirs['image_size']}"
        both = [
            (f"{each['name']} ({each['weights']})", each["fingerprint"][:12])
            for each in (mine, theirs)
        ]
        return next((f"{a} and {b}" for a, b in zip(*both, strict=True) if a != b), "its layers")
    if part == "method" and mine["name"] == theirs["name"]:
        return difference("settings", mine["settings"], theirs["settings"])
    if part == "method":
        return f"{mine['name']} and {theirs['name']}"
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
        return ", ".join(f"{name} {mine.get(name)} and {theirs.get(name)}" for name in names)
    return f"{mine} and {theirs}"


def merged(parameters: Parameters, state: ModelState, other: ModelState) -> ModelState:
    """The state with all that `other` learnt as one more batch, without its id."""
    method = copy_of(state.method)
    names = tuple(dict.fromkeys([*state.names, *other.names]))
    new = names[len(state.names) :]
    method.merge(other.method, [names.index(name) for name in other.names], len(new))
    method.close_task()
    counts: Counter[str] = Counter()
    for batch in other.history:
        counts.update(batch.photos)
    found = dataclasses.replace(state, method=method, names=names, name_of=tuple(range(len(names))))
    found, calibrated = with_threshold(found, parameters.accept)
    entry = LearntBatch(
        number=state.method.n_tasks + 1,
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        photos=dict(counts),
        new=list(new),
        returning=[name for name in other.names if name in state.names],
        held_out=0,
        calibrated=calibrated,
        temperature=found.temperature,
        threshold=found.threshold,
        seconds=0.0,
        steps=0,
        before=state.model_id,
    )
    return dataclasses.replace(found, history=(*state.history, entry))
