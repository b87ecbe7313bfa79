"""HiDe-Prompt (Wang, Xie, Zhang, Huang, Su, Zhu; NeurIPS 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.methods.base import Batches, Draws, Method, register
from cprompt.methods.parts.gaussians import (
    AlignmentConfig,
    ClassGaussians,
    align,
    replace_rows,
    task_of_class,
)
from cprompt.methods.parts.growing_rows import GrowingRows, grown
from cprompt.methods.parts.heads import TaskHeads, new_head
from cprompt.seeds import generator
from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT, Prompts


@dataclass(frozen=True)
class HiDeConfig(AlignmentConfig):
    """Settings of HiDe-Prompt; the defaults are those of the released code for CIFAR-100."""

    length: int = setting(5, "length of a prompt's key prefix, and of its value prefix, in a block")
    layers: tuple[int, ...] | None = setting(
        None, "blocks of the prompts, from 0; empty: the first five"
    )
    ensemble: float = setting(0.01, "share α of the old prompts' mean in a new prompt")
    contrast: float = setting(0.1, "weight λ of the contrastive regularisation")
    contrast_temperature: float = setting(0.8, "temperature of the contrastive regularisation")
    head_lr_scale: float = setting(0.1, "learning rate of the head, relative to the prompt")
    samples: int = setting(120, "features drawn per class in every epoch of alignment")
    align_epochs: int = setting(30, "epochs of alignment after each task but the first")
    align_lr: float = setting(
        0.005, "initial learning rate of alignment; a cosine takes it to zero"
    )
    align_weight_decay: float = setting(0.0, "L2 penalty on the heads during alignment")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.length > 0, f"length {self.length} must be at least 1")
        if self.layers is not None:
            check(
                len(self.layers) > 0 and len(set(self.layers)) == len(self.layers),
                f"layers {self.layers} must be different block numbers",
            )
        check(0 <= self.ensemble < 1, f"ensemble {self.ensemble} must be in [0, 1)")
        check(self.contrast >= 0, f"contrast {self.contrast} must not be negative")
        check(
            self.contrast_temperature > 0,
            f"contrast_temperature {self.contrast_temperature} must be positive",
        )
        check(self.head_lr_scale > 0, f"head_lr_scale {self.head_lr_scale} must be positive")


@register("hide", HiDeConfig)
class HiDe(Method):
    """A prefix prompt per task, chosen by a head on features without prompts (HiDe-Prompt).

    Three parts are trained separately. All features are class tokens after the final norm.

    - Within a task, prompt e_t and head are trained by cross-entropy over the task's own classes
      and by `contrast_loss`. The prompt in use, in training and at test, is the ensemble
      p_t = (1 - α) e_t + α mean(p_1, …, p_{t-1}). e_t starts as a copy of p_{t-1}, the first one
      from U(-1, 1).
    - Task identity: a linear head over all classes reads the feature without prompts. The prompt
      is that of its best class's task.
    - Task-adaptive prediction: after each task all heads, old ones too, are trained again on
      features under the prompts. The next task starts from there.

    The last two are trained by cross-entropy on features drawn from two Gaussians per class: one
    of its features without prompts, one of its features under its prompt. For a ViT-B in float32
    these take 4.7 MB per class with full covariances (945 MB for 200 classes), or 12 KB with
    variances.

    Differences to the sources:

    - The paper's task-identity layer has one output per task. Here, as in the released code, it
      has one per class.
    - The code puts a residual MLP before that layer, first trains both on images, and keeps ten
      k-means centroids with variances per class. Here, as in the paper, one linear layer is
      trained on one Gaussian per class.
    - The code skips as many batches of each alignment epoch as there are new classes. Here every
      drawn feature is used.
    - The code mixes key and value prefixes of different images by a reshape. Here each image gets
      the prefixes of its own prompt.
    """

    config: HiDeConfig
    uses_query = True
    selects_task = True
    features_are_final = True
    adds_over_ranks = True
    tii_weight: Tensor
    tii_bias: Tensor

    def __init__(self, backbone: FrozenViT, config: HiDeConfig) -> None:
        super().__init__(backbone, config)
        self.layers = config.layers or tuple(range(min(5, backbone.depth)))
        for layer in self.layers:
            check(
                0 <= layer < backbone.depth,
                f"layers: {backbone.name} has no block {layer}, only 0 to {backbone.depth - 1}",
            )
        self.prompts = GrowingRows(len(self.layers), 2, config.length, backbone.dim)
        self.heads = TaskHeads(backbone.dim, config.head_init)
        self.plain = ClassGaussians(backbone.dim, config.covariance)
        self.prompted = ClassGaussians(backbone.dim, config.covariance)
        self.register_buffer("tii_weight", torch.zeros(0, backbone.dim))
        self.register_buffer("tii_bias", torch.zeros(0))

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Add a prompt and a head, and rows to the task-identity head and the statistics."""
        super().begin_task(n_classes, rng)
        fresh = torch.empty(1, *self.prompts.frozen.shape[1:]).uniform_(-1, 1, generator=rng)
        self.prompts.open(self.prompts.frozen[-1:] if len(self.prompts) else fresh)
        self.heads.open(n_classes, rng)
        weight, bias = new_head(n_classes, self.backbone.dim, rng, self.config.head_init)
        self.tii_weight = grown(self.tii_weight, weight.to(self.tii_weight))
        self.tii_bias = grown(self.tii_bias, bias.to(self.tii_bias))
        self.plain.open(n_classes)
        self.prompted.open(n_classes)

    def under(self, prompt: Tensor, embedded: Embedded) -> Tensor:
        """The class token (B, D) under `prompt`, (layers, 2, L, D) or (B, layers, 2, L, D).

        The axis of length 2 holds the key prefix, then the value prefix.
        """
        parts = dict(zip(self.layers, prompt.unbind(-4), strict=True))
        prefixes = {at: (part.select(-3, 0), part.select(-3, 1)) for at, part in parts.items()}
        return self.backbone.read(embedded, Prompts(prefixes=prefixes), "post_norm")

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """`ce` over the current task's classes, and `contrast` to the means of all old classes."""
        h = self.under(self._ensemble(), embedded)
        means = self.prompted.mean[: self.known]
        contrast = contrast_loss(embedded.gather(h), means, self.config.contrast_temperature)
        return {
            "ce": F.cross_entropy(self.heads.current(h), targets - self.known),
            "contrast": self.config.contrast * contrast,
        }

    def end_task(self, batches: Batches) -> None:
        """Store both Gaussians of each new class, then train both heads on those of all classes.

        After the first task no head is trained: there is only one task to choose from.
        """
        n = self.task_sizes[-1]
        plain, prompted = self.plain.moments(n), self.prompted.moments(n)
        with torch.no_grad():
            prompt = self._ensemble()
            for embedded, targets in batches:
                plain.add(self.query(embedded), targets - self.known)
                prompted.add(self.under(prompt, embedded), targets - self.known)
        plain.add_over_ranks(self.ranks)
        prompted.add_over_ranks(self.ranks)
        self.plain.store(plain)
        self.prompted.store(prompted)
        if self.n_tasks == 1:
            return
        self.tii_weight, self.tii_bias = self._align(self.tii_weight, self.tii_bias, self.plain, 0)
        weight, bias = self._align(self.heads.weight.all(), self.heads.bias.all(), self.prompted, 1)
        replace_rows(self.heads.weight, weight)
        replace_rows(self.heads.bias, bias)

    def close_task(self) -> None:
        """Freeze the head and the prompt in use, which is the ensemble."""
        assert self.prompts.current is not None
        self.prompts.current.data.copy_(self._ensemble()[None])
        self.prompts.close()
        self.heads.close()

    @torch.no_grad()
    def query(self, embedded: Embedded) -> Tensor:
        """The class token (B, D) of the pass without prompts."""
        return self.backbone.read(embedded, tap="post_norm")

    def choose(self, query: Tensor) -> Tensor:
        """The task of the best class of the task-identity head."""
        best = F.linear(query, self.tii_weight, self.tii_bias).argmax(-1)
        return task_of_class(self.task_sizes).to(best.device)[best]

    def feature(self, embedded: Embedded, query: Tensor | None, task: Tensor | None) -> Tensor:
        """The class token (B, D) under the prompt of each image's task."""
        prompts = self.prompts.frozen
        if self.prompts.current is not None:
            prompts = torch.cat([prompts, self._ensemble()[None]])
        return self.under(prompts[task], embedded)

    def answer(self, feature: Tensor) -> Tensor:
        """Logits of all heads."""
        logits: Tensor = self.heads(feature)
        return logits

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The current prompt, and its head at `head_lr_scale`."""
        return [
            {"params": list(self.prompts.parameters())},
            {"params": list(self.heads.parameters()), "lr_scale": self.config.head_lr_scale},
        ]

    def _ensemble(self) -> Tensor:
        """p_t (layers, 2, L, D) of the current task; only e_t gets a gradient."""
        assert self.prompts.current is not None
        current, old = self.prompts.current[0], self.prompts.frozen
        alpha = self.config.ensemble
        return (1 - alpha) * current + alpha * old.mean(0) if len(old) else current

    def _align(
        self, weight: Tensor, bias: Tensor, gaussians: ClassGaussians, which: int
    ) -> tuple[Tensor, Tensor]:
        rng = generator(self.config.seed, self.n_tasks - 1, which)
        return align(weight, bias, gaussians.sampler(), self.config, F.cross_entropy, rng)


def contrast_loss(features: Tensor, means: Tensor, temperature: float) -> Tensor:
    """Keep features apart from each other and from the means of old classes.

    With m_1, …, m_n the `means` (K, D) and the `features` (B, D) together, n = K + B, it is the
    mean over i of -log [exp(m_i·m_i/τ) / Σ_j exp(m_i·m_j/τ)], as in the released code. In the
    paper, i runs over the features only, and the numerator holds the old means, whose share is to
    be made small, instead of the feature itself, whose share is to be made large.
    """
    m = torch.cat([means, features])
    similarity = m @ m.T / temperature
    return F.cross_entropy(similarity, torch.arange(len(m), device=m.device))
