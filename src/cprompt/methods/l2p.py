"""Learning to Prompt, L2P (Wang et al.; CVPR 2022)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.methods.base import Draws, Method, register
from cprompt.methods.parts import token_prompts
from cprompt.methods.parts.heads import ConsistencyConfig, ConsistentHeads
from cprompt.methods.parts.keys import orthonormal_rows
from cprompt.methods.parts.token_prompts import SegmentsConfig
from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT, Prompts, Tap


@dataclass(frozen=True)
class QueryKeyConfig(ConsistencyConfig):
    """Settings that L2P and DualPrompt share; consistency is off, as in their papers."""

    ccl: bool = setting(False, "classifier consistency: expose the prompt to all old heads")
    pcl: bool = setting(False, "prompt consistency: train the head under randomly drawn prompts")
    feature: Tap = setting("pre_norm", "heads read tokens before or after the final norm")
    query: Tap = setting("pre_norm", "queries are taken before or after the final norm")
    pull: float = setting(1.0, "weight of the loss that pulls keys to their queries")
    init: tuple[float, ...] | None = setting(
        None, "bounds of new prompts and keys; empty: ±1/√D for prompts, orthonormal keys"
    )
    batchwise: bool = setting(
        False, "all images of a batch use the prompts that most of them choose; leaks at test"
    )

    def __post_init__(self) -> None:
        ConsistencyConfig.__post_init__(self)
        check(self.pull >= 0, f"pull {self.pull} must not be negative")
        if self.init is not None:
            check(
                len(self.init) == 2 and self.init[0] < self.init[1],
                f"init {self.init} must be two numbers, the smaller one first",
            )

    def new_prompt(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """Initial values of a prompt of `shape` (…, D)."""
        bound = 1 / math.sqrt(shape[-1])
        low, high = self.init or (-bound, bound)
        return torch.empty(shape).uniform_(low, high, generator=rng)

    def new_keys(self, count: int, existing: Tensor, rng: torch.Generator) -> Tensor:
        """Initial values of `count` keys beside the `existing` ones (n, D)."""
        if self.init is None:
            return orthonormal_rows(count, existing, rng)
        return self.new_prompt((count, existing.shape[1]), rng)

    def warn_if_batchwise(self, method: str) -> None:
        """If `batchwise` is on, warn about what it does to test accuracies."""
        if self.batchwise:
            warnings.warn(
                f"{method} with batchwise: an image's answer depends on its batch. A test batch "
                "with images of one task reveals that task, so accuracies are too high; "
                "set method.batchwise false for numbers that hold for single images",
                stacklevel=3,
            )


def vote(choices: Tensor, candidates: int, winners: int) -> Tensor:
    """The `winners` most frequent numbers in `choices`; in a tie, the smaller number first.

    Numbers are below `candidates`. This is the batchwise selection in the released code of L2P and
    DualPrompt.
    """
    votes = torch.bincount(choices.flatten(), minlength=candidates)
    return votes.argsort(descending=True, stable=True)[:winners]


@dataclass(frozen=True)
class L2PConfig(QueryKeyConfig, SegmentsConfig):
    """Settings of L2P; the defaults give it CPrompt's prompt, as the CPrompt paper's tables do."""

    pool: int = setting(10, "prompts in the pool")
    top_n: int = setting(1, "prompts used for an image")
    readout: Literal["cls", "prompts"] = setting(
        "cls", "heads read the class token, or the mean of the prompts' own output tokens"
    )

    def __post_init__(self) -> None:
        QueryKeyConfig.__post_init__(self)
        SegmentsConfig.__post_init__(self)
        check(self.pool >= 1, f"pool {self.pool} must be at least 1")
        check(
            1 <= self.top_n <= self.pool,
            f"top_n {self.top_n} must be between 1 and the {self.pool} prompts of the pool",
        )


@register("l2p", L2PConfig)
class L2P(Method):
    """A pool of prompts that all tasks share; each image uses those with the nearest keys.

    The pool is (M, segments, length, D), with one key per prompt. It is never frozen, so every
    task trains the prompts that its images choose. There is one head per task. The segments of the
    chosen prompts are concatenated in the token sequence.

    Prompt consistency: the paper does not define it for a method without a prompt per task. Here
    each image draws as many different prompts from the pool as it would choose, all equally
    likely. The task's head is trained under the drawn prompts, the auxiliary head under the chosen
    ones. The whole pool is trainable, so both losses train prompts. Classifier consistency shows
    the old heads the feature under the chosen prompts.
    """

    config: L2PConfig
    uses_query = True

    def __init__(self, backbone: FrozenViT, config: L2PConfig) -> None:
        super().__init__(backbone, config)
        config.warn_if_batchwise(self.name)
        self.answers_singly = not config.batchwise
        self.layers = token_prompts.place(config, backbone)
        shape = (config.pool, len(self.layers), config.length, backbone.dim)
        self.pool = nn.Parameter(torch.zeros(shape))
        self.keys = nn.Parameter(torch.zeros(config.pool, backbone.dim))
        self.heads = ConsistentHeads(backbone.dim, config)

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Add a head; the first task also initialises the pool and the keys."""
        super().begin_task(n_classes, rng)
        if self.n_tasks == 1:
            self.pool.data.copy_(self.config.new_prompt(tuple(self.pool.shape), rng))
            self.keys.data.copy_(self.config.new_keys(self.config.pool, self.keys[:0], rng))
        self.heads.open(n_classes, rng)

    def close_task(self) -> None:
        """Freeze the task's head, and nothing else."""
        self.heads.close()

    @torch.no_grad()
    def query(self, embedded: Embedded) -> Tensor:
        """The class token (B, D) of the pass without prompts."""
        return self.backbone.read(embedded, tap=self.config.query)

    def similarity(self, query: Tensor) -> Tensor:
        """cos(q, k) of queries (B, D) with all keys: (B, M)."""
        return F.cosine_similarity(query[:, None], self.keys, dim=-1)

    def select(
        self, similarity: Tensor, gather: Callable[[Tensor], Tensor] = lambda rows: rows
    ) -> Tensor:
        """The prompts (B, N) of each image, given its similarities (B, M) to all keys.

        With `batchwise`, all images that `gather` brings together vote.
        """
        chosen = similarity.topk(self.config.top_n).indices
        if self.config.batchwise:
            winners = vote(gather(chosen), self.config.pool, self.config.top_n)
            chosen = winners.expand(len(similarity), -1)
        return chosen

    def prompted(self, embedded: Embedded, prompts: Tensor) -> Tensor:
        """h (B, D) under the pool's `prompts` (B, N) of each image."""
        # Unlike indexing, `embedding` sums its gradient in a fixed order.
        rows = F.embedding(prompts, self.pool.flatten(1))
        by_segment = rows.view(*prompts.shape, *self.pool.shape[1:]).transpose(1, 2)
        tokens = Prompts(dict(zip(self.layers, by_segment.flatten(2, 3).unbind(1), strict=True)))
        if self.config.readout == "cls":
            return self.backbone.read(embedded, tokens, self.config.feature)
        encoded = self.backbone.encode(embedded, tokens)
        added = encoded.shape[1] - embedded.tokens.shape[1]
        answers = encoded[:, self.backbone.n_prefix :][:, :added]
        if self.config.feature == "post_norm":
            answers = self.backbone.norm(answers)
        return answers.mean(1)

    def draw(self, n_images: int, rng: torch.Generator, multiple: int = 1) -> Draws:
        """With pcl, N different `prompts` (B, N) for each image, every set equally likely."""
        draws = self.heads.draw(n_images, rng)
        if self.config.pcl:
            order = torch.rand(n_images, self.config.pool, generator=rng).argsort(1)
            draws["prompts"] = order[:, : self.config.top_n]
        return draws

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """`ce`, `pull` and, if on, `aux` and `ccl`.

        `ce` is over the classes of the current task. `pull` is 1 - cos(q, k), summed over the
        keys of an image's prompts and averaged over the batch; only it trains the keys.
        """
        similarity = self.similarity(self.query(embedded))
        chosen = self.select(similarity, embedded.gather)
        h = self.prompted(embedded, chosen)
        drawn = self.prompted(embedded, draws["prompts"]) if self.config.pcl else h
        losses = self.heads.losses(h, drawn, targets - self.known, draws)
        losses["pull"] = self.config.pull * (1 - similarity.gather(1, chosen)).sum(1).mean()
        return losses

    def feature(self, embedded: Embedded, query: Tensor | None, task: Tensor | None) -> Tensor:
        """h (B, D) under the prompts that each query selects."""
        assert query is not None
        return self.prompted(embedded, self.select(self.similarity(query)))

    def answer(self, feature: Tensor) -> Tensor:
        """Logits of all heads."""
        logits: Tensor = self.heads(feature)
        return logits
