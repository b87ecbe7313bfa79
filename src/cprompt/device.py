"""Which device to compute on."""

from __future__ import annotations

import torch

from cprompt.errors import ConfigError


def pick_device(wanted: str) -> torch.device:
    """The device of that name; "auto" is cuda, else mps, else cpu.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {wanted!r} cannot be used here ({str(error).splitlines()[0]})",
            hint="use auto, cpu, cuda or mps",
        ) from error
    return device
