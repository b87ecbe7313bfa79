"""Consistent Prompting (Gao, Cen, Chang; CVPR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.methods.base import Batches, Draws, Method, register
from cprompt.methods.parts import token_prompts
from cprompt.methods.parts.drawn_prompts import draw_tasks, old_features, with_old
from cprompt.methods.parts.gaussians import GaussianKeys, SharedGaussians
from cprompt.methods.parts.growing_rows import GrowingRows
from cprompt.methods.parts.heads import ConsistencyConfig, ConsistentHeads
from cprompt.methods.parts.keys import KeysPer, PromptKeys
from cprompt.methods.parts.streams import run_on_streams
from cprompt.methods.parts.token_prompts import SegmentsConfig
from cprompt.settings import check, setting
from cprompt.vit.promptable import FrozenViT


@dataclass(frozen=True)
class CPromptConfig(ConsistencyConfig, SegmentsConfig):
    """Settings of CPrompt; the defaults are the paper's, the switches its ablations'."""

    keys: KeysPer = setting("class", "one key a class (multi-key) or one key a task")
    prompt_init: Literal["copy", "fresh"] = setting(
        "copy", "a new prompt starts as a copy of the last one, or fresh"
    )

    align: bool = setting(
        False,
        "answer and choose by class statistics instead of the heads and keys that were trained",
    )

    def __post_init__(self) -> None:
        ConsistencyConfig.__post_init__(self)
        SegmentsConfig.__post_init__(self)
        check(self.keys == "class" or not self.align, "align needs keys 'class', one key a class")


@register("cprompt", CPromptConfig)
class CPrompt(Method):
    """A prompt, a head and keys for each task, trained the way they will be used.

    Prompts are (tasks, segments, length, D). An image's plain class token, its query, picks the
    nearest key; that key's task lends the prompt for a second pass, whose class token all heads
    answer. Features and queries are taken before the final norm, as in the released code.

    `align` is no part of the paper. Heads of different tasks never meet in training, and a task of
    one class trains none at all. So what is kept of a class is the mean of its queries and of its
    features under its own prompt, with one covariance of all classes for each. Keys and one head
    over all classes are worked out from these after every task, in closed form. The head reads
    query and feature, each for itself, so that a prompt chosen wrongly is not the last word. The
    task's own head serves to train its prompt, and no key is trained. For a ViT-B that is 4.7 MB
    and 15 KB a class.
    """

    config: CPromptConfig
    aligned_weight: Tensor
    aligned_bias: Tensor
    keys: PromptKeys | GaussianKeys
    uses_query = True
    selects_task = True
    features_last = True

    def __init__(self, backbone: FrozenViT, config: CPromptConfig) -> None:
        super().__init__(backbone, config)
        self.layers = token_prompts.place(config, backbone)
        self.prompts = GrowingRows(len(self.layers), config.length, backbone.dim)
        self.heads = ConsistentHeads(backbone.dim, config)
        if config.align:
            self.keys = GaussianKeys(backbone.dim)
            self.features = SharedGaussians(backbone.dim)
            self.register_buffer("aligned_weight", torch.zeros(0, 2 * backbone.dim))
            self.register_buffer("aligned_bias", torch.zeros(0))
        else:
            self.keys = PromptKeys(backbone.dim, per=config.keys)

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Add a prompt, a head and keys."""
        super().begin_task(n_classes, rng)
        fresh = token_prompts.fresh(self.config, self.backbone, rng)
        copied = self.config.prompt_init == "copy" and len(self.prompts)
        self.prompts.open(self.prompts.frozen[-1:] if copied else fresh[None])
        self.heads.open(n_classes, rng)
        if isinstance(self.keys, PromptKeys):
            self.keys.open(self.n_tasks - 1, n_classes, rng)
            return
        self.keys.open(self.n_tasks - 1, n_classes)
        self.features.open(n_classes)
        self.aligned_weight = self.aligned_weight.new_zeros(self.n_classes, 2 * self.backbone.dim)
        self.aligned_bias = self.aligned_bias.new_zeros(self.n_classes)

    def end_task(self, batches: Batches) -> None:
        """With align: count queries and features of the task's classes, then keys and head anew."""
        if isinstance(self.keys, PromptKeys):
            return
        assert self.prompts.current is not None
        n = self.task_sizes[-1]
        queries, features = self.keys.queries.moments(n), self.features.moments(n)
        with torch.no_grad():
            for images, targets in batches:
                embedded = self.embed(images)
                queries.add(self.query(embedded), targets - self.known)
                features.add(self.prompted(embedded, self.prompts.current[0]), targets - self.known)
        self.keys.store(queries)
        self.features.store(features)
        by_feature, by_query = self.features.discriminant(), self.keys.queries.discriminant()
        self.aligned_weight = torch.cat([by_feature[0], by_query[0]], dim=1) / 2
        self.aligned_bias = (by_feature[1] + by_query[1]) / 2

    def close_task(self) -> None:
        """Freeze prompt, head and keys."""
        self.prompts.close()
        self.heads.close()
        if isinstance(self.keys, PromptKeys):
            self.keys.close()

    def draw(self, pictures: int, rng: torch.Generator, multiple: int = 1) -> Draws:
        """A task for every image, with pcl, and what the heads need."""
        pcl = self.config.pcl and self.n_tasks > 1
        tasks = draw_tasks(pictures, self.n_tasks, rng, multiple) if pcl else {}
        return {**tasks, **self.heads.draw(pictures, rng)}

    def loss(self, images: Tensor, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Terms of the total loss (eqs. 3 to 13): `ce`, `aux`, `ccl`, `mk`, as far as switched on.

        No work is done twice: the embedding serves all passes, the query and the passes through
        old prompts need no gradient, and images that draw the current prompt reuse h.
        """
        assert self.prompts.current is not None
        current = self.prompts.current[0]
        with torch.no_grad():
            embedded = self.embed(images)

        def under_old(pictures: Tensor, tasks: Tensor) -> Tensor:
            return self.prompted(embedded[pictures], self.prompts.frozen[tasks])

        def multi_key() -> Tensor | None:
            if isinstance(self.keys, PromptKeys):
                return self.keys.loss(self.query(embedded), targets)
            return None

        h, old, mk = run_on_streams(
            lambda: self.prompted(embedded, current),
            lambda: old_features(draws, under_old),
            multi_key,
        )
        assert h is not None
        losses = self.heads.losses(h, with_old(h, draws, old), targets - self.known, draws)
        return losses if mk is None else {**losses, "mk": mk}

    def prompted(self, embedded: Tensor, prompt: Tensor) -> Tensor:
        """h = f(x, P)[0], eq. 1. `prompt` is (segments, L, D), or (B, segments, L, D)."""
        return token_prompts.prompted_feature(self.backbone, embedded, prompt, self.layers)

    @torch.no_grad()
    def query(self, embedded: Tensor) -> Tensor:
        """q = f(x)[0]: the class token of the pass without prompts."""
        return self.backbone.read(embedded)

    def choose(self, query: Tensor) -> Tensor:
        """The task whose key is nearest to the query (eq. 11)."""
        return self.keys.choose(query)

    def feature(self, embedded: Tensor, query: Tensor | None, task: Tensor | None) -> Tensor:
        """h (B, D) under each image's task's prompt; with align, h and the query (B, 2D)."""
        h = self.prompted(embedded, self.prompts.all()[task])
        if not self.config.align:
            return h
        return torch.cat([h, self.query(embedded) if query is None else query], dim=1)

    def answer(self, feature: Tensor) -> Tensor:
        """Logits of all heads; of the aligned one, if there is one and no task is open."""
        if self.config.align and self.heads.weight.current is None:
            return F.linear(feature, self.aligned_weight, self.aligned_bias)
        logits: Tensor = self.heads(feature[:, : self.backbone.dim])
        return logits
