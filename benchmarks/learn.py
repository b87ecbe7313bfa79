"""Learning in one pass: what it costs beside plain forward passes, and how memory grows.

    python -m benchmarks.learn
    python -m benchmarks.learn --quick --device cpu

A batch of photos is learnt by the photo classifier's default method, views, statistics and head
included; beside it, timm's forward of the same backbone over as many views. Then 10 times as many
photos per class are learnt, in processes of their own, and their peak memory compared. Photos are
noise in memory, so decoding files is not part of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import common
from benchmarks.common import Call, Rounds
from cprompt import ContinualClassifier, load_backbone
from cprompt.device import pick_device

BACKBONE = "vit_tiny_patch16_224"
SMALL = "vit_micro_patch8_64.tiny_imagenet"
"""Comes with the package; memory is measured with it, since many photos take long."""
CLASSES = 4


def photos(per_class: int, side: int) -> tuple[list[NDArray[np.uint8]], list[str]]:
    """Noise around a level of its own for each class."""
    rng = np.random.default_rng(0)
    images = [
        rng.integers(20 * c, 20 * c + 100, (side, side, 3), dtype=np.uint8)
        for c in range(CLASSES)
        for _ in range(per_class)
    ]
    return images, [f"class {c}" for c in range(CLASSES) for _ in range(per_class)]


def classifier(backbone: str, device: str) -> ContinualClassifier:
    weights = None if backbone == SMALL else "random:0"
    return ContinualClassifier(backbone, weights=weights, device=device)


def learning(backbone: str, device: torch.device, per_class: int) -> tuple[Call, int]:
    """A call that learns a batch into a new model, and how many views it looks at."""
    model = classifier(backbone, device.type)
    images, names = photos(per_class, 256)
    model.fit(images[::per_class], names[::per_class])  # loads the backbone
    views = model.method_.extra_views + 1
    return partial(model.fit, images, names), views * len(images)


def forward(backbone: str, device: torch.device, views: int, side: int = 224) -> Call:
    """timm's forward over `views` inputs on the device, 64 at a time."""
    vit = load_backbone(backbone, None if backbone == SMALL else "random:0").to(device).vit
    batch = torch.randn(64, 3, side, side, device=device)

    @torch.inference_mode()
    def call() -> None:
        for first in range(0, views, 64):
            vit(batch[: min(64, views - first)])

    return call


def learn_many(backbone: str, device: str, per_class: int) -> None:
    """Learn photos that are made one by one, as files would be read."""
    model = classifier(backbone, device)
    model.learn(_Noise(per_class))


class _Noise:
    """A dataset of (photo, name) pairs."""

    def __init__(self, per_class: int) -> None:
        self.per_class = per_class

    def __len__(self) -> int:
        return CLASSES * self.per_class

    def __getitem__(self, i: int) -> tuple[NDArray[np.uint8], str]:
        if not 0 <= i < len(self):
            raise IndexError(i)
        c = i % CLASSES
        rng = np.random.default_rng(i)
        return rng.integers(20 * c, 20 * c + 100, (64, 64, 3), dtype=np.uint8), f"class {c}"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--device", default="auto", help="auto, cuda or cpu (default: auto)")
    options.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    options.add_argument("--backbone", default=BACKBONE)
    options.add_argument("--photos", type=int, default=40, help="per class")
    options.add_argument("--out", type=Path, help="the file to write")
    given = options.parse_args(argv)
    device = pick_device(given.device)
    seen = common.hardware(device)
    out = common.output("learn", seen, given.out)
    per_class = 4 if given.quick else given.photos

    learn, views = learning(given.backbone, device, per_class)
    contenders = {"learn": learn, "timm forward": forward(given.backbone, device, views)}
    rounds = Rounds(1, 1, 1) if given.quick else Rounds(1, 3, 1)
    timings = common.interleave(contenders, device, rounds)
    ratio = timings["learn"].median / timings["timm forward"].median
    counts = (10, 20) if given.quick else (10, 100, 1000)
    peaks = {
        n: common.peak_memory(partial(learn_many, SMALL, device.type, n), device) for n in counts
    }
    rows = [
        {
            "views": str(views),
            "learn, s": f"{timings['learn'].median:.2f}",
            "timm forward, s": f"{timings['timm forward'].median:.2f}",
            "ratio": f"{ratio:.2f}",
            **{
                f"MiB, {n} per class": "unknown" if peak is None else f"{peak / 2**20:.0f}"
                for n, peak in peaks.items()
            },
        }
    ]
    common.show(f"Learning {CLASSES * per_class} photos: {given.backbone}", rows, seen, [])
    result = {
        "settings": {"backbone": given.backbone, "photos": CLASSES * per_class, "views": views},
        "rounds": asdict(rounds),
        "seconds": {name: asdict(timing) for name, timing in timings.items()},
        "times_forward": ratio,
        "peak_bytes": {str(n): peak for n, peak in peaks.items()},
    }
    print(f"Written: {common.save('learn', seen, result, out)}")


if __name__ == "__main__":
    main()
