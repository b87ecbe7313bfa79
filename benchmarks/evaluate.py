"""Evaluation after every task of a stream: ours, which keeps what cannot change, or from scratch.

    python -m benchmarks.evaluate
    python -m benchmarks.evaluate --data FOLDER --backbone NAME --weights FILE
    python -m benchmarks.evaluate --run RUN_FOLDER ...

The same classes and test images are cut into 5, 10, 20 and 40 tasks. Nothing is trained: the
mean query of a class's training images replaces its key, so that prompts are chosen about as well
as in a run, and its row of the head; prompts stay at their random initial values. `ours` is one
Evaluator for the whole stream, `scratch` a new one after each task. The script fails unless all
their counts are the same; on a GPU, whose sums depend on the size of a batch, one answer in a
thousand may differ. Everything is computed in fp32.

Passes through the backbone are counted per test image, over the whole stream:

- ours: as counted.
- scratch: as counted: after each task a query and a prompted pass for every image seen so far,
  averaged over images.
- 1 + T: for an image of the first task, if its query is kept and its prompted pass is repeated
  after each of T tasks. With tasks of equal size this equals the average above.

`--run` measures nothing: it reads the passes of finished runs from their records.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import common
from benchmarks.images import draw_dataset
from cprompt.data.image_set import Dataset, ImageSet
from cprompt.data.pipeline import views
from cprompt.data.pipeline.cache import CacheConfig, open_images
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.data.registry import load_dataset
from cprompt.device import pick_device
from cprompt.methods.base import Method, create_method
from cprompt.methods.cprompt import CPrompt
from cprompt.methods.parts.keys import PromptKeys
from cprompt.research.config import ExecutionConfig
from cprompt.research.evaluation import (
    EvaluationConfig,
    Evaluator,
    TaskCounts,
    matrix_of,
    selection_accuracy,
)
from cprompt.research.metrics import last_accuracy
from cprompt.research.record import Record, load_record
from cprompt.research.stream import TaskStream, class_order, task_sizes
from cprompt.seeds import generator
from cprompt.vit import embedded
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT

ORDER = 1993


@dataclass(frozen=True)
class Settings:
    """What is evaluated."""

    device: str
    backbone: str
    weights: str | None
    image_size: int | None
    drawn: bool
    classes: int
    n_images: int
    length: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the keys of earlier results."""
        return {"pictures" if k == "n_images" else k: v for k, v in asdict(self).items()}


class Bench:
    """A backbone, test images, and the mean query of each class."""

    def __init__(self, backbone: FrozenViT, dataset: Dataset, recipe: str, length: int) -> None:
        self.backbone = backbone
        self.device = next(backbone.parameters()).device
        self.length = length
        known = backbone.name in embedded.EMBEDDED
        self._preparation = views.build(
            recipe,
            backbone.image_size[0],
            "auto" if known else "none",
            (backbone.mean, backbone.std),
        )
        self.order = class_order(len(dataset.classes), ORDER)
        self.test = self._batches(dataset.test)
        self.means = self._means(self._batches(dataset.train))

    def evaluate(self, n_tasks: int) -> dict[str, Any]:
        """Both ways over a stream of `n_tasks` tasks."""
        stream = TaskStream(self.order, task_sizes(len(self.order), tasks=n_tasks))
        settings = {"length": self.length, "prompt_init": "fresh"}
        method = create_method("cprompt", self.backbone, settings)
        ours = self._evaluator(method, stream)
        rows: list[TaskCounts] = []
        seconds = scratch_seconds = 0.0
        scratch_passes = {"query": 0, "prompted": 0}
        differing = answers_differing = answers = 0
        for task in range(n_tasks):
            self._learn(method, stream, task)
            row, spent = _timed(ours)
            rows.append(row)
            seconds += spent
            scratch = self._evaluator(method, stream)
            from_scratch, spent = _timed(scratch)
            scratch_seconds += spent
            scratch_passes = {k: n + scratch.passes[k] for k, n in scratch_passes.items()}
            differing += row != from_scratch
            answers_differing += _answers_that_differ(row, from_scratch)
            answers += sum(row.count)
        n_images = len(self.test.targets)
        return {
            "tasks": n_tasks,
            "passes": ours.passes,
            "scratch_passes": scratch_passes,
            "per_picture": sum(ours.passes.values()) / n_images,
            "scratch_per_picture": sum(scratch_passes.values()) / n_images,
            "prompted_again_per_picture": 1 + n_tasks,
            "seconds": seconds,
            "scratch_seconds": scratch_seconds,
            "times_faster": scratch_seconds / seconds,
            "rows_that_differ": differing,
            "share_of_answers_that_differ": answers_differing / answers,
            "last_accuracy": last_accuracy(matrix_of(rows, stream)),
            "selection_accuracy": selection_accuracy(rows[-1]),
        }

    def _learn(self, method: Method, stream: TaskStream, task: int) -> None:
        """Set what training a task would set."""
        assert isinstance(method, CPrompt)
        assert isinstance(method.keys, PromptKeys)
        method.begin_task(stream.sizes[task], generator(task))
        keys, heads = method.keys.rows.current, method.heads.weight.current
        assert keys is not None
        assert heads is not None
        means = self.means[list(stream.positions(task))]
        with torch.no_grad():
            keys.copy_(means)
            heads.copy_(means)
        method.close_task()
        method.to(self.device)

    def _evaluator(self, method: Method, stream: TaskStream) -> Evaluator:
        return Evaluator(method, self.test, stream, EvaluationConfig(), self.device)

    def _batches(self, images: ImageSet) -> BatchLoader:
        """Test views, with arrival positions, which are the same in every stream."""
        execution = ExecutionConfig()
        whole = TaskStream(self.order, (len(self.order),))
        return BatchLoader(
            open_images(images, CacheConfig()),
            whole.targets(images.labels),
            self._preparation,
            execution.eval_batch_on(self.device),
            seed=None,
            device=self.device,
            workers=execution.workers_on(self.device),
        )

    @torch.inference_mode()
    def _means(self, train: BatchLoader) -> Tensor:
        """(classes, D) in order of arrival: the mean query, scaled to length 1."""
        positions = torch.from_numpy(train.targets)
        queries = torch.cat([self.backbone(images).cpu() for images, _ in train.unaugmented()])
        sums = torch.zeros(len(self.order), self.backbone.dim).index_add(0, positions, queries)
        return F.normalize(sums, dim=1)


