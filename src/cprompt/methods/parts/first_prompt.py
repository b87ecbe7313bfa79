"""A prompt trained on the first task and then frozen: adaptation in the first session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.methods.parts.heads import new_head
from cprompt.settings import check, setting
from cprompt.vit.promptable import FrozenViT, Prompts


@dataclass(frozen=True)
class FirstPromptConfig:
    """Settings of adaptation."""

    adaptation: Literal["none", "prompt"] = setting(
        "none", "before the first task is counted: nothing, or a prompt trained on it, then frozen"
    )
    prompt_length: int = setting(10, "with adaptation prompt: key/value pairs added to every block")
    smoothing: float = setting(0.1, "with adaptation prompt: label smoothing of its loss")

    def __post_init__(self) -> None:
        check(self.prompt_length >= 1, f"prompt_length {self.prompt_length} must be at least 1")
        check(0 <= self.smoothing < 1, f"smoothing {self.smoothing} must be in [0, 1)")


class FirstPrompt(nn.Module):
    """Key/value prefixes (depth, 2, length, D) at every block, and the head that trains them.

    The head exists during the first task only. Without adaptation there is neither.
    """

    prefixes: nn.Parameter | None
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, config: FirstPromptConfig) -> None:
        super().__init__()
        self.config = config
        for name in ("prefixes", "weight", "bias"):
            self.register_parameter(name, None)

    def open(self, backbone: FrozenViT, n_classes: int, dim: int, rng: torch.Generator) -> None:
        """Begin the first task; its head reads features of `dim` numbers."""
        if self.config.adaptation == "none":
            return
        shape = (backbone.depth, 2, self.config.prompt_length, backbone.dim)
        self.prefixes = nn.Parameter(torch.empty(shape).normal_(0, 0.02, generator=rng))
        weight, bias = new_head(n_classes, dim, rng, "zero")
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    @property
    def is_open(self) -> bool:
        """Whether there is a prompt to train now."""
        return self.weight is not None

    def loss(self, feature: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """`ce` of the head on features (B, dim) under the prompt."""
        assert self.weight is not None
        logits = F.linear(feature, self.weight, self.bias)
        return {"ce": F.cross_entropy(logits, targets, label_smoothing=self.config.smoothing)}

    def close(self) -> None:
        """Freeze the prompt, and drop the head that trained it."""
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)
        if self.prefixes is not None:
            self.prefixes.requires_grad_(False)

    def prompts(self) -> Prompts | None:
        """What a pass adds to the backbone."""
        if self.prefixes is None:
            return None
        pairs = enumerate(self.prefixes.unbind(0))
        return Prompts(prefixes={layer: (pair[0], pair[1]) for layer, pair in pairs})
