"""One way to make a seed out of several numbers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def mix(*ints: int) -> int:
    """A seed in [0, 2^63) that depends on every number, their order and how many there are.

    Sums and products collide (seed 1, epoch 2 and seed 2, epoch 1 would draw alike); the first
    eight bytes of a SHA-256 do not in practice, and are the same on every machine.

    >>> mix(1, 2) != mix(2, 1)
    True
    """
    digest = hashlib.sha256(",".join(str(int(i)) for i in ints).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(*ints: int) -> torch.Generator:
    """A CPU generator that starts from `mix(*ints)`."""
    import torch  # here, so that drawing and listing datasets need no torch

    return torch.Generator().manual_seed(mix(*ints))
