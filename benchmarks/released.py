"""The released CPrompt step, modelled from what is known of it: same mathematics, same work.

All in fp32: a pass with the current prompt, a plain pass for the query and a pass with prompts
drawn per image. Each pass embeds the images again, prompts are gathered image by image, old heads
run one by one, attention is not fused, the keys of all future classes are one trainable matrix, and
the loss is read after every step. None of this code is shared with the package, so that the two can
be compared.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn


class ReleasedCPrompt:
    """CPrompt as published. Takes over `vit`: freezes it and switches its fused attention off.

    Prompts are two segments of `length` tokens, which join before the blocks `layers`. Keys are
    allocated at once for all classes of all tasks.
    """

    def __init__(
        self,
        vit: VisionTransformer,
        n_classes_per_task: list[int],
        length: int = 50,
        layers: tuple[int, ...] = (0, 5),
        tau: float = 1.15,
        margin: float = 0.1,
    ) -> None:
        self.vit = vit.eval().requires_grad_(False)
        for block in vit.blocks:
            block.attn.fused_attn = False
        self.device = next(vit.parameters()).device
        self.sizes = n_classes_per_task
        self.length = length
        self.layers = layers
        self.tau = tau
        self.margin = margin
        keys = nn.init.orthogonal_(torch.empty(sum(n_classes_per_task), vit.embed_dim))
        self.keys = nn.Parameter(keys.to(self.device))
        self.prompts: list[list[nn.Parameter]] = []
        self.heads: list[nn.Linear] = []
        self.aux: nn.Linear | None = None
        self.optimizer: torch.optim.Optimizer | None = None

    @property
    def task(self) -> int:
        """The current task, counted from 0."""
        return len(self.heads) - 1

    def begin_task(self) -> None:
        """Freeze what the last task learnt; copy its prompt; new heads and optimiser."""
        for head in self.heads:
            head.requires_grad_(False)
        for prompt in self.prompts:
            for segment in prompt:
                segment.requires_grad_(False)
        self.prompts.append([nn.Parameter(values) for values in self._initial_prompt()])
        n_classes = self.sizes[len(self.heads)]
        self.heads.append(self._new_head(n_classes))
        self.aux = self._new_head(n_classes)
        trained = [*self.prompts[-1], *self.heads[-1].parameters(), *self.aux.parameters()]
        self.optimizer = torch.optim.SGD(
            [*trained, self.keys], lr=0.01, momentum=0.9, weight_decay=5e-4
        )

    def step(self, images: Tensor, targets: Tensor, rng: torch.Generator | None = None) -> float:
        """One step on (B, 3, H, W) and (B,) arrival positions; the loss, read from the device."""
        assert self.optimizer is not None
        drawn = torch.randint(len(self.prompts), (len(images),), generator=rng)
        loss = torch.stack(list(self.losses(images, targets, drawn.tolist()).values())).sum()
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.item()

    def losses(self, images: Tensor, targets: Tensor, drawn: Sequence[int]) -> dict[str, Tensor]:
        """The four terms; `drawn` is the task, from 0, whose prompt each image is shown under."""
        assert self.aux is not None
        known = sum(self.sizes[: self.task])
        local = targets - known
        h = self.feature(
            images, [segment.expand(len(images), -1, -1) for segment in self.prompts[-1]]
        )
        losses = {"aux": F.cross_entropy(self.aux(h), local)}
        if self.task:
            losses["ccl"] = self._classifier_consistency(h)
        similarity = self._similarity(self.feature(images, None))
        losses["mk"] = F.cross_entropy(similarity, targets)
        under_drawn = self.feature(images, self._gather(drawn))
        losses["ce"] = F.cross_entropy(self.heads[-1](under_drawn), local)
        return losses

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits (B, classes seen) under the prompt whose key is nearest to the query."""
        nearest = self._similarity(self.feature(images, None)).argmax(-1)
        ends = list(accumulate(self.sizes))
        tasks = [bisect_right(ends, key) for key in nearest.tolist()]
        h = self.feature(images, self._gather(tasks))
        return torch.cat([head(h) for head in self.heads], dim=1)

    def feature(self, images: Tensor, prompt: list[Tensor] | None) -> Tensor:
        """Class token (B, D) before the final norm; each segment of a prompt is (B, L, D)."""
        x = self.vit._pos_embed(self.vit.patch_embed(images))
        end = 1
        for layer, block in enumerate(self.vit.blocks):
            if prompt is not None and layer in self.layers:
                segment = prompt[self.layers.index(layer)]
                x = torch.cat([x[:, :end], segment, x[:, end:]], dim=1)
                end += segment.shape[1]
            x = block(x)
        cls: Tensor = x[:, 0]
        return cls

    def _classifier_consistency(self, h: Tensor) -> Tensor:
        current = self.heads[-1](h).detach().amax(1)
        total = torch.zeros((), device=self.device)
        for head in self.heads[:-1]:
            logits = head(h)
            sure = current > logits.detach().amax(1) + self.margin
            tau = torch.where(sure, 1.0, self.tau)[:, None].repeat(1, logits.shape[1])
            target = (logits.detach() / tau).softmax(1)
            total = total - (target * logits.softmax(1).log()).sum(1).mean()
        return total / self.task

    def _similarity(self, query: Tensor) -> Tensor:
        """Cosines (B, classes seen); keys of earlier tasks get no gradient."""
        known, seen = sum(self.sizes[: self.task]), sum(self.sizes[: self.task + 1])
        keys = torch.cat([self.keys[:known].detach(), self.keys[known:seen]])
        return F.normalize(query, dim=1) @ F.normalize(keys, dim=1).T

    def _gather(self, tasks: Sequence[int]) -> list[Tensor]:
        """The segments (B, L, D) of the prompts of these tasks, one for each image."""
        return [
            torch.stack([self.prompts[task][segment] for task in tasks])
            for segment in range(len(self.layers))
        ]

    def _initial_prompt(self) -> list[Tensor]:
        if self.prompts:
            return [segment.detach().clone() for segment in self.prompts[-1]]
        bound = 1 / math.sqrt(self.vit.embed_dim)
        shape = (self.length, self.vit.embed_dim)
        return [torch.empty(shape, device=self.device).uniform_(-bound, bound) for _ in self.layers]

    def _new_head(self, n_classes: int) -> nn.Linear:
        head = nn.Linear(self.vit.embed_dim, n_classes, device=self.device)
        nn.init.kaiming_uniform_(head.weight, nonlinearity="linear")
        nn.init.zeros_(head.bias)
        return head
