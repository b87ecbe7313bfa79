"""Learning cut into shards: each is counted on its own, wherever, and the counts add up.

Only for methods that count (`Method.count_images` and `Method.absorb`). What passes between
processes is plain: a plan, some photos with labels, and counts as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from cprompt.classifier.batch_checks import RepeatedPhotos, check_unread
from cprompt.classifier.learning import DECODED_AT_ONCE, counted_images
from cprompt.classifier.parameters import Parameters
from cprompt.classifier.photos import DETAIL, PhotoLike, load_photo
from cprompt.data.pipeline import views
from cprompt.data.pipeline.decoded import DecodedImages, ImageArray
from cprompt.data.pipeline.loader import images_per_pass
from cprompt.data.pipeline.parallel import DECODING_THREADS, map_in_order
from cprompt.device import inputs_at_once, pick_device
from cprompt.errors import BackboneError, DataError
from cprompt.methods.base import Method, create_method, rebuild
from cprompt.training.observers import Observer
from cprompt.vit.backbone import Backbone
from cprompt.vit.catalogue import spelt_out
from cprompt.vit.loading import load_backbone

CHECKED = 1_000_000
"""Most photos that are compared with each other; with more, what is remembered of each would fill
the memory of the process that compares."""


@dataclass(frozen=True)
class Plan:
    """All that a process must know to count photos of a classifier."""

    parameters: Mapping[str, Any]
    """Of `Parameters`; the backbone is spelt out, so that it means the same everywhere."""
    identity: Mapping[str, Any]
    """Of the backbone."""
    extra_views: int
    """Of the method; see there."""
    compare: bool
    """Whether photos are looked at for being there twice."""

    @classmethod
    def of(cls, parameters: Parameters, backbone: Backbone, extra_views: int, photos: int) -> Plan:
        """The plan for learning that many photos with these parameters and this backbone."""
        weights = parameters.weights
        if backbone.weights.startswith("file:") and weights is not None:
            weights = str(Path(weights).absolute())
        given = {
            **parameters.get_params(),
            "backbone": backbone.name,
            "weights": weights,
            "image_size": spelt_out(parameters.backbone, parameters.image_size)[1],
        }
        return cls(given, backbone.identity, extra_views, compare=photos <= CHECKED)


@dataclass(frozen=True)
class Shard:
    """Some photos of a batch, one after another; `first` is the number of the first of them."""

    first: int
    photos: Sequence[PhotoLike]
    labels: Sequence[str]


@dataclass(frozen=True)
class Counts:
    """What was counted of some photos; `state` is the method's, its classes are `names`."""

    names: tuple[str, ...]
    state: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ShardReport:
    """What a person should hear of a shard."""

    photos: int
    unread: Mapping[int, DataError] = field(default_factory=dict)
    """Photos that could not be read and were not counted, by their number in the batch."""
    repeated: RepeatedPhotos | None = None


