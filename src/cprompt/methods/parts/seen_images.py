"""Images that a method looked at, as features, until it is asked what it thinks of their labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cprompt.methods.parts.kept_images import KeptImages


@dataclass(frozen=True)
class SeenImages:
    """n images and the classes they are said to be of."""

    key: Tensor
    """(n,): content keys."""
    position: Tensor
    """(n,)"""
    feature: Tensor
    """(n, P) under the test view, in float16."""
    mean: Tensor
    """(n, P) over all views, in float16."""

    @classmethod
    def of(cls, key: Tensor, position: Tensor, by_view: Tensor) -> SeenImages:
        """From features (views, n, P); keys are made on the CPU and join them on their device."""
        return cls(key.to(position.device), position, by_view[0].half(), by_view.mean(0).half())

    @classmethod
    def joined(cls, parts: list[SeenImages]) -> SeenImages:
        """All images of the parts, in order."""
        names = ("key", "position", "feature", "mean")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def __len__(self) -> int:
        return len(self.key)


def were_learnt(seen: SeenImages, kept: KeptImages, images: Tensor) -> Tensor:
    """Which of the images (n,) belong to those that were learnt, as far as can be told.

    `images` (C,) is how many of each class were learnt. `kept` are those of them with the smallest
    keys. So if all of a class are kept, the answer is certain. If not, an image with a smaller key
    than the largest kept one is certain too; one with a larger key is taken as learnt if all kept
    images of its class are among those seen, under whatever label.
    """
    found = torch.isin(seen.key, kept.key)
    for c in set(seen.position.tolist()):
        own = kept.key[kept.position == c]
        mine = seen.position == c
        if not len(own) or len(own) >= int(images[c]):
            continue
        if torch.isin(own, seen.key).all():  # one may be seen under another label now
            found |= mine & (seen.key > own.max())
    return found
