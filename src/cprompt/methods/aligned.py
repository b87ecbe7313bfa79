"""CPrompt with keys and one head computed from class statistics; the photo classifier's default.

Not part of the paper. Heads of different tasks are never trained together, and a task with one
class cannot train a head at all. So this method keeps, for each class, the mean of its queries and
the mean of its features under its own prompt, and for both one covariance shared by all classes.
After every task, the keys and one head over all classes are computed from these in closed form. The
head is the mean of one head on features and one on queries, so that a wrongly chosen prompt does
not decide alone. For a ViT-B this takes 4.7 MB, and 15 KB per class.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.methods.base import Batches, ClassifierDefaults, register
from cprompt.methods.cprompt import CPrompt, CPromptConfig
from cprompt.methods.parts.gaussians import GaussianKeys, SharedGaussians
from cprompt.settings import check
from cprompt.vit.promptable import Embedded, FrozenViT


@dataclass(frozen=True)
class AlignedConfig(CPromptConfig):
    """Settings of CPrompt; keys are always one per class."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.keys == "class", "keys must be 'class': every class has its own key")


@register("aligned", AlignedConfig)
class AlignedCPrompt(CPrompt):
    """CPrompt's prompts; keys and one head from class statistics, in closed form.

    A task's own head is used only to train its prompt. Keys are not trained.
    """

    config: AlignedConfig
    keys: GaussianKeys  # type: ignore[assignment]
    aligned_weight: Tensor
    aligned_bias: Tensor
    # With few photos per class, the head is far too confident until it is calibrated.
    classifier_defaults = ClassifierDefaults(settings={"length": 5}, temperature=10.0)

    def __init__(self, backbone: FrozenViT, config: AlignedConfig) -> None:
        super().__init__(backbone, config)
        self.keys = GaussianKeys(backbone.dim)
        self.features = SharedGaussians(backbone.dim)
        self.register_buffer("aligned_weight", torch.zeros(0, 2 * backbone.dim))
        self.register_buffer("aligned_bias", torch.zeros(0))

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Add a prompt and a head, and make room for statistics, keys and the aligned head."""
        super().begin_task(n_classes, rng)
        self.features.open(n_classes)
        self.aligned_weight = self.aligned_weight.new_zeros(self.n_classes, 2 * self.backbone.dim)
        self.aligned_bias = self.aligned_bias.new_zeros(self.n_classes)

    def multi_key_loss(self, embedded: Embedded, targets: Tensor) -> Tensor | None:
        """None: keys are computed, not trained."""
        return None

    def end_task(self, batches: Batches) -> None:
        """Add up queries and features of the task's classes, then recompute keys and head."""
        assert self.prompts.current is not None
        n = self.task_sizes[-1]
        queries, features = self.keys.queries.moments(n), self.features.moments(n)
        with torch.no_grad():
            for embedded, targets in batches:
                queries.add(self.query(embedded), targets - self.known)
                features.add(self.prompted(embedded, self.prompts.current[0]), targets - self.known)
        self.keys.store(queries)
        self.features.store(features)
        by_feature, by_query = self.features.discriminant(), self.keys.queries.discriminant()
        self.aligned_weight = torch.cat([by_feature[0], by_query[0]], dim=1) / 2
        self.aligned_bias = (by_feature[1] + by_query[1]) / 2

    def feature(self, embedded: Embedded, query: Tensor | None, task: Tensor | None) -> Tensor:
        """(B, 2D): h under the prompt of each image's task, then the query."""
        h = super().feature(embedded, query, task)
        return torch.cat([h, self.query(embedded) if query is None else query], dim=1)

    def answer(self, feature: Tensor) -> Tensor:
        """Logits of the aligned head; of the task heads while a task is open."""
        if self.heads.weight.current is None:
            return F.linear(feature, self.aligned_weight, self.aligned_bias)
        return super().answer(feature[:, : self.backbone.dim])
