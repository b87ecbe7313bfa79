"""What one process computes alone and two compute together; `python -m` runs one of the two."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cprompt.data.image_set import Dataset
from cprompt.methods.base import Method, create_method
from cprompt.methods.l2p import L2P
from cprompt.methods.registry import METHODS
from cprompt.ranks import ALONE, Ranks, join, leave
from cprompt.research.config import RunConfig, resolve
from cprompt.research.experiment import run
from cprompt.seeds import generator
from cprompt.training.observers import Observer
from cprompt.training.step import Stepper
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT
from tests.conftest import TINY
from tests.methods.common import apart
from tests.methods.test_every_method import SMALL, Batches, random_images, sizes_of
from tests.stopping import StopAt

CPU = torch.device("cpu")

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in sorted(METHODS)},
    "coda, all terms": ("coda", {"mu": 0.3, "ccl": True, "pcl": True}),
    "cprompt, roh": ("cprompt", {"smoothing": "roh"}),
    "dualprompt, all terms": ("dualprompt", {"ccl": True, "pcl": True, "keys": "class"}),
    "l2p, all terms": ("l2p", {"ccl": True, "pcl": True, "top_n": 2}),
    "l2p, batchwise": ("l2p", {"batchwise": True}),
}
"""Every method, and settings with other loss terms or random draws."""

BATCHES = (5, 1)
"""Images in a batch: uneven shares, and fewer images than processes."""

TASKS = (0, 1)
"""Some methods train in the first task only; others have more loss terms from the second on."""

Step = dict[str, Tensor]


def load() -> FrozenViT:
    return load_backbone("test_vit", weights="random:0", image_size=48)


def in_task(case: str, task: int, backbone: FrozenViT) -> Method:
    """The method at the start of a task, away from where it began."""
    name, settings = CASES[case]
    method = create_method(name, backbone, SMALL.get(name, {}) | settings)
    for number, size in enumerate(sizes_of(name)[: task + 1]):
        if number:
            method.end_task(Batches(method))
            method.close_task()
        method.begin_task(size, generator(1, number))
        with torch.no_grad():
            for parameter in (p for p in method.parameters() if p.requires_grad):
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator(2, number))
    return method


def one_step(method: Method, n: int, ranks: Ranks) -> Step:
    """Losses, gradients and what an update makes of the parameters, for a batch of n images."""
    method.ranks = ranks
    images = random_images(n, seed=3)
    targets = method.known + torch.arange(n) % method.task_sizes[-1]
    if isinstance(method, L2P):  # each image has a favourite, so that votes can differ
        method.keys.data[:n] = apart(method.ask(images))
    draws = method.draw(n, generator(7, n))
    groups = [group for group in method.parameter_groups() if group["params"]]
    if not groups:
        return {}
    optimizer = torch.optim.SGD(groups, lr=0.05, weight_decay=0.01)
    stepper = Stepper(method, optimizer, clip=0.5, ranks=ranks)
    share = None
    if not ranks.alone:
        share = ranks.share(n)
        draws = method.split_draws(draws, n, share.part)
        images, targets = images[share.part], targets[share.part]
    losses = stepper.step(images, targets, draws, share)
    found = {f"loss/{name}": loss for name, loss in zip(stepper.names, losses, strict=True)}
    for name, parameter in method.named_parameters():
        found[f"parameter/{name}"] = parameter.detach().clone()
        if parameter.grad is not None:
            found[f"gradient/{name}"] = parameter.grad.clone()
    return found


def steps(case: str, backbone: FrozenViT, ranks: Ranks = ALONE) -> dict[tuple[int, int], Step]:
    found = {}
    for task in TASKS[: len(sizes_of(CASES[case][0]))]:
        method = in_task(case, task, backbone)
        for n in BATCHES:
            found[task, n] = one_step(copy.deepcopy(method), n, ranks)
    return found


def config_of(name: str, more: Mapping[str, Any] | None = None) -> RunConfig:
    """Three small tasks; the second one ends with a batch of a single image."""
    small = {f"method.{key}": value for key, value in SMALL.get(name, {}).items()}
    small |= {"stream.sizes": list(sizes_of(name)), "training.epochs": 1}
    small |= {"training.optimizer": "adam"} if name == "finetune" else {}
    return resolve("shapes", name, overrides=TINY | small | (more or {}))


def runs() -> Iterator[tuple[str, RunConfig, Observer | None]]:
    """Folder, settings, and what stops the run, if it is to be resumed."""
    for name in sorted(METHODS):
        yield name, config_of(name), None
    for observer in (StopAt(5), None):
        yield "resumed", config_of("cprompt", {"execution.checkpoint_seconds": 0}), observer


def do_runs(folder: Path, dataset: Dataset, backbone: FrozenViT) -> None:
    for name, config, observer in runs():
        try:
            run(
                config,
                folder / name,
                resume=name == "resumed",
                observer=observer,
                dataset=dataset,
                backbone=backbone,
            )
        except KeyboardInterrupt:
            assert observer is not None


def main(folder: Path) -> None:
    backbone, ranks = load(), join(CPU)
    found = {case: steps(case, backbone, ranks) for case in CASES}
    torch.save(found, folder / f"steps{ranks.rank}.pt")
    do_runs(folder, config_of("cprompt").data.load(1), backbone)
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
