"""How many passes through the backbone each row of the protocol trains with.

    python tools/training_passes.py

Seconds depend on what else ran on a machine; this does not. An image's way through the backbone
counts one, the backward pass one more, and a gradient of the backbone's own weights another.
Passes are counted in runs of one and of three epochs, with few random images and a small backbone,
but the row's own tasks and settings. What they share is done once per image, the rest in every
epoch.
Writes results/training_passes.json, which tools/results_page.py reads. Takes an hour or so on two
cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from result_runs import ROOT, SETTINGS, TRAINING_PASSES
from torch import Tensor

from cprompt.data.image_set import Dataset, ImageSet
from cprompt.files import write_json
from cprompt.research import experiment
from cprompt.research.config import RunConfig
from cprompt.research.evaluation import Evaluator
from cprompt.research.tables import TableRow, load_table, row_config
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import Embedded, PromptableViT

IMAGES = {"cars10": 8137, "cifar100": 50_000}
CLASSES = {"cars10": 196, "cifar100": 100}
PER_CLASS = 2
SMALL = {
    "backbone.name": "test_vit",
    "backbone.weights": "random:0",
    "backbone.image_size": 48,
    "training.precision": "fp32",
    "data.transform": "plain",
    "execution.device": "cpu",
}


def per_image(row: TableRow, benchmark: str, per_class: int = PER_CLASS) -> tuple[float, float]:
    """Passes that a training image takes once, and those of every epoch."""
    small = SMALL | ({"method.projections": 100} if row.method == "ranpac" else {})
    one, three = (
        _count(
            row_config(row, benchmark, 1993, overrides=small | {"training.epochs": n}), per_class
        )
        for n in (1, 3)
    )
    each = (three - one) / 2
    return one - each, each


def _count(config: RunConfig, per_class: int) -> float:
    """Passes of training per training image of a whole run."""
    classes = CLASSES[config.benchmark]
    backbone = load_backbone("test_vit", "random:0", 48)
    with TemporaryDirectory() as folder, _counting() as passes:
        data = Dataset(config.data.dataset, _images(classes, per_class), _images(classes, 1))
        experiment.run(config, Path(folder), dataset=data, backbone=backbone)
    return sum(passes) / (classes * per_class)


def _images(classes: int, each: int) -> ImageSet:
    rng = np.random.default_rng(each)
    pixels = rng.integers(0, 256, (classes * each, 48, 48, 3), dtype=np.uint8)
    names = tuple(f"class {i}" for i in range(classes))
    return ImageSet(pixels, np.repeat(np.arange(classes), each), names)


@contextmanager
def _counting() -> Iterator[list[int]]:
    """What every pass outside of evaluation counts."""
    found: list[int] = []
    evaluating = False
    one_pass, evaluate = PromptableViT._pass, Evaluator.evaluate

    def counted(vit: PromptableViT, embedded: Embedded, *args: Any, **named: Any) -> Tensor:
        tokens = one_pass(vit, embedded, *args, **named)
        if not evaluating:
            trained = any(parameter.requires_grad for parameter in vit.parameters())
            ways = 1 + (1 + trained if tokens.requires_grad else 0)
            found.append(ways * len(embedded))
        return tokens

    def apart(*args: Any, **named: Any) -> Any:
        nonlocal evaluating
        evaluating = True
        try:
            return evaluate(*args, **named)
        finally:
            evaluating = False

    with (
        patch.object(PromptableViT, "_pass", counted),
        patch.object(Evaluator, "evaluate", apart),
    ):
        yield found


def main() -> None:
    """Count and write."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    counted: dict[str, dict[str, dict[str, float]]] = {}
    for benchmark, images in IMAGES.items():
        for row in load_table("protocol").rows:
            once, each = per_image(row, benchmark)
            epochs = row_config(row, benchmark, 1993, overrides=SETTINGS).training.epochs
            counted.setdefault(benchmark, {})[row.label] = {
                "once": round(once, 4),
                "every_epoch": round(each, 4),
                "epochs": epochs,
                "passes": round((once + each * epochs) * images),
            }
            print(benchmark, row.label, counted[benchmark][row.label], flush=True)
    write_json(ROOT / TRAINING_PASSES, counted)


if __name__ == "__main__":
    main()
