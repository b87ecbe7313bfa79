"""The training loop: the only one, for every method.

Every random draw is a function of (seed, task, epoch, step), so the position in the run is the
whole random state. On a CPU, a run that is stopped anywhere and resumed ends with the same bits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from cprompt.data.pipeline.loader import BatchLoader
from cprompt.data.pipeline.views import send
from cprompt.errors import CheckpointError, ConfigError
from cprompt.files import under_prefix, with_prefix
from cprompt.methods.base import Method, rebuild
from cprompt.ranks import ALONE, Ranks
from cprompt.seeds import generator, mix
from cprompt.training.acceleration import compile_backbones, make_stepper
from cprompt.training.movement import Movement, measure, start_values
from cprompt.training.observers import Observer
from cprompt.training.optimizer import learning_rate, make_optimizer, set_learning_rate
from cprompt.training.settings import Acceleration, Seeds, TrainingConfig
from cprompt.training.step import Stepper
from cprompt.vit.promptable import Embedded, Precision


@dataclass
class Position:
    """Where training is; the task is trained when `epoch` equals the number of epochs."""

    task: int = 0
    epoch: int = 0
    step: int = 0


@dataclass
class LossLog:
    """Mean loss terms of each epoch of the current task, and sums of the current epoch.

    Sums and means stay on the device until `read`, so that training does not wait for them.
    """

    epochs: list[dict[str, float]] = field(default_factory=list)
    names: tuple[str, ...] = ()
    sums: Tensor | None = None
    steps: int = 0
    unread: list[Tensor] = field(default_factory=list)

    def add(self, names: tuple[str, ...], losses: Tensor) -> None:
        """Count one step."""
        self.sums = losses.clone() if self.sums is None else self.sums + losses
        self.names = names
        self.steps += 1

    def end_epoch(self) -> None:
        """Turn the sums into means."""
        assert self.sums is not None
        self.unread.append(self.sums / self.steps)
        self.sums, self.steps = None, 0

    def read(self, but_last: int = 0) -> list[dict[str, float]]:
        """Move means from the device to `epochs`, except the `but_last` latest; return them."""
        count = max(len(self.unread) - but_last, 0)
        new = [dict(zip(self.names, m.tolist(), strict=True)) for m in self.unread[:count]]
        self.unread = self.unread[count:]
        self.epochs += new
        return new


@dataclass(frozen=True)
class LearnerState:
    """Everything a learner needs to continue exactly as if it had not stopped.

    `tensors` are named `method/…`, `optimizer/…`, `began/…` and `losses/sums`; `about` is plain
    JSON.
    """

    tensors: dict[str, Tensor]
    about: dict[str, Any]

    @property
    def is_open(self) -> bool:
        """Whether the last task was begun and not closed."""
        return bool(len(self.about["task_sizes"]) > self.about["position"]["task"])

    def rebuild(self, method: Method) -> None:
        """Bring a fresh method to this state."""
        tensors = under_prefix("method", self.tensors)
        rebuild(method, self.about["task_sizes"], tensors, open_=self.is_open)


class Checkpointer(Protocol):
    """Saves a learner's state. It calls `state` only to save, because that waits for the device."""

    def after_step(self, state: Callable[[], LearnerState]) -> None:
        """A step in the middle of a task is done; save if the last save is long ago."""

    def task_trained(self, state: Callable[[], LearnerState]) -> None:
        """All steps of a task are done and `end_task` is still to come; save."""


