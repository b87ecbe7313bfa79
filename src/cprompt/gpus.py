"""An NVIDIA GPU that is there but that torch cannot use, and what to install.

The commonest reason for slow learning is a torch without CUDA. Nothing slow is imported unless a
GPU was found.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/gpus")
"""A folder per GPU, where the driver of Linux is loaded."""
WHEELS = ("11.8", "12.6", "12.8", "13.0")
"""Versions of CUDA that torch is offered for."""
ADDRESS = "https://download.pytorch.org/whl/cu{}"


def has_nvidia_gpu() -> bool:
    """Whether the driver, or nvidia-smi, knows a GPU."""
    try:
        if any(DRIVER.iterdir()):
            return True
    except OSError:
        pass
    return "GPU 0" in _nvidia_smi("-L")


def unused_gpu() -> str | None:
    """One line that says how to make torch use the GPU; None if there is nothing to say."""
    if not has_nvidia_gpu():
        return None
    import torch

    if torch.cuda.is_available():
        return None
    found = re.search(r"CUDA Version: (\d+\.\d+)", _nvidia_smi())
    return advice(torch.__version__, torch.version.cuda, found.group(1) if found else None)


def advice(torch_version: str, built_for: str | None, driver: str | None) -> str:
    """The line, for a torch that was built for some CUDA or none, and the newest the driver runs.

    >>> advice("2.9.0+cpu", None, "12.7")  # doctest: +ELLIPSIS
    'there is an NVIDIA GPU, but torch 2.9.0+cpu is built without CUDA: pip install ...whl/cu126'
    """
    fits = [w for w in WHEELS if driver is None or _number(w) <= _number(driver)]
    why = "is built without CUDA"
    if built_for is not None:
        why = f"is built for CUDA {built_for}"
        why += " and cannot use it" if driver is None else f", and the driver runs up to {driver}"
    if not fits or (built_for is not None and driver is None):
        todo = "update the GPU's driver"
    else:
        address = ADDRESS.format(fits[-1].replace(".", ""))
        todo = f"pip install --force-reinstall torch --index-url {address}"
    return f"there is an NVIDIA GPU, but torch {torch_version} {why}: {todo}"


def _nvidia_smi(*options: str) -> str:
    """What nvidia-smi prints; nothing if it is not there or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run([program, *options], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
