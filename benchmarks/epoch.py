"""Epochs of CPrompt from JPEG files, end to end: our way to feed images, and torchvision's.

    python -m benchmarks.epoch --data FOLDER
    python -m benchmarks.epoch --quick --device cpu

One task is trained as a run would train it: decoded once into a cache, views taken by our loader,
steps by the learner (bf16 on CUDA). The other pipeline is the usual one: ImageFolder,
RandomResizedCrop, flip, ToTensor, and a DataLoader with persistent worker processes and pinned
memory; its batches go to the same learner. FOLDER has one folder of images per class (or `train`
with such folders in it); without it, JPEGs are drawn in a temporary folder.

The host runs ahead of the device, so it does not see how long the device waits for images. So every
epoch is repeated with one batch that is already on the device: the same steps with the same draws.
`device waits` is the share of the real epoch's time by which that one is shorter; it includes what
the device itself does to prepare images. `host waits` is the share that the host spent asking for
the next batch; on a CPU, which is its own host, that is the exact figure.

On a CPU the default model is ViT-Ti/16 and images are few.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from benchmarks import common, train_step
from benchmarks.common import Timing
from benchmarks.images import draw_jpegs
from benchmarks.train_step import Step, our_learner
from cprompt.data.image_set import ImageSet
from cprompt.data.pipeline import views
from cprompt.data.pipeline.cache import CacheConfig, open_images
from cprompt.data.pipeline.decoded import DecodedImages
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.device import pick_device
from cprompt.research.config import ExecutionConfig
from cprompt.training.learner import Learner

Batches = Iterable[tuple[Tensor, Tensor]]

THERE = "already on the device"


class Ours:
    """Our loader on decoded images; targets are arrival positions of the last task."""

    def __init__(
        self, decoded: DecodedImages, labels: Sequence[int], step: Step, size: int
    ) -> None:
        device = torch.device(step.device)
        self._loader = BatchLoader(
            decoded,
            np.asarray(labels) + step.known,
            views.build("photo", size, "none"),
            step.batch,
            seed=1,
            device=device,
            workers=ExecutionConfig().workers_on(device),
        )

    @property
    def waited(self) -> float:
        """Seconds that the host has waited for batches."""
        return self._loader.waited

    def epoch(self, epoch: int) -> Batches:
        """The batches of an epoch, on the device."""
        return self._loader.epoch(epoch)


class Torchvision:
    """The usual pipeline; its worker processes start with the first epoch and stay."""

    def __init__(self, folder: Subset[Any], step: Step, workers: int) -> None:
        self._device, self._known = torch.device(step.device), step.known
        self._loader = DataLoader(
            folder,
            step.batch,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=self._device.type == "cuda",
        )
        self.waited = 0.0

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, on the device."""
        asked = time.perf_counter()
        for images, targets in self._loader:
            self.waited += time.perf_counter() - asked
            yield (
                images.to(self._device, non_blocking=True),
                targets.to(self._device, non_blocking=True) + self._known,
            )
            asked = time.perf_counter()
        self.waited += time.perf_counter() - asked


class AlreadyThere:
    """As many batches, all the same one, on the device from the start."""

    waited = 0.0

    def __init__(self, batch: tuple[Tensor, Tensor], n_images: int) -> None:
        self._batch = batch
        self._n_images = n_images

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, the last one as long as a real one's last."""
        images, targets = self._batch
        for done in range(0, self._n_images, len(images)):
            left = self._n_images - done
            yield images[:left], targets[:left]


def take_epoch(learner: Learner, epoch: int, batches: Batches) -> float:
    """Seconds until the device has taken every step of the epoch."""
    learner.position.epoch, learner.position.step = epoch, 0
    common.synchronize(learner.device)
    start = time.perf_counter()
    for images, targets in batches:
        learner.step(images, targets)
    learner.losses.end_epoch()  # reads the losses, so waits for the last step, as a run does
    return time.perf_counter() - start


@dataclass(frozen=True)
class Measured:
    """What was measured, per pipeline or in total; lists have one entry per epoch."""

    n_images: int
    file_bytes: int
    decoded_bytes: int
    preparing: float
    preparing_again: float
    seconds: dict[str, list[float]]
    waited: dict[str, list[float]]
    """Seconds of those that the host waited for batches."""


