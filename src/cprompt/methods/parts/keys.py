"""How an image's query finds the prompt of a task: by cosine similarity to learnt keys."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.methods.parts.growing_rows import GrowingRows, grown, has_no_values

KeysPer = Literal["class", "task"]


class PromptKeys(nn.Module):
    """One key per class (the paper's multi-key mechanism) or one key per task.

    `key_task` is the task of each key; tasks may differ in size.
    """

    key_task: Tensor

    def __init__(self, dim: int, per: KeysPer = "class") -> None:
        super().__init__()
        self.per = per
        self.rows = GrowingRows(dim)
        self.register_buffer("key_task", torch.empty(0, dtype=torch.long))

    def open(self, task: int, n_classes: int, rng: torch.Generator) -> None:
        """Add the keys of a new task; see `orthonormal_rows`."""
        count = n_classes if self.per == "class" else 1
        self.rows.open(orthonormal_rows(count, self.rows.frozen, rng))
        self.key_task = grown(self.key_task, torch.full((count,), task).to(self.key_task))

    def close(self) -> None:
        """Freeze the keys of the current task."""
        self.rows.close()

    def similarity(self, query: Tensor) -> Tensor:
        """cos(q, k) of queries (B, D) with all keys: (B, keys)."""
        return F.normalize(query, dim=-1) @ F.normalize(self.rows.all(), dim=-1).T

    def loss(self, query: Tensor, targets: Tensor) -> Tensor:
        """Eq. 12: cross-entropy over the similarities to all keys seen, without temperature.

        `targets` (B,) are arrival positions of classes. With one key per task, the target of every
        image is the current task's key.
        """
        similarity = self.similarity(query)
        if self.per == "task":
            targets = torch.full_like(targets, len(self.key_task) - 1)
        return F.cross_entropy(similarity, targets)

    def choose(self, query: Tensor) -> Tensor:
        """The task (B,) whose key is nearest."""
        return self.key_task[self.similarity(query).argmax(-1)]


def orthonormal_rows(count: int, existing: Tensor, rng: torch.Generator) -> Tensor:
    """`count` unit rows, orthogonal to each other and to `existing` (n, D) if D is large enough."""
    dim = existing.shape[1]
    fresh = torch.randn(count, dim, generator=rng, dtype=torch.float64)
    if len(existing) + count <= dim and len(existing) and not has_no_values(existing):
        basis, _ = torch.linalg.qr(existing.cpu().double().T)
        fresh = fresh - (fresh @ basis) @ basis.T
    if count <= dim:
        q, r = torch.linalg.qr(fresh.T)
        fresh = (q * r.diagonal().sign()).T
    return F.normalize(fresh, dim=-1).float()
