"""One training step, and how a CUDA device is kept busy with it."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from cprompt.backbone import PromptableViT
from cprompt.methods.base import Draws, Method

Acceleration = Literal["auto", "compile", "graphs", "none"]
"""graphs: steps are recorded as CUDA graphs; compile: small operations are fused, too. Both need a
CUDA device and do nothing elsewhere. auto: graphs, and compile where it pays."""

WORTH_COMPILING = 20_000
"""Steps from which compiling, some 20 s, costs less than it saves: a millisecond a step or more."""


@dataclass
class Stepper:
    """Loss, gradients and update of one batch.

    The loss terms come back as one vector that stays on the device, in the order of `names`,
    which are known after the first step. It holds until the next step.
    """

    method: Method
    optimizer: torch.optim.Optimizer
    clip: float | None

    def __post_init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.parameters = [p for g in self.optimizer.param_groups for p in g["params"]]

    multiple = 1
    """To what lengths that depend on chance are rounded up; see `Method.draw`."""

    @property
    def reseeds(self) -> bool:
        """Whether torch's global generator has a say: a recorded step cannot ask it anew."""
        return True

    def step(self, images: Tensor, targets: Tensor, draws: Draws) -> Tensor:
        """One update; `images`, `targets` and `draws` are on the device."""
        losses = self._gradients(images, targets, draws)
        self._update()
        return losses

    def _gradients(self, images: Tensor, targets: Tensor, draws: Draws) -> Tensor:
        terms = self.method.loss(images, targets, draws)
        self.names = tuple(terms)
        losses = torch.stack(list(terms.values()))
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(losses.sum())
        return losses.detach()

    def _update(self) -> None:
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()


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
        _give_state(self.optimizer)

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
                _say_once(f"steps of {self.method.name} are not replayed as CUDA graphs", error)
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


def make_stepper(
    method: Method, optimizer: torch.optim.Optimizer, clip: float | None, how: Acceleration
) -> Stepper:
    """The fastest stepper that `how` allows on the device of the method's backbone."""
    on_cuda = next(method.backbone.parameters()).is_cuda
    kind = GraphStepper if on_cuda and how != "none" else Stepper
    return kind(method, optimizer, clip)


def what_pays(how: Acceleration, steps: int) -> Acceleration:
    """`how` for a run of so many steps."""
    return "compile" if how == "auto" and steps >= WORTH_COMPILING else how


def compile_backbones(method: Method, how: Acceleration, device: torch.device) -> None:
    """With `how` compile, have the method's backbones fuse their blocks' small operations."""
    vits = _backbones(method)
    if how != "compile" or device.type != "cuda":
        for vit in vits:
            vit.decompile()
        return
    try:
        for vit in vits:
            vit.compile()
            _meet_every_case(vit, torch.zeros(2, 3, *vit.image_size, device=device))
    except Exception as error:  # a compiler meets a machine it does not know with any exception
        for vit in vits:
            vit.decompile()
        _say_once("the backbone is not compiled", error)


def _meet_every_case(vit: PromptableViT, images: Tensor) -> None:
    """Passes with and without gradient, so that all compiling is done before it is waited for."""
    with torch.no_grad():
        embedded = vit.embed(images)
        vit.read(embedded)
    torch.autograd.grad(vit.read(embedded.requires_grad_()).sum(), embedded)


def _backbones(method: Method) -> list[PromptableViT]:
    own = [m for m in method.modules() if isinstance(m, PromptableViT)]
    return [method.backbone, *own]


def make_optimizer(
    groups: Iterable[dict[str, Any]], kind: str, device: torch.device, **options: Any
) -> torch.optim.Optimizer:
    """SGD or Adam; on CUDA fused and with learning rates that a recorded step can read."""
    groups = [dict(group) for group in groups]
    if device.type == "cuda":
        for group in groups:
            group["lr"] = torch.tensor(options["lr"], device=device)
        options["fused"] = True
    if kind == "sgd":
        return torch.optim.SGD(groups, **options)
    options.pop("momentum", None)
    return torch.optim.Adam(groups, capturable=device.type == "cuda", **options)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group `lr` times its own `lr_scale`."""
    for group in optimizer.param_groups:
        rate = lr * group.get("lr_scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _give_state(optimizer: torch.optim.Optimizer) -> None:
    """Start the optimiser's state from zero, which is where its first step would start it.

    What a recorded step made for itself it would make anew in every replay.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            zeros: dict[str, Tensor] = {}
            if isinstance(optimizer, torch.optim.Adam):
                zeros["step"] = torch.zeros((), device=parameter.device)
                zeros["exp_avg"] = torch.zeros_like(parameter)
                zeros["exp_avg_sq"] = torch.zeros_like(parameter)
            elif group["momentum"]:
                zeros["momentum_buffer"] = torch.zeros_like(parameter)
            for kind, zero in zeros.items():
                optimizer.state[parameter].setdefault(kind, zero)


_said: set[str] = set()


def _say_once(what: str, error: BaseException) -> None:
    if what not in _said:
        _said.add(what)
        reason = str(error).strip().splitlines() or [type(error).__name__]
        warnings.warn(f"{what}, so training is slower: {reason[0]}", stacklevel=3)
