"""Consistent Prompting (Gao, Cen, Chang; CVPR 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.backbone import FrozenViT, Prompts
from cprompt.consistency import Smoothing, ccl_loss
from cprompt.growing import GrowingRows
from cprompt.methods.base import Method, register
from cprompt.methods.heads import TaskHeads, new_head
from cprompt.selection import KeysPer, PromptKeys
from cprompt.settings import check, setting


@dataclass(frozen=True)
class CPromptConfig:
    """Settings of CPrompt; the defaults are the paper's, the switches its ablations'."""

    length: int = setting(50, "tokens in each prompt segment")
    layers: tuple[int, ...] | None = setting(
        None, "block before which each segment joins, from 0; empty: the first and the middle one"
    )
    ccl: bool = setting(True, "classifier consistency: expose the prompt to all old heads")
    tau: float = setting(1.15, "temperature τ1 of the smooth regularisation")
    margin: float = setting(0.1, "margin m under which an old head counts as too confident")
    alpha: float = setting(1.0, "strength α of classifier consistency")
    smoothing: Smoothing = setting("adaptive", "target of CCL: adaptive, or the edl/roh variants")
    pcl: bool = setting(True, "prompt consistency: train the head under randomly drawn prompts")
    aux_loss: bool = setting(True, "with pcl: also train the current prompt by its own loss")
    aux_head: bool = setting(True, "with pcl: that loss uses a head of its own, else the task's")
    keys: KeysPer = setting("class", "one key a class (multi-key) or one key a task")
    prompt_init: str = setting("copy", "a new prompt starts as a copy of the last one, or fresh")

    def __post_init__(self) -> None:
        check(self.length > 0, f"length {self.length} must be at least 1")
        check(self.tau >= 1, f"tau {self.tau} must be at least 1; below 1 it would sharpen")
        check(self.margin >= 0, f"margin {self.margin} must not be negative")
        check(self.alpha >= 0, f"alpha {self.alpha} must not be negative")
        check(
            self.prompt_init in ("copy", "fresh"),
            f"prompt_init {self.prompt_init!r} is neither copy nor fresh",
        )
        if self.layers is not None:
            check(
                len(self.layers) > 0 and len(set(self.layers)) == len(self.layers),
                f"layers {self.layers} must be different block numbers",
            )


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
        self.layers = config.layers or (0, max(backbone.depth // 2 - 1, 1))
        for layer in self.layers:
            check(
                0 <= layer < backbone.depth,
                f"layers: {backbone.name} has no block {layer}, only 0 to {backbone.depth - 1}",
            )
        self.prompts = GrowingRows(len(self.layers), config.length, backbone.dim)
        self.heads = TaskHeads(backbone.dim)
        self.keys = PromptKeys(backbone.dim, per=config.keys)
        self.aux_weight: nn.Parameter | None
        self.aux_bias: nn.Parameter | None
        self._drop_aux_head()

    @property
    def _own_aux_head(self) -> bool:
        return self.config.pcl and self.config.aux_loss and self.config.aux_head

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Add a prompt, a head, keys and, where used, a fresh auxiliary head."""
        super().begin_task(n_classes, rng)
        self.prompts.open(self._initial_prompt(rng))
        self.heads.open(n_classes, rng)
        self.keys.open(self.n_tasks - 1, n_classes, rng)
        if self._own_aux_head:
            weight, bias = new_head(n_classes, self.backbone.dim, rng)
            self.aux_weight = nn.Parameter(weight.to(self.heads.weight.frozen))
            self.aux_bias = nn.Parameter(bias.to(self.heads.bias.frozen))

    def close_task(self) -> None:
        """Freeze prompt, head and keys; the auxiliary head has done its work."""
        self.prompts.close()
        self.heads.close()
        self.keys.close()
        self._drop_aux_head()

    def _drop_aux_head(self) -> None:
        self.register_parameter("aux_weight", None)
        self.register_parameter("aux_bias", None)

    def _initial_prompt(self, rng: torch.Generator) -> Tensor:
        """(1, segments, length, D): a copy of the last task's, or U(±1/sqrt(D))."""
        shape = self.prompts.frozen.shape[1:]
        bound = 1 / math.sqrt(self.backbone.dim)
        fresh = torch.empty(1, *shape).uniform_(-bound, bound, generator=rng)
        copied = self.config.prompt_init == "copy" and len(self.prompts)
        return self.prompts.frozen[-1:] if copied else fresh

    def feature(self, embedded: Tensor, prompt: Tensor) -> Tensor:
        """h = f(x, P)[0], eq. 1. `prompt` is (segments, L, D), or (B, segments, L, D)."""
        segments = prompt.unbind(-3)
        tokens = dict(zip(self.layers, segments, strict=True))
        return self.backbone.tap(self.backbone.encode(embedded, Prompts(tokens)), "pre_norm")

    def query(self, embedded: Tensor) -> Tensor:
        """q = f(x)[0]: the class token of the pass without prompts."""
        return self.backbone.tap(self.backbone.encode(embedded), "pre_norm")

    def loss(self, images: Tensor, targets: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        """Terms of the total loss (eqs. 3 to 13): `ce`, `aux`, `ccl`, `mk`, as far as switched on.

        No work is done twice: the embedding serves all passes, the query and the passes through
        old prompts need no gradient, and pictures that draw the current prompt reuse h.
        """
        config = self.config
        assert self.prompts.current is not None
        local = targets - self.known
        with torch.no_grad():
            embedded = self.backbone.embed(images)
            query = self.query(embedded)
        h = self.feature(embedded, self.prompts.current[0])
        losses: dict[str, Tensor] = {}

        if config.pcl:
            logits = self.heads.current(self._under_drawn_prompts(embedded, h, rng))
            losses["ce"] = F.cross_entropy(logits, local)
            if config.aux_loss:
                aux = (
                    F.linear(h, self.aux_weight, self.aux_bias)
                    if self.aux_weight is not None
                    else self.heads.current(h)
                )
                losses["aux"] = F.cross_entropy(aux, local)
        else:
            losses["ce"] = F.cross_entropy(self.heads.current(h), local)

        if config.ccl and self.n_tasks > 1:
            with torch.no_grad():
                current_logits = self.heads.current(h)
            losses["ccl"] = ccl_loss(
                self.heads.old(h),
                self.task_sizes[:-1],
                current_logits,
                tau=config.tau,
                margin=config.margin,
                alpha=config.alpha,
                smoothing=config.smoothing,
                rng=rng,
            )
        losses["mk"] = self.keys.loss(query, targets)
        return losses

    def _under_drawn_prompts(self, embedded: Tensor, h: Tensor, rng: torch.Generator) -> Tensor:
        """f(x, P_i)[0] with i ~ Uni(1, t) drawn for each picture (eqs. 6 and 7): (B, D)."""
        drawn = torch.randint(self.n_tasks, (len(h),), generator=rng)
        old = (drawn < self.n_tasks - 1).nonzero()[:, 0].to(h.device)
        if not len(old):
            return h
        with torch.no_grad():
            prompts = self.prompts.frozen[drawn.to(h.device)[old]]
            features = self.feature(embedded[old], prompts)
        return h.index_copy(0, old, features)

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
