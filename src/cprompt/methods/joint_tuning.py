"""The ceiling: the whole backbone fine-tuned on all classes at once."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.methods.base import Draws, Method, register
from cprompt.methods.parts.heads import HeadConfig, new_head
from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT, Precision, PromptableViT


@dataclass(frozen=True)
class JointTuningConfig(HeadConfig):
    """Settings of joint fine-tuning."""

    backbone_lr_scale: float = setting(
        1 / 60, "learning rate of the backbone, relative to the head"
    )

    def __post_init__(self) -> None:
        check(
            self.backbone_lr_scale > 0,
            f"backbone_lr_scale {self.backbone_lr_scale} must be positive",
        )


@register("joint_tuning", JointTuningConfig)
class JointTuning(Method):
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
        trained = copy.deepcopy(backbone.vit).requires_grad_(True)
        self.tuned = PromptableViT(trained, backbone.name)
        self.weight = nn.Parameter(torch.empty(0, backbone.dim))
        self.bias = nn.Parameter(torch.empty(0))

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Make the head; a second task is an error."""
        super().begin_task(n_classes, rng)
        weight, bias = new_head(n_classes, self.backbone.dim, rng, self.config.head_init)
        self.weight = nn.Parameter(weight.to(self.weight))
        self.bias = nn.Parameter(bias.to(self.bias))

    def embed(self, images: Tensor, precision: Precision = "fp32") -> Embedded:
        """The tokens that enter the first block of the backbone being trained."""
        return self.tuned.embed(images, precision)

    def feature(
        self, embedded: Embedded, query: Tensor | None = None, task: Tensor | None = None
    ) -> Tensor:
        """The class token (B, D) after the final norm of the backbone being trained."""
        return self.tuned.read(embedded, tap="post_norm")

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """`ce`: cross-entropy over all classes."""
        return {"ce": F.cross_entropy(self.answer(self.feature(embedded)), targets)}

    def answer(self, feature: Tensor) -> Tensor:
        """Logits (B, classes) of the head."""
        return F.linear(feature, self.weight, self.bias)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The backbone at `backbone_lr_scale`, and the head."""
        return [
            {
                "params": list(self.tuned.parameters()),
                "lr_scale": self.config.backbone_lr_scale,
            },
            {"params": [self.weight, self.bias]},
        ]