def _timed(evaluator: Evaluator) -> tuple[TaskCounts, float]:
    start = time.perf_counter()
    row = evaluator.evaluate()
    return row, time.perf_counter() - start


def _answers_that_differ(one: TaskCounts, other: TaskCounts) -> int:
    """At least so many answers are right in one and wrong in the other."""
    return sum(
        abs(a - b)
        for mode, counts in one.correct.items()
        for a, b in zip(counts, other.correct[mode], strict=True)
    )


def _identical(stream: Mapping[str, Any]) -> str:
    share = stream["share_of_answers_that_differ"]
    return f"NO, {100 * share:.3f} % differ" if stream["rows_that_differ"] else "yes"


def allowed(stream: Mapping[str, Any], device: torch.device) -> bool:
    """Whether both ways agree as far as they can on this device."""
    if device.type == "cpu":
        return bool(stream["rows_that_differ"] == 0)
    return bool(stream["share_of_answers_that_differ"] <= 1e-3)


def of_run(record: Record) -> dict[str, Any]:
    """The passes of a finished run, and what they would have been from scratch."""
    n_images = sum(record.rows[-1].count)
    shown = sum(sum(row.count) for row in record.rows)
    queries = int(record.test_passes.get("query", 0) > 0)
    environment = record.environment
    return {
        "benchmark": record.config["benchmark"],
        "method": record.config["method"]["name"],
        "backbone": record.backbone,
        "hardware": environment.get("gpu") or environment.get("cpu"),
        "modes": list(record.rows[-1].correct),
        "tasks": record.stream.n_tasks,
        "pictures": n_images,
        "passes": record.test_passes,
        "per_picture": sum(record.test_passes.values()) / n_images,
        "scratch_per_picture": (queries + 1) * shown / n_images,
        "prompted_again_per_picture": queries + record.stream.n_tasks,
        "seconds": record.seconds.get("evaluation"),
    }


