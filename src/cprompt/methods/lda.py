"""Streaming linear discriminant analysis on frozen features (Hayes, Kanan 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.methods.base import Batches, ClassifierDefaults, Method, register
from cprompt.methods.parts.class_moments import ClassMoments, gaussian_head
from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT


@dataclass(frozen=True)
class LDAConfig:
    """Settings of linear discriminant analysis."""

    shrinkage: float = setting(
        0.0001, "share of the identity in the covariance, the rest is what was counted"
    )
    views: int = setting(1, "views of every image that are counted: the test view and random ones")

    def __post_init__(self) -> None:
        check(0 < self.shrinkage <= 1, f"shrinkage {self.shrinkage} must be in (0, 1]")
        check(self.views >= 1, f"views {self.views} must be at least 1")


@register("lda", LDAConfig)
class LDA(Method):
    """Gaussians of all classes over the last class token, with one covariance.

    Per class a count and a sum (D,) are kept, and one second moment (D, D) for all; the head
    follows in closed form after every task. `strata` does the same over the tokens of all layers.
    """

    config: LDAConfig
    features_are_final = True
    adds_over_ranks = True
    tasks_leave_no_trace = True
    # A batch of photos has fewer images than a feature has numbers: its covariance is singular.
    classifier_defaults = ClassifierDefaults(settings={"shrinkage": 0.3}, temperature=10.0)
    weight: Tensor
    bias: Tensor

    def __init__(self, backbone: FrozenViT, config: LDAConfig) -> None:
        super().__init__(backbone, config)
        self.extra_views = config.views - 1
        self.moments = ClassMoments(backbone.dim)
        self.register_buffer("weight", torch.zeros(0, backbone.dim))
        self.register_buffer("bias", torch.zeros(0))

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Make room for the new classes."""
        super().begin_task(n_classes, rng)
        self.moments.open(n_classes)
        self.weight = torch.cat([self.weight, self.weight.new_zeros(n_classes, self.backbone.dim)])
        self.bias = torch.cat([self.bias, self.bias.new_zeros(n_classes)])

    def end_task(self, batches: Batches) -> None:
        """Count the task's images, then work out the head over all classes."""
        share = self.config.shrinkage
        with torch.no_grad():
            with self.ranks.counting(*self.moments.sums):
                for embedded, targets in batches:
                    self.moments.add(self.feature(embedded), targets)
            sigma = (1 - share) * self.moments.within()
            sigma.diagonal().add_(share)
            self.weight, self.bias = gaussian_head(self.moments.means(), sigma)

    def feature(
        self, embedded: Embedded, query: Tensor | None = None, task: Tensor | None = None
    ) -> Tensor:
        """The class token after the final norm (B, D)."""
        return self.backbone.read(embedded, tap="post_norm")

    def answer(self, feature: Tensor) -> Tensor:
        """Logits of the head in closed form."""
        return F.linear(feature, self.weight, self.bias)