def measure(root: Path, step: Step, epochs: int, workers: int, scratch: Path) -> Measured:
    """Prepare the images below `root` in `scratch`, then take epochs with all pipelines in turns.

    All are fed to the same learner.
    """
    device = torch.device(step.device)
    learner = our_learner(step, "bf16" if device.type == "cuda" else "fp32", "auto")
    size = learner.method.backbone.image_size[0]
    folder, files, labels = read_folder(root, step.classes, size)
    images = ImageSet(files, np.array(labels), tuple(map(str, range(step.classes))))
    cache = CacheConfig(folder=str(scratch), disk_gib=float("inf"))
    start = time.perf_counter()
    decoded = open_images(images, cache)
    prepared = time.perf_counter()
    open_images(images, cache)
    again = time.perf_counter() - prepared

    there = AlreadyThere(step.images(learner.method.backbone), len(files))
    pipelines: dict[str, Ours | Torchvision | AlreadyThere] = {
        "ours": Ours(decoded, labels, step, size),
        "torchvision": Torchvision(folder, step, workers),
        THERE: there,
    }
    # On CUDA this captures a step per length of batch and of draws that the epochs will have.
    for epoch in range(1 if device.type == "cpu" else epochs):
        take_epoch(learner, epoch, there.epoch(epoch))
    seconds: dict[str, list[float]] = {name: [] for name in pipelines}
    waited: dict[str, list[float]] = {name: [] for name in pipelines}
    for epoch in range(epochs):
        for name, pipeline in pipelines.items():
            before = pipeline.waited
            seconds[name].append(take_epoch(learner, epoch, pipeline.epoch(epoch)))
            waited[name].append(pipeline.waited - before)
    return Measured(
        n_images=len(files),
        file_bytes=sum(file.stat().st_size for file in files),
        decoded_bytes=0 if decoded.sizes is None else 3 * int(decoded.sizes.prod(axis=1).sum()),
        preparing=prepared - start,
        preparing_again=again,
        seconds=seconds,
        waited=waited,
    )


def later(measured: Measured, name: str) -> dict[str, float]:
    """The median of a pipeline's epochs after the first, and the parts of it spent waiting."""
    seconds, waited = measured.seconds[name][1:], measured.waited[name][1:]
    least = median(measured.seconds[THERE][1:])
    return {
        "seconds": median(seconds),
        "images_per_second": measured.n_images / median(seconds),
        "device_waits": max(0.0, 1 - least / median(seconds)),
        "host_waits": sum(waited) / sum(seconds),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    options = train_step.parser(__doc__)
    options.add_argument("--data", type=Path, metavar="FOLDER", help="folders of images")
    options.add_argument("--epochs", type=int, default=3, help="after the first (default: 3)")
    options.add_argument("--workers", type=int, help="torchvision's processes (default: all cores)")
    options.add_argument("--per-class", type=int, help="images to draw per class")
    given = options.parse_args(argv)
    device = pick_device(given.device)
    seen = common.hardware(device)
    out = common.output("epoch", seen, given.out)
    on_cpu = device.type == "cpu"
    step = train_step.chosen_step(given, device, small=on_cpu)
    per_class = given.per_class or (1 if given.quick else 3 if on_cpu else 40)
    workers = common.cores() if given.workers is None else given.workers
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if given.data is None:
            draw_jpegs(scratch / "drawn", step.classes, per_class)
        root = given.data or scratch / "drawn"
        measured = measure(root, step, 1 + given.epochs, workers, scratch)

    rows = []
    results: dict[str, dict[str, Any]] = {}
    for name, seconds in measured.seconds.items():
        first = seconds[0] + (measured.preparing if name == "ours" else 0)
        after = later(measured, name)
        results[name] = {
            "first_seconds": first,
            "seconds": seconds,
            "host_waited_seconds": measured.waited[name],
            "later": after,
        }
        rows.append(
            {
                "images by": f"torchvision, {workers} processes" if name == "torchvision" else name,
                "first epoch s": f"{first:.2f}",
                "later s": f"{after['seconds']:.2f}",
                "images/s": f"{after['images_per_second']:.1f}",
                "device waits": f"{100 * after['device_waits']:.1f} %",
                "host waits": f"{100 * after['host_waits']:.1f} %",
            }
        )
    bound = measured.seconds[THERE][1:]
    notes = [
        f"our first epoch includes {measured.preparing:.2f} s of decoding, once for all runs: "
        f"{measured.file_bytes / 1e6:.1f} MB of files become {measured.decoded_bytes / 1e6:.1f} "
        f"MB; found again in {measured.preparing_again:.2f} s.",
        f"later: median of {given.epochs} epochs; `device waits` is as uncertain as epochs "
        f"{THERE} vary, {common.spread(Timing(median(bound), min(bound), max(bound)))}.",
    ]
    title = (
        f"Epochs: {step.backbone}, batch {step.batch}, task {step.tasks}, {measured.n_images} "
        f"{'drawn ' if given.data is None else ''}images"
    )
    common.show(title, rows, seen, notes)
    result = {
        "settings": {**asdict(step), "drawn": given.data is None, "workers": workers},
        "pictures": measured.n_images,  # the key of earlier results
        "preparation": {
            "seconds": measured.preparing,
            "again_seconds": measured.preparing_again,
            "file_bytes": measured.file_bytes,
            "decoded_bytes": measured.decoded_bytes,
        },
        "pipelines": results,
    }
    print(f"Written: {common.save('epoch', seen, result, out)}")


def read_folder(root: Path, classes: int, size: int) -> tuple[Subset[Any], list[Path], list[int]]:
    """The first `classes` classes below `root` as torchvision reads them; files; labels."""
    usual = T.Compose([T.RandomResizedCrop(size), T.RandomHorizontalFlip(), T.ToTensor()])
    train = root / "train"
    folder = ImageFolder(str(train if train.is_dir() else root), usual)
    chosen = [i for i, label in enumerate(folder.targets) if label < classes]
    files, labels = zip(*(folder.samples[i] for i in chosen), strict=True)
    return Subset(folder, chosen), [Path(file) for file in files], list(labels)


if __name__ == "__main__":
    main()
