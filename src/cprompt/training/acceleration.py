"""Choosing and setting up the fastest way to train on a device."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from cprompt.methods.base import Method
from cprompt.ranks import ALONE, Ranks
from cprompt.training.cuda_graphs import GraphStepper
from cprompt.training.settings import Acceleration
from cprompt.training.step import Stepper, warn_once
from cprompt.vit.fused import fits
from cprompt.vit.promptable import Embedded, FrozenViT, Precision, PromptableViT

WORTH_COMPILING = 20_000
"""Steps from which compiling pays: it takes about 20 s and saves a millisecond or more per step."""


def make_stepper(
    method: Method,
    optimizer: torch.optim.Optimizer,
    clip: float | None,
    acceleration: Acceleration,
    precision: Precision = "fp32",
    ranks: Ranks = ALONE,
) -> Stepper:
    """The fastest stepper that `acceleration` allows on the device of the method's backbone.

    Steps that several ranks share are not captured: ranks draw different shapes, and an exchange
    is captured by all ranks at once or not at all.
    """
    on_cuda = next(method.backbone.parameters()).is_cuda
    kind = GraphStepper if on_cuda and acceleration != "none" and ranks.alone else Stepper
    return kind(method, optimizer, clip, precision, ranks)


def resolve_acceleration(requested: Acceleration, steps: int) -> Acceleration:
    """Turn "auto" into compile for a run of many steps; keep any other choice."""
    return "compile" if requested == "auto" and steps >= WORTH_COMPILING else requested


def compile_backbones(
    method: Method, acceleration: Acceleration, device: torch.device, precision: Precision = "fp32"
) -> None:
    """Fuse the small operations of the method's backbones, if the device is CUDA.

    Kernels of our own do that where they fit, in moments; elsewhere torch.compile does, in half a
    minute, if `acceleration` is compile. What fails leaves the backbone as it was.
    """
    for vit in _backbones(method):
        vit.decompile()
        if device.type != "cuda" or acceleration not in ("auto", "compile"):
            continue
        fusible = isinstance(vit, FrozenViT) and precision == "bf16" and fits(vit)
        if fusible and _works(vit, "fuse", device, precision):
            continue
        if acceleration == "compile":
            _works(vit, "compile", device, precision)


def _works(
    vit: PromptableViT,
    how: Literal["fuse", "compile"],
    device: torch.device,
    precision: Precision,
) -> bool:
    """Change how `vit` runs its blocks, and run all cases; undo it if anything is raised.

    A compiler may raise anything on an unsupported machine.
    """
    try:
        getattr(vit, how)()
        images = torch.zeros(2, 3, *vit.image_size, device=device)
        compile_all_cases(vit, images, precision)
    except Exception as error:
        vit.decompile()
        warn_once(f"the backbone is not {how}d", error)
        return False
    return True


def compile_all_cases(vit: PromptableViT, images: Tensor, precision: Precision = "fp32") -> None:
    """Run a pass without and one with gradient, so that nothing is compiled during training."""
    with torch.no_grad():
        embedded = vit.embed(images, precision)
        vit.read(embedded)
    tokens = embedded.tokens.requires_grad_()
    torch.autograd.grad(vit.read(Embedded(tokens, precision)).sum(), tokens)


def _backbones(method: Method) -> list[PromptableViT]:
    """Those that can be compiled block by block."""
    return [m for m in (method.backbone, *method.modules()) if isinstance(m, PromptableViT)]
