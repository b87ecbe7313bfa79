"""Prompt consistency where every task has a prompt: features under prompts drawn at random."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def under_drawn_prompts(
    h: Tensor,
    n_tasks: int,
    under_old: Callable[[Tensor, Tensor], Tensor],
    rng: torch.Generator,
) -> Tensor:
    """f(x, P_i)[0] with i ~ Uni(1, t) drawn for each picture (eqs. 6 and 7): (B, D).

    `h` (B, D) are the features under the prompt of the current task t = `n_tasks`: pictures that
    draw it reuse them, gradient and all. The others pass once more, without gradient, through
    `under_old(pictures, tasks)`, both (n,): which pictures of the batch, and under whose prompts,
    counted from 0.
    """
    drawn = torch.randint(n_tasks, (len(h),), generator=rng)
    old = (drawn < n_tasks - 1).nonzero()[:, 0]
    if not len(old):
        return h
    pictures, tasks = old.to(h.device), drawn[old].to(h.device)
    with torch.no_grad():
        features = under_old(pictures, tasks)
    return h.index_copy(0, pictures, features)
