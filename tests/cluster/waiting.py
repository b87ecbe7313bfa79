"""A plugin: a method that stops in the second task until a file says that it may go on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from cprompt.methods.base import Draws, register
from cprompt.methods.finetune import FineTune
from cprompt.methods.parts.token_prompts import SegmentsConfig
from cprompt.settings import setting
from cprompt.vit.promptable import Embedded

PATIENCE = 120.0
"""Seconds; a test that forgets the file fails instead of hanging."""


@dataclass(frozen=True)
class WaitingConfig(SegmentsConfig):
    """What to wait for."""

    go: str = setting("", "a file; the second task goes on when it is there")


@register("waiting", WaitingConfig)
class Waiting(FineTune):
    """Fine-tuning, at work for as long as the test needs it to be."""

    config: WaitingConfig

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """As fine-tuning, after the wait."""
        until = time.monotonic() + PATIENCE
        while self.n_tasks == 2 and not Path(self.config.go).exists():
            assert time.monotonic() < until, f"{self.config.go} did not come"
            time.sleep(0.01)
        return super().loss(embedded, targets, draws)
