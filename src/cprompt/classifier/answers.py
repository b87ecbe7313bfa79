"""A method's responses to many images, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from cprompt.data.pipeline.decoded import DecodedImages
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.data.pipeline.views import Preparation
from cprompt.methods.base import Method, Response
from cprompt.vit.promptable import Precision


def responses(
    method: Method,
    images: DecodedImages,
    preparation: Preparation,
    device: torch.device,
    *,
    precision: Precision = "fp32",
    batch_size: int = 64,
    workers: int = 0,
) -> Iterator[Response]:
    """Answer every image under its test view; responses are moved to the CPU.

    `method` must be on `device`. `workers` is the number of threads that prepare images.
    """
    no_targets = np.zeros(len(images), dtype=np.int64)
    batches = BatchLoader(
        images, no_targets, preparation, batch_size, seed=None, device=device, workers=workers
    )
    for batch, _ in batches.epoch(0):
        with torch.no_grad():
            response = method.respond(batch, precision=precision)
        yield Response(
            response.logits.cpu(),
            response.feature.cpu(),
            None if response.query is None else response.query.cpu(),
            None if response.task is None else response.task.cpu(),
            None if response.familiar is None else response.familiar.cpu(),
        )


def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenate the tensors of several responses; None if there are none."""
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None
