"""DualPrompt (Wang et al.; ECCV 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from cprompt.methods.base import Draws, LossPart, register
from cprompt.methods.l2p import QueryKeyConfig, vote
from cprompt.methods.parts import token_prompts
from cprompt.methods.parts.drawn_prompts import DrawnPromptsMethod
from cprompt.methods.parts.growing_rows import GrowingRows
from cprompt.methods.parts.heads import ConsistentHeads
from cprompt.methods.parts.keys import KeysPer, PromptKeys
from cprompt.methods.parts.token_prompts import SegmentsConfig
from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT, Prompts


@dataclass(frozen=True)
class DualPromptConfig(QueryKeyConfig):
    """Settings of DualPrompt; the defaults split CPrompt's prompt into a G- and an E-prompt."""

    prompting: Literal["tokens", "prefix"] = setting(
        "tokens", "prompts are extra tokens, or prefixes of attention's keys and values"
    )
    g_length: int = setting(50, "length of the G-prompt in each of its blocks")
    g_layers: tuple[int, ...] | None = setting(
        None, "blocks of the G-prompt, from 0; empty: the first one"
    )
    e_length: int = setting(50, "length of an E-prompt in each of its blocks")
    e_layers: tuple[int, ...] | None = setting(
        None, "blocks of the E-prompts, from 0; empty: the middle one"
    )
    prompt_init: Literal["copy", "fresh"] = setting(
        "copy", "a new E-prompt starts as a copy of the last one, or fresh"
    )
    keys: KeysPer = setting(
        "task",
        "one key per task, pulled to its queries, or one key per class (CPrompt's multi-key)",
    )

    def __post_init__(self) -> None:
        QueryKeyConfig.__post_init__(self)
        for name, length in (("g_length", self.g_length), ("e_length", self.e_length)):
            check(length > 0, f"{name} {length} must be at least 1")
        for name, layers in (("g_layers", self.g_layers), ("e_layers", self.e_layers)):
            check(layers is None or len(layers) > 0, f"{name} must name a block")


