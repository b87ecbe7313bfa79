"""How a run is trained and where its randomness comes from, as settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cprompt.settings import check, setting


@dataclass(frozen=True)
class TrainingConfig:
    """How each task is trained; the defaults are CPrompt's."""

    epochs: int = setting(10, "passes over each task's images")
    batch_size: int = setting(16, "images per step")
    optimizer: Literal["sgd", "adam"] = setting("sgd", "made anew for every task")
    lr: float = setting(0.01, "initial learning rate")
    momentum: float = setting(0.9, "of sgd; adam uses betas 0.9 and 0.999")
    weight_decay: float = setting(5e-4, "L2 penalty on every trainable tensor")
    schedule: Literal["cosine", "constant", "step", "coda"] = setting(
        "cosine", "learning rate by epoch: to zero, unchanged, by steps, or CODA-Prompt's cosine"
    )
    milestones: tuple[int, ...] | None = setting(
        None, "with schedule step: epochs after which the rate falls to a tenth"
    )
    clip: float | None = setting(None, "largest norm of the whole gradient")
    precision: Literal["fp32", "bf16"] = setting("fp32", "of the backbone's arithmetic")

    def __post_init__(self) -> None:
        check(self.epochs >= 0, f"epochs {self.epochs} must not be negative")
        check(self.batch_size >= 1, f"batch_size {self.batch_size} must be at least 1")
        check(self.lr > 0, f"lr {self.lr} must be positive")
        check(0 <= self.momentum < 1, f"momentum {self.momentum} must be in [0, 1)")
        check(self.weight_decay >= 0, f"weight_decay {self.weight_decay} must not be negative")
        check(
            (self.milestones is not None) == (self.schedule == "step"),
            f"schedule {self.schedule} with milestones {self.milestones}: schedule step, and no "
            "other, needs them",
        )
        check(self.clip is None or self.clip > 0, f"clip {self.clip} must be positive")


@dataclass(frozen=True)
class Seeds:
    """Where randomness comes from, each recorded apart."""

    order: int | Literal["natural"] | tuple[int, ...] = setting(
        1993, "class order: a seed as the released code uses it, natural, or the labels in order"
    )
    init: int = setting(1, "initial values of what is learnt")
    data: int = setting(1, "shuffling, augmentation and the draws of training")


Acceleration = Literal["auto", "compile", "graphs", "none"]
"""graphs: steps are recorded as CUDA graphs; compile: small operations are fused, too. Both need a
CUDA device and do nothing elsewhere. auto: graphs, and compile where it pays."""