class ShardCounter:
    """Counts shards and adds them up; it loads the backbone once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._parameters = Parameters(**plan.parameters)
        p = self._parameters
        self._backbone = load_backbone(p.backbone, p.weights, p.image_size)
        if difference := self._backbone.difference(plan.identity):
            raise BackboneError(
                f"the backbone is not the one that learning was started with: {difference}",
                hint="give all machines the same file of weights and the same version of timm",
            )
        self._device = pick_device(p.device)
        self._backbone.to(self._device)
        own = self._backbone.mean, self._backbone.std
        side = self._backbone.image_size[0]
        self._preparation = views.build(p.transform, side, p.normalization, own)

    def count(self, shard: Shard) -> tuple[Counts, ShardReport]:
        """Count the photos that can be read; those of each class in the order given."""
        method = self._empty()
        names: dict[str, int] = {}
        unread: dict[int, DataError] = {}
        missing = 0
        repeated = RepeatedPhotos() if self.plan.compare else None
        for start, end in _parts(shard.first, len(shard.photos)):
            images: list[ImageArray] = []
            labels: list[str] = []
            found: list[int] = []
            numbers = range(start, end)
            read = map_in_order(lambda i: self._read(shard, i, repeated), numbers, DECODING_THREADS)
            for number, image in zip(numbers, read, strict=True):
                if isinstance(image, DataError):
                    missing += isinstance(image.__cause__, FileNotFoundError)
                    unread[number] = image
                else:
                    images.append(image)
                    found.append(number)
                    labels.append(shard.labels[number - shard.first])
            new = [name for name in dict.fromkeys(labels) if name not in names]
            if new:
                names |= {name: len(names) + i for i, name in enumerate(new)}
                method.begin_task(len(new), torch.Generator())
                method.to(self._device)
            decoded = DecodedImages(images.__getitem__, len(images), threads=DECODING_THREADS)
            positions = [names[label] for label in labels]
            keys = None if repeated is None else repeated.keys(found)
            for embedded, targets in counted_images(
                self._parameters, method, decoded, positions, self._preparation, keys
            ):
                method.count_images(embedded, targets)
        refuse_if_package_is_missing(unread.values())
        if missing == len(shard.photos):
            raise DataError(
                f"does not exist here, nor does any other of {missing} photos",
                file=str(shard.photos[0]),
                hint="put photos where every worker finds them under the same path, or use URLs",
            )
        return _counts(method, tuple(names)), ShardReport(len(shard.photos), unread, repeated)

    def add(self, left: Counts, right: Counts) -> Counts:
        """The counts of both; classes of the right that are not in the left come last."""
        names = tuple(dict.fromkeys([*left.names, *right.names]))
        method = method_of(left, self._empty())
        method.begin_task(len(names) - len(left.names), torch.Generator())
        method.absorb(method_of(right, self._empty()), [names.index(name) for name in right.names])
        return _counts(method, names)

    def _empty(self) -> Method:
        p = self._parameters
        return create_method(p.method, self._backbone, p.method_settings())

    def _read(
        self, shard: Shard, number: int, repeated: RepeatedPhotos | None
    ) -> ImageArray | DataError:
        photo, side = shard.photos[number - shard.first], DETAIL * self._preparation.size
        try:
            image = np.asarray(load_photo(photo, f"item {number}", side))
        except DataError as error:
            return error
        if repeated is not None:
            repeated.add(number, image)
        return image


CountShards: TypeAlias = Callable[
    [Plan, Sequence[PhotoLike], Sequence[str], Observer], tuple[Counts, list[ShardReport]]
]
"""Cuts photos and their labels into shards, has them counted, and adds them up in their order."""


def method_of(counts: Counts, empty: Method) -> Method:
    """A method that has counted just this, made of a fresh one on the CPU; its task is open."""
    state = {name: torch.tensor(array) for name, array in counts.state.items()}
    rebuild(empty, [len(counts.names)], state, open_=True)
    return empty


def concluded(
    reports: Sequence[ShardReport],
    photos: Sequence[PhotoLike],
    labels: Sequence[str],
    observer: Observer,
    strict: bool = False,
    before: Collection[int] = (),
) -> dict[int, DataError]:
    """All photos that could not be read, by their number; see `check_unread`.

    Photos that are there twice, or whose content keys are in `before`, are reported as in one
    process; see `RepeatedPhotos`.
    """
    unread = {i: error for report in reports for i, error in report.unread.items()}
    check_unread(unread, len(photos), strict)
    repeated = [report.repeated for report in reports if report.repeated is not None]
    if len(repeated) == len(reports):
        RepeatedPhotos.joined(repeated).check(photos, labels, observer, before)
    else:
        observer.noticed(f"{len(photos)} photos are too many to look for photos that repeat")
    return unread


def refuse_if_package_is_missing(found: Iterable[object]) -> None:
    """Raise the first error that is the fault of this machine, which lacks a package, say s3fs.

    Elsewhere the photo may well be read, so it must not count as one that cannot be.
    """
    for each in found:
        if isinstance(each, DataError) and isinstance(each.__cause__, ImportError):
            raise each


def cut(photos: int, shards: int, extra_views: int, device: torch.device) -> list[range]:
    """The photos of each shard: about as many in each, cut only between batches.

    So every photo passes through the backbone in the same batch as in one process on `device`, and
    its feature is the same to the last bit. There are no more shards than batches.
    """
    per_batch = images_per_pass(inputs_at_once(device), extra_views)
    starts = [
        start
        for part in range(0, photos, DECODED_AT_ONCE)
        for start in range(part, min(part + DECODED_AT_ONCE, photos), per_batch)
    ]
    return spread_over(starts, photos, shards)


def spread_over(starts: Sequence[int], photos: int, shards: int) -> list[range]:
    """About equal ranges that begin at some of `starts`, the first of which is 0.

    >>> spread_over([0, 64, 128], 150, 2)
    [range(0, 64), range(64, 150)]
    """
    shards = min(shards, len(starts))
    chosen = [starts[len(starts) * i // shards] for i in range(shards)]
    return [range(a, b) for a, b in zip(chosen, [*chosen[1:], photos], strict=True)]


def _parts(first: int, count: int) -> list[tuple[int, int]]:
    """Photos decoded at a time, by their numbers: those that one process would decode together."""
    end = first + count
    cuts = range(first - first % DECODED_AT_ONCE + DECODED_AT_ONCE, end, DECODED_AT_ONCE)
    return list(zip([first, *cuts], [*cuts, end], strict=True))


def _counts(method: Method, names: tuple[str, ...]) -> Counts:
    state = {name: t.detach().cpu().numpy() for name, t in method.state_dict().items()}
    return Counts(names, state)
