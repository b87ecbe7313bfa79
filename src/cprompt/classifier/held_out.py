"""Which photos of a batch are held out for calibration, and which of those are stored."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cprompt.seeds import generator


def choose_held_out(targets: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    """Which photos (n,) to hold out: `share` of each class with four or more photos, at least one.

    Smaller classes train on all their photos. The choice is random, by `seed`.
    """
    chosen = np.zeros(len(targets), dtype=bool)
    if share == 0:
        return chosen
    order = torch.randperm(len(targets), generator=generator(seed)).numpy()
    for target in np.unique(targets):
        members = order[targets[order] == target]
        if len(members) >= 4:
            chosen[members[: min(max(1, round(share * len(members))), len(members) - 1)]] = True
    return chosen


def first_of_each(positions: Tensor, count: int) -> list[int]:
    """Indices of the first `count` entries of each position."""
    seen: Counter[int] = Counter()
    first = []
    for i, position in enumerate(positions.tolist()):
        seen[position] += 1
        if seen[position] <= count:
            first.append(i)
    return first


def spread(positions: Tensor, most: int) -> Tensor:
    """Indices of at most `most` entries, spread evenly over the positions."""
    if len(positions) <= most:
        return torch.arange(len(positions))
    order = positions.argsort(stable=True)
    return order[torch.linspace(0, len(order) - 1, most).long()]
