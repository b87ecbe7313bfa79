"""What is left of a method when only its heads learn, on a backbone's plain features.

    python tools/heads_alone.py cars10 --root CARS --backbone NAME --weights FILE

No prompts and no augmentation, so it takes minutes on a CPU. One head a task learns its own classes
by cross-entropy; at test all heads compete. Asked: does it matter whether heads read the class
token before or after the final norm, and how they begin? Under CODA-Prompt's two sets of training
settings. Also told: how long those class tokens are, since a step in a linear head grows with the
square of that. Writes JSON to results/heads_alone/BENCHMARK.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.data.image_set import ImageSet
from cprompt.data.pipeline import views
from cprompt.data.pipeline.cache import open_images
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.device import pick_device
from cprompt.files import check_writable, write_json
from cprompt.methods.parts.heads import HeadInit, TaskHeads
from cprompt.research import checkpoint
from cprompt.research.config import RunConfig, resolve
from cprompt.research.record import environment
from cprompt.research.stream import TaskStream
from cprompt.seeds import generator
from cprompt.training.optimizer import learning_rate, make_optimizer
from cprompt.training.settings import TrainingConfig
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT, Tap

FLAVOURS = ("matched", "official")


@torch.no_grad()
def features_of(
    images: ImageSet, vit: FrozenViT, config: RunConfig, stream: TaskStream
) -> tuple[dict[Tap, Tensor], Tensor]:
    """Class tokens (N, D) before and after the final norm, and positions (N,) of the classes."""
    size, normalization = vit.image_size[0], config.data.normalization
    batches = BatchLoader(
        open_images(images, config.cache),
        stream.targets(images.labels),
        views.build(config.data.transform, size, normalization),
        64,
        seed=None,
    )
    tokens, targets = [], []
    for pictures, classes in batches.epoch(0):
        tokens.append(vit.read(vit.embed(pictures)).clone())  # and not its batch's other tokens
        targets.append(classes)
    before = torch.cat(tokens)
    return {"pre_norm": before, "post_norm": vit.norm(before)}, torch.cat(targets)


def accuracies(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    stream: TaskStream,
    training: TrainingConfig,
    init: HeadInit,
    seed: int,
) -> list[float]:
    """In percent, over all classes seen, after each task."""
    rng = generator(seed)
    heads = TaskHeads(train[0].shape[1], init)
    after = []
    for task, size in enumerate(stream.sizes):
        heads.open(size, rng)
        known, seen = stream.known(task), stream.known(task) + size
        mine = (train[1] >= known) & (train[1] < seen)
        x, y = train[0][mine], train[1][mine] - known
        optimizer = make_optimizer(
            [{"params": list(heads.parameters())}],
            training.optimizer,
            x.device,
            lr=training.lr,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
        )
        for epoch in range(training.epochs):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(training, epoch)
            for part in torch.randperm(len(x), generator=rng).split(training.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(heads.current(x[part]), y[part]).backward()
                optimizer.step()
        heads.close()
        asked = test[1] < seen
        with torch.no_grad():
            right = heads(test[0][asked]).argmax(1) == test[1][asked]
        after.append(100 * right.float().mean().item())
    return after


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("benchmark")
    options.add_argument("--root", required=True, help="where the images are")
    options.add_argument("--backbone", required=True)
    options.add_argument("--weights")
    options.add_argument("--seed", type=int, default=1993)
    options.add_argument("--out", type=Path, default=Path("results/heads_alone"))
    args = options.parse_args()
    out = args.out / f"{args.benchmark}.json"
    check_writable(out)
    settings: dict[str, Any] = {
        "data.root": args.root,
        "backbone.name": args.backbone,
        "backbone.weights": args.weights,
        "seeds.order": args.seed,
    }
    configs = {f: resolve(args.benchmark, "coda", f, overrides=settings) for f in FLAVOURS}
    config = configs["matched"]
    dataset = config.data.load(config.seeds.data)
    stream = config.stream.build(len(dataset.classes), config.seeds.order)
    vit = load_backbone(args.backbone, args.weights, None)
    train, train_classes = features_of(dataset.train, vit, config, stream)
    test, test_classes = features_of(dataset.test, vit, config, stream)
    rows = []
    for tap, flavour in itertools.product(train, FLAVOURS):
        for init in get_args(HeadInit):
            after = accuracies(
                (train[tap], train_classes),
                (test[tap], test_classes),
                stream,
                configs[flavour].training,
                init,
                args.seed,
            )
            row = {
                "tap": tap,
                "flavour": flavour,
                "head_init": init,
                "last_accuracy": round(after[-1], 3),
                "average_accuracy": round(sum(after) / len(after), 3),
            }
            print(*row.values(), flush=True)
            rows.append(row)
    about = {
        "benchmark": args.benchmark,
        "seed": args.seed,
        "backbone": checkpoint.describe_backbone(vit),
        "normalization": config.data.normalization,
        "pictures": {"train": len(train_classes), "test": len(test_classes)},
        "training": {f: dataclasses.asdict(configs[f].training) for f in FLAVOURS},
        "mean_length": {tap: round(t.norm(dim=1).mean().item(), 3) for tap, t in test.items()},
        "rows": rows,
        "environment": environment(pick_device("cpu")),
    }
    write_json(out, about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
