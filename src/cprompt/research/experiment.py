"""A run: one method on one stream of tasks, from settings to record; it can be resumed."""

from __future__ import annotations

from pathlib import Path

import torch

from cprompt.data.image_set import Dataset, ImageSet
from cprompt.data.pipeline import views
from cprompt.data.pipeline.cache import open_images
from cprompt.data.pipeline.decoded import DecodedImages, Progress
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.device import pick_device
from cprompt.errors import CheckpointError, ConfigError, DataError
from cprompt.methods.base import Method, create_method
from cprompt.methods.registry import method_class
from cprompt.ranks import choose_gpu, join
from cprompt.research import metrics
from cprompt.research.beside import DecodedBeside
from cprompt.research.checkpoint import CHECKPOINT, RunCheckpoint, check_backbone, load_run
from cprompt.research.config import RunConfig, deciding_settings, flatten
from cprompt.research.evaluation import Evaluator, usable_modes
from cprompt.research.record import Record, environment, peak_memory
from cprompt.research.stream import TaskStream
from cprompt.research.training_health import training_warnings
from cprompt.seeds import mix
from cprompt.training.acceleration import resolve_acceleration
from cprompt.training.learner import Learner
from cprompt.training.observers import Observer, Observers
from cprompt.vit.backbone import Backbone
from cprompt.vit.loading import load_backbone


