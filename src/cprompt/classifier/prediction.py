"""Answers for images that nobody has labelled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cprompt.data.pipeline.decoded import DecodedImages
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.data.pipeline.views import Preparation
from cprompt.methods.base import Method
from cprompt.vit.promptable import Precision


@dataclass(frozen=True)
class Answers:
    """What a method says of n images, on the CPU.

    logits (n, classes seen); query (n, D) where the method makes one; task (n,), whose prompt
    answered, where it selects one. With the query at hand, nobody who wants to know why a prompt
    was picked needs another pass.
    """

    logits: Tensor
    query: Tensor | None
    task: Tensor | None


@torch.no_grad()
def predict(
    method: Method,
    images: DecodedImages,
    preparation: Preparation,
    device: torch.device,
    *,
    precision: Precision = "fp32",
    batch_size: int = 64,
    workers: int = 0,
) -> Answers:
    """Answer every image under its test view: one query and one prompted pass each.

    `method` is on `device`; `workers` are threads that prepare images ahead.
    """
    nobody_knows = np.zeros(len(images), dtype=np.int64)
    batches = BatchLoader(
        images, nobody_knows, preparation, batch_size, seed=None, device=device, workers=workers
    )
    before, method.backbone.precision = method.backbone.precision, precision
    parts: list[tuple[Tensor, Tensor | None, Tensor | None]] = []
    try:
        for batch, _ in batches.epoch(0):
            embedded = method.embed(batch)
            query = method.query(embedded) if method.uses_query else None
            task = method.choose(query) if query is not None and method.selects_task else None
            parts.append((method.answer(method.feature(embedded, query, task)), query, task))
    finally:
        method.backbone.precision = before
    if not parts:
        return Answers(torch.zeros(0, method.n_classes), None, None)
    logits, queries, tasks = zip(*parts, strict=True)
    return Answers(torch.cat(logits).cpu(), _joined(queries), _joined(tasks))


def _joined(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there).cpu() if there else None
