"""A plugin: a method whose first worker dies in the second task; it notes every step."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from cprompt.methods.base import Draws, register
from cprompt.methods.finetune import FineTune
from cprompt.methods.parts.token_prompts import SegmentsConfig
from cprompt.settings import setting
from cprompt.vit.promptable import Embedded


@dataclass(frozen=True)
class DyingConfig(SegmentsConfig):
    """Where to write."""

    notes: str = setting("", "a file; each step adds a line with the process and the task")


@register("dying", DyingConfig)
class Dying(FineTune):
    """Fine-tuning until the second task; in another process, to the end."""

    config: DyingConfig

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """As fine-tuning, unless it dies."""
        notes, task = Path(self.config.notes), self.n_tasks - 1
        with notes.open("a") as file:
            file.write(f"{os.getpid()} {task}\n")
        if task == 1 and len({line.split()[0] for line in notes.read_text().splitlines()}) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(embedded, targets, draws)
