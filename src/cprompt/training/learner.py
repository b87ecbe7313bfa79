"""The training loop: the only one, for every method.

Every draw is a function of (seed, task, epoch, step), so a position in the run is all the random
state there is: a run that is stopped anywhere and resumed ends with the same bits on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from cprompt.data.pipeline.loader import BatchLoader
from cprompt.errors import CheckpointError, ConfigError
from cprompt.methods.base import Method
from cprompt.seeds import generator, mix
from cprompt.training.acceleration import compile_backbones, make_stepper
from cprompt.training.observers import Observer
from cprompt.training.optimizer import learning_rate, make_optimizer, set_learning_rate
from cprompt.training.settings import Acceleration, Seeds, TrainingConfig
from cprompt.training.step import Stepper


@dataclass
class Position:
    """Where training stands; `epoch` equal to the number of epochs means the task is trained."""

    task: int = 0
    epoch: int = 0
    step: int = 0


@dataclass
class LossLog:
    """Mean loss terms of each epoch, of the current task; sums of the epoch under way.

    Sums and means stay on the device until `read` asks for them, so that training runs ahead.
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
        """Bring means over into `epochs`, all or all but the last ones; those that were new."""
        count = max(len(self.unread) - but_last, 0)
        new = [dict(zip(self.names, m.tolist(), strict=True)) for m in self.unread[:count]]
        self.unread = self.unread[count:]
        self.epochs += new
        return new


class Checkpointer(Protocol):
    """Asked after every step whether it wants to save, and told when a task is trained."""

    def after_step(self, learner: Learner) -> None:
        """Save if it is time to."""

    def task_trained(self, learner: Learner) -> None:
        """Save: all steps of the task are done, `end_task` is still to come."""


class Learner:
    """Trains a method on one task after another; knows no method, dataset or file."""

    def __init__(
        self,
        method: Method,
        training: TrainingConfig,
        seeds: Seeds,
        device: torch.device,
        *,
        accelerate: Acceleration = "auto",
        observer: Observer | None = None,
        checkpointer: Checkpointer | None = None,
    ) -> None:
        self.method = method.to(device)
        method.backbone.to(device)
        method.backbone.precision = training.precision
        self.training = training
        self.seeds = seeds
        self.device = device
        self.accelerate = accelerate
        self.observer = observer or Observer()
        self.checkpointer = checkpointer
        self.position = Position()
        self.losses = LossLog()
        self.optimizer: torch.optim.Optimizer | None = None
        self.stepper: Stepper | None = None
        self.waited = 0.0
        """Seconds spent waiting for images."""
        self._ready = False

    def get_ready(self) -> None:
        """Have the backbone compiled, if that is asked for; else the first step has to wait."""
        if not self._ready:
            compile_backbones(self.method, self.accelerate, self.device)
            self._ready = True

    def learn_task(self, n_classes: int, train: BatchLoader) -> None:
        """Train the task at `self.position` from where it stands, then close it.

        `train` gives augmented batches, and the same images under the test view. Targets are
        arrival positions.
        """
        task = self.position.task
        # A method that draws from torch's global generator is repeatable too, and the caller's
        # own random state comes out as it went in.
        with torch.random.fork_rng(devices=_cuda_devices(self.device)):
            if self.optimizer is None:
                torch.manual_seed(mix(self.seeds.init, task))
                self.method.begin_task(n_classes, generator(self.seeds.init, task))
                self.method.to(self.device)
                self.optimizer = self._new_optimizer()
            done = self.position.epoch * len(train) + self.position.step
            total = self.training.epochs * len(train)
            self.observer.task_begins(task, n_classes, total, done)
            self._train(train)
            self.method.end_task(train.unaugmented())
            self.method.close_task()
        self.waited += train.waited
        self.optimizer = self.stepper = None
        self.position = Position(task + 1)

    def _train(self, train: BatchLoader) -> None:
        assert self.optimizer is not None
        position = self.position
        while position.epoch < self.training.epochs:
            set_learning_rate(self.optimizer, learning_rate(self.training, position.epoch))
            for images, targets in train.epoch(position.epoch, position.step):
                self.step(images, targets)
                if self.checkpointer and position.step < len(train):
                    self.checkpointer.after_step(self)
            self.losses.end_epoch()
            self.read_losses(but_last=1)  # the device is still at the last one
            position.epoch, position.step = position.epoch + 1, 0
            if self.checkpointer and position.epoch < self.training.epochs:
                self.checkpointer.after_step(self)
        self.read_losses()
        if self.checkpointer:
            self.checkpointer.task_trained(self)

    def step(self, images: Tensor, targets: Tensor) -> None:
        """One update on a batch that is on the device; the position moves on."""
        position = self.position
        if self.stepper is None:
            self.stepper = self._new_stepper()
        seed = (self.seeds.data, position.task, position.epoch, position.step)
        if self.stepper.reseeds:
            torch.manual_seed(mix(*seed))
        drawn = self.method.draw(len(images), generator(*seed), self.stepper.multiple)
        draws = {n: t.to(self.device, non_blocking=True) for n, t in drawn.items()}
        losses = self.stepper.step(images, targets, draws)
        self.losses.add(self.stepper.names, losses)
        self.observer.stepped(position.epoch, self.stepper.names, losses)
        position.step += 1

    def read_losses(self, but_last: int = 0) -> None:
        """See `LossLog.read`; a diverged task is an error, not a row of chance accuracies."""
        new = self.losses.read(but_last)
        bad = [n for terms in new for n, value in terms.items() if not math.isfinite(value)]
        if bad:
            raise ConfigError(
                f"training of task {self.position.task + 1} diverged: {', '.join(bad)} is not "
                f"finite; lower training.lr ({self.training.lr}), set training.clip, "
                "or use training.precision fp32"
            )
        first = len(self.losses.epochs) - len(new)
        for epoch, terms in enumerate(new, start=first):
            self.observer.epoch_ends(self.position.task, epoch, terms)

    def _new_stepper(self) -> Stepper:
        assert self.optimizer is not None
        self.get_ready()
        return make_stepper(self.method, self.optimizer, self.training.clip, self.accelerate)

    def _new_optimizer(self) -> torch.optim.Optimizer:
        t = self.training
        return make_optimizer(
            self.method.parameter_groups(),
            t.optimizer,
            self.device,
            lr=t.lr,
            momentum=t.momentum,
            weight_decay=t.weight_decay,
        )

    # --- state ----------------------------------------------------------------------------------

    def optimizer_state(self) -> dict[str, Tensor]:
        """Momentum and the like as `parameter/kind`, empty between tasks."""
        if self.optimizer is None:
            return {}
        names: dict[Tensor, str] = {p: n for n, p in self.method.named_parameters()}
        return {
            f"{names[parameter]}/{kind}": torch.as_tensor(value)
            for parameter, kinds in self.optimizer.state.items()
            for kind, value in kinds.items()
            if value is not None
        }

    def restore_optimizer(self, state: Mapping[str, Tensor]) -> None:
        """Take up an open task: make the optimiser and give it its state back."""
        self.optimizer = self._new_optimizer()
        parameters = dict(self.method.named_parameters())
        for key, value in state.items():
            name, _, kind = key.rpartition("/")
            if name not in parameters:
                raise CheckpointError(f"the checkpoint has optimiser state for unknown {name!r}")
            self.optimizer.state[parameters[name]][kind] = value.to(self.device)


def _cuda_devices(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []
