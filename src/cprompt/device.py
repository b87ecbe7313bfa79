"""Which device to compute on."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from cprompt.errors import ConfigError


def pick_device(wanted: str) -> torch.device:
    """The device of that name; "auto" is cuda if there is one, else cpu.

    It is never mps: Apple's GPUs have no float64, in which statistics are summed.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    hint = "use auto, cpu, cuda or mps"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:  # it lists every device that PyTorch was ever built for
        raise ConfigError(f"device {wanted!r} cannot be used here", hint=hint) from error
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {wanted!r} cannot be used here ({str(error).splitlines()[0]})", hint=hint
        ) from error
    return device


def inputs_at_once(device: torch.device) -> int:
    """About how many images, with all views of each, pass through a backbone together, untrained.

    A processor is busy with few of them and needs little memory; a GPU waits for Python unless
    there are more.

    >>> inputs_at_once(torch.device("cpu"))
    64
    """
    return 64 if device.type == "cpu" else 256


def move(module: nn.Module, device: torch.device) -> None:
    """Move a module's tensors to the device, unless they are there.

    `Module.to` assigns every tensor anew, and a backbone then rounds its weights once more.
    """
    place = torch.empty(0, device=device).device  # "cuda" is the current GPU, such as cuda:0
    tensors = itertools.chain(module.parameters(), module.buffers())
    if any(tensor.device != place for tensor in tensors):
        module.to(device)
