"""Nearest class mean on frozen features: the simplest closed form.

Prior work: iCaRL's nearest-mean rule (Rebuffi et al. 2017), on a frozen pretrained model (Janson
et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.methods.base import Batches, ClassifierDefaults, Method, register
from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT


@dataclass(frozen=True)
class NearestMeanConfig:
    """Settings of the nearest class mean."""

    metric: Literal["cosine", "euclidean"] = setting(
        "cosine", "what is near: a small angle, or a small distance"
    )
    views: int = setting(1, "views of every image that are counted: the test view and random ones")

    def __post_init__(self) -> None:
        check(self.views >= 1, f"views {self.views} must be at least 1")


@register("nearest_mean", NearestMeanConfig)
class NearestMean(Method):
    """The mean class token of each class; an image gets the class of the nearest one.

    Per class a count and a sum (D,) are kept, in float64, so neither the order of classes nor the
    cut into tasks matters.
    """

    config: NearestMeanConfig
    features_are_final = True
    adds_over_ranks = True
    tasks_leave_no_trace = True
    classifier_defaults = ClassifierDefaults(temperature=0.05)  # logits are cosines
    count: Tensor
    total: Tensor

    def __init__(self, backbone: FrozenViT, config: NearestMeanConfig) -> None:
        super().__init__(backbone, config)
        self.extra_views = config.views - 1
        self.register_buffer("count", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("total", torch.zeros(0, backbone.dim, dtype=torch.float64))

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Make room for the new classes, without images so far."""
        super().begin_task(n_classes, rng)
        self.count = torch.cat([self.count, self.count.new_zeros(n_classes)])
        self.total = torch.cat([self.total, self.total.new_zeros(n_classes, self.backbone.dim)])

    def end_task(self, batches: Batches) -> None:
        """Count the task's images."""
        with torch.no_grad(), self.ranks.counting(self.count, self.total):
            for embedded, targets in batches:
                feature = self.feature(embedded).double()
                self.count.index_add_(0, targets, torch.ones_like(targets, dtype=torch.float64))
                self.total.index_add_(0, targets, feature)

    def feature(
        self, embedded: Embedded, query: Tensor | None = None, task: Tensor | None = None
    ) -> Tensor:
        """The class token after the final norm (B, D)."""
        return self.backbone.read(embedded, tap="post_norm")

    def answer(self, feature: Tensor) -> Tensor:
        """The cosine with each mean, or minus the mean squared difference from it."""
        means = (self.total / self.count.clamp(min=1)[:, None]).float()
        if self.config.metric == "cosine":
            return F.normalize(feature, dim=-1) @ F.normalize(means, dim=-1).T
        squares = (feature**2).mean(1, keepdim=True) + (means**2).mean(1)
        return 2 / self.backbone.dim * feature @ means.T - squares
