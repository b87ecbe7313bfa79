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
from cprompt.training.optimizer import start_state
from cprompt.training.step import Stepper, warn_once


@dataclass
class GraphStepper(Stepper):
    """The same, recorded once for every shape of its inputs as a CUDA graph and then replayed.

    A replayed step costs the host one call, where a step of small kernels would keep the device
    waiting for the next of some thousand. What cannot be recorded, because it reads a value back,
    runs step by step, with the reason said once.
    """

    multiple = 8

    @property
    def reseeds(self) -> bool:
        """Only where steps are not recorded after all."""
        return self._fallen_back

    def __post_init__(self) -> None:
        super().__post_init__()
        self._recorded: dict[Any, _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._fallen_back = False
        start_state(self.optimizer)

    def step(self, images: Tensor, targets: Tensor, draws: Draws) -> Tensor:
        """One update; new shapes are recorded first."""
        if self._fallen_back:
            return super().step(images, targets, draws)
        inputs = {"images": images, "targets": targets, **draws}
        shapes = tuple((name, tensor.shape) for name, tensor in inputs.items())
        if shapes not in self._recorded:
            try:
                self._recorded[shapes] = self._record(inputs)
            except RuntimeError as error:
                self._fallen_back = True
                warn_once(f"steps of {self.method.name} are not replayed as CUDA graphs", error)
                return super().step(images, targets, draws)
        return self._recorded[shapes].replay(inputs)

    def _record(self, inputs: Mapping[str, Tensor]) -> _Recording:
        """Record a step without taking it: while a graph is recorded nothing is computed."""
        static = {name: tensor.clone() for name, tensor in inputs.items()}
        draws = {n: t for n, t in static.items() if n not in ("images", "targets")}
        if not self._recorded:  # libraries set themselves up in a first call, which no graph holds
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._gradients(static["images"], static["targets"], draws)
            torch.cuda.current_stream().wait_stream(stream)
        with _recorded(self._pool) as graph:
            losses = super().step(static["images"], static["targets"], draws)
        return _Recording(graph, static, losses)


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: dict[str, Tensor]
    losses: Tensor

    def replay(self, inputs: Mapping[str, Tensor]) -> Tensor:
        for name, tensor in inputs.items():
            self.inputs[name].copy_(tensor, non_blocking=True)
        self.graph.replay()
        return self.losses


@contextmanager
def _recorded(pool: Any) -> Iterator[torch.cuda.CUDAGraph]:
    """A graph of what is called inside; `torch.cuda.graph` without its clean-up of all memory.

    That takes most of a second, and tasks of different sizes need dozens of recordings. Garbage
    is not collected meanwhile, because freeing a CUDA object in a recording breaks it.
    """
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
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
