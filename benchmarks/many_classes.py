"""What learning and predicting cost with thousands of classes, after hundreds of batches.

    python -m benchmarks.many_classes
    python -m benchmarks.many_classes --batches 40

Drawn patches, four photos per class, twenty classes per batch, and a tiny ViT with random weights,
so that the backbone does not hide what grows with the number of classes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from cprompt import ContinualClassifier
from cprompt.classifier import model_folder
from cprompt.device import pick_device

CLASSES, PHOTOS = 20, 4


def main(argv: Sequence[str] | None = None) -> None:
    options = common.parser(__doc__)
    options.add_argument("--batches", type=int, default=200)
    given = options.parse_args(argv)
    batches = 10 if given.quick else given.batches
    device = pick_device(given.device)
    seen = common.hardware(device)
    out = common.output("many_classes", seen, given.out)
    points = measure(str(device), batches)
    rows = [
        {
            "batches": str(p["batches"]),
            "classes": str(p["classes"]),
            "learn": f"{1e3 * p['learn_seconds_a_photo']:.1f} ms per photo",
            "predict": f"{1e3 * p['predict_seconds_a_photo']:.2f} ms per photo",
            "model": f"{p['bytes'] / 1e6:.1f} MB",
            "load": f"{p['load_seconds']:.2f} s",
        }
        for p in points
    ]
    common.show("Learning batch after batch", rows, seen)
    common.save("many_classes", seen, {"points": points, "photos_a_class": PHOTOS}, out)


def measure(device: str, batches: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    classifier = ContinualClassifier(
        "test_vit",
        weights="random:0",
        image_size=32,
        device=device,
    )
    every = max(batches // 5, 1)
    points, clock, photos = [], 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, batches + 1):
            images, names = draw(rng, CLASSES * (number - 1))
            start = time.perf_counter()
            classifier.learn(images, names)
            clock, photos = clock + time.perf_counter() - start, photos + len(images)
            if number % every:
                continue
            start = time.perf_counter()
            classifier.predict(images)
            asked = time.perf_counter() - start
            model = Path(folder) / str(number)
            classifier.save(model)
            start = time.perf_counter()
            ContinualClassifier.load(model, device=device)
            points.append(
                {
                    "batches": number,
                    "classes": len(classifier.classes_),
                    "learn_seconds_a_photo": clock / photos,  # over the batches since the last
                    "predict_seconds_a_photo": asked / len(images),
                    "bytes": model_folder.size(model),
                    "load_seconds": time.perf_counter() - start,
                }
            )
            clock, photos = 0.0, 0
    return points


def draw(rng: np.random.Generator, first: int) -> tuple[list[Any], list[str]]:
    """Patches of one colour per class."""
    images, names = [], []
    for number in range(first, first + CLASSES):
        colour = rng.integers(0, 256, 3)
        for _ in range(PHOTOS):
            images.append((colour * rng.uniform(0.8, 1, (16, 16, 3))).astype(np.uint8))
            names.append(f"class {number}")
    return images, names


if __name__ == "__main__":
    main()
