"""Batches of images whose every random draw can be repeated."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cprompt.data.pipeline.decoded import DecodedImages, content_keys
from cprompt.data.pipeline.parallel import map_in_order
from cprompt.data.pipeline.views import DRAWS, Preparation, ViewChain, apply_views, send
from cprompt.errors import ConfigError, DataError
from cprompt.ranks import ALONE, Ranks
from cprompt.seeds import generator, mix

if TYPE_CHECKING:
    from cprompt.data.pipeline.resample import DeviceImages

Batch: TypeAlias = tuple[Tensor, Tensor]
Numbers: TypeAlias = NDArray[np.int64]
Uniforms: TypeAlias = NDArray[np.float64]
T = TypeVar("T")
Stream: TypeAlias = Generator[T, None, None]


class BatchLoader:
    """Batches of one set's images; every draw is a function of (seed, epoch, index).

    So a run can start again at any batch, and neither the batch size nor the number of workers
    changes what an image looks like. `index` counts within `images`: two loaders that must draw
    differently (two tasks, say) need two seeds.

    A set that fits on a CUDA device is sent there once, and its views are made there. Otherwise
    PIL makes them, ahead of time if there are workers, and they are sent batch by batch.
    """

    def __init__(
        self,
        images: DecodedImages,
        targets: Numbers,
        preparation: Preparation,
        batch_size: int,
        *,
        seed: int | None,
        device: torch.device = torch.device("cpu"),
        workers: int = 0,
        device_gib: float | None = None,
        ranks: Ranks = ALONE,
        keys: Numbers | None = None,
    ) -> None:
        """`targets[i]` is the target of image i, in the caller's numbering.

        Without a seed an epoch shows the test views in order. `workers` are threads; with 0,
        images are prepared when they are asked for. `device_gib` is the room for the set on a
        CUDA device, by default half of what is free there when the first batch is made. An epoch
        has the batches that one process would see; of each, several `ranks` get a share. `keys`
        are the images' content keys, if they are known.
        """
        if len(images) != len(targets):
            raise DataError(f"{len(images)} images but {len(targets)} targets")
        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, not {batch_size}")
        if workers < 0:
            raise ConfigError(f"workers must be 0 or more, not {workers}")
        self._images = images
        self._targets = np.asarray(targets, dtype=np.int64)
        self._preparation = preparation
        self._normalize = preparation.normalizer(device)
        self._batch_size = batch_size
        self._seed = seed
        self.device = device
        self._workers = workers
        self._device_gib = device_gib
        self._ranks = ranks
        self._known_keys = keys
        self.waited = 0.0
        """Seconds that readers of the batches have spent waiting for them."""

    def __len__(self) -> int:
        """Batches in an epoch."""
        return math.ceil(len(self._images) / self._batch_size)

    @property
    def targets(self) -> Numbers:
        """The target of each image."""
        return self._targets

    @property
    def batch_size(self) -> int:
        """Images in a batch."""
        return self._batch_size

    def images_in(self, number: int) -> int:
        """Images of all ranks together in batch `number` of an epoch."""
        return min(self._batch_size, len(self._images) - number * self._batch_size)

    def unaugmented(self) -> UnaugmentedBatches:
        """Batches of the test views in order, with targets; can be iterated any number of times."""
        return UnaugmentedBatches(self)

    def epoch(self, epoch: int, start: int = 0) -> Stream[Batch]:
        """The batches of one epoch from number `start` on, this rank's share, on the device.

        Each is float32 (B, 3, S, S) and int64 (B,).
        """
        if not 0 <= start <= len(self):
            raise ConfigError(f"an epoch has {len(self)} batches; it cannot start at {start}")
        return self._timed(self._epoch(epoch, start * self._batch_size))

    def counted(self, extra_views: int, ranks: Ranks = ALONE) -> CountedBatches:
        """Batches of images under the test view and `extra_views` random ones; see there."""
        return CountedBatches(self, extra_views, ranks)

    def batches(self, groups: Iterable[Sequence[int] | Numbers]) -> Stream[Tensor]:
        """The test views of the images of each group, on the device: float32 (B, 3, S, S)."""
        return self._timed(self._views([np.asarray(group, np.int64) for group in groups], None))

    def batch(self, indices: Sequence[int] | Numbers) -> Tensor:
        """The test views of the images at `indices`, on the device: float32 (B, 3, S, S)."""
        return next(self.batches([indices]))

    def _epoch(self, epoch: int, first: int) -> Stream[Batch]:
        order, uniforms = self._draw(epoch)
        targets = send(torch.from_numpy(self._targets[order]), self.device)
        shares = []
        for number in range(first, len(order), self._batch_size):
            size = min(self._batch_size, len(order) - number)
            part = self._ranks.share(size).part
            shares.append(slice(number + part.start, number + part.stop))
        groups = [order[share] for share in shares]
        for share, images in zip(shares, self._views(groups, uniforms), strict=True):
            yield images, targets[share]

    def _draw(self, epoch: int) -> tuple[Numbers, Uniforms | None]:
        """The order of the images, and the numbers that image i's view is drawn from, as row i."""
        count = len(self._images)
        if self._seed is None:
            return np.arange(count), None
        rng = generator(self._seed, epoch)
        uniforms = torch.rand(count, DRAWS, generator=rng, dtype=torch.float64)
        return torch.randperm(count, generator=rng).numpy(), uniforms.numpy()

    def _views(self, groups: Sequence[Numbers], uniforms: Uniforms | None) -> Stream[Tensor]:
        """Views of each group's images as network input; test views without `uniforms`."""
        on_device = self._on_device
        if on_device is not None and groups:
            numbers = np.concatenate(groups)
            plan = on_device.plan(self._chain(numbers, on_device.sizes[numbers], uniforms), numbers)
            ends = np.cumsum([len(group) for group in groups]).tolist()
            for start, stop in zip([0, *ends], ends, strict=False):
                yield on_device.inputs(plan, start, stop)
            return

        batches = map_in_order(partial(self._levels, uniforms), groups, self._workers)
        with closing(batches):
            for levels in batches:
                yield self._normalize(levels.to(self.device, non_blocking=True))

    @cached_property
    def _keys(self) -> Numbers:
        return content_keys(self._images) if self._known_keys is None else self._known_keys

    def _drawn_by_content(self, view: int) -> Uniforms:
        """As in `_draw`, but from each image's content and the number of the view alone."""
        rows = [np.random.Philox(key=mix(int(key), view)).random_raw(DRAWS) for key in self._keys]
        bits = np.array(rows, np.uint64).reshape(-1, DRAWS)
        uniforms: Uniforms = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return uniforms

    def _levels(self, uniforms: Uniforms | None, group: Numbers) -> Tensor:
        """Views of a group's images, made by PIL: uint8 (B, S, S, 3)."""
        size = self._preparation.size
        levels = torch.empty((len(group), size, size, 3), dtype=torch.uint8)
        for view, number in zip(levels.numpy(), group, strict=True):
            image = self._images[number]  # its size may not be known before
            shape = np.array([image.shape[:2]], dtype=np.int64)
            view[:] = apply_views(image, self._chain(number[None], shape, uniforms), 0)
        return levels.pin_memory() if self.device.type == "cuda" else levels

    def _chain(self, numbers: Numbers, sizes: Numbers, uniforms: Uniforms | None) -> ViewChain:
        if uniforms is None:
            return self._preparation.test_views(sizes)
        return self._preparation.train_views(uniforms[numbers], sizes)

    @cached_property
    def _on_device(self) -> DeviceImages | None:
        """The whole set on a CUDA device, if that is where batches go and it fits."""
        if self.device.type != "cuda" or not self._fits() or not _triton_works(self.device):
            return None
        from cprompt.data.pipeline.resample import DeviceImages

        return DeviceImages(self._images, self._normalize, self.device)

    def _fits(self) -> bool:
        if self._images.sizes is None:
            return False
        if self._device_gib is None:
            room = torch.cuda.mem_get_info(self.device)[0] / 2
        else:
            room = self._device_gib * 2**30
        return 0 < 3 * int(self._images.sizes.prod(axis=1).sum()) <= room

    def _timed(self, items: Stream[T]) -> Stream[T]:
        """The same items; the time spent asking for each is added to `waited`."""
        with closing(items):
            while True:
                asked = time.perf_counter()
                try:
                    item = next(items)
                except StopIteration:
                    return
                finally:
                    self.waited += time.perf_counter() - asked
                yield item


