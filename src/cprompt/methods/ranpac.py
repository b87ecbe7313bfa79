"""Random projections and ridge regression on frozen features (RanPAC, McDonnell et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.methods.base import Batches, ClassifierDefaults, Draws, Method, register
from cprompt.methods.parts.class_moments import ClassMoments
from cprompt.methods.parts.first_prompt import FirstPrompt, FirstPromptConfig
from cprompt.methods.parts.ridge import RIDGES, best_ridge, ridge_head
from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT

_PART = 256
"""Images that are projected at a time; 20 MB in float64."""


@dataclass(frozen=True)
class RanPACConfig(FirstPromptConfig):
    """Settings of RanPAC."""

    projections: int = setting(
        10_000, "random features; the memory grows with the square. 0: the class token itself"
    )
    seed: int = setting(0, "of the random projection")
    ridge: float | None = setting(
        None, "the penalty; empty: chosen in each task on a fifth of its images"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.projections >= 0, f"projections {self.projections} must be 0 or more")
        check(0 <= self.seed < 2**32, f"seed {self.seed} must be in [0, 2^32)")
        check(self.ridge is None or self.ridge > 0, f"ridge {self.ridge} must be positive")


@register("ranpac", RanPACConfig)
class RanPAC(Method):
    """Ridge regression from h = ReLU(x W) to the classes; x is the class token, W random.

    Kept are sums over all images: of h for each class (C, M), and of h hᵀ (M, M). The head follows
    after every task. W (D, M) is not saved: it is drawn again from `seed`.

    With `adaptation` prompt, a prompt is first trained on the first task, by cross-entropy on x.
    """

    config: RanPACConfig
    features_are_final = True
    adds_over_ranks = True
    tasks_leave_no_trace = True
    # With 10,000 projections a model folder would have 800 MB.
    classifier_defaults = ClassifierDefaults(settings={"projections": 2000}, temperature=0.2)
    projection: Tensor
    ridge: Tensor
    weight: Tensor

    def __init__(self, backbone: FrozenViT, config: RanPACConfig) -> None:
        super().__init__(backbone, config)
        self.first = FirstPrompt(config)
        drawn = projection(backbone.dim, config.projections, config.seed)
        self.register_buffer("projection", drawn, persistent=False)
        self.moments = ClassMoments(config.projections or backbone.dim)
        start = RIDGES[len(RIDGES) // 2] if config.ridge is None else config.ridge
        self.register_buffer("ridge", torch.tensor(start, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros(0, self.moments.dim))

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Make room for the new classes; before the first task, for the prompt."""
        super().begin_task(n_classes, rng)
        if self.n_tasks == 1:
            self.first.open(self.backbone, n_classes, self.backbone.dim, rng)
        self.moments.open(n_classes)
        self.weight = torch.cat([self.weight, self.weight.new_zeros(n_classes, self.moments.dim)])

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """`ce` of a head on the class token; in the first task, with a prompt to train."""
        return self.first.loss(self.feature(embedded), targets) if self.first.is_open else {}

    def end_task(self, batches: Batches) -> None:
        """Count the task's images, choose the penalty, then work out the head over all classes."""
        with torch.no_grad():
            nothing = self.weight.new_zeros(0, self.backbone.dim)
            seen = [(nothing, torch.zeros(0, dtype=torch.long, device=nothing.device))]
            seen += [(self.feature(embedded), targets) for embedded, targets in batches]
            features, targets = (torch.cat(each) for each in zip(*seen, strict=True))
            with self.ranks.counting(*self.moments.sums):
                parts = torch.split(features, _PART), torch.split(targets, _PART)
                for x, y in zip(*parts, strict=True):
                    self.moments.add(self.project(x), y)
            if self.config.ridge is None:
                self._choose_ridge(self.ranks.gather(features), self.ranks.gather(targets))
            # `total` is the sum of h for each class: the products of h with one-hot targets.
            self.weight = ridge_head(self.moments.second, self.moments.total, float(self.ridge))

    def _choose_ridge(self, features: Tensor, targets: Tensor) -> None:
        """By the error on every fifth image, class by class; with fewer than five, as before."""
        by_class = targets.argsort(stable=True)
        held = torch.zeros_like(targets, dtype=torch.bool)
        held[by_class[4::5]] = True
        if held.any():
            one_hot = F.one_hot(targets - self.known, self.task_sizes[-1]).double()
            fitted, asked = (self.project(features[part]).double() for part in (~held, held))
            self.ridge.fill_(best_ridge(fitted, one_hot[~held], asked, one_hot[held]))

    def close_task(self) -> None:
        """Freeze the prompt."""
        self.first.close()

    def feature(
        self, embedded: Embedded, query: Tensor | None = None, task: Tensor | None = None
    ) -> Tensor:
        """The class token after the final norm (B, D), not yet projected."""
        return self.backbone.read(embedded, self.first.prompts(), "post_norm")

    def project(self, feature: Tensor) -> Tensor:
        """h (B, M)."""
        return F.relu(feature @ self.projection) if self.config.projections else feature

    def answer(self, feature: Tensor) -> Tensor:
        """Logits of the regression: about 1 for the class, about 0 for the others."""
        return F.linear(self.project(feature), self.weight)


def projection(dim: int, projections: int, seed: int) -> Tensor:
    """W (dim, projections), standard normal.

    It must come out the same in every later version, since it is not saved. NumPy has frozen the
    stream of RandomState; torch makes no such promise.
    """
    drawn = np.random.RandomState(seed).standard_normal((dim, projections))
    return torch.from_numpy(drawn.astype(np.float32))
