"""Training steps captured once and replayed as CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cprompt.methods.base import Draws
from cprompt.ranks import Share
from cprompt.training.optimizer import start_state
from cprompt.training.step import Stepper, warn_once

FIRST = -1
"""Priority of a step's own stream before those of `run_on_streams`: its first part, which is the
longest, has the gradient of a whole pass."""


@dataclass
class GraphStepper(Stepper):
    """A stepper that captures the step once per shape of its inputs and then replays it.

    A replay is one call of the host. Without it, the device would wait for about a thousand small
    kernels per step to be launched one by one. A step that cannot be captured, because it reads a
    value back, runs normally, and a warning gives the reason.
    """

    multiple = 8

    @property
    def reseeds(self) -> bool:
        """Only if steps could not be captured."""
        return self._cannot_capture

    def __post_init__(self) -> None:
        super().__post_init__()
        self._captured: dict[Any, _CapturedStep] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._cannot_capture = False
        start_state(self.optimizer)

    def step(
        self, images: Tensor, targets: Tensor, draws: Draws, share: Share | None = None
    ) -> Tensor:
        """One update; a new shape of the inputs is captured first."""
        assert share is None, "a step that ranks share is not captured"
        if self._cannot_capture:
            return super().step(images, targets, draws)
        inputs = {"images": images, "targets": targets, **draws}
        shapes = tuple((name, tensor.shape) for name, tensor in inputs.items())
        if shapes not in self._captured:
            try:
                self._captured[shapes] = self._capture(inputs)
            except RuntimeError as error:
                self._cannot_capture = True
                warn_once(f"steps of {self.method.name} are not replayed as CUDA graphs", error)
                return super().step(images, targets, draws)
        return self._captured[shapes].replay(inputs)

    def _capture(self, inputs: Mapping[str, Tensor]) -> _CapturedStep:
        """Capture a step without taking it: nothing is computed during capture."""
        static = {name: tensor.clone() for name, tensor in inputs.items()}
        draws = {n: t for n, t in static.items() if n not in ("images", "targets")}
        if not self._captured:  # libraries initialise in a first call, which must not be captured
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._gradients(static["images"], static["targets"], draws)
            torch.cuda.current_stream().wait_stream(stream)
        with _capturing(self._pool) as graph:
            losses = super().step(static["images"], static["targets"], draws)
        return _CapturedStep(graph, static, losses)


@dataclass
class _CapturedStep:
    graph: torch.cuda.CUDAGraph
    inputs: dict[str, Tensor]
    losses: Tensor

    def replay(self, inputs: Mapping[str, Tensor]) -> Tensor:
        for name, tensor in inputs.items():
            self.inputs[name].copy_(tensor, non_blocking=True)
        self.graph.replay()
        return self.losses


@contextmanager
def _capturing(pool: Any) -> Iterator[torch.cuda.CUDAGraph]:
    """A graph of what is called inside: `torch.cuda.graph` without freeing all cached memory.

    Freeing takes most of a second, and tasks of different sizes need dozens of captures. Garbage
    is not collected meanwhile, because freeing a CUDA object during capture breaks it.
    """
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(priority=FIRST)  # type: ignore[no-untyped-call]
    collecting = gc.isenabled()
    gc.disable()
    torch.cuda.synchronize()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool)
            try:
                yield graph
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
    finally:
        if collecting:
            gc.enable()
