"""Rows that grow task by task: the mechanism behind heads, keys and prompts."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GrowingRows(nn.Module):
    """Rows of one shape: those of earlier tasks frozen, those of the current task trainable.

    `frozen` is a buffer (n_old, *shape); `current` is a parameter (n_new, *shape) while a task is
    open and None between tasks. Old rows are not parameters, so neither gradients nor weight decay
    can change them.
    """

    frozen: Tensor
    current: nn.Parameter | None

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("frozen", torch.empty(0, *shape))
        self.register_parameter("current", None)

    def __len__(self) -> int:
        return len(self.frozen) + (0 if self.current is None else len(self.current))

    def open(self, rows: Tensor) -> None:
        """Start a task with `rows` as the initial values of its trainable rows."""
        self.current = nn.Parameter(rows.detach().clone().to(self.frozen))

    def close(self) -> None:
        """End the task: its rows join the frozen ones."""
        assert self.current is not None
        self.frozen = torch.cat([self.frozen, self.current.detach()])
        self.current = None

    def all(self) -> Tensor:
        """All rows (n_old + n_new, *shape); old rows have no gradient."""
        return self.frozen if self.current is None else torch.cat([self.frozen, self.current])
