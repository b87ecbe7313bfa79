"""Batches of pictures whose every random draw can be repeated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cprompt.data.base import ImageSet
from cprompt.data.transforms import Transform
from cprompt.errors import ConfigError, CPromptError, DataError
from cprompt.seeds import generator, mix

Batch = tuple[Tensor, Tensor]


class BatchLoader:
    """Batches of one ImageSet; every draw is a function of (seed, epoch, index).

    So a run can start again at any batch, and neither the batch size nor the number of workers
    changes what a picture looks like. `index` counts within `images`: two loaders that must not
    draw alike (two tasks, say) need two seeds.
    """

    def __init__(
        self,
        images: ImageSet,
        targets: NDArray[np.int64],
        transform: Transform,
        batch_size: int,
        *,
        seed: int | None,
        workers: int = 0,
        drop_last: bool = False,
    ) -> None:
        """`targets[i]` is what the network should say of picture i, in the caller's numbering.

        Without a seed the pictures come in order and `transform` must draw nothing. With
        `workers` = 0 the pictures are prepared in this process. `drop_last` leaves out a last
        batch that is not full.
        """
        if len(images) != len(targets):
            raise DataError(f"{len(images)} pictures but {len(targets)} targets")
        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, not {batch_size}")
        if workers < 0:
            raise ConfigError(f"workers must be 0 or more, not {workers}")
        if drop_last and len(images) < batch_size:
            raise ConfigError(
                f"{len(images)} pictures do not fill one batch of {batch_size}, and drop_last "
                "leaves out what is not full; use a smaller batch_size or drop_last=False"
            )
        self._images = images
        self._targets = torch.from_numpy(np.asarray(targets, dtype=np.int64))
        self._transform = transform
        self._batch_size = batch_size
        self._seed = seed
        self._workers = workers
        self._drop_last = drop_last

    def __len__(self) -> int:
        """Batches in an epoch."""
        batches = len(self._images) / self._batch_size
        return math.floor(batches) if self._drop_last else math.ceil(batches)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from number `start` on: (B, 3, H, W) float32, (B,) int64."""
        if not 0 <= start <= len(self):
            raise ConfigError(f"an epoch has {len(self)} batches; it cannot start at {start}")
        order = self._order(epoch)
        size = self._batch_size
        return self._batches(
            epoch, [order[i * size : (i + 1) * size] for i in range(start, len(self))]
        )

    def _order(self, epoch: int) -> list[int]:
        count = len(self._images)
        if self._seed is None:
            return list(range(count))
        shuffled: list[int] = torch.randperm(count, generator=generator(self._seed, epoch)).tolist()
        return shuffled

    def _batches(self, epoch: int, indices: list[list[int]]) -> Iterator[Batch]:
        prepared = DataLoader(
            _Prepared(self._images, self._targets, self._transform, self._seed, epoch),
            batch_size=None,
            sampler=indices,
            num_workers=self._workers,
            collate_fn=_unchanged,
            generator=torch.Generator(),  # else DataLoader draws from the global one
        )
        for batch in prepared:
            if isinstance(batch, CPromptError):
                raise batch
            yield batch


class _Prepared(Dataset[Batch | CPromptError]):
    """The whole batch for a list of indices, so that a worker sends one tensor, not many."""

    def __init__(
        self,
        images: ImageSet,
        targets: Tensor,
        transform: Transform,
        seed: int | None,
        epoch: int,
    ) -> None:
        self._images = images
        self._targets = targets
        self._transform = transform
        self._seed = seed
        self._epoch = epoch

    def __getitem__(self, indices: list[int]) -> Batch | CPromptError:
        """An error is returned, not raised: DataLoader would bury its message in a traceback."""
        try:
            with torch.random.fork_rng(devices=[]):
                pictures = [self._prepare(i) for i in indices]
        except CPromptError as error:
            return error
        return torch.stack(pictures), self._targets[indices]

    def _prepare(self, index: int) -> Tensor:
        if self._seed is not None:
            # torch.manual_seed would also seed the accelerators, which fork_rng does not restore.
            torch.default_generator.manual_seed(mix(self._seed, self._epoch, index))
        return self._transform(self._images.load(index))


def _unchanged(batch: Any) -> Any:
    return batch
