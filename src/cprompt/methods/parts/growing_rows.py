"""Rows that grow task by task: the mechanism behind heads, keys and prompts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
        self.frozen = grown(self.frozen, self.current.detach())
        self.current = None

    def all(self) -> Tensor:
        """All rows (n_old + n_new, *shape); old rows have no gradient."""
        return self.frozen if self.current is None else torch.cat([self.frozen, self.current])


_only_shapes: ContextVar[bool] = ContextVar("_only_shapes", default=False)


def grown(old: Tensor, new: Tensor) -> Tensor:
    """The rows `old`, then the rows `new`: a copy of both."""
    if _only_shapes.get():
        return old.new_zeros(()).expand(len(old) + len(new), *new.shape[1:])
    return torch.cat([old, new])


@contextmanager
def growing_without_copies(module: nn.Module) -> Iterator[None]:
    """While it lasts, rows that grow by `grown` have their shape, but no memory and no values.

    Afterwards there is memory for what the module saves, to load values into. Growing task by task
    to T tasks then costs T rows; with copies it would cost T², as all rows are copied per task.
    """
    before = _only_shapes.set(True)
    try:
        yield
    finally:
        _only_shapes.reset(before)
    for part in module.modules():
        for name, parameter in [*part.named_parameters(recurse=False)]:
            if has_no_values(parameter):
                setattr(part, name, nn.Parameter(_room_for(parameter), parameter.requires_grad))
        for name, buffer in [*part.named_buffers(recurse=False)]:
            if has_no_values(buffer) and name not in part._non_persistent_buffers_set:
                setattr(part, name, _room_for(buffer))


def _room_for(rows: Tensor) -> Tensor:
    return torch.zeros_like(rows, memory_format=torch.contiguous_format)


def has_no_values(rows: Tensor) -> bool:
    """Whether it is one number seen many times, which cannot be written to."""
    return rows.numel() > 1 and not any(rows.stride())
