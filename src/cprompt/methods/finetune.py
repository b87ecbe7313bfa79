"""Plain fine-tuning: CPrompt's prompt and head, with nothing that protects old classes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.methods.base import Draws, Method, register
from cprompt.methods.parts import token_prompts
from cprompt.methods.parts.growing_rows import grown
from cprompt.methods.parts.heads import new_head
from cprompt.methods.parts.token_prompts import SegmentsConfig
from cprompt.vit.promptable import Embedded, FrozenViT


@register("finetune", SegmentsConfig)
class FineTune(Method):
    """One prompt and one head for all classes, trained on each task in turn: the lower bound."""

    config: SegmentsConfig
    prompt: nn.Parameter
    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, backbone: FrozenViT, config: SegmentsConfig) -> None:
        super().__init__(backbone, config)
        self.layers = token_prompts.place(config, backbone)
        shape = (len(self.layers), config.length, backbone.dim)
        self.prompt = nn.Parameter(torch.zeros(shape))
        self.weight = nn.Parameter(torch.empty(0, backbone.dim))
        self.bias = nn.Parameter(torch.empty(0))

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Add rows to the head; the prompt and the old rows stay trainable."""
        super().begin_task(n_classes, rng)
        if self.n_tasks == 1:
            self.prompt.data.copy_(token_prompts.fresh(self.config, self.backbone, rng))
        weight, bias = new_head(n_classes, self.backbone.dim, rng)
        self.weight = nn.Parameter(grown(self.weight.detach(), weight.to(self.weight)))
        self.bias = nn.Parameter(grown(self.bias.detach(), bias.to(self.bias)))

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Cross-entropy over all classes seen, on images of the current ones only."""
        return {"ce": F.cross_entropy(self.answer(self.feature(embedded)), targets)}

    def feature(
        self, embedded: Embedded, query: Tensor | None = None, task: Tensor | None = None
    ) -> Tensor:
        """h (B, D) under the one prompt."""
        return token_prompts.prompted_feature(self.backbone, embedded, self.prompt, self.layers)

    def answer(self, feature: Tensor) -> Tensor:
        """Logits of the one head."""
        return F.linear(feature, self.weight, self.bias)
