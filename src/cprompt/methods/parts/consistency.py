"""The paper's consistency losses as pure functions.

Symbols follow the paper: ℓ_i are the logits of task i's classifier, τ the temperature, m the
margin, α the strength. The logits of all old classifiers are one (B, C_old) tensor, passed with the
task sizes, so that no loop over tasks or images is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Smoothing = Literal["adaptive", "edl", "roh"]


@lru_cache(maxsize=64)
def _columns_by_task(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """(tasks, max(sizes)): the logit column of each class; sum(sizes) marks an empty place."""
    rows, start = [], 0
    for size in sizes:
        empty = [sum(sizes)] * (max(sizes) - size)
        rows.append([*range(start, start + size), *empty])
        start += size
    # The first call may come from an evaluation; training must be able to use the cached tensor.
    with torch.inference_mode(False):
        return torch.tensor(rows, device=device)


@lru_cache(maxsize=64)
def _as_tensor(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(sizes, device=device)


def split_by_task(logits: Tensor, sizes: Sequence[int]) -> Tensor:
    """(B, sum(sizes)) to (B, tasks, max(sizes)); smaller tasks are padded with -inf."""
    if len(set(sizes)) == 1:
        return logits.view(len(logits), len(sizes), -1)
    with_empty = F.pad(logits, (0, 1), value=float("-inf"))
    return with_empty[:, _columns_by_task(tuple(sizes), logits.device)]


def adaptive_temperature(old_max: Tensor, current_max: Tensor, tau: float, margin: float) -> Tensor:
    """Eq. 4: τ where an old task's largest logit plus `margin` reaches the current one's, else 1.

    `old_max` is (B, tasks), the largest logit of each old classifier; `current_max` is (B,).
    """
    too_confident = old_max + margin >= current_max[:, None]
    return 1 + (tau - 1) * too_confident.to(old_max.dtype)


def ccl_loss(
    old_logits: Tensor,
    sizes: Sequence[int],
    current_logits: Tensor,
    *,
    tau: float,
    margin: float,
    alpha: float = 1.0,
    smoothing: Smoothing = "adaptive",
    uniforms: Tensor | None = None,
) -> Tensor:
    """Classifier consistency (eqs. 3 to 5), averaged over the batch.

    `old_logits` (B, C_old) are C_i(h) of all old tasks, whose sizes are `sizes`; `current_logits`
    (B, n_t) only set the temperature and get no gradient. The target σ(ℓ_i/τ) is detached, so the
    gradient with respect to ℓ_i is σ(ℓ_i) - σ(ℓ_i/τ): zero where τ = 1.

    `smoothing` replaces that target, with the alternatives in the supplement: "edl" by the uniform
    distribution, "roh" by one random class per task, chosen by `uniforms` (B, tasks) in [0, 1).
    Both ignore τ and the margin.
    """
    logits = split_by_task(old_logits, sizes)
    log_p = logits.log_softmax(-1)
    if len(set(sizes)) > 1:
        log_p = log_p.masked_fill(torch.isneginf(logits), 0.0)
    if smoothing == "adaptive":
        temperature = adaptive_temperature(
            logits.detach().amax(-1), current_logits.detach().amax(-1), tau, margin
        )[..., None]
        target = (logits.detach() / temperature).softmax(-1)
        # At τ = 1 the two softmaxes cancel only up to rounding; this makes the zero exact.
        log_p = torch.where(temperature == 1, log_p.detach(), log_p)
    elif smoothing == "edl":
        counts = _as_tensor(tuple(sizes), logits.device)[:, None]
        target = ~torch.isneginf(logits) / counts
    else:
        assert uniforms is not None
        chosen = (uniforms * _as_tensor(tuple(sizes), logits.device)).long()
        target = F.one_hot(chosen, max(sizes)).to(logits.dtype)
    per_task = -(target * log_p).sum(-1).mean(0)
    return alpha * per_task.mean()
