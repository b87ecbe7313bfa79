"""Consistent Prompting (Gao, Cen, Chang; CVPR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from cprompt.methods.base import Draws, LossPart, register
from cprompt.methods.parts import token_prompts
from cprompt.methods.parts.drawn_prompts import DrawnPromptsMethod
from cprompt.methods.parts.growing_rows import GrowingRows
from cprompt.methods.parts.heads import ConsistencyConfig, ConsistentHeads
from cprompt.methods.parts.keys import KeysPer, PromptKeys
from cprompt.methods.parts.token_prompts import SegmentsConfig
from cprompt.settings import setting
from cprompt.vit.promptable import Embedded, FrozenViT


@dataclass(frozen=True)
class CPromptConfig(ConsistencyConfig, SegmentsConfig):
    """Settings of CPrompt; the defaults are the paper's, the switches its ablations'."""

    keys: KeysPer = setting("class", "one key per class (multi-key) or one key per task")
    prompt_init: Literal["copy", "fresh"] = setting(
        "copy", "a new prompt starts as a copy of the last one, or fresh"
    )

    def __post_init__(self) -> None:
        ConsistencyConfig.__post_init__(self)
        SegmentsConfig.__post_init__(self)


@register("cprompt", CPromptConfig)
class CPrompt(DrawnPromptsMethod):
    """A prompt, a head and keys per task, trained under the conditions of testing.

    Prompts are (tasks, segments, length, D). An image's query, its class token without prompts,
    selects the nearest key. A second pass uses the prompt of that key's task, and all heads read
    its class token. Features and queries are taken before the final norm, as in the released code.
    """

    config: CPromptConfig
    uses_query = True
    selects_task = True
    features_are_final = True

    def __init__(self, backbone: FrozenViT, config: CPromptConfig) -> None:
        super().__init__(backbone, config)
        self.layers = token_prompts.place(config, backbone)
        self.prompts = GrowingRows(len(self.layers), config.length, backbone.dim)
        self.heads = ConsistentHeads(backbone.dim, config)
        self.keys = PromptKeys(backbone.dim, per=config.keys)

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Add a prompt, a head and keys."""
        super().begin_task(n_classes, rng)
        fresh = token_prompts.fresh(self.config, self.backbone, rng)
        copied = self.config.prompt_init == "copy" and len(self.prompts)
        self.prompts.open(self.prompts.frozen[-1:] if copied else fresh[None])
        self.heads.open(n_classes, rng)
        self.keys.open(self.n_tasks - 1, n_classes, rng)
        if self.keys.rows.current is not None and len(self.keys.rows) == 1:
            self.keys.rows.current.requires_grad_(False)  # its loss, of one choice, is always zero

    def close_task(self) -> None:
        """Freeze prompt, head and keys."""
        self.prompts.close()
        self.heads.close()
        self.keys.close()

    def parts(self, embedded: Embedded, targets: Tensor, draws: Draws) -> list[LossPart]:
        """The terms of the total loss (eqs. 3 to 13) that are on: `ce`, `aux`, `ccl`, `mk`.

        No work is done twice: all passes share the embedding, the query and the passes with old
        prompts need no gradient, and images that draw the current prompt reuse h.
        """
        assert self.prompts.current is not None
        current = self.prompts.current[0]

        def under_old(images: Tensor, tasks: Tensor) -> Tensor:
            return self.prompted(embedded[images], self.prompts.frozen[tasks])

        def of_keys() -> dict[str, Tensor]:
            return {"mk": self.keys.loss(self.query(embedded), targets)}

        h = partial(self.prompted, embedded, current)
        return [*self.parts_of_heads(h, under_old, targets, draws), of_keys]

    def prompted(self, embedded: Embedded, prompt: Tensor) -> Tensor:
        """h = f(x, P)[0], eq. 1. `prompt` is (segments, L, D), or (B, segments, L, D)."""
        return token_prompts.prompted_feature(self.backbone, embedded, prompt, self.layers)

    @torch.no_grad()
    def query(self, embedded: Embedded) -> Tensor:
        """q = f(x)[0]: the class token of the pass without prompts."""
        return self.backbone.read(embedded)

    def choose(self, query: Tensor) -> Tensor:
        """The task whose key is nearest to the query (eq. 11)."""
        return self.keys.choose(query)

    def feature(self, embedded: Embedded, query: Tensor | None, task: Tensor | None) -> Tensor:
        """h (B, D) under the prompt of each image's task."""
        return self.prompted(embedded, self.prompts.all()[task])

    def answer(self, feature: Tensor) -> Tensor:
        """Logits of all heads."""
        logits: Tensor = self.heads(feature)
        return logits

    def key_similarity(self, query: Tensor) -> Tensor | None:
        """cos(q, k) with all keys (B, keys)."""
        return self.keys.similarity(query)
