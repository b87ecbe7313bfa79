"""Settings of training and of its random seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cprompt.settings import check, setting


@dataclass(frozen=True)
class TrainingConfig:
    """How each task is trained; the defaults are CPrompt's."""

    epochs: int = setting(10, "passes over each task's images")
    batch_size: int = setting(16, "images per step")
    optimizer: Literal["sgd", "adam"] = setting("sgd", "a new one for every task")
    lr: float = setting(0.01, "initial learning rate")
    momentum: float = setting(0.9, "momentum of sgd; adam uses betas 0.9 and 0.999")
    weight_decay: float = setting(5e-4, "L2 penalty on every trainable tensor")
    schedule: Literal["cosine", "constant", "step", "coda"] = setting(
        "cosine", "learning rate by epoch: cosine to zero, constant, steps, or CODA-Prompt's cosine"
    )
    milestones: tuple[int, ...] | None = setting(
        None, "with schedule step: epochs after which the rate is divided by ten"
    )
    clip: float | None = setting(None, "largest norm of the whole gradient; empty: not clipped")
    precision: Literal["fp32", "bf16"] = setting("fp32", "arithmetic of the backbone")

    def __post_init__(self) -> None:
        check(self.epochs >= 0, f"epochs {self.epochs} must not be negative")
        check(self.batch_size >= 1, f"batch_size {self.batch_size} must be at least 1")
        check(self.lr > 0, f"lr {self.lr} must be positive")
        check(0 <= self.momentum < 1, f"momentum {self.momentum} must be in [0, 1)")
        check(self.weight_decay >= 0, f"weight_decay {self.weight_decay} must not be negative")
        check(
            (self.milestones is not None) == (self.schedule == "step"),
            f"schedule {self.schedule} with milestones {self.milestones}: schedule step needs "
            "milestones, the other schedules have none",
        )
        check(self.clip is None or self.clip > 0, f"clip {self.clip} must be positive")


@dataclass(frozen=True)
class Seeds:
    """The random seeds of a run."""

    order: int | Literal["natural"] | tuple[int, ...] = setting(
        1993,
        "class order: a seed (drawn as in the released code), natural, or a list of all labels",
    )
    init: int = setting(1, "seed of initial values")
    data: int = setting(1, "seed of shuffling, augmentation and random draws in training")


Acceleration = Literal["auto", "compile", "graphs", "none"]
"""graphs: steps are captured and replayed as CUDA graphs. compile: small operations are also fused,
by kernels of our own or by torch.compile. Both need a CUDA device and do nothing elsewhere.
auto: graphs, our own kernels where they fit, and torch.compile for long runs."""
