"""A run: one method over one stream of tasks, from settings to record; stops and resumes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cprompt.data.image_set import Dataset, ImageSet
from cprompt.data.pipeline import views
from cprompt.data.pipeline.cache import open_pixels
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.data.pipeline.pixels import Pixels
from cprompt.device import pick_device
from cprompt.errors import CheckpointError, DataError
from cprompt.files import under_prefix, with_prefix
from cprompt.methods.base import Method, create_method, rebuild
from cprompt.research import checkpoint, metrics
from cprompt.research.config import RunConfig, flatten, what_counts
from cprompt.research.evaluation import Evaluator, usable_modes
from cprompt.research.record import Record, environment, peak_memory
from cprompt.research.stream import TaskStream
from cprompt.seeds import mix
from cprompt.training.acceleration import resolve_acceleration
from cprompt.training.learner import Learner, LossLog, Position
from cprompt.training.observers import Observer
from cprompt.vit.identity import describe_backbone
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT

CHECKPOINT = "checkpoint.safetensors"


def run(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    observer: Observer | None = None,
    dataset: Dataset | None = None,
    backbone: FrozenViT | None = None,
) -> Record:
    """Learn every task of the stream, evaluate after each, and leave the record in `folder`.

    With `resume`, go on from the checkpoint in `folder` if there is one. `dataset` and `backbone`
    spare loading them again where several runs share them.

    >>> from tempfile import TemporaryDirectory
    >>> from cprompt import resolve
    >>> config = resolve("shapes", "finetune", overrides={
    ...     "backbone.name": "test_vit", "backbone.weights": "random:0", "backbone.image_size": 48,
    ...     "data.options": {"classes": 4, "train_per_class": 2, "test_per_class": 1, "size": 48},
    ...     "stream.tasks": 2, "training.epochs": 1})
    >>> with TemporaryDirectory() as folder:
    ...     record = run(config, Path(folder))
    >>> record.finished, record.stream.sizes
    (True, (2, 2))
    """
    if (folder / CHECKPOINT).exists() and not resume:
        raise CheckpointError(
            f"{folder} already holds a run; pass --resume to go on with it, or choose another --out"
        )
    dataset = dataset or config.data.load(config.seeds.data)
    backbone = backbone or load_backbone(
        config.backbone.name, config.backbone.weights, config.backbone.image_size
    )
    return Run(config, folder, dataset, backbone, observer or Observer()).go()


class Run:
    """The state of a run between its first task and its last."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        dataset: Dataset,
        backbone: FrozenViT,
        observer: Observer,
    ) -> None:
        self.config = config
        self.folder = folder
        self.dataset = dataset
        self.observer = observer
        self.stream = config.stream.build(len(dataset.classes), config.seeds.order)
        _check_every_task_has_images(dataset, self.stream)
        self.device = device = pick_device(config.execution.device)
        method = create_method(config.method, backbone, config.settings)
        usable_modes(method, config.evaluation.modes)
        self.learner = Learner(
            method,
            config.training,
            config.seeds,
            device,
            accelerate=resolve_acceleration(config.execution.accelerate, self._steps()),
            observer=observer,
            checkpointer=self,
        )
        self.record = Record(
            config=config.public(),
            stream=self.stream,
            dataset=dataset.name,
            classes=dataset.classes,
            backbone=describe_backbone(backbone),
            images={"train": len(dataset.train), "test": len(dataset.test)},
            environment=environment(device),
        )
        self.preparation = views.build(
            config.data.transform, backbone.image_size[0], config.data.normalization
        )
        self._last_save = time.monotonic()
        self._clock = time.perf_counter()
        if (folder / CHECKPOINT).exists():
            self._restore()

    def _steps(self) -> int:
        """Steps of the whole run."""
        size, labels = self.config.training.batch_size, self.dataset.train.labels
        tasks = (self.stream.indices(labels, task) for task in range(self.stream.n_tasks))
        return self.config.training.epochs * sum(-(-len(task) // size) for task in tasks)

    def go(self) -> Record:
        """All tasks that are left."""
        self.observer.stream_begins(self.stream.n_tasks)
        self.record.save(self.folder)  # also catches up where a kill fell between the two files
        self._clock = time.perf_counter()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        train, test = self._open(self.dataset.train), self._open(self.dataset.test)
        self.learner.get_ready()
        execution = self.config.execution
        evaluator = Evaluator(
            self.learner.method,
            self._batches(test, self.dataset.test, execution.eval_batch_on(self.device)),
            self.stream,
            self.config.evaluation,
            self.device,
            memory_gib=execution.memory_gib,
            folder=self.folder,
        )
        self._spend("preparation")
        for task in range(self.learner.position.task, self.stream.n_tasks):
            indices = self.stream.indices(self.dataset.train.labels, task)
            self.learner.learn_task(
                self.stream.sizes[task],
                self._batches(
                    train.subset(indices),
                    self.dataset.train.subset(indices),
                    self.config.training.batch_size,
                    seed=mix(self.config.seeds.data, task),
                ),
            )
            self._spend("training")
            self.record.losses.append(self.learner.losses.epochs)
            self.learner.losses = LossLog()
            self._evaluate(task, evaluator)
            self._spend("evaluation")
            self._save()
            self.record.save(self.folder)
            now = metrics.accuracy_matrix(self.record.matrix())[task, : task + 1]
            self.observer.task_ends(task, self.record.summary(), now.tolist())
        return self.record

    def _evaluate(self, task: int, evaluator: Evaluator) -> None:
        before = dict(evaluator.passes)
        row = evaluator.evaluate(
            lambda batches: self.observer.evaluating(task, batches), self.observer.evaluated_batch
        )
        self.record.rows.append(row)
        for kind, passes in evaluator.passes.items():
            counted = self.record.test_passes.get(kind, 0)
            self.record.test_passes[kind] = counted + passes - before[kind]
        for place, peak in peak_memory(self.device).items():
            self.record.memory[place] = max(peak, self.record.memory.get(place, 0))
        method = self.learner.method
        self.record.parameters = {
            "learnt": sum(t.numel() for t in method.state_dict().values()),
            "backbone": sum(p.numel() for p in method.backbone.parameters()),
        }

    def _open(self, images: ImageSet) -> Pixels:
        return open_pixels(images, self.config.cache, self.observer.decoded)

    def _batches(
        self, pixels: Pixels, images: ImageSet, batch_size: int, seed: int | None = None
    ) -> BatchLoader:
        """Augmented, shuffled batches with a seed; plain ones in order without."""
        return BatchLoader(
            pixels,
            self.stream.targets(images.labels),
            self.preparation,
            batch_size,
            seed=seed,
            device=self.device,
            workers=self.config.execution.workers_on(self.device),
            device_gib=self.config.cache.device_gib,
        )

    def _spend(self, part: str) -> None:
        """Add the time since the last call to a part of the bill."""
        now = time.perf_counter()
        self.record.seconds[part] = self.record.seconds.get(part, 0.0) + now - self._clock
        waited, self.learner.waited = self.learner.waited, 0.0
        if waited:
            self.record.seconds["waiting"] = self.record.seconds.get("waiting", 0.0) + waited
        self._clock = now

    # --- checkpoints ----------------------------------------------------------------------------

    def after_step(self, learner: Learner) -> None:
        """Save in the middle of a task, if it is time to."""
        if time.monotonic() - self._last_save >= self.config.execution.checkpoint_seconds:
            self._spend("training")
            self._save()

    def task_trained(self, learner: Learner) -> None:
        """Save before what follows training, which is not resumed in its middle."""
        self._spend("training")
        self._save()

    def _save(self) -> None:
        learner = self.learner
        learner.read_losses()
        tensors = {
            **with_prefix("method", learner.method.state_dict()),
            **with_prefix("optimizer", learner.optimizer_state()),
            **({} if learner.losses.sums is None else {"losses/sums": learner.losses.sums}),
        }
        about = {
            "position": vars(learner.position),
            "task_sizes": learner.method.task_sizes,
            "losses": {
                "epochs": learner.losses.epochs,
                "names": learner.losses.names,
                "steps": learner.losses.steps,
            },
            "record": self.record.to_dict(),
        }
        checkpoint.save_checkpoint(self.folder / CHECKPOINT, tensors, about)
        self._last_save = time.monotonic()

    def _restore(self) -> None:
        path = self.folder / CHECKPOINT
        tensors, about = checkpoint.load_checkpoint(path)
        saved = Record.from_dict(about["record"])
        checkpoint.check_backbone(saved.backbone, self.learner.method.backbone, path)
        _check_same_run(saved, self.record, path)
        learner = self.learner
        learner.position = Position(**about["position"])
        is_open = _rebuild(learner.method, tensors, about)
        learner.method.to(learner.device)
        if is_open:
            learner.restore_optimizer(under_prefix("optimizer", tensors))
        log, sums = about["losses"], tensors.get("losses/sums")
        learner.losses = LossLog(
            log["epochs"],
            tuple(log["names"]),
            None if sums is None else sums.to(learner.device),
            log["steps"],
        )
        self.record.rows = saved.rows
        self.record.losses = saved.losses
        self.record.seconds = saved.seconds
        self.record.parameters = saved.parameters
        self.record.test_passes = saved.test_passes
        self.record.memory = saved.memory


def load_method(folder: Path, backbone: FrozenViT) -> Method:
    """The method as a run left it, from the checkpoint in `folder`.

    >>> from tempfile import TemporaryDirectory
    >>> from cprompt import resolve
    >>> config = resolve("shapes", "finetune", overrides={
    ...     "backbone.name": "test_vit", "backbone.weights": "random:0", "backbone.image_size": 48,
    ...     "data.options": {"classes": 4, "train_per_class": 2, "test_per_class": 1, "size": 48},
    ...     "stream.tasks": 2, "training.epochs": 1})
    >>> vit = load_backbone("test_vit", weights="random:0", image_size=48)
    >>> with TemporaryDirectory() as folder:
    ...     _ = run(config, Path(folder), backbone=vit)
    ...     method = load_method(Path(folder), vit)
    >>> method(torch.zeros(1, 3, 48, 48)).shape  # one image, four classes
    torch.Size([1, 4])
    """
    path = folder / CHECKPOINT
    tensors, about = checkpoint.load_checkpoint(path)
    saved = Record.from_dict(about["record"])
    checkpoint.check_backbone(saved.backbone, backbone, path)
    settings = dict(saved.config["method"])
    method = create_method(settings.pop("name"), backbone, settings)
    _rebuild(method, tensors, about)
    return method


def _rebuild(method: Method, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> bool:
    """Give a fresh method what a checkpoint holds; whether its last task is still open."""
    is_open = bool(len(about["task_sizes"]) > about["position"]["task"])
    rebuild(method, about["task_sizes"], under_prefix("method", tensors), open_=is_open)
    return is_open


def _check_every_task_has_images(dataset: Dataset, stream: TaskStream) -> None:
    for part, images in (("train", dataset.train), ("test", dataset.test)):
        for task in range(stream.n_tasks):
            if not len(stream.indices(images.labels, task)):
                names = ", ".join(repr(dataset.classes[c]) for c in stream.labels(task)[:5])
                raise DataError(
                    f"{dataset.name}: task {task + 1} (classes {names}) has no {part} image; "
                    "add some, or cut the classes into other tasks (stream.*)"
                )


def _check_same_run(saved: Record, wanted: Record, path: Path) -> None:
    """Refuse to go on with a run under settings or images it was not started with."""
    there, now = flatten(what_counts(saved.config)), flatten(what_counts(wanted.config))
    there |= {"pictures": saved.images, "classes": list(saved.classes)}
    now |= {"pictures": wanted.images, "classes": list(wanted.classes)}
    differ = [
        f"{name}: {there.get(name)!r} there, {now.get(name)!r} now"
        for name in sorted({*there, *now})
        if there.get(name) != now.get(name)
    ]
    if differ:
        raise CheckpointError(
            f"{path} belongs to a run with other settings ({'; '.join(differ)}); "
            "use those to resume it, or choose another --out"
        )
