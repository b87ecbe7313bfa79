"""CODA-Prompt (Smith et al.; CVPR 2023), with components that grow task by task."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.methods.base import Draws, LossPart, register
from cprompt.methods.parts import token_prompts
from cprompt.methods.parts.drawn_prompts import DrawnPromptsMethod
from cprompt.methods.parts.growing_rows import GrowingRows
from cprompt.methods.parts.heads import ConsistencyConfig, ConsistentHeads
from cprompt.methods.parts.keys import orthonormal_rows
from cprompt.methods.parts.token_prompts import SegmentsConfig
from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT, Prompts, Tap


@dataclass(frozen=True)
class CodaConfig(ConsistencyConfig, SegmentsConfig):
    """Settings of CODA-Prompt; the defaults are its own for a stream of ten tasks."""

    length: int = setting(8, "rows of a component: half join the keys, half the values of a block")
    layers: tuple[int, ...] = setting((0, 1, 2, 3, 4), "blocks that get a prefix, from 0")
    components_per_task: int = setting(10, "components added for every task")
    mu: float = setting(0.0, "strength μ of the orthogonality loss")
    feature: Tap = setting("post_norm", "heads read the class token before or after the final norm")
    query: Tap = setting("post_norm", "queries are taken before or after the final norm")
    ccl: bool = setting(False, "classifier consistency: expose the prompt to all old heads")
    pcl: bool = setting(False, "prompt consistency: train the head without the latest components")

    def __post_init__(self) -> None:
        ConsistencyConfig.__post_init__(self)
        SegmentsConfig.__post_init__(self)
        check(self.length % 2 == 0, f"length {self.length} must be even: half keys, half values")
        check(
            self.components_per_task > 0,
            f"components_per_task {self.components_per_task} must be at least 1",
        )
        check(self.mu >= 0, f"mu {self.mu} must not be negative")


@register("coda", CodaConfig)
class Coda(DrawnPromptsMethod):
    """A prefix prompt per image, mixed from components; every task adds some (CODA-Prompt).

    Component k of a block has values P_k, a key K_k and an attention vector A_k. Its weight for an
    image with query q is α_k = cos(q ⊙ A_k, K_k), and the prompt is Σ_k α_k P_k over the
    components of all tasks seen. Only the current task's components are trained. Query and
    feature are taken after the final norm, unless set otherwise. The number of tasks need not be
    known: each task adds `components_per_task` components.

    Neither paper defines `pcl` for CODA-Prompt. Here the prompt P_i that trains the head is mixed
    from the components of tasks 1 to i only, with i ~ Uni(1, t) drawn per image. This is the
    prompt that the image would have had after task i. There is no gradient for i < t. The
    auxiliary head is trained under the full prompt.
    """

    config: CodaConfig
    uses_query = True

    def __init__(self, backbone: FrozenViT, config: CodaConfig) -> None:
        super().__init__(backbone, config)
        self.layers = token_prompts.place(config, backbone)
        blocks, dim = len(self.layers), backbone.dim
        self.components = GrowingRows(blocks, config.length, dim)
        self.keys = GrowingRows(blocks, dim)
        self.attention = GrowingRows(blocks, dim)
        self.heads = ConsistentHeads(dim, config)

    @property
    def _rows(self) -> tuple[GrowingRows, GrowingRows, GrowingRows]:
        return self.components, self.keys, self.attention

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Add components and a head."""
        super().begin_task(n_classes, rng)
        for rows in self._rows:
            rows.open(new_rows(self.config.components_per_task, rows.frozen, rng))
        self.heads.open(n_classes, rng)

    def close_task(self) -> None:
        """Freeze the task's components and head."""
        for rows in self._rows:
            rows.close()
        self.heads.close()

    @torch.no_grad()
    def query(self, embedded: Embedded) -> Tensor:
        """q: the class token (B, D) of the pass without prompts."""
        return self.backbone.read(embedded, tap=self.config.query)

    def prompted(self, embedded: Embedded, query: Tensor, tasks: Tensor | None = None) -> Tensor:
        """h (B, D) under the prompt mixed for each query.

        With `tasks` (B,), an image uses only the components of its first `tasks` tasks.
        """
        alpha = component_weights(query, self.keys.all(), self.attention.all())
        if tasks is not None:
            component = torch.arange(len(self.components), device=query.device)
            alpha = alpha * (component < self.config.components_per_task * tasks[:, None])
        prompt = torch.einsum("lbk,klpd->lbpd", alpha, self.components.all())
        keys, values = prompt.chunk(2, dim=2)
        prefixes = {
            layer: (key, value) for layer, key, value in zip(self.layers, keys, values, strict=True)
        }
        return self.backbone.read(embedded, Prompts(prefixes=prefixes), self.config.feature)

    def parts(self, embedded: Embedded, targets: Tensor, draws: Draws) -> list[LossPart]:
        """`ce` over the current classes, `ortho` with μ > 0, `aux` and `ccl` if switched on."""
        query = self.query(embedded)

        def under_old(images: Tensor, tasks: Tensor) -> Tensor:
            return self.prompted(embedded[images], query[images], tasks + 1)

        h = partial(self.prompted, embedded, query)
        parts = self.parts_of_heads(h, under_old, targets, draws)
        return [*parts, self._of_components] if self.config.mu > 0 else parts

    def _of_components(self) -> dict[str, Tensor]:
        penalties = torch.stack([non_orthogonality(rows.all()) for rows in self._rows])
        return {"ortho": self.config.mu * penalties.sum()}

    def feature(self, embedded: Embedded, query: Tensor | None, task: Tensor | None) -> Tensor:
        """h (B, D) under the prompt mixed from all components for each query."""
        assert query is not None
        return self.prompted(embedded, query)

    def answer(self, feature: Tensor) -> Tensor:
        """Logits of all heads."""
        logits: Tensor = self.heads(feature)
        return logits


def component_weights(query: Tensor, keys: Tensor, attention: Tensor) -> Tensor:
    """α_k = cos(q ⊙ A_k, K_k) for queries (B, D) and K, A of shape (n, blocks, D): (blocks, B, n).

    Numerator and norm are one matrix product each, so q ⊙ A_k is never stored for all k. Norms
    are clamped to at least 1e-12.
    """
    dot = torch.einsum("bd,kld->lbk", query, attention * F.normalize(keys, dim=-1))
    squared = torch.einsum("bd,kld->lbk", query.square(), attention.square())
    return dot / squared.clamp_min(1e-24).sqrt()


def non_orthogonality(rows: Tensor) -> Tensor:
    """Σ over blocks of mean((R Rᵀ - I)²), where R are a block's rows, flattened.

    `rows` is (n, blocks, …). The result is 0 if the rows of every block are orthonormal.
    """
    flat = rows.flatten(2)
    gram = torch.einsum("kld,mld->lkm", flat, flat)
    identity = torch.eye(len(rows), device=rows.device, dtype=rows.dtype)
    return (gram - identity).square().mean((1, 2)).sum()


def new_rows(count: int, existing: Tensor, rng: torch.Generator) -> Tensor:
    """Initial rows (count, blocks, …) beside `existing` (n, blocks, …).

    In each block the flattened new rows are orthonormal to each other and orthogonal to the
    existing ones. If the dimension is too small for that, they are orthonormal to each other only.
    If it is too small even for that, they only have unit length.
    """
    blocks = [
        orthonormal_rows(count, existing[:, block].flatten(1), rng)
        for block in range(existing.shape[1])
    ]
    return torch.stack(blocks, dim=1).view(count, *existing.shape[1:])
