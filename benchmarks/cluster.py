"""Learning and asking on Ray: two workers of one thread each against one process of one thread.

    python -m benchmarks.cluster
    python -m benchmarks.cluster --quick

Drawn JPEG files, learnt and asked about with a small ViT, on a CPU. The one process is held to one
core, decoding included; Ray is started beforehand and has two. Workers are warm on both sides: the
backbone is loaded before anything is timed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import common
from benchmarks.images import draw_jpegs
from cprompt import ContinualClassifier
from cprompt.classifier.photo_sources import labelled
from cprompt.classifier.readable import explain_readable
from cprompt.cluster.answering import Questions, answer_on_ray, parts_of
from cprompt.cluster.connection import LOCAL, connected
from cprompt.cluster.learning import CountOnRay
from cprompt.cluster.tasks import Work

BACKBONE = "vit_tiny_patch16_224"
WORKERS = 2
ALONE, ON_RAY = "one process", f"Ray, {WORKERS} workers"
ASKED = 1.7
"""How many times faster two workers should be."""


def main(argv: Sequence[str] | None = None) -> None:
    options = common.parser(__doc__)
    options.add_argument("--backbone", default=BACKBONE)
    options.add_argument("--image-size", type=int)
    options.add_argument("--classes", type=int, default=8)
    options.add_argument("--per-class", type=int, default=84, help="photos of each class")
    given = options.parse_args(argv)
    if common.cores() < WORKERS:
        raise SystemExit(f"error: needs {WORKERS} cores, and there is {common.cores()}")
    per_class = 24 if given.quick else given.per_class
    torch.set_num_threads(1)
    device = torch.device("cpu")
    seen = common.hardware(device)
    out = common.output("cluster", seen, given.out)
    rounds = common.Rounds(1, 1 if given.quick else 3, 1)
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder) / "photos"
        draw_jpegs(photos, given.classes, per_class)
        with connected(LOCAL):
            calls = contenders(photos, Path(folder) / "model", given.backbone, given.image_size)
            found = {what: common.interleave(both, device, rounds) for what, both in calls.items()}
    number = given.classes * per_class
    times = {what: t[ALONE].median / t[ON_RAY].median for what, t in found.items()}
    rows = [
        {
            "": what,
            **{name: f"{number / t.median:.1f} photos/s" for name, t in timings.items()},
            "times": f"{times[what]:.2f}",
            "asked": f"{ASKED}",
        }
        for what, timings in found.items()
    ]
    common.show(f"{WORKERS} workers of one thread against one process", rows, seen)
    result = {
        "settings": {"backbone": given.backbone, "photos": number, "workers": WORKERS},
        "seconds": {
            what: {name: asdict(t) for name, t in timings.items()}
            for what, timings in found.items()
        },
        "times": times,
        "asked": ASKED,
    }
    print(f"Saved {common.save('cluster', seen, result, out)}")


def contenders(
    photos: Path, model: Path, backbone: str, image_size: int | None
) -> dict[str, dict[str, Callable[[], Any]]]:
    """What is timed: learning and asking, each in one process and on Ray."""
    how: dict[str, Any] = {"weights": "random:0", "image_size": image_size, "device": "cpu"}
    classifier = ContinualClassifier(backbone, **how)
    classifier.learn(photos).save(model)
    files = list(labelled(photos).photos)
    questions = Questions.of(model, device="cpu")
    loaded = questions.classifier()

    def learn() -> None:
        with one_core():
            ContinualClassifier(backbone, **how).learn(photos)

    def learn_on_ray() -> None:
        count = CountOnRay(LOCAL)
        ContinualClassifier(backbone, **how).learn_counted(photos, count)

    def ask() -> None:
        with one_core():
            explain_readable(loaded, files)

    parts = dict(enumerate(parts_of(len(files))))
    keep: Callable[..., None] = lambda number, answers: None  # noqa: E731
    ask_on_ray = partial(answer_on_ray, LOCAL, questions, files, parts, keep, Work())
    return {
        "learn": {ALONE: learn, ON_RAY: learn_on_ray},
        "predict": {ALONE: ask, ON_RAY: ask_on_ray},
    }


@contextmanager
def one_core() -> Iterator[None]:
    """Hold this thread, and those that it starts, to one core; Linux only."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


if __name__ == "__main__":
    main()
