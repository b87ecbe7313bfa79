"""Which precision a frozen backbone is asked in on this machine: measured once, then remembered."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import get_args

import torch

from cprompt.errors import CheckpointError
from cprompt.files import cache_home, read_json, write_json
from cprompt.processor import processor
from cprompt.vit.backbone import Backbone
from cprompt.vit.promptable import Precision

WORTH = 1.2
"""How many times faster bf16 must be: for less, its rounding is not worth it."""
IMAGES, ROUNDS = 8, 3


def fastest_precision(backbone: Backbone, device: torch.device) -> Precision:
    """bf16 if it is clearly faster for this backbone on this device, else fp32.

    What was measured is kept in `precision.json` in the cache folder, by backbone, device, threads
    and version of torch.
    """
    if not multiplies_bf16(device):
        return "fp32"
    file, key = cache_home() / "precision.json", _case(backbone, device)
    known = _remembered(file)
    if key not in known:
        known[key] = seconds_per_pass(backbone, device)
        with suppress(CheckpointError):  # a folder that cannot be written costs a second each time
            write_json(file, known)
    return "bf16" if known[key]["fp32"] >= WORTH * known[key]["bf16"] else "fp32"


def multiplies_bf16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16; without them it is slower than fp32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and processor().bf16


def seconds_per_pass(backbone: Backbone, device: torch.device) -> dict[str, float]:
    """Of a few images in each precision, in turn; the first pass of each is not counted."""
    backbone = backbone.to(device)
    images = torch.zeros(IMAGES, 3, *backbone.image_size, device=device)
    times: dict[Precision, list[float]] = {precision: [] for precision in get_args(Precision)}
    with torch.inference_mode():
        for _ in range(1 + ROUNDS):
            for precision, taken in times.items():
                taken.append(_seconds(backbone, images, precision))
    return {str(precision): median(taken[1:]) for precision, taken in times.items()}


def _seconds(backbone: Backbone, images: torch.Tensor, precision: Precision) -> float:
    start = time.perf_counter()
    features = backbone.taps(backbone.embed(images, precision), range(backbone.depth))
    features.sum().item()  # waits for the device
    return time.perf_counter() - start


def _case(backbone: Backbone, device: torch.device) -> str:
    on_cuda = device.type == "cuda"
    what = torch.cuda.get_device_name(device) if on_cuda else processor().name
    size = "x".join(map(str, backbone.image_size))
    return f"{backbone.name} {size}, {what}, {torch.get_num_threads()} threads, {torch.__version__}"


def _remembered(file: Path) -> dict[str, Mapping[str, float]]:
    """What was measured before; nothing if the file is not there or is not ours."""
    try:
        found = read_json(file)
    except CheckpointError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        key: seconds
        for key, seconds in found.items()
        if isinstance(seconds, dict)
        and seconds.keys() == {*get_args(Precision)}
        and all(isinstance(each, float) and each > 0 for each in seconds.values())
    }