def run(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    observer: Observer | None = None,
    dataset: Dataset | None = None,
    backbone: Backbone | None = None,
) -> Record:
    """Learn every task of the stream, evaluate after each, and write the record to `folder`.

    With `resume`, continue from the checkpoint in `folder` if there is one. Pass `dataset` and
    `backbone` to share them between several runs. Processes started by torchrun share the run; the
    first of them writes to `folder`.

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
            "already holds a run",
            file=folder,
            hint="pass --resume to continue it, or choose another --out",
        )
    choose_gpu(config.execution.device)
    dataset = dataset or config.data.load(config.seeds.data)
    backbone = backbone or load_backbone(
        config.backbone.name, config.backbone.weights, config.backbone.image_size
    )
    return Experiment(config, folder, dataset, backbone, observer or Observer()).run()


class Experiment:
    """One run: connects data, learner, evaluation, checkpoint and record."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        dataset: Dataset,
        backbone: Backbone,
        observer: Observer,
    ) -> None:
        self.config = config
        self.folder = folder
        self.dataset = dataset
        self.observer = observer
        self.stream = config.stream.build(len(dataset.classes), config.seeds.order)
        self.n_tasks = config.stream.first_tasks or self.stream.n_tasks
        method_class(config.method).check_tasks(self.n_tasks)
        _check_every_task_has_images(dataset, self.stream, self.n_tasks)
        self.device = device = pick_device(config.execution.device)
        self.ranks = join(device)
        method = create_method(config.method, backbone, config.settings)
        usable_modes(method, config.evaluation.modes)
        self.record = Record(
            config=config.public(),
            stream=self.stream,
            dataset=dataset.name,
            classes=dataset.classes,
            backbone=backbone.identity,
            images={"train": len(dataset.train), "test": len(dataset.test)},
            environment=environment(device),
        )
        if not self.ranks.alone:
            self.record.environment["processes"] = self.ranks.count
        self.checkpoint = RunCheckpoint(
            folder / CHECKPOINT, self.record, config.execution.checkpoint_seconds
        )
        self.learner = Learner(
            method,
            config.training,
            config.seeds,
            device,
            accelerate=resolve_acceleration(config.execution.accelerate, self._steps()),
            observer=observer,
            checkpointer=self.checkpoint if self.ranks.first else None,
            ranks=self.ranks,
        )
        self.preparation = views.build(
            config.data.transform,
            backbone.image_size[0],
            config.data.normalization,
            own=(backbone.mean, backbone.std),
        )
        if self.checkpoint.path.exists():
            self._restore()
        self.ranks.wait()  # from now on, the first rank writes what the others have just read

    def _steps(self) -> int:
        """Steps of the whole run."""
        size, labels = self.config.training.batch_size, self.dataset.train.labels
        tasks = (self.stream.indices(labels, task) for task in range(self.n_tasks))
        return self.config.training.epochs * sum(-(-len(task) // size) for task in tasks)

    def run(self) -> Record:
        """Learn and evaluate all tasks that are left."""
        self.observer.stream_begins(self.n_tasks)
        self._save()  # after a kill, the record may be older than the checkpoint
        clock = self.checkpoint.clock
        clock.start()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        with DecodedBeside(self._open, self.observer.decoded) as beside:
            self.learner.observer = Observers(self.observer, beside)
            self._run(beside)
        return self.record

    def _run(self, beside: DecodedBeside) -> None:
        """All tasks that are left; test images are decoded while the first of them is learnt."""
        clock, dataset = self.checkpoint.clock, self.dataset
        for images in (dataset.train, dataset.test):
            # What ranks tell each other must keep its order.
            beside.begin(images, now=not self.ranks.alone)
        self.learner.prepare()
        train, evaluator = beside.wait_for(dataset.train), None
        clock.charge("preparation")
        for task in range(self.learner.position.task, self.n_tasks):
            indices = self.stream.indices(dataset.train.labels, task)
            batches = self._batches(
                train.subset(indices),
                dataset.train.subset(indices),
                self.config.training.batch_size,
                seed=mix(self.config.seeds.data, task),
            )
            self._learn(task, batches)
            clock.charge("training")
            clock.add("waiting", batches.waited)
            if evaluator is None:
                evaluator = self._evaluator(beside.wait_for(dataset.test))
                clock.charge("preparation")
            self._evaluate(task, evaluator)
            clock.charge("evaluation")
            if self.ranks.first:
                self.checkpoint.save(self.learner.state())
            self._save()
            now = metrics.accuracy_matrix(self.record.matrix())[task, : task + 1]
            self.observer.task_ends(task, self.record.summary(), now.tolist())

    def _evaluator(self, test: DecodedImages) -> Evaluator:
        execution = self.config.execution
        return Evaluator(
            self.learner.method,
            self._batches(test, self.dataset.test, execution.eval_batch_on(self.device)),
            self.stream,
            self.config.evaluation,
            self.device,
            precision=self.config.training.precision,
            memory_gib=execution.memory_gib,
            folder=self.folder,
            ranks=self.ranks,
        )

    def _learn(self, task: int, batches: BatchLoader) -> None:
        """Learn a task, and say at once what looks wrong in its training."""
        record, known = self.record, self._warnings()
        try:
            record.losses.append(self.learner.learn_task(self.stream.sizes[task], batches))
        except ConfigError as error:  # a loss is not finite: the record says why the run ends
            record.failure = error.message
            self._save()
            raise
        record.movement.append(self.learner.movement)
        for about, message in self._warnings().items():
            if about not in known:
                self.observer.noticed(f"{message} (task {task + 1})")

    def _warnings(self) -> dict[str, str]:
        return training_warnings(self.record.movement, self.record.losses)

    def _save(self) -> None:
        if self.ranks.first:
            self.record.save(self.folder)

    def _evaluate(self, task: int, evaluator: Evaluator) -> None:
        before = evaluator.total_passes()
        row = evaluator.evaluate(
            lambda batches: self.observer.evaluating(task, batches), self.observer.evaluated_batch
        )
        self.record.rows.append(row)
        for kind, passes in evaluator.total_passes().items():
            counted = self.record.test_passes.get(kind, 0)
            self.record.test_passes[kind] = counted + passes - before[kind]
        for place, peak in peak_memory(self.device).items():
            self.record.memory[place] = max(peak, self.record.memory.get(place, 0))
        method = self.learner.method
        self.record.parameters = {
            "learnt": sum(t.numel() for t in method.state_dict().values()),
            "backbone": sum(p.numel() for p in method.backbone.parameters()),
        }

    def _open(self, images: ImageSet, progress: Progress) -> DecodedImages:
        return self.ranks.after_first(lambda: open_images(images, self.config.cache, progress))

    def _batches(
        self, decoded: DecodedImages, images: ImageSet, batch_size: int, seed: int | None = None
    ) -> BatchLoader:
        """With a seed, shuffled and augmented batches; without, test views in order."""
        return BatchLoader(
            decoded,
            self.stream.targets(images.labels),
            self.preparation,
            batch_size,
            seed=seed,
            device=self.device,
            workers=self.config.execution.workers_on(self.device),
            device_gib=self.config.cache.device_gib,
            ranks=self.ranks,
        )

    def _restore(self) -> None:
        path = self.checkpoint.path
        state, saved = load_run(path)
        check_backbone(saved.backbone, self.learner.method.backbone, path)
        _check_same_run(saved, self.record, path)
        self.learner.restore(state)
        self.record.take_up(saved)


def load_method(folder: Path, backbone: Backbone) -> Method:
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
    state, saved = load_run(path)
    check_backbone(saved.backbone, backbone, path)
    settings = dict(saved.config["method"])
    method = create_method(settings.pop("name"), backbone, settings)
    state.rebuild(method)
    return method


def _check_every_task_has_images(dataset: Dataset, stream: TaskStream, n_tasks: int) -> None:
    for part, images in (("train", dataset.train), ("test", dataset.test)):
        for task in range(n_tasks):
            if not len(stream.indices(images.labels, task)):
                names = ", ".join(repr(dataset.classes[c]) for c in stream.labels(task)[:5])
                raise DataError(
                    f"{dataset.name}: task {task + 1} (classes {names}) has no {part} image",
                    hint="add some, or split the classes into other tasks (stream.*)",
                )


def _check_same_run(saved: Record, wanted: Record, path: Path) -> None:
    """Raise a CheckpointError if settings or images differ from those the run started with."""
    there, now = flatten(deciding_settings(saved.config)), flatten(deciding_settings(wanted.config))
    there |= {"images": saved.images, "classes": list(saved.classes)}
    now |= {"images": wanted.images, "classes": list(wanted.classes)}
    differ = [
        f"{name}: {there.get(name)!r} there, {now.get(name)!r} now"
        for name in sorted({*there, *now})
        if there.get(name) != now.get(name)
    ]
    if differ:
        raise CheckpointError(
            f"belongs to a run with other settings ({'; '.join(differ)})",
            file=path,
            hint="use those to resume it, or choose another --out",
        )
