"""The upper bound: all classes learnt at once.

The model is that of plain fine-tuning. It is a bound because its recipe sets the stream to one
task. On a stream of several tasks it would be fine-tuning, so a second task is an error.
"""

from __future__ import annotations

import torch

from cprompt.errors import ConfigError
from cprompt.methods.base import register
from cprompt.methods.finetune import FineTune
from cprompt.methods.parts.token_prompts import SegmentsConfig


@register("joint", SegmentsConfig)
class Joint(FineTune):
    """One prompt and one head trained on all classes at once: the upper bound (UB)."""

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Add all classes; a second task is an error."""
        if self.n_tasks:
            raise ConfigError(
                "joint training sees all classes in one task",
                hint="set --stream.tasks 1, or use --method finetune for a stream of tasks",
            )
        super().begin_task(n_classes, rng)
