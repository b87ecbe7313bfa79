"""The ceiling: the whole backbone fine-tuned on all classes at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.methods.base import Draws, register
from cprompt.methods.parts.heads import HeadConfig, new_head
from cprompt.methods.parts.tuned_backbone import TunedBackboneConfig, TunedBackboneMethod
from cprompt.settings import setting
from cprompt.vit.promptable import Embedded, FrozenViT


@dataclass(frozen=True)
class JointTuningConfig(TunedBackboneConfig, HeadConfig):
    """Settings of joint fine-tuning."""

    backbone_lr_scale: float = setting(
        1 / 60, "learning rate of the backbone, relative to the head"
    )


@register("joint_tuning", JointTuningConfig)
class JointTuning(TunedBackboneMethod):
    """A copy of the backbone and a head, trained on all classes at once: the true ceiling.

    Joint training of a prompt (`joint`) is bounded by what the frozen features can tell apart;
    this is not. It stores the copy: 343 MB for a ViT-B in float32.
    """

    config: JointTuningConfig
    single_task = True
    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, backbone: FrozenViT, config: JointTuningConfig) -> None:
        super().__init__(backbone, config)
        self.weight = nn.Parameter(torch.empty(0, backbone.dim))
        self.bias = nn.Parameter(torch.empty(0))

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Make the head; a second task is an error."""
        super().begin_task(n_classes, rng)
        weight, bias = new_head(n_classes, self.backbone.dim, rng, self.config.head_init)
        self.weight = nn.Parameter(weight.to(self.weight))
        self.bias = nn.Parameter(bias.to(self.bias))

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """`ce`: cross-entropy over all classes."""
        return {"ce": F.cross_entropy(self.answer(self.feature(embedded)), targets)}

    def answer(self, feature: Tensor) -> Tensor:
        """Logits (B, classes) of the head."""
        return F.linear(feature, self.weight, self.bias)
