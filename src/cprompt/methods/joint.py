"""The upper bound: all classes learnt at once.

The model is that of plain fine-tuning. It is a bound because its recipe sets the stream to one
task. On a stream of several tasks it would be fine-tuning, so a second task is an error.
"""

from __future__ import annotations

from cprompt.methods.base import register
from cprompt.methods.finetune import FineTune
from cprompt.methods.parts.token_prompts import SegmentsConfig


@register("joint", SegmentsConfig)
class Joint(FineTune):
    """One prompt and one head trained on all classes at once: the upper bound (UB)."""

    single_task = True
