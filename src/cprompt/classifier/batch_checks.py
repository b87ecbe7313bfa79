"""What is wrong with a batch as a whole, found before anything is learnt from it.

Two spellings of one class, and the same photo under two classes, cannot both be right, and only a
person knows which is meant.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cprompt.classifier.photos import PhotoLike
from cprompt.data.near_duplicates import MOST, Look, look_alikes
from cprompt.data.pipeline.decoded import ImageArray
from cprompt.data.pipeline.inspection import Inspection, Sameness, sameness
from cprompt.data.tar_shards import TarImage
from cprompt.errors import DataError, counted, plural, some
from cprompt.training.observers import Observer


def same_spelling(name: str) -> str:
    """What two names have in common that differ only in case or in outer spaces.

    >>> same_spelling(" Cat") == same_spelling("cat")
    True
    """
    return name.strip().casefold()


def check_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Raise a DataError if two classes, of this batch or `known`, differ only in spelling."""
    learnt = set(known)  # an older model may know both spellings of a name
    spelt = {same_spelling(name): name for name in learnt}
    for name in dict.fromkeys(names):
        other = spelt.setdefault(same_spelling(name), name)
        if other == name or name in learnt:
            continue
        raise DataError(
            f"class {name!r} and class {other!r} differ only in case or in outer spaces",
            hint=f"call both {other!r}, or give one of them another name",
        )


def check_unread(unread: Mapping[int, DataError], photos: int, strict: bool) -> None:
    """Raise a DataError if none of so many photos can be read or, if `strict`, not all of them."""
    if unread and len(unread) == photos:
        raise DataError(
            f"none of {counted(photos, 'photo')} can be read; the first: {unread[min(unread)]}"
        )
    if strict and unread:
        raise DataError(
            f"{len(unread)} of {counted(photos, 'photo')} cannot be read: "
            f"{some([str(error) for error in unread.values()])}",
            hint="repair them, or learn without --strict",
        )


class RepeatedPhotos:
    """Finds photos with equal pixels, and such that look the same though they are in two classes.

    They are added one by one, or while they are decoded, by its `inspection`.
    """

    def __init__(self) -> None:
        self._keys: dict[int, int] = {}
        self._looks: dict[int, Look] = {}

    @classmethod
    def joined(cls, parts: Iterable[RepeatedPhotos]) -> RepeatedPhotos:
        """All photos of the parts, which number them as one batch does."""
        whole = cls()
        for part in parts:
            whole._keys |= part._keys
            whole._looks |= part._looks
        return whole

    def add(self, index: int, image: ImageArray) -> None:
        """Remember a photo; threads may call this at the same time."""
        self._remember(index, sameness(image))

    @property
    def inspection(self) -> Inspection:
        """Of photos that are decoded: adds each."""
        return Inspection(sameness, self._remember)

    def _remember(self, index: int, found: Sameness) -> None:
        self._keys[index], self._looks[index] = found

    def keys(self, numbers: Iterable[int]) -> NDArray[np.int64]:
        """The content keys of these photos, which were added."""
        return np.array([self._keys[number] for number in numbers], np.int64)

    def check(
        self,
        photos: Sequence[PhotoLike],
        names: Sequence[str],
        observer: Observer,
        before: Collection[int] = (),
    ) -> None:
        """Raise a DataError for a photo in two classes; tell `observer` of those twice in one.

        Also of those that were learnt before: `before` are the content keys of some that were.
        """
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for index in sorted(self._keys):
            groups[self._keys[index]].append(index)
        repeated = [group for group in groups.values() if len(group) > 1]
        for first, *others in repeated:
            other = next((i for i in others if names[i] != names[first]), None)
            if other is not None:
                raise DataError(
                    f"is the same photo as {photo_name(photos, first)}, but one is in class "
                    f"{names[other]!r} and the other in class {names[first]!r}",
                    file=photo_name(photos, other),
                    hint="keep it only in the class that it shows",
                )
        if repeated:
            pairs = [f"{photo_name(photos, g[0])} = {photo_name(photos, g[1])}" for g in repeated]
            more = sum(len(g) - 1 for g in repeated)
            observer.noticed(
                f"{counted(more, 'photo is', 'photos are')} there more than once within "
                f"{plural(more, 'its', 'their')} class, so "
                f"{plural(more, 'it counts', 'they count')} more than others: {some(pairs, 3)}"
            )
        again = [photo_name(photos, i) for i, key in sorted(self._keys.items()) if key in before]
        if again:
            observer.noticed(
                f"at least {counted(len(again), 'photo was', 'photos were')} learnt in an earlier "
                f"batch, so {plural(len(again), 'it counts', 'they count')} twice: "
                f"{some(again, 3)}; `cprompt undo` takes this batch back"
            )
        self._check_looks(photos, names, observer)

    def _check_looks(
        self, photos: Sequence[PhotoLike], names: Sequence[str], observer: Observer
    ) -> None:
        """Tell `observer` of photos in two classes that look the same."""
        if not 1 < len(self._looks) <= MOST or len(set(names)) < 2:
            return
        numbers = sorted(self._looks)
        looks = np.stack([self._looks[i] for i in numbers])
        pairs = []
        for group in look_alikes(looks):
            first, *others = (numbers[i] for i in group)
            other = next((i for i in others if names[i] != names[first]), None)
            if other is not None:
                pairs.append(f"{photo_name(photos, first)} = {photo_name(photos, other)}")
        if pairs:
            observer.noticed(
                f"{counted(len(pairs), 'photo looks', 'photos look')} the same as one in another "
                f"class: {some(pairs, 3)}"
            )


def photo_name(photos: Sequence[PhotoLike], index: int) -> str:
    """The photo's path, or its place in the list."""
    photo = photos[index] if isinstance(photos, list) else None
    named = isinstance(photo, (str, os.PathLike, TarImage))
    return str(photo) if named else f"item {index}"