@register("dualprompt", DualPromptConfig)
class DualPrompt(DrawnPromptsMethod):
    """A prompt shared by all tasks (G), and one prompt per task (E), chosen by the nearest key.

    The G-prompt is (blocks, parts, length, D) and is never frozen. E-prompts are (tasks, blocks,
    parts, length, D), frozen with their task. `parts` is 2 for prefixes (key, value) and 1 for
    tokens. A batch axis, if there is one, comes first, so that prompts of different images cannot
    be mixed up.

    Prompt consistency: each image draws the E-prompt of a task seen so far, all equally likely.
    The task's head is trained under it, the auxiliary head under the current E-prompt. A drawn old
    E-prompt trains only the head; the current one also trains the G- and the E-prompt. Classifier
    consistency shows the old heads the feature under the current E-prompt.
    """

    config: DualPromptConfig
    uses_query = True
    selects_task = True

    def __init__(self, backbone: FrozenViT, config: DualPromptConfig) -> None:
        super().__init__(backbone, config)
        config.warn_if_batchwise(self.name)
        self.answers_singly = not config.batchwise
        self.g_layers, self.e_layers = _place(config, backbone)
        parts = 2 if config.prompting == "prefix" else 1
        g_shape = (len(self.g_layers), parts, config.g_length, backbone.dim)
        self.g_prompt = nn.Parameter(torch.zeros(g_shape))
        self.e_shape = (len(self.e_layers), parts, config.e_length, backbone.dim)
        self.e_prompts = GrowingRows(*self.e_shape)
        self.heads = ConsistentHeads(backbone.dim, config)
        self.keys = PromptKeys(backbone.dim, per=config.keys)

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Add an E-prompt, a head and keys; the first task also initialises the G-prompt."""
        super().begin_task(n_classes, rng)
        config = self.config
        if self.n_tasks == 1:
            self.g_prompt.data.copy_(config.new_prompt(tuple(self.g_prompt.shape), rng))
        fresh = config.new_prompt((1, *self.e_shape), rng)
        copied = config.prompt_init == "copy" and len(self.e_prompts)
        self.e_prompts.open(self.e_prompts.frozen[-1:] if copied else fresh)
        self.heads.open(n_classes, rng)
        self.keys.open(self.n_tasks - 1, n_classes, rng)
        if config.init is not None:
            rows = self.keys.rows
            rows.open(config.new_keys(len(rows) - len(rows.frozen), rows.frozen, rng))

    def close_task(self) -> None:
        """Freeze E-prompt, head and keys."""
        self.e_prompts.close()
        self.heads.close()
        self.keys.close()

    def prompted(self, embedded: Embedded, e_prompt: Tensor) -> Tensor:
        """h (B, D) under the G-prompt and `e_prompt`: (blocks, parts, L, D), or (B, …) of these."""
        at = dict(zip(self.g_layers, self.g_prompt.unbind(-4), strict=True))
        at |= dict(zip(self.e_layers, e_prompt.unbind(-4), strict=True))
        parts = {layer: prompt.unbind(-3) for layer, prompt in at.items()}
        if self.config.prompting == "prefix":
            prompts = Prompts(
                prefixes={layer: (key, value) for layer, (key, value) in parts.items()}
            )
        else:
            prompts = Prompts(tokens={layer: tokens for layer, (tokens,) in parts.items()})
        return self.backbone.read(embedded, prompts, self.config.feature)

    def parts(self, embedded: Embedded, targets: Tensor, draws: Draws) -> list[LossPart]:
        """`ce`, `pull` (or `mk`, with one key per class) and, if on, `aux` and `ccl`.

        `ce` is over the classes of the current task. `pull` is the mean of 1 - cos(q, k_t) with
        the current task's key; `mk` is the multi-key loss (eq. 12). Both are weighted by `pull`.
        """
        assert self.e_prompts.current is not None
        current = self.e_prompts.current[0]

        def under_old(images: Tensor, tasks: Tensor) -> Tensor:
            return self.prompted(embedded[images], self.e_prompts.frozen[tasks])

        def of_keys() -> dict[str, Tensor]:
            query, weight = self.query(embedded), self.config.pull
            if self.config.keys == "class":
                return {"mk": weight * self.keys.loss(query, targets)}
            return {"pull": weight * (1 - self.keys.similarity(query)[:, -1]).mean()}

        h = partial(self.prompted, embedded, current)
        return [*self.parts_of_heads(h, under_old, targets, draws), of_keys]

    @torch.no_grad()
    def query(self, embedded: Embedded) -> Tensor:
        """The class token (B, D) of the pass without prompts."""
        return self.backbone.read(embedded, tap=self.config.query)

    def choose(self, query: Tensor) -> Tensor:
        """The task whose key is nearest; with `batchwise`, the one that most images chose."""
        chosen = self.keys.choose(query)
        if self.config.batchwise:
            chosen = vote(chosen, self.n_tasks, winners=1).expand_as(chosen)
        return chosen

    def feature(self, embedded: Embedded, query: Tensor | None, task: Tensor | None) -> Tensor:
        """h (B, D) under the G-prompt and the E-prompt of each image's task."""
        return self.prompted(embedded, self.e_prompts.all()[task])

    def answer(self, feature: Tensor) -> Tensor:
        """Logits of all heads."""
        logits: Tensor = self.heads(feature)
        return logits

    def key_similarity(self, query: Tensor) -> Tensor | None:
        """cos(q, k) with all keys (B, keys)."""
        return self.keys.similarity(query)


def _place(
    config: DualPromptConfig, backbone: FrozenViT
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The blocks of the G-prompt and of the E-prompts on this backbone."""
    first, middle = token_prompts.place(SegmentsConfig(), backbone)
    g_layers, e_layers = config.g_layers or (first,), config.e_layers or (middle,)
    for name, layers in (("g_layers", g_layers), ("e_layers", e_layers)):
        check(
            all(0 <= layer < backbone.depth for layer in layers),
            f"{name} {layers}: {backbone.name} has blocks 0 to {backbone.depth - 1} only",
        )
    both = (*g_layers, *e_layers)
    check(
        len(set(both)) == len(both),
        f"g_layers {g_layers} and e_layers {e_layers} must be different block numbers",
    )
    return g_layers, e_layers