def show_runs(folders: Sequence[Path], given_out: Path | None) -> None:
    """Print and write the passes of finished runs."""
    seen = common.hardware(torch.device("cpu"))
    out = common.output("evaluate_runs", seen, given_out)
    runs = []
    for folder in folders:
        record = load_record(folder)
        if not (record.finished and record.test_passes):
            raise SystemExit(f"{folder}: the run is not finished, or its passes were not counted")
        runs.append(of_run(record))
    rows = [
        {
            "run": f"{run['benchmark']}, {run['method']}",
            "tasks": str(run["tasks"]),
            "test images": str(run["pictures"]),
            "passes: ours": f"{run['per_picture']:.2f}",
            "scratch": f"{run['scratch_per_picture']:.2f}",
            "1 + T": str(run["prompted_again_per_picture"]),
            "answered with": ", ".join(run["modes"]),
            "ran on": str(run["hardware"]),
        }
        for run in runs
    ]
    notes = [
        "passes per test image; scratch: a query, if the method makes one, and one pass with the "
        "selected prompt after each task, for every image seen by then."
    ]
    common.show("Evaluation in finished runs", rows, seen, notes)
    path = common.save("evaluate_runs", seen, {"runs": runs}, out)
    print(f"Written: {path}")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    options = common.parser(__doc__)
    options.add_argument("--run", type=Path, nargs="+", metavar="FOLDER", help="finished runs")
    options.add_argument("--data", type=Path, metavar="FOLDER", help="folders of images")
    options.add_argument("--backbone", default=next(iter(embedded.EMBEDDED)), help="timm name")
    options.add_argument("--weights", help="file, or random:SEED")
    options.add_argument("--image-size", type=int, help="pixels (default: the backbone's)")
    options.add_argument("--classes", type=int, help="at most (default: 200, quick: 40)")
    options.add_argument("--tasks", type=int, nargs="+", default=[5, 10, 20, 40], metavar="T")
    options.add_argument("--per-class", type=int, help="test images per class, at most")
    options.add_argument("--length", type=int, default=5, help="tokens per segment (default: 5)")
    given = options.parse_args(argv)
    if given.run:
        show_runs(given.run, given.out)
        return
    device = pick_device(given.device)
    seen = common.hardware(device)
    out = common.output("evaluate", seen, given.out)
    dataset = chosen_images(
        given.data,
        given.classes or (40 if given.quick else 200),
        given.per_class or (1 if device.type == "cpu" else 20),
    )
    backbone = load_backbone(given.backbone, given.weights, given.image_size).to(device)
    bench = Bench(backbone, dataset, "photo" if given.data else "drawn", given.length)
    bench.backbone(bench.test.batch(range(min(len(dataset.test), bench.test.batch_size))))
    streams = [bench.evaluate(n) for n in given.tasks if n <= len(dataset.classes)]

    rows = [
        {
            "tasks": str(stream["tasks"]),
            "passes: ours": f"{stream['per_picture']:.2f}",
            "scratch": f"{stream['scratch_per_picture']:.2f}",
            "1 + T": str(stream["prompted_again_per_picture"]),
            "s: ours": f"{stream['seconds']:.2f}",
            "s: scratch": f"{stream['scratch_seconds']:.2f}",
            "faster": f"{stream['times_faster']:.2f}×",
            "identical": _identical(stream),
            "prompt right": f"{stream['selection_accuracy']:.0f} %",
            "accuracy": f"{stream['last_accuracy']:.0f} %",
        }
        for stream in streams
    ]
    settings = Settings(
        str(device),
        given.backbone,
        Path(given.weights).name if given.weights else None,
        given.image_size,
        given.data is None,
        len(dataset.classes),
        len(dataset.test),
        given.length,
    )
    title = (
        f"Evaluation over a stream: {backbone.name}, {settings.classes} classes, "
        f"{settings.n_images} {'drawn ' if settings.drawn else ''}test images"
    )
    notes = [
        "passes per test image, from the first task to the last; 1 + T: query kept, prompted "
        "pass repeated after each task."
    ]
    common.show(title, rows, seen, notes)
    result = {"settings": settings.to_dict(), "streams": streams}
    print(f"Written: {common.save('evaluate', seen, result, out)}")
    if not all(allowed(stream, device) for stream in streams):
        raise SystemExit("keeping results gave other answers than evaluating from scratch")


def chosen_images(
    root: Path | None, classes: int, per_class: int, train_per_class: int = 10
) -> Dataset:
    """The first classes of a folder, or drawn ones, with at most so many images per class."""
    if root is None:
        return draw_dataset(classes, train_per_class, per_class)
    whole = load_dataset("folder", root)
    names = whole.classes[:classes]

    def part(images: ImageSet, most: int) -> ImageSet:
        members = [np.flatnonzero(images.labels == label)[:most] for label in range(len(names))]
        chosen = images.subset(np.concatenate(members))
        return ImageSet(chosen.images, chosen.labels, names)

    return Dataset(whole.name, part(whole.train, train_per_class), part(whole.test, per_class))


if __name__ == "__main__":
    main()
