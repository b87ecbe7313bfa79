"""A method's responses to many images, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cprompt.data.pipeline.decoded import DecodedImages
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.data.pipeline.views import Preparation
from cprompt.device import inputs_at_once
from cprompt.methods.base import Method, Response
from cprompt.vit.promptable import Precision


def responses(
    method: Method,
    images: DecodedImages,
    preparation: Preparation,
    device: torch.device,
    *,
    precision: Precision = "fp32",
    batch_size: int | None = None,
) -> Iterator[Response]:
    """Answer every image under its test view, `batch_size` at a time; responses are on the CPU.

    `method` must be on `device`.
    """
    size = batch_size or inputs_at_once(device)
    no_targets = np.zeros(len(images), dtype=np.int64)
    workers = images.view_threads
    batches = BatchLoader(
        images, no_targets, preparation, size, seed=None, device=device, workers=workers
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


def patch_shares(
    method: Method,
    images: DecodedImages,
    positions: NDArray[np.int64],
    preparation: Preparation,
    device: torch.device,
    precision: Precision = "fp32",
) -> NDArray[np.float64] | None:
    """`Method.patch_shares` of every image: (n, rows, columns)."""
    loader = BatchLoader(images, positions, preparation, 16, seed=None, device=device)
    found = []
    for batch, targets in loader.epoch(0):
        with torch.no_grad():
            shares = method.patch_shares(batch, targets, precision)
        if shares is None:
            return None
        found.append(shares.double().cpu().numpy())
    return np.concatenate(found) if found else None


def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenate the tensors of several responses; None if there are none."""
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None
