"""Closed form over all layers: class means and one shared covariance, in one pass.

Prior work: streaming linear discriminant analysis (Hayes, Kanan 2020), several layers (LayUP,
Ahrens et al. 2023), first-session adaptation (Panos et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.methods.base import Batches, Draws, Method, register
from cprompt.methods.parts.class_moments import ClassMoments
from cprompt.methods.parts.heads import new_head
from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT, Prompts


@dataclass(frozen=True)
class StrataConfig:
    """Settings of the closed form."""

    layers: tuple[int, ...] | None = setting(None, "blocks that are read, from 0; empty: all")
    tokens: Literal["both", "class", "patch"] = setting(
        "both", "read after each block: class token, mean of the patch tokens, or both"
    )
    shrinkage: float = setting(
        0.001, "added to the diagonal of the covariance, in parts of its mean variance"
    )
    views: int = setting(5, "views of every image that are counted: the test view and random ones")
    adaptation: Literal["none", "prompt"] = setting(
        "none", "before the first task is counted: nothing, or a prompt trained on it, then frozen"
    )
    prompt_length: int = setting(10, "with adaptation prompt: key/value pairs added to every block")
    smoothing: float = setting(0.1, "with adaptation prompt: label smoothing of its loss")

    def __post_init__(self) -> None:
        if self.layers is not None:
            check(
                len(self.layers) > 0 and len(set(self.layers)) == len(self.layers),
                f"layers {self.layers} must be different block numbers",
            )
        check(self.shrinkage > 0, f"shrinkage {self.shrinkage} must be positive")
        check(self.views >= 1, f"views {self.views} must be at least 1")
        check(self.prompt_length >= 1, f"prompt_length {self.prompt_length} must be at least 1")
        check(0 <= self.smoothing < 1, f"smoothing {self.smoothing} must be in [0, 1)")


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
    prefixes: nn.Parameter | None
    task_weight: nn.Parameter | None
    task_bias: nn.Parameter | None

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
        for name in ("prefixes", "task_weight", "task_bias"):
            self.register_parameter(name, None)

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Make room for the new classes; before the first task, for the prompt."""
        super().begin_task(n_classes, rng)
        self.moments.open(n_classes)
        self.weight = self.weight.new_zeros(self.n_classes, self.moments.dim)
        self.bias = self.bias.new_zeros(self.n_classes)
        if self.n_tasks == 1 and self.config.adaptation == "prompt":
            shape = (self.backbone.depth, 2, self.config.prompt_length, self.backbone.dim)
            self.prefixes = nn.Parameter(torch.empty(shape).normal_(0, 0.02, generator=rng))
            weight, bias = new_head(n_classes, 2 * self.backbone.dim, rng, "zero")
            self.task_weight, self.task_bias = nn.Parameter(weight), nn.Parameter(bias)

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """`ce` of a head on the last layer's tokens; in the first task, with a prompt to train."""
        if self.task_weight is None:
            return {}
        last = self.backbone.taps(embedded, [self.backbone.depth - 1], prompts=self._prompts())
        logits = F.linear(last, self.task_weight, self.task_bias)
        return {"ce": F.cross_entropy(logits, targets, label_smoothing=self.config.smoothing)}

    def end_task(self, batches: Batches) -> None:
        """Count the task's images, then work out the head over all classes."""
        with torch.no_grad():
            for embedded, targets in batches:
                self.moments.add(self.feature(embedded), targets)
            self.weight, self.bias = self.moments.discriminant(self.config.shrinkage)

    def close_task(self) -> None:
        """Freeze the prompt, and drop the head that trained it."""
        self.register_parameter("task_weight", None)
        self.register_parameter("task_bias", None)
        if self.prefixes is not None:
            self.prefixes.requires_grad_(False)

    def feature(
        self, embedded: Embedded, query: Tensor | None = None, task: Tensor | None = None
    ) -> Tensor:
        """The tokens of all layers read, one after another (B, F)."""
        return self.backbone.taps(embedded, self.layers, self.config.tokens, self._prompts())

    def answer(self, feature: Tensor) -> Tensor:
        """Logits of the head in closed form."""
        return F.linear(feature, self.weight, self.bias)

    def _prompts(self) -> Prompts | None:
        if self.prefixes is None:
            return None
        pairs = enumerate(self.prefixes.unbind(0))
        return Prompts(prefixes={layer: (pair[0], pair[1]) for layer, pair in pairs})
