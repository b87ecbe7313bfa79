"""Consistent Prompting (Gao, Cen, Chang; CVPR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cprompt.backbone import FrozenViT
from cprompt.growing import GrowingRows
from cprompt.methods import segments
from cprompt.methods.base import Method, register
from cprompt.methods.drawing import under_drawn_prompts
from cprompt.methods.heads import ConsistencyConfig, ConsistentHeads
from cprompt.methods.segments import SegmentsConfig
from cprompt.selection import KeysPer, PromptKeys
from cprompt.settings import setting


@dataclass(frozen=True)
class CPromptConfig(ConsistencyConfig, SegmentsConfig):
    """Settings of CPrompt; the defaults are the paper's, the switches its ablations'."""

    keys: KeysPer = setting("class", "one key a class (multi-key) or one key a task")
    prompt_init: Literal["copy", "fresh"] = setting(
        "copy", "a new prompt starts as a copy of the last one, or fresh"
    )

    def __post_init__(self) -> None:
        ConsistencyConfig.__post_init__(self)
        SegmentsConfig.__post_init__(self)


@register("cprompt", CPromptConfig)
class CPrompt(Method):
    """A prompt, a head and keys for each task, trained the way they will be used.

    Prompts are (tasks, segments, length, D). A picture's plain class token, its query, picks the
    nearest key; that key's task lends the prompt for a second pass, whose class token all heads
    answer. Features and queries are taken before the final norm, as in the released code.
    """

    config: CPromptConfig
    selects_task = True

    def __init__(self, backbone: FrozenViT, config: CPromptConfig) -> None:
        super().__init__(backbone, config)
        self.layers = segments.place(config, backbone)
        self.prompts = GrowingRows(len(self.layers), config.length, backbone.dim)
        self.heads = ConsistentHeads(backbone.dim, config)
        self.keys = PromptKeys(backbone.dim, per=config.keys)

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Add a prompt, a head and keys."""
        super().begin_task(n_classes, rng)
        fresh = segments.fresh(self.config, self.backbone, rng)
        copied = self.config.prompt_init == "copy" and len(self.prompts)
        self.prompts.open(self.prompts.frozen[-1:] if copied else fresh[None])
        self.heads.open(n_classes, rng)
        self.keys.open(self.n_tasks - 1, n_classes, rng)

    def close_task(self) -> None:
        """Freeze prompt, head and keys."""
        self.prompts.close()
        self.heads.close()
        self.keys.close()

    def feature(self, embedded: Tensor, prompt: Tensor) -> Tensor:
        """h = f(x, P)[0], eq. 1. `prompt` is (segments, L, D), or (B, segments, L, D)."""
        return segments.prompted_feature(self.backbone, embedded, prompt, self.layers)

    def query(self, embedded: Tensor) -> Tensor:
        """q = f(x)[0]: the class token of the pass without prompts."""
        return self.backbone.tap(self.backbone.encode(embedded), "pre_norm")

    def loss(self, images: Tensor, targets: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        """Terms of the total loss (eqs. 3 to 13): `ce`, `aux`, `ccl`, `mk`, as far as switched on.

        No work is done twice: the embedding serves all passes, the query and the passes through
        old prompts need no gradient, and pictures that draw the current prompt reuse h.
        """
        assert self.prompts.current is not None
        with torch.no_grad():
            embedded = self.backbone.embed(images)
            query = self.query(embedded)
        h = self.feature(embedded, self.prompts.current[0])

        def under_old(pictures: Tensor, tasks: Tensor) -> Tensor:
            return self.feature(embedded[pictures], self.prompts.frozen[tasks])

        return {
            **self.heads.losses(
                h,
                lambda: under_drawn_prompts(h, self.n_tasks, under_old, rng),
                targets - self.known,
                rng,
            ),
            "mk": self.keys.loss(query, targets),
        }

    def choose(self, images: Tensor) -> Tensor:
        """The task whose key is nearest to the query (eq. 11)."""
        return self.keys.choose(self.query(self.backbone.embed(images)))

    def forward(self, images: Tensor, task: Tensor | None = None) -> Tensor:
        """Logits of all heads under the chosen, or given, task's prompt: (B, classes seen)."""
        embedded = self.backbone.embed(images)
        if task is None:
            task = self.keys.choose(self.query(embedded))
        logits: Tensor = self.heads(self.feature(embedded, self.prompts.all()[task]))
        return logits
