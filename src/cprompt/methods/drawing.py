"""Prompt consistency where every task has a prompt: features under prompts drawn at random."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def under_drawn_prompts(
    feature: Callable[[Tensor, Tensor], Tensor],
    embedded: Tensor,
    h: Tensor,
    old_prompts: Tensor,
    rng: torch.Generator,
) -> Tensor:
    """f(x, P_i)[0] with i ~ Uni(1, t) drawn for each picture (eqs. 6 and 7): (B, D).

    `h` (B, D) are the features under the prompt of the current task t: pictures that draw it
    reuse them, gradient and all. The others pass once more, without gradient, through
    `feature(embedded, prompts)` with their rows of `old_prompts` (t - 1, …).
    """
    drawn = torch.randint(len(old_prompts) + 1, (len(h),), generator=rng)
    old = (drawn < len(old_prompts)).nonzero()[:, 0]
    if not len(old):
        return h
    pictures, tasks = old.to(h.device), drawn[old].to(h.device)
    with torch.no_grad():
        features = feature(embedded[pictures], old_prompts[tasks])
    return h.index_copy(0, pictures, features)