@dataclass(frozen=True)
class UnaugmentedBatches:
    """A loader's images under the test view, batch by batch; each iteration starts again."""

    loader: BatchLoader

    def __iter__(self) -> Stream[Batch]:
        loader = self.loader
        targets = send(torch.from_numpy(loader.targets), loader.device)
        numbers = np.arange(len(targets))
        parts = [numbers[i : i + loader.batch_size] for i in numbers[:: loader.batch_size]]
        for part, images in zip(parts, loader.batches(parts), strict=True):
            yield images, targets[part[0] : part[-1] + 1]


@dataclass(frozen=True)
class CountedBatches:
    """All images, each under several views at once; each iteration starts again.

    A batch is (images, targets, keys): float32 (V · B, 3, S, S), the test view of B images, then
    one random view of each, and so on; int64 (B,), on the device; and the images' content keys,
    int64 (B,), on the CPU. Random views are drawn from the content. So neither the order of the
    images, nor how they are cut into batches or sets, changes what is seen of them. Each of several
    `ranks` gets its part of the images.
    """

    loader: BatchLoader
    extra_views: int
    ranks: Ranks = ALONE

    def __iter__(self) -> Stream[tuple[Tensor, Tensor, Tensor]]:
        loader = self.loader
        targets = send(torch.from_numpy(loader.targets), loader.device)
        keys = torch.from_numpy(loader._keys)
        size = images_per_pass(loader.batch_size, self.extra_views)
        numbers = np.arange(len(targets))[self.ranks.part(len(targets))]
        groups = [numbers[i : i + size] for i in range(0, len(numbers), size)]
        drawn = [loader._drawn_by_content(view) for view in range(self.extra_views)]
        passes = [loader.batches(groups), *(loader._timed(loader._views(groups, d)) for d in drawn)]
        for group, *views in zip(groups, *passes, strict=True):
            part = slice(int(group[0]), int(group[-1]) + 1)
            yield torch.cat(views), targets[part], keys[part]


def images_per_pass(inputs: int, extra_views: int) -> int:
    """How many images, under several views each, are about so many inputs of a network.

    Rounded up: a power of two, and such are the parts that photos are decoded in, is then cut
    without a last pass of an image or two.

    >>> images_per_pass(256, extra_views=2), images_per_pass(64, extra_views=0)
    (86, 64)
    """
    return -(-inputs // (1 + extra_views))


@cache
def _triton_works(device: torch.device) -> bool:
    """Whether a kernel can be made for the device; a warning says why not."""
    try:
        from cprompt.data.pipeline.resample import try_kernel

        try_kernel(device)
    except Exception as error:  # no Triton, no C compiler, a card it does not know, ...
        warnings.warn(
            f"images are prepared on the CPU: Triton does not work here ({error}); install a C "
            "compiler, or set device_gib 0 to prepare them there without this warning",
            stacklevel=2,
        )
        return False
    return True
