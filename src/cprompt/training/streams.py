"""Independent work on parallel CUDA streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

T = TypeVar("T")


def run_on_streams(work: Callable[[], T], *others: Callable[[], T]) -> Sequence[T]:
    """Run independent calls and return their results in order.

    While a CUDA graph is being captured, each call runs on its own stream, so that small kernels
    of one fill the gaps of another. Otherwise the calls run one after the other.
    """
    capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
    if not capturing:
        return [call() for call in (work, *others)]
    main = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in others]  # type: ignore[no-untyped-call]
    results = []
    for stream, call in zip(streams, others, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results.append(call())
    first = work()
    for stream in streams:
        main.wait_stream(stream)
    return [first, *results]
