"""A few images per class, kept as features, chosen by their content alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cprompt.ranks import Ranks

_BUFFERS = ("key", "position", "feature", "mean")


class KeptImages(nn.Module):
    """For each class, the features of the images with the smallest keys.

    A key follows from an image's content (see `cprompt.data.pipeline.decoded.content_key`). So
    which images are kept depends on all images seen, but not on their order; and two sets merge
    into what one would have kept. Kept are `key` (k,), `position` (k,) of the class, `feature`
    (k, P) under the test view and `mean` (k, P) over all views counted, both in float16.
    """

    key: Tensor
    position: Tensor
    feature: Tensor
    mean: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("key", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("position", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("feature", torch.zeros(0, dim, dtype=torch.float16))
        self.register_buffer("mean", torch.zeros(0, dim, dtype=torch.float16))

    def __len__(self) -> int:
        return len(self.key)

    def add(self, key: Tensor, position: Tensor, feature: Tensor, mean: Tensor, most: int) -> None:
        """Consider more images; at most `most` per class are kept."""
        key = torch.cat([self.key, key.to(self.key)])
        position = torch.cat([self.position, position.to(self.position)])
        feature = torch.cat([self.feature, feature.to(self.feature)])
        mean = torch.cat([self.mean, mean.to(self.mean)])
        order = key.argsort(stable=True)
        order = order[position[order].argsort(stable=True)]  # by class, then by key
        first = torch.searchsorted(position[order], position[order])
        chosen = order[torch.arange(len(order), device=order.device) - first < most]
        self.key, self.position = key[chosen], position[chosen]
        self.feature, self.mean = feature[chosen], mean[chosen]

    @contextmanager
    def counting(self, ranks: Ranks, most: int) -> Iterator[None]:
        """Consider this rank's images; afterwards those of all ranks have been considered.

        Those kept before are joined at the end, not copied with every batch.
        """
        before = [getattr(self, name) for name in _BUFFERS]
        for name, rows in zip(_BUFFERS, before, strict=True):
            setattr(self, name, rows[:0])
        yield
        key, position, feature, mean = (ranks.gather(getattr(self, name)) for name in _BUFFERS)
        for name, rows in zip(_BUFFERS, before, strict=True):
            setattr(self, name, rows)
        self.add(key, position, feature, mean, most)

    def drop(self, at: int) -> None:
        """Forget class `at`; later classes move up by one."""
        rest = self.position != at
        position = self.position - (self.position > at).long()
        for name in ("key", "feature", "mean"):
            setattr(self, name, getattr(self, name)[rest])
        self.position = position[rest]

    def smallest(self, most: int) -> Tensor:
        """Indices of at most `most` images, those with the smallest keys."""
        return self.key.argsort(stable=True)[:most]

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        for name in _BUFFERS:  # as many rows as were saved
            if prefix + name in state:
                mine, saved = getattr(self, name), state[prefix + name]
                setattr(self, name, mine.new_zeros(len(saved), *mine.shape[1:]))
        super()._load_from_state_dict(state, prefix, *rest)
        if len({len(getattr(self, name)) for name in _BUFFERS}) > 1:
            rest[-1].append(f"{prefix}: not as many keys as positions and features")
