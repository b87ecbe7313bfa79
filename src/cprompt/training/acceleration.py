"""Choosing and setting up the fastest way to train on a device."""

from __future__ import annotations

import torch
from torch import Tensor

from cprompt.methods.base import Method
from cprompt.training.cuda_graphs import GraphStepper
from cprompt.training.settings import Acceleration
from cprompt.training.step import Stepper, warn_once
from cprompt.vit.promptable import PromptableViT

WORTH_COMPILING = 20_000
"""Steps from which compiling, some 20 s, costs less than it saves: a millisecond a step or more."""


def make_stepper(
    method: Method, optimizer: torch.optim.Optimizer, clip: float | None, how: Acceleration
) -> Stepper:
    """The fastest stepper that `how` allows on the device of the method's backbone."""
    on_cuda = next(method.backbone.parameters()).is_cuda
    kind = GraphStepper if on_cuda and how != "none" else Stepper
    return kind(method, optimizer, clip)


def resolve_acceleration(how: Acceleration, steps: int) -> Acceleration:
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
        warn_once("the backbone is not compiled", error)


def _meet_every_case(vit: PromptableViT, images: Tensor) -> None:
    """Passes with and without gradient, so that all compiling is done before it is waited for."""
    with torch.no_grad():
        embedded = vit.embed(images)
        vit.read(embedded)
    torch.autograd.grad(vit.read(embedded.requires_grad_()).sum(), embedded)


def _backbones(method: Method) -> list[PromptableViT]:
    own = [m for m in method.modules() if isinstance(m, PromptableViT)]
    return [method.backbone, *own]
