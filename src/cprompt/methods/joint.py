"""The upper bound: every class learnt at once.

The same model as plain fine-tuning; what makes it a bound is the stream, which its recipe sets to
one task. On a stream of several tasks it would be fine-tuning, so there it refuses to go on.
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
        """Take all classes; a second task would not be joint training."""
        if self.n_tasks:
            raise ConfigError(
                "joint training sees all classes in one task; set --stream.tasks 1, "
                "or use --method finetune for a stream of tasks"
            )
        super().begin_task(n_classes, rng)
