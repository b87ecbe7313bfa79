"""Linear classifiers that grow with the classes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.growing import GrowingRows


class TaskHeads(nn.Module):
    """One linear head a task, D to n_t, kept as one matrix so that all old heads are one matmul."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = GrowingRows(dim)
        self.bias = GrowingRows()

    def open(self, n_classes: int, rng: torch.Generator) -> None:
        """Add the head of a new task."""
        weight, bias = new_head(n_classes, self.weight.frozen.shape[1], rng)
        self.weight.open(weight)
        self.bias.open(bias)

    def close(self) -> None:
        """Freeze the current task's head."""
        self.weight.close()
        self.bias.close()

    def old(self, features: Tensor) -> Tensor:
        """Logits (B, C_old) of the frozen heads; gradient reaches the features only."""
        return F.linear(features, self.weight.frozen, self.bias.frozen)

    def current(self, features: Tensor) -> Tensor:
        """Logits (B, n_t) of the head being trained."""
        assert self.weight.current is not None
        return F.linear(features, self.weight.current, self.bias.current)

    def forward(self, features: Tensor) -> Tensor:
        """Logits (B, C_seen) of every head, in order of arrival."""
        return F.linear(features, self.weight.all(), self.bias.all())


def new_head(n_classes: int, dim: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Initial weight, U(±sqrt(3/D)) as Kaiming's rule with gain 1 has it, and bias, zero."""
    bound = math.sqrt(3 / dim)
    weight = torch.empty(n_classes, dim).uniform_(-bound, bound, generator=rng)
    return weight, torch.zeros(n_classes)
