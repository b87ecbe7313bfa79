"""Closed form over all layers: class means and one shared covariance, in one pass.

Prior work: streaming linear discriminant analysis (Hayes, Kanan 2020), several layers (LayUP,
Ahrens et al. 2023), first-session adaptation (Panos et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.methods.base import Batches, Draws, Method, register
from cprompt.methods.parts.class_moments import ClassMoments
from cprompt.methods.parts.first_prompt import FirstPrompt, FirstPromptConfig
from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT


@dataclass(frozen=True)
class StrataConfig(FirstPromptConfig):
    """Settings of the closed form."""

    layers: tuple[int, ...] | None = setting(None, "blocks that are read, from 0; empty: all")
    tokens: Literal["both", "class", "patch"] = setting(
        "both", "read after each block: class token, mean of the patch tokens, or both"
    )
    shrinkage: float = setting(
        0.001, "added to the diagonal of the covariance, in parts of its mean variance"
    )
    views: int = setting(5, "views of every image that are counted: the test view and random ones")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is not None:
            check(
                len(self.layers) > 0 and len(set(self.layers)) == len(self.layers),
                f"layers {self.layers} must be different block numbers",
            )
        check(self.shrinkage > 0, f"shrinkage {self.shrinkage} must be positive")
        check(self.views >= 1, f"views {self.views} must be at least 1")


@register("strata", StrataConfig)
class Strata(Method):
    """Gaussians of all classes over the tokens of all layers, with one covariance; no forgetting.

    A feature has, for every layer read, the normalised class token and mean of the patch tokens:
    F = 2 · layers · D numbers. Per class a count and a sum are kept, and one second moment (F, F)
    for all; the head follows in closed form after every task. These only add up, so the order of
    classes and the cut into tasks do not matter.

    With `adaptation` prompt, key/value prefixes at every block are first trained on the first task,
    by cross-entropy on the last layer's tokens, and then never change.
    """

    config: StrataConfig
    features_are_final = True
    needs_prompts = False
    weight: Tensor
    bias: Tensor

    def __init__(self, backbone: FrozenViT, config: StrataConfig) -> None:
        super().__init__(backbone, config)
        self.layers = tuple(sorted(config.layers or range(backbone.depth)))
        for layer in self.layers:
            check(
                0 <= layer < backbone.depth,
                f"layers: {backbone.name} has no block {layer}, only 0 to {backbone.depth - 1}",
            )
        self.extra_views = config.views - 1
        dim = sum(backbone.tap_widths(self.layers, config.tokens))
        self.moments = ClassMoments(dim)
        self.register_buffer("weight", torch.zeros(0, dim))
        self.register_buffer("bias", torch.zeros(0))
        self.first = FirstPrompt(config)

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Make room for the new classes; before the first task, for the prompt."""
        super().begin_task(n_classes, rng)
        self.moments.open(n_classes)
        self.weight = self.weight.new_zeros(self.n_classes, self.moments.dim)
        self.bias = self.bias.new_zeros(self.n_classes)
        if self.n_tasks == 1:
            self.first.open(self.backbone, n_classes, 2 * self.backbone.dim, rng)

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """`ce` of a head on the last layer's tokens; in the first task, with a prompt to train."""
        if not self.first.is_open:
            return {}
        layers = [self.backbone.depth - 1]
        last = self.backbone.taps(embedded, layers, prompts=self.first.prompts())
        return self.first.loss(last, targets)

    def end_task(self, batches: Batches) -> None:
        """Count the task's images, then work out the head over all classes."""
        with torch.no_grad():
            for embedded, targets in batches:
                self.moments.add(self.feature(embedded), targets)
            self.weight, self.bias = self.moments.discriminant(self.config.shrinkage)

    def close_task(self) -> None:
        """Freeze the prompt."""
        self.first.close()

    def feature(
        self, embedded: Embedded, query: Tensor | None = None, task: Tensor | None = None
    ) -> Tensor:
        """The tokens of all layers read, one after another (B, F)."""
        prompts = self.first.prompts()
        return self.backbone.taps(embedded, self.layers, self.config.tokens, prompts)

    def answer(self, feature: Tensor) -> Tensor:
        """Logits of the head in closed form."""
        return F.linear(feature, self.weight, self.bias)