class Learner:
    """Trains a method on one task after another; knows no method, dataset or file."""

    def __init__(
        self,
        method: Method,
        training: TrainingConfig,
        seeds: Seeds,
        device: torch.device,
        *,
        first_task: int = 0,
        accelerate: Acceleration = "auto",
        observer: Observer | None = None,
        checkpointer: Checkpointer | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """`ranks` are the processes that share the images; loaders must have the same."""
        self.method = method.to(device)
        method.ranks = self.ranks = ranks
        method.backbone.to(device)
        self.training = training
        self.seeds = seeds
        self.device = device
        self.accelerate = accelerate
        self.observer = observer or Observer()
        self.checkpointer = checkpointer
        self.position = Position(first_task)
        self.losses = LossLog()
        self.movement: dict[str, Movement] = {}
        """How far the latest task moved what it trained, by group; empty if it trained nothing."""
        self.optimizer: torch.optim.Optimizer | None = None
        self.stepper: Stepper | None = None
        self._began: dict[str, Tensor] = {}
        self._compiled = False

    def prepare(self) -> None:
        """Compile the backbone now, if requested; otherwise the first step does it."""
        if not self._compiled:
            compile_backbones(self.method, self.accelerate, self.device, self.training.precision)
            self._compiled = True

    def learn_task(self, n_classes: int, train: BatchLoader) -> list[dict[str, float]]:
        """Train the task at `self.position`, from that position on, then close it.

        `train` gives augmented batches, and the same images under the test view. Targets are
        positions of classes in order of arrival. Returns the mean loss terms of each epoch. The
        list is empty if nothing is trained: no trainable parameters, no loss, or zero epochs.
        """
        task = self.position.task
        # Makes a method that uses torch's global generator repeatable, and leaves the caller's
        # random state unchanged.
        with torch.random.fork_rng(devices=_cuda_devices(self.device)):
            if self.method.n_tasks == task:
                torch.manual_seed(mix(self.seeds.init, task))
                self.method.begin_task(n_classes, generator(self.seeds.init, task))
                self.method.to(self.device)
                self.movement = {}
            done = total = 0
            if self._is_trained():
                done = self.position.epoch * len(train) + self.position.step
                total = self.training.epochs * len(train)
            self.observer.task_begins(task, n_classes, total, done)
            if total:
                self._train(train)
            self.position.epoch, self.position.step = self.training.epochs, 0
            if self.checkpointer:
                self.checkpointer.task_trained(self.state)
            self.method.end_task(_LastPasses(self, train, counts=not self.losses.names))
            # What each rank worked out alone may differ by rounding.
            self.ranks.copy_first([*self.method.parameters(), *self.method.buffers()])
            self.method.close_task()
        losses = self.losses.epochs
        self.optimizer = self.stepper = None
        self.position, self.losses = Position(task + 1), LossLog()
        return losses

    def _is_trained(self) -> bool:
        return self.training.epochs > 0 and any(
            group["params"] for group in self.method.parameter_groups()
        )

    def _train(self, train: BatchLoader) -> None:
        position = self.position
        if position.epoch == position.step == 0:
            self._began = start_values(self.method)
        while position.epoch < self.training.epochs:
            rate = learning_rate(self.training, position.epoch)
            set_learning_rate(self._ready_optimizer(), rate)
            for images, targets in train.epoch(position.epoch, position.step):
                self.step(images, targets, train.images_in(position.step))
                if not self.losses.names:  # the method has no loss: nothing to train
                    self.losses, self._began = LossLog(), {}
                    return
                if self.checkpointer and position.step < len(train):
                    self.checkpointer.after_step(self.state)
            self.losses.end_epoch()
            self._read_losses(but_last=1)  # the device is still computing the last one
            position.epoch, position.step = position.epoch + 1, 0
            if self.checkpointer and position.epoch < self.training.epochs:
                self.checkpointer.after_step(self.state)
        self._read_losses()
        if self._began:  # not if the task was already trained when the run was resumed
            self.movement, self._began = measure(self.method, self._began), {}

    def step(self, images: Tensor, targets: Tensor, whole: int | None = None) -> None:
        """One update on a batch on the device; advances the position by one step.

        With several ranks, it is this rank's share of a batch of `whole` images.
        """
        position = self.position
        if self.stepper is None:
            self.prepare()
            self.stepper = make_stepper(
                self.method,
                self._ready_optimizer(),
                self.training.clip,
                self.accelerate,
                self.training.precision,
                self.ranks,
            )
        seed = (self.seeds.data, position.task, position.epoch, position.step)
        if self.stepper.reseeds:
            torch.manual_seed(mix(*seed))
        n_images = whole or len(images)
        drawn = self.method.draw(n_images, generator(*seed), self.stepper.multiple)
        share = None if self.ranks.alone else self.ranks.share(n_images)
        if share is not None:
            drawn = self.method.split_draws(drawn, n_images, share.part)
        draws = {name: send(tensor, self.device) for name, tensor in drawn.items()}
        losses = self.stepper.step(images, targets, draws, share)
        self.losses.add(self.stepper.names, losses)
        self.observer.stepped(position.epoch, self.stepper.names, losses)
        position.step += 1

    def _read_losses(self, but_last: int = 0) -> None:
        """Read losses and report epochs; a ConfigError if a loss is not finite."""
        new = self.losses.read(but_last)
        bad = [n for terms in new for n, value in terms.items() if not math.isfinite(value)]
        if bad:
            raise ConfigError(
                f"training of task {self.position.task + 1} diverged: {', '.join(bad)} is not "
                "finite",
                hint=f"lower training.lr ({self.training.lr}), set training.clip, or use "
                "training.precision fp32",
            )
        first = len(self.losses.epochs) - len(new)
        for epoch, terms in enumerate(new, start=first):
            self.observer.epoch_ends(self.position.task, epoch, terms)

    def _ready_optimizer(self) -> torch.optim.Optimizer:
        """The current task's optimiser, made when it is first needed."""
        if self.optimizer is None:
            t = self.training
            self.optimizer = make_optimizer(
                self.method.parameter_groups(),
                t.optimizer,
                self.device,
                lr=t.lr,
                momentum=t.momentum,
                weight_decay=t.weight_decay,
            )
        return self.optimizer

    # --- state ----------------------------------------------------------------------------------

    def state(self) -> LearnerState:
        """The learner's current state, for a checkpoint."""
        self._read_losses()
        sums = self.losses.sums
        return LearnerState(
            tensors={
                **with_prefix("method", self.method.state_dict()),
                **with_prefix("optimizer", self._optimizer_state()),
                **with_prefix("began", self._began),
                **({} if sums is None else {"losses/sums": sums}),
            },
            about={
                "position": dict(vars(self.position)),
                "task_sizes": list(self.method.task_sizes),
                "losses": {
                    "epochs": self.losses.epochs,
                    "names": list(self.losses.names),
                    "steps": self.losses.steps,
                },
                "movement": {group: dict(vars(m)) for group, m in self.movement.items()},
            },
        )

    def restore(self, state: LearnerState) -> None:
        """Continue from `state`; the method must be fresh."""
        self.position = Position(**state.about["position"])
        state.rebuild(self.method)
        self.method.to(self.device)
        self._restore_optimizer(under_prefix("optimizer", state.tensors))
        log, sums = state.about["losses"], state.tensors.get("losses/sums")
        self.losses = LossLog(
            log["epochs"],
            tuple(log["names"]),
            None if sums is None else sums.to(self.device),
            log["steps"],
        )
        began = under_prefix("began", state.tensors)
        self._began = {name: tensor.to(self.device) for name, tensor in began.items()}
        moved = state.about.get("movement", {})  # checkpoints once had none
        self.movement = {group: Movement(**m) for group, m in moved.items()}

    def _optimizer_state(self) -> dict[str, Tensor]:
        """Momentum and the like as `parameter/kind`; empty between tasks."""
        if self.optimizer is None:
            return {}
        names: dict[Tensor, str] = {p: n for n, p in self.method.named_parameters()}
        return {
            f"{names[parameter]}/{kind}": torch.as_tensor(value)
            for parameter, kinds in self.optimizer.state.items()
            for kind, value in kinds.items()
            if value is not None
        }

    def _restore_optimizer(self, state: Mapping[str, Tensor]) -> None:
        parameters = dict(self.method.named_parameters())
        for key, value in state.items():
            name, _, kind = key.rpartition("/")
            if name not in parameters:
                raise CheckpointError(f"the checkpoint has optimiser state for unknown {name!r}")
            self._ready_optimizer().state[parameters[name]][kind] = value.to(self.device)


@dataclass(frozen=True)
class _LastPasses:
    """A task's images for `Method.end_task`, embedded batch by batch; can be iterated repeatedly.

    Each image comes once, under the test view and `Method.extra_views` random views together.
    """

    learner: Learner
    train: BatchLoader
    counts: bool
    """Whether nothing was trained before: then the observer is told how many images have passed."""

    def __iter__(self) -> Iterator[tuple[Embedded, Tensor]]:
        method, precision = self.learner.method, self.learner.training.precision
        ranks = method.ranks if method.adds_over_ranks else ALONE
        numbers = range(len(self.train.targets))
        done, total = 0, len(numbers[ranks.part(len(numbers))])  # of this rank
        for embedded, targets in counted_batches(method, self.train, precision, ranks):
            yield embedded, targets
            done += len(targets) // embedded.views
            if self.counts:
                self.learner.observer.counted(done, total)


def counted_batches(
    method: Method, images: BatchLoader, precision: Precision, ranks: Ranks = ALONE
) -> Iterator[tuple[Embedded, Tensor]]:
    """All images under the views that `method` counts, embedded batch by batch, with targets.

    With several ranks, only this rank's part of them.
    """
    views = 1 + method.extra_views
    for pixels, targets, keys in images.counted(method.extra_views, ranks):
        with torch.no_grad():
            embedded = method.embed(pixels, precision)
        yield dataclasses.replace(embedded, views=views, keys=keys), targets.repeat(views)


def _cuda_devices(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []
