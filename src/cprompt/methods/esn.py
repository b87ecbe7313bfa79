"""ESN (Wang et al.; AAAI 2023): an attention block and a head per task, compared by energy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.methods.base import Batches, Draws, Method, register
from cprompt.methods.parts import token_prompts
from cprompt.methods.parts.consistency import split_by_task
from cprompt.methods.parts.growing_rows import GrowingRows, grown
from cprompt.methods.parts.heads import HeadConfig, TaskHeads
from cprompt.methods.parts.token_prompts import SegmentsConfig
from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT, Prompts

Energy = Literal["released", "paper"]
BlockInit = Literal["fixed", "width"]

TEMPERATURES = (0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Temperatures that can vote; the first one votes from the start."""

NORM_EPS = 1e-5


@dataclass(frozen=True)
class ESNConfig(HeadConfig, SegmentsConfig):
    """Settings of ESN; the defaults are its own, except the prompt, which is CPrompt's."""

    energy_weight: float = setting(
        0.1, "strength λ of the loss that pulls the energy to its anchor"
    )
    anchor: float = setting(-10.0, "energy that every training image is pulled to")
    beta: float = setting(1.0, "inverse temperature β of the energy in training")
    energy: Energy = setting(
        "released", "sign of the logits in that energy: the released code's, or the paper's"
    )
    block_init: BlockInit = setting(
        "fixed", "standard deviation of a new block's matrices: 0.02, or 0.02 √(768/D)"
    )
    freeze_prompt: bool = setting(
        False, "freeze the prompt after the first task; the released code trains it in all"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.energy_weight >= 0, f"energy_weight {self.energy_weight} must not be negative")
        check(self.beta > 0, f"beta {self.beta} must be positive")


@register("esn", ESNConfig)
class ESN(Method):
    """One shared prompt; an attention block and a head per task, compared by energy (ESN).

    All tasks share one prompted pass. Each task's attention block (TAB) computes its own feature
    from the tokens before the final norm, and the task's head reads that feature. The task whose
    head has the highest energy logsumexp(z/T') gives the answer; the temperatures T' chosen after
    each task vote on it. Unless the prompt is frozen it keeps changing, so the features of old
    blocks drift.
    """

    config: ESNConfig
    adds_over_ranks = True
    prompt: nn.Parameter
    class_task: Tensor
    grid: Tensor
    voting: Tensor

    def __init__(self, backbone: FrozenViT, config: ESNConfig) -> None:
        super().__init__(backbone, config)
        self.layers = token_prompts.place(config, backbone)
        self.prompt = nn.Parameter(torch.zeros(len(self.layers), config.length, backbone.dim))
        n_heads = backbone.vit.blocks[0].attn.num_heads
        self.blocks = TaskAttentionBlocks(
            backbone.dim, n_heads, block_std(config.block_init, backbone.dim)
        )
        self.heads = TaskHeads(backbone.dim, config.head_init)
        self.register_buffer("class_task", torch.empty(0, dtype=torch.long))
        self.register_buffer("grid", torch.tensor(TEMPERATURES), persistent=False)
        self.register_buffer("voting", torch.arange(len(TEMPERATURES)) == 0)

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Add an attention block, whose token starts as the backbone's class token, and a head."""
        super().begin_task(n_classes, rng)
        if self.n_tasks == 1:
            self.prompt.data.copy_(token_prompts.fresh(self.config, self.backbone, rng))
        self.blocks.open(self.backbone.vit.cls_token.flatten(), rng)
        self.heads.open(n_classes, rng)
        new = torch.full((n_classes,), self.n_tasks - 1).to(self.class_task)
        self.class_task = grown(self.class_task, new)

    def close_task(self) -> None:
        """Freeze the task's block and head and, with `freeze_prompt`, the prompt."""
        self.blocks.close()
        self.heads.close()
        if self.config.freeze_prompt:
            self.prompt.requires_grad_(False)

    def tokens(self, embedded: Embedded) -> Tensor:
        """All tokens (B, N, D) of the prompted pass, before the final norm."""
        prompts = Prompts(dict(zip(self.layers, self.prompt, strict=True)))
        return self.backbone.encode(embedded, prompts)

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """`ce` over the current classes and `energy`, λ · mean (F - anchor)²."""
        config = self.config
        features = self.blocks(self.tokens(embedded), current_only=True)[:, 0]
        logits = self.heads.current(features)
        free = free_energy(logits, config.beta, config.energy)
        return {
            "ce": F.cross_entropy(logits, targets - self.known),
            "energy": config.energy_weight * (free - config.anchor).square().mean(),
        }

    def feature(
        self, embedded: Embedded, query: Tensor | None = None, task: Tensor | None = None
    ) -> Tensor:
        """Each task's feature from the shared prompted pass: (B, tasks, D)."""
        features: Tensor = self.blocks(self.tokens(embedded))
        return features

    def task_logits(self, features: Tensor) -> Tensor:
        """z (B, classes seen): each task's head on that task's feature."""
        weight, bias = self.heads.weight.all(), self.heads.bias.all()
        return torch.einsum("bcd,cd->bc", features[:, self.class_task], weight) + bias

    @torch.no_grad()
    def end_task(self, batches: Batches) -> None:
        """From the second task on, let one more temperature vote.

        It is the temperature at which the current task has the highest energy for most of its
        training images; the lowest one in a tie. It may be voting already.
        """
        if self.n_tasks == 1:
            return
        right = torch.zeros(len(self.grid), dtype=torch.long, device=self.grid.device)
        for embedded, _ in batches:
            logits = self.task_logits(self.feature(embedded))
            energy = task_energies(logits, self.task_sizes, self.grid)
            right += (energy.argmax(-1) == self.n_tasks - 1).sum(0)
        self.ranks.sum_(right)
        self.voting[right.argmax()] = True

    def answer(self, feature: Tensor) -> Tensor:
        """z (B, classes seen), raised so that the best class is one of the task voted for."""
        logits = self.task_logits(feature)
        energy = task_energies(logits, self.task_sizes, self.grid)
        return lift(logits, self.class_task == vote(energy, self.voting)[:, None])


def block_std(init: BlockInit, dim: int) -> float:
    """Standard deviation of the matrices of a new block on tokens of width `dim`.

    A matrix of deviation s scales a normalised token by s √D, so at the released 0.02 the block's
    attention adds 0.31 to the token at width 768, and 0.08 at width 192. "width" keeps s √D, and
    with it the strength that the method was published with.
    """
    return 0.02 if init == "fixed" else 0.02 * math.sqrt(768 / dim)


def free_energy(logits: Tensor, beta: float, energy: Energy) -> Tensor:
    """F (B,) of logits z (B, n) in the training loss.

    "paper": F = -(1/β) log Σ_j exp(βz_j), the negative of a soft maximum. At the anchor -10 the
    best logit is near 10. "released": F = -(1/β) log Σ_j exp(-βz_j), a soft minimum. At the anchor
    the worst logit is near -10. Prediction compares soft maxima in both cases.
    """
    sign = 1 if energy == "paper" else -1
    return -torch.logsumexp(sign * beta * logits, dim=-1) / beta


def task_energies(logits: Tensor, sizes: Sequence[int], temperatures: Tensor) -> Tensor:
    """E_i(T') = logsumexp(z_i/T') of every task at every temperature: (B, temperatures, tasks)."""
    by_task = split_by_task(logits, sizes)
    return torch.logsumexp(by_task[:, None] / temperatures[:, None, None], dim=-1)


def vote(energies: Tensor, voting: Tensor) -> Tensor:
    """The task (B,) that most voting temperatures give the highest energy; the earliest in a tie.

    `energies` is (B, temperatures, tasks), `voting` (temperatures,) is boolean.
    """
    votes = F.one_hot(energies.argmax(-1), energies.shape[-1]) * voting[:, None]
    return votes.sum(1).argmax(-1)


def lift(logits: Tensor, chosen: Tensor) -> Tensor:
    """Add a constant per row to the chosen logits so that the best class is a chosen one.

    `logits` and `chosen` are (B, C). The constant puts the best chosen logit 1 above the best of
    the rest, or is 0 if it is already that far above. Order and differences among the chosen, and
    among the rest, do not change.
    """
    best = logits.masked_fill(~chosen, float("-inf")).amax(-1, keepdim=True)
    rest = logits.masked_fill(chosen, float("-inf")).amax(-1, keepdim=True)
    return logits + chosen * (rest + 1 - best).clamp_min(0)


class TaskAttentionBlocks(nn.Module):
    """The task attention blocks (TAB), one per task, with their task tokens, computed together.

    A block is x' = token + proj(attention(norm1([token; x]))), then x' + mlp(norm2(x')). Only the
    token has a query; it attends to itself and to the image's tokens x with `n_heads` heads. The
    hidden layer of the mlp is D/2 wide. The first axis of every tensor is the task.
    """

    def __init__(self, dim: int, n_heads: int, std: float = 0.02) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.std = std
        linear = dict.fromkeys(("q", "k", "v", "proj"), (dim, dim))
        linear |= {"fc1": (dim // 2, dim), "fc2": (dim, dim // 2)}
        rows = {"token": GrowingRows(dim)}
        for name in ("norm1", "norm2"):
            rows |= {f"{name}_weight": GrowingRows(dim), f"{name}_bias": GrowingRows(dim)}
        for name, (wide, deep) in linear.items():
            rows |= {f"{name}_weight": GrowingRows(wide, deep), f"{name}_bias": GrowingRows(wide)}
        self.rows = nn.ModuleDict(rows)

    def _named(self) -> dict[str, GrowingRows]:
        return cast(dict[str, GrowingRows], dict(self.rows.items()))

    def open(self, token: Tensor, rng: torch.Generator) -> None:
        """Add a block whose task token starts as `token` (D,).

        Matrices start from N(0, std²), biases from 0 and the norms as identities.
        """
        for name, rows in self._named().items():
            new = torch.zeros(1, *rows.frozen.shape[1:])
            if name == "token":
                new.copy_(token)
            elif name in ("norm1_weight", "norm2_weight"):
                new.fill_(1)
            elif name.endswith("_weight"):
                nn.init.trunc_normal_(new, std=self.std, generator=rng)
            rows.open(new)

    def close(self) -> None:
        """Freeze the current task's block."""
        for rows in self._named().values():
            rows.close()

    def forward(self, x: Tensor, current_only: bool = False) -> Tensor:
        """Features (B, tasks, D) of the tokens x (B, N, D), or (B, 1, D) of the current block.

        The query does not depend on the image, and the normalised tokens do not depend on the
        task. So the query, key and norm1 weights are merged into one vector per head, and the value
        weights are applied after pooling. Keys and values of N tokens for T tasks are never
        computed.
        """
        w = {
            n: cast(Tensor, r.current) if current_only else r.all()
            for n, r in self._named().items()
        }
        token, gain, shift = w["token"], w["norm1_weight"], w["norm1_bias"]
        x, own = _standardise(x), _standardise(token)  # (B, N, D), (T, D)

        asked = torch.einsum("toi,ti->to", w["q_weight"], own * gain + shift) + w["q_bias"]
        query = self._heads(asked * (token.shape[-1] // self.n_heads) ** -0.5)  # (T, H, d)
        key = torch.einsum("thd,thdi->thi", query, self._heads(w["k_weight"]))  # (T, H, D)
        same_for_all = torch.einsum("thi,ti->th", key, shift) + torch.einsum(
            "thd,thd->th", query, self._heads(w["k_bias"])
        )
        key = key * gain[:, None]
        to_own = torch.einsum("thi,ti->th", key, own).expand(len(x), -1, -1)
        to_x = torch.einsum("thi,bni->bthn", key, x)
        scores = torch.cat([to_own[..., None], to_x], dim=-1) + same_for_all[..., None]
        attention = scores.softmax(-1)

        pooled = attention[..., :1] * own[:, None]
        pooled = pooled + torch.einsum("bthn,bni->bthi", attention[..., 1:], x)
        pooled = pooled * gain[:, None] + shift[:, None]  # (B, T, H, D)
        value = torch.einsum("thdi,bthi->bthd", self._heads(w["v_weight"]), pooled).flatten(2)

        feature = token + _linear(value + w["v_bias"], w, "proj")
        normed = _standardise(feature) * w["norm2_weight"] + w["norm2_bias"]
        return feature + _linear(F.gelu(_linear(normed, w, "fc1")), w, "fc2")

    def _heads(self, rows: Tensor) -> Tensor:
        """(T, D, …) to (T, heads, D/heads, …)."""
        return rows.view(len(rows), self.n_heads, -1, *rows.shape[2:])


def _standardise(x: Tensor) -> Tensor:
    """Layer norm over the last axis without weights."""
    return F.layer_norm(x, x.shape[-1:], eps=NORM_EPS)


def _linear(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    """Apply each task's linear layer to its row of x (B, T, in): (B, T, out)."""
    return torch.einsum("toi,bti->bto", weights[f"{name}_weight"], x) + weights[f"{name}_bias"]
