"""Slow Learner with Classifier Alignment (Zhang, Wang, Kang, Chen, Wei; ICCV 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.methods.base import Batches, Draws, register
from cprompt.methods.parts.gaussians import AlignmentConfig, ClassGaussians, align, task_of_class
from cprompt.methods.parts.heads import TaskHeads
from cprompt.methods.parts.tuned_backbone import TunedBackboneConfig, TunedBackboneMethod
from cprompt.seeds import generator
from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT


@dataclass(frozen=True)
class SLCAConfig(TunedBackboneConfig, AlignmentConfig):
    """Settings of SLCA; the defaults are those of the released code."""

    temperature: float = setting(0.1, "temperature τ of the normalised logits in alignment")
    mean_decay: float = setting(
        0.1, "shrink class means by up to this share when drawing, oldest tasks most; 0: never"
    )

    def __post_init__(self) -> None:
        AlignmentConfig.__post_init__(self)
        TunedBackboneConfig.__post_init__(self)
        check(self.temperature > 0, f"temperature {self.temperature} must be positive")
        check(0 <= self.mean_decay < 1, f"mean_decay {self.mean_decay} must be in [0, 1)")


@register("slca", SLCAConfig)
class SLCA(TunedBackboneMethod):
    """The whole backbone fine-tuned slowly; heads aligned on Gaussians of all classes.

    A copy of the backbone is trained, at a hundredth of the heads' learning rate. Each task trains
    its own head by cross-entropy over its own classes. After the task, one head over all classes
    (`aligned_weight`, `aligned_bias`) starts from the task heads and is trained on drawn features;
    it answers images. As in the released code, the next task continues with the task heads from
    before alignment. The statistics of old classes are not corrected for the drift of features.

    Stored besides the task heads, for a ViT-B in float32: the copy, 343 MB; mean and covariance
    per class, 2.36 MB (462 MB for 196 classes); the aligned head. During training, a gradient and
    a momentum take twice the size of the copy.
    """

    config: SLCAConfig
    adds_over_ranks = True
    aligned_weight: Tensor
    aligned_bias: Tensor

    def __init__(self, backbone: FrozenViT, config: SLCAConfig) -> None:
        super().__init__(backbone, config)
        self.heads = TaskHeads(backbone.dim, config.head_init)
        self.gaussians = ClassGaussians(backbone.dim, config.covariance)
        self.register_buffer("aligned_weight", torch.zeros(0, backbone.dim))
        self.register_buffer("aligned_bias", torch.zeros(0))

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Add a head and make room for the statistics and the aligned head."""
        super().begin_task(n_classes, rng)
        self.heads.open(n_classes, rng)
        self.gaussians.open(n_classes)
        self.aligned_weight = self.aligned_weight.new_zeros(self.n_classes, self.backbone.dim)
        self.aligned_bias = self.aligned_bias.new_zeros(self.n_classes)

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """`ce`: cross-entropy over the classes of the current task only."""
        features = self.feature(embedded)
        return {"ce": F.cross_entropy(self.heads.current(features), self._local(targets))}

    def end_task(self, batches: Batches) -> None:
        """Store the Gaussians of the task's classes, then align the heads of several tasks."""
        moments = self.gaussians.moments(self.task_sizes[-1])
        with torch.no_grad():
            for embedded, targets in batches:
                moments.add(self.feature(embedded), self._local(targets))
        moments.add_over_ranks(self.ranks)
        self.gaussians.store(moments)
        self.aligned_weight = self.heads.weight.all().detach().clone()
        self.aligned_bias = self.heads.bias.all().detach().clone()
        if self.n_tasks > 1:
            self.aligned_weight, self.aligned_bias = align(
                self.aligned_weight,
                self.aligned_bias,
                self.gaussians.sampler(mean_scale(self.task_sizes, self.config.mean_decay)),
                self.config,
                lambda logits, classes: normalised_cross_entropy(
                    logits, classes, self.task_sizes, self.config.temperature
                ),
                generator(self.config.seed, self.n_tasks - 1),
            )

    def close_task(self) -> None:
        """Freeze the task's head; the backbone stays trainable."""
        self.heads.close()

    def answer(self, feature: Tensor) -> Tensor:
        """Logits (B, classes seen) of the aligned head; of the task heads while a task is open."""
        if self.heads.weight.current is None:
            return F.linear(feature, self.aligned_weight, self.aligned_bias)
        logits: Tensor = self.heads(feature)
        return logits

    def _local(self, targets: Tensor) -> Tensor:
        return targets - self.known


def normalised_cross_entropy(
    logits: Tensor, classes: Tensor, sizes: Sequence[int], temperature: float
) -> Tensor:
    """Cross-entropy of l / (τ n), so that large logits give a head no advantage.

    `logits` (B, C) are those of all tasks, `sizes` the number of classes per task. As in the
    released code, n is the mean over tasks of ‖l_i‖₂ + 1e-7, where l_i are the logits of task i.
    The paper divides by ‖l‖₂ of all logits together. The gradient passes through n.
    """
    parts = torch.split(logits, list(sizes), dim=-1)
    norms = torch.stack([part.norm(dim=-1) for part in parts], dim=-1) + 1e-7
    return F.cross_entropy(logits / (temperature * norms.mean(-1, keepdim=True)), classes)


def mean_scale(sizes: Sequence[int], decay: float) -> Tensor:
    """1 - decay (1 - i/t) for each class (C,) of task i of t, counted from 1: old means shrink.

    The released code uses decay 0.1. It computes i as the class's number divided by the size of
    the last task, which is wrong if tasks differ in size; here i comes from the sizes of all tasks.
    The paper does not shrink means (decay 0).
    """
    i = task_of_class(sizes) + 1
    return 1 - decay * (1 - i / len(sizes))
