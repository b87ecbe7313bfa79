"""A copy of the backbone that is trained with the heads, at a rate of its own."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cprompt.methods.base import Method
from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT, Precision, PromptableViT


@dataclass(frozen=True)
class TunedBackboneConfig:
    """How fast the copy is trained; the default is SLCA's."""

    backbone_lr_scale: float = setting(0.01, "learning rate of the backbone, relative to the heads")

    def __post_init__(self) -> None:
        check(
            self.backbone_lr_scale > 0,
            f"backbone_lr_scale {self.backbone_lr_scale} must be positive",
        )


class TunedBackboneMethod(Method):
    """Trains a copy of the backbone, `tuned`, which is saved with what was learnt.

    The backbone it was given stays as it is, so others may share it. Heads read the class token
    after the copy's final norm.
    """

    config: TunedBackboneConfig

    def __init__(self, backbone: FrozenViT, config: Any) -> None:
        super().__init__(backbone, config)
        trained = copy.deepcopy(backbone.vit).requires_grad_(True)
        self.tuned = PromptableViT(trained, backbone.name)

    def embed(self, images: Tensor, precision: Precision = "fp32") -> Embedded:
        """The tokens that enter the first block of the copy."""
        return self.tuned.embed(images, precision)

    def feature(
        self, embedded: Embedded, query: Tensor | None = None, task: Tensor | None = None
    ) -> Tensor:
        """The class token (B, D) after the final norm of the copy."""
        return self.tuned.read(embedded, tap="post_norm")

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The copy at `backbone_lr_scale`, and everything else."""
        tuned = list(self.tuned.parameters())
        copied = {id(parameter) for parameter in tuned}
        return [
            {"params": tuned, "lr_scale": self.config.backbone_lr_scale},
            {"params": [p for p in self.parameters() if id(p) not in copied]},
        ]
