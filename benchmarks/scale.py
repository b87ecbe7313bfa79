"""What long streams cost: a thousand tasks, a hundred thousand classes, with synthetic features.

    python -m benchmarks.scale

Learning that many classes from images would take days, so a model that has learnt them is put
together from random numbers of the right shapes. Then the next task is learnt for real, and every
part of that is timed: CPrompt's next training step and Strata's next count and head, answers, the
size of the model, loading it, and the memory of a process that does all this. Each size has a
process of its own, with one thread.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import common
from benchmarks.images import draw_jpegs
from cprompt.data.image_files import read_image
from cprompt.device import pick_device
from cprompt.methods.base import Method, create_method, rebuild
from cprompt.methods.cprompt import CPrompt
from cprompt.methods.strata import Strata
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT

SIZES = {10: 1_000, 100: 10_000, 1_000: 100_000}
"""Tasks, and classes in all of them."""
BACKBONE, IMAGE = "vit_tiny_patch16_224", 224
WIDTH = 512
"""Numbers per feature that Strata counts: its memory grows with it, working out a head with the
square."""
PER_CLASS, BATCH = 5, 16

Point = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> None:
    given = common.parser(__doc__).parse_args(argv)
    sizes = {2: 20, 4: 40} if given.quick else SIZES
    backbone = ("test_vit", 48) if given.quick else (BACKBONE, IMAGE)
    torch.set_num_threads(1)
    seen = common.hardware(pick_device("cpu"))
    out = common.output("scale", seen, given.out)
    points = {name: [] for name in MEASURED}
    for tasks, classes in sizes.items():
        for name in MEASURED:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                found = process.submit(measure, name, backbone, tasks, classes).result()
            points[name].append({"tasks": tasks, "classes": classes, **found})
    rates = image_rates(*backbone)
    for name, found in points.items():
        rows = [{key: _shown(key, value) for key, value in point.items()} for point in found]
        common.show(name, rows, seen)
    settings = {"backbone": backbone[0], "width": WIDTH, "per_class": PER_CLASS, "batch": BATCH}
    common.save("scale", seen, {"settings": settings, "rates": rates, "points": points}, out)


def measure(name: str, backbone: tuple[str, int], tasks: int, classes: int) -> Point:
    """All costs at one size, in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    vit = load_backbone(backbone[0], "random:0", backbone[1])
    before = common._resident("VmRSS")
    make, parts = MEASURED[name]
    method = make(vit)
    fill(method, tasks, classes // tasks)
    found = parts(method, classes // tasks)
    state = method.state_dict()
    found["bytes"] = sum(t.numel() * t.element_size() for t in state.values())
    peak = common._resident("VmHWM")
    found["peak_bytes"] = None if peak is None or before is None else peak - before
    method.register_buffer("weight", None, persistent=False)  # Strata's is large, and not loaded
    fresh = make(vit)
    found["load_seconds"] = seconds(lambda: rebuild(fresh, method.task_sizes, state, False), 1)
    return found


def fill(method: Method, tasks: int, per_task: int) -> None:
    """Make the method what it would be after so many tasks, with random numbers."""
    classes = tasks * per_task
    method.task_sizes = [per_task] * tasks
    if isinstance(method, CPrompt):
        dim = method.backbone.dim
        method.prompts.frozen = 0.02 * torch.randn(tasks, *method.prompts.frozen.shape[1:])
        method.heads.sizes = [per_task] * tasks
        method.heads.weight.frozen = 0.02 * torch.randn(classes, dim)
        method.heads.bias.frozen = torch.zeros(classes)
        method.keys.rows.frozen = torch.randn(classes, dim)
        method.keys.key_task = torch.arange(tasks).repeat_interleave(per_task)
    elif isinstance(method, Strata):
        moments, wide = method.moments, method.project.width
        centres = torch.randn(classes, wide)
        moments.count = torch.full((classes,), float(PER_CLASS), dtype=torch.float64)
        moments.total = PER_CLASS * centres.double()
        moments.second = moments.total.T @ centres.double()
        moments.second.diagonal().add_(float(PER_CLASS * classes))
        position = torch.arange(classes).repeat_interleave(2)
        features = (centres[position] + torch.randn(len(position), wide)).half()
        method.kept.key = torch.randperm(len(position)) * 3
        method.kept.position = position
        method.kept.feature = method.kept.mean = features
        method.narrow_weight = torch.zeros(classes, wide)


def cprompt(vit: FrozenViT) -> CPrompt:
    method = create_method("cprompt", vit)
    assert isinstance(method, CPrompt)
    return method


def cprompt_parts(method: CPrompt, per_task: int) -> Point:
    rng = torch.Generator().manual_seed(0)
    side = method.backbone.image_size[0]
    images = torch.randn(BATCH, 3, side, side)
    found = {"begin_seconds": seconds(lambda: method.begin_task(per_task, rng), 1)}
    targets = method.known + torch.arange(BATCH) % per_task
    draws = method.draw(BATCH, rng)

    def step() -> None:
        losses = method.loss(method.embed(images), targets, draws)
        torch.autograd.backward(torch.stack(list(losses.values())).sum())

    found["step_seconds_per_image"] = seconds(step) / BATCH
    found["end_seconds"] = seconds(method.close_task, 1)
    with torch.no_grad():
        response = method.respond(images)
        assert response.query is not None
        query, feature = response.query, response.feature
        predict = seconds(lambda: method.respond(images)) / BATCH
        keys = seconds(lambda: method.choose(query)) / BATCH
        heads = seconds(lambda: method.answer(feature)) / BATCH
    return {**found, "predict_seconds": predict, "keys_and_heads_seconds": keys + heads}


def strata(vit: FrozenViT) -> Strata:
    method = create_method("strata", vit, {"width": WIDTH, "views": 1})
    assert isinstance(method, Strata)
    return method


def strata_parts(method: Strata, per_task: int) -> Point:
    rng = torch.Generator().manual_seed(0)
    begin = seconds(lambda: method.begin_task(per_task, rng), 1)
    images = PER_CLASS * per_task
    features = torch.randn(images, method.project.features)
    targets = method.known + torch.arange(images) % per_task
    keys = torch.randint(2**40, (images,))

    def count() -> None:  # as `Strata.end_task` does, with features in place of images
        with method.kept.counting(method.ranks, method._kept_per_class()):
            for at in torch.arange(images).split(64):
                method.count_features(features[at], targets[at], keys[at])

    counting = seconds(count, 1)
    solving = seconds(method.solve, 1)
    with torch.no_grad():
        predict = seconds(lambda: method.respond_to_features(features[:BATCH])) / BATCH
    return {
        "begin_seconds": begin,
        "count_seconds_per_image": counting / images,
        "end_seconds": solving,
        "keys_and_heads_seconds": predict,
    }


MEASURED: dict[str, tuple[Callable[[FrozenViT], Any], Callable[[Any, int], Point]]] = {
    "cprompt": (cprompt, cprompt_parts),
    "strata": (strata, strata_parts),
}


def image_rates(backbone: str, side: int) -> dict[str, float]:
    """Seconds per image of what does not depend on classes: reading a JPEG, one backbone pass."""
    vit = load_backbone(backbone, "random:0", side)
    images = torch.randn(BATCH, 3, side, side)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        draw_jpegs(Path(folder), 2, 8)
        files = sorted(Path(folder).rglob("*.jpg"))
        read = seconds(lambda: [read_image(file).resize((side, side)) for file in files])
        layers = range(vit.depth)
        taps = seconds(lambda: vit.taps(vit.embed(images), layers))
    return {"read_seconds": read / len(files), "pass_seconds": taps / BATCH}


def seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """The median time of a call; a call that changes something is timed once.

    It is the processor's time: with one thread, what the call takes on an idle machine.
    """
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return median(times)


def _shown(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    if key.endswith("bytes"):
        return f"{value / 1e6:.1f} MB"
    return f"{1e3 * value:.2f} ms" if "seconds" in key else f"{value:,}"


if __name__ == "__main__":
    main()
