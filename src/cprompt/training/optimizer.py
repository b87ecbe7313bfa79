"""Optimisers and learning-rate schedules, both usable in captured steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from cprompt.training.settings import TrainingConfig


def learning_rate(training: TrainingConfig, epoch: int) -> float:
    """The learning rate of an epoch, counted from 0; constant within an epoch, as in the papers'
    code."""
    progress = epoch / training.epochs
    if training.schedule == "cosine":
        return training.lr * 0.5 * (1 + math.cos(math.pi * progress))
    if training.schedule == "step":
        passed = sum(epoch >= milestone for milestone in training.milestones or ())
        return training.lr * 0.1**passed
    if training.schedule == "coda":
        last = max(training.epochs - 1, 1)
        return training.lr * math.cos(99 * math.pi * epoch / (200 * last))
    return training.lr


def make_optimizer(
    groups: Iterable[dict[str, Any]], kind: str, device: torch.device, **options: Any
) -> torch.optim.Optimizer:
    """SGD or Adam; on CUDA fused, with learning rates in tensors, which captured steps can read."""
    groups = [dict(group) for group in groups]
    if device.type == "cuda":
        for group in groups:
            group["lr"] = torch.tensor(options["lr"], device=device)
        options["fused"] = True
    if kind == "sgd":
        return torch.optim.SGD(groups, **options)
    options.pop("momentum", None)
    return torch.optim.Adam(groups, capturable=device.type == "cuda", **options)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the rate of every group to `lr` times its `lr_scale`."""
    for group in optimizer.param_groups:
        rate = lr * group.get("lr_scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def start_state(optimizer: torch.optim.Optimizer) -> None:
    """Create the optimiser's state, all zeros, as its first step would.

    If a captured step created it, every replay would create it again.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            zeros: dict[str, Tensor] = {}
            if isinstance(optimizer, torch.optim.Adam):
                zeros["step"] = torch.zeros((), device=parameter.device)
                zeros["exp_avg"] = torch.zeros_like(parameter)
                zeros["exp_avg_sq"] = torch.zeros_like(parameter)
            elif group["momentum"]:
                zeros["momentum_buffer"] = torch.zeros_like(parameter)
            for kind, zero in zeros.items():
                optimizer.state[parameter].setdefault(kind, zero)
