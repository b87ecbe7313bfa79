"""The loop itself, on a method whose every step can be worked out by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cprompt.data.pipeline import views
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.errors import CheckpointError, ConfigError
from cprompt.methods.base import Batches, Draws, Method
from cprompt.seeds import mix
from cprompt.training.learner import Learner, LearnerState, LossLog, Position
from cprompt.training.movement import Movement
from cprompt.training.observers import Observer
from cprompt.training.settings import Seeds, TrainingConfig
from cprompt.vit.promptable import Embedded, FrozenViT, Precision
from tests.images import grey_images

CPU = torch.device("cpu")
GREYS = [0, 51, 102, 153, 204]  # 0, 0.2, 0.4, 0.6, 0.8 as network input
SGD = {"momentum": 0.0, "weight_decay": 0.0, "schedule": "constant", "lr": 0.1, "batch_size": 2}


@dataclass(frozen=True)
class NoSettings:
    """Nothing to set."""


class Line(Method):
    """One weight w per task, pulled to the mean grey of each batch: loss (w - grey)²."""

    name = "line"
    Config = NoSettings

    def __init__(self, backbone: FrozenViT) -> None:
        super().__init__(backbone, NoSettings())
        self.weights = nn.ParameterList()
        self.ended: list[float] = []
        self.closed = 0

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        super().begin_task(n_classes, rng)
        for old in self.weights:
            old.requires_grad_(False)
        self.weights.append(nn.Parameter(torch.rand(1, generator=rng)))

    def embed(self, images: Tensor, precision: Precision = "fp32") -> Embedded:
        return Embedded(images.mean((1, 2, 3)), precision)

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        return {"pull": (self.weights[-1] - embedded.tokens.mean()).square().sum()}

    def end_task(self, batches: Batches) -> None:
        self.ended = [round(float(v), 3) for embedded, _ in batches for v in embedded.tokens]

    def close_task(self) -> None:
        self.closed += 1


class NotTrained(Line):
    """The same without parameters; whoever asks it for a loss has made a mistake."""

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        Method.begin_task(self, n_classes, rng)

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        raise AssertionError("there is nothing to train")


class NoLoss(Line):
    """Has a parameter, but no loss."""

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        return {}


def batches(task: int = 0, batch_size: int = 2) -> BatchLoader:
    preparation = views.build("plain", 4, "none")
    targets = np.zeros(len(GREYS), dtype=np.int64)
    return BatchLoader(grey_images(GREYS), targets, preparation, batch_size, seed=task)


def learner(method: Method, observer: Observer | None = None, **training: Any) -> Learner:
    config = TrainingConfig(**{**SGD, "epochs": 3, **training})
    return Learner(method, config, Seeds(init=3, data=4), CPU, observer=observer)


class Log(Observer):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def task_begins(self, task: int, n_classes: int, steps: int, done: int) -> None:
        self.events.append(("begins", task, n_classes, steps, done))

    def stepped(self, epoch: int, names: tuple[str, ...], losses: Tensor) -> None:
        self.events.append(("step", epoch, names))

    def counted(self, done: int, total: int) -> None:
        self.events.append(("counted", done, total))

    def epoch_ends(self, task: int, epoch: int, losses: Any) -> None:
        self.events.append(("epoch", task, epoch, losses))


def test_every_step_is_gradient_descent_on_the_batch_of_that_step(backbone: FrozenViT) -> None:
    method, log = Line(backbone), Log()
    losses = learner(method, log).learn_task(2, batches())
    w = float(torch.rand(1, generator=torch.Generator().manual_seed(mix(3, 0))))
    expected = []
    for epoch in range(3):
        terms = []
        for images, _ in batches().epoch(epoch):
            grey = float(images.mean())
            terms.append((w - grey) ** 2)
            w -= 0.1 * 2 * (w - grey)
        expected.append(sum(terms) / 3)
    assert float(method.weights[0].detach()) == pytest.approx(w, rel=1e-5)
    assert [list(each) for each in losses] == [["pull"]] * 3
    assert [each["pull"] for each in losses] == pytest.approx(expected, rel=1e-5)
    assert log.events[0] == ("begins", 0, 2, 9, 0)
    assert [e for e in log.events if e[0] == "step"] == [
        ("step", epoch, ("pull",)) for epoch in range(3) for _ in range(3)
    ]
    assert [e[1:3] for e in log.events if e[0] == "epoch"] == [(0, 0), (0, 1), (0, 2)]


def test_a_task_that_is_not_trained_is_resumed_with_the_same_events(
    backbone: FrozenViT,
) -> None:
    states: list[LearnerState] = []

    class Keeps:
        def after_step(self, state: Callable[[], LearnerState]) -> None:
            pytest.fail("no step is done")

        def task_trained(self, state: Callable[[], LearnerState]) -> None:
            states.append(state())

    whole, again = Log(), Log()
    first = learner(NotTrained(backbone), whole)
    first.checkpointer = Keeps()
    first.learn_task(1, batches())
    resumed = learner(NotTrained(backbone), again)
    resumed.restore(states[0])
    resumed.learn_task(1, batches())
    assert again.events == whole.events
    assert [event[0] for event in whole.events] == ["begins", *["counted"] * 3]


def test_what_is_looked_at_after_training_is_not_counted(backbone: FrozenViT) -> None:
    log = Log()
    learner(Line(backbone), log).learn_task(1, batches())
    assert not [event for event in log.events if event[0] == "counted"]


def test_after_training_the_task_ends_with_all_its_images_in_order(backbone: FrozenViT) -> None:
    method = Line(backbone)
    trained = learner(method)
    trained.learn_task(2, batches())
    assert method.ended == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert method.closed == 1
    assert (trained.position, trained.optimizer) == (Position(1), None)


@pytest.mark.parametrize(
    ("kind", "training"), [(NotTrained, {}), (NoLoss, {}), (Line, {"epochs": 0})]
)
def test_without_parameters_loss_or_epochs_nothing_is_trained(
    kind: type[Line], training: dict[str, int], backbone: FrozenViT
) -> None:
    method, log = kind(backbone), Log()
    trained = learner(method, log, **training)
    for task in range(2):
        assert trained.learn_task(1, batches(task)) == []
        assert method.ended == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert (method.closed, method.task_sizes) == (2, [1, 1])
    assert trained.position == Position(2)
    assert not [e for e in log.events if e[0] == "epoch"]
    assert trained.movement == {}
    counted = [("counted", done, 5) for done in (2, 4, 5)]
    if kind is NoLoss:  # its first step shows that there is no loss
        assert [event for event in log.events if event[0] == "counted"] == counted * 2
    else:
        assert log.events == [
            *[("begins", 0, 1, 0, 0), *counted],
            *[("begins", 1, 1, 0, 0), *counted],
        ]
    started = [
        torch.rand(1, generator=torch.Generator().manual_seed(mix(3, task))) for task in range(2)
    ]
    for weight, start in zip(method.weights, started, strict=False):
        assert torch.equal(weight.detach(), start)


class SavesAt:
    """Takes the state after the given steps of the run, and when a task is trained."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps
        self.count = 0
        self.states: list[LearnerState] = []

    def after_step(self, state: Any) -> None:
        self.count += 1
        if self.count in self.steps:
            self.states.append(_copied(state()))

    def task_trained(self, state: Any) -> None:
        self.states.append(_copied(state()))


def _copied(state: LearnerState) -> LearnerState:
    return LearnerState(
        {n: t.clone() for n, t in state.tensors.items()}, copy.deepcopy(state.about)
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_from_any_saved_state_it_goes_on_to_the_same_bits(
    backbone: FrozenViT, momentum: float
) -> None:
    whole, saves = Line(backbone), SavesAt(2, 5, 11)
    config = TrainingConfig(**{**SGD, "epochs": 3, "momentum": momentum})
    first = Learner(whole, config, Seeds(init=3, data=4), CPU, checkpointer=saves)
    losses = [first.learn_task(1, batches(task)) for task in range(2)]
    assert len(saves.states) == 3 + 2
    for state in saves.states:
        again = Line(backbone)
        second = Learner(again, config, Seeds(init=3, data=4), CPU)
        second.restore(state)
        task = second.position.task
        assert state.is_open
        for number in range(task, 2):
            found = second.learn_task(1, batches(number))
            assert found == losses[number]
        for mine, theirs in zip(again.weights, whole.weights, strict=True):
            assert torch.equal(mine, theirs)


def test_movement_is_from_the_first_step_to_the_last_however_often_it_stops(
    backbone: FrozenViT,
) -> None:
    whole, saves = Line(backbone), SavesAt(2, 5, 11)
    config = TrainingConfig(**{**SGD, "epochs": 3})
    first = Learner(whole, config, Seeds(init=3, data=4), CPU, checkpointer=saves)
    found = []
    for task in range(2):
        first.learn_task(1, batches(task))
        found.append(first.movement)
        start = torch.rand(1, generator=torch.Generator().manual_seed(mix(3, task))).item()
        moved = abs(whole.weights[task].item() - start)
        assert set(first.movement) == {f"weights.{task}"}
        measured = first.movement[f"weights.{task}"]
        assert (measured.began, measured.moved) == pytest.approx((start, moved))
        assert measured.turned == measured.moved > 0
    for state in saves.states:
        second = Learner(Line(backbone), config, Seeds(init=3, data=4), CPU)
        second.restore(state)
        for task in range(second.position.task, 2):
            second.learn_task(1, batches(task))
            assert second.movement == found[task]


def test_movement_from_a_checkpoint_that_has_no_beginning_is_not_guessed(
    backbone: FrozenViT,
) -> None:
    saves = SavesAt(2)
    config = TrainingConfig(**{**SGD, "epochs": 3})
    Learner(Line(backbone), config, Seeds(), CPU, checkpointer=saves).learn_task(1, batches())
    state = saves.states[0]
    old = LearnerState(
        {n: t for n, t in state.tensors.items() if not n.startswith("began/")},
        {k: v for k, v in state.about.items() if k != "movement"},
    )
    resumed = Learner(Line(backbone), config, Seeds(), CPU)
    resumed.restore(old)
    resumed.learn_task(1, batches())
    assert resumed.movement == {}
    resumed.learn_task(1, batches(1))
    assert isinstance(resumed.movement["weights.1"], Movement)


def test_optimiser_state_of_an_unknown_tensor_is_refused(backbone: FrozenViT) -> None:
    saves = SavesAt(1)
    config = TrainingConfig(**{**SGD, "epochs": 1, "momentum": 0.9})
    Learner(Line(backbone), config, Seeds(), CPU, checkpointer=saves).learn_task(1, batches())
    state = saves.states[0]
    other = LearnerState({**state.tensors, "optimizer/nobody/momentum": torch.ones(1)}, state.about)
    with pytest.raises(CheckpointError, match="unknown 'nobody'"):
        learner(Line(backbone)).restore(other)


def test_a_diverging_task_is_an_error_that_names_the_term(backbone: FrozenViT) -> None:
    with pytest.raises(ConfigError, match="task 1 diverged: pull is not finite") as caught:
        learner(Line(backbone), lr=1e30, epochs=4).learn_task(1, batches())
    assert "training.lr" in str(caught.value.hint)


def test_the_precision_of_training_reaches_every_pass(backbone: FrozenViT) -> None:
    seen: list[str] = []

    class Watched(Line):
        def embed(self, images: Tensor, precision: Precision = "fp32") -> Embedded:
            seen.append(precision)
            return super().embed(images, precision)

    learner(Watched(backbone), precision="bf16", epochs=1).learn_task(1, batches())
    assert seen == ["bf16"] * 6  # three steps, three batches for end_task


def test_the_callers_random_state_is_left_alone(backbone: FrozenViT) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    learner(Line(backbone)).learn_task(1, batches())
    assert torch.equal(torch.get_rng_state(), before)


def test_losses_of_an_epoch_are_means_that_are_read_when_asked_for() -> None:
    log = LossLog()
    shared = torch.zeros(2)  # a step's losses hold until the next step
    for values in ([1.0, 5.0], [2.0, 7.0], [6.0, 0.0]):
        log.add(("ce", "mk"), shared.copy_(torch.tensor(values)))
    log.end_epoch()
    assert log.read(but_last=1) == []
    log.add(("ce", "mk"), shared.copy_(torch.tensor([8.0, 9.0])))
    log.end_epoch()
    first, second = {"ce": 3.0, "mk": 4.0}, {"ce": 8.0, "mk": 9.0}
    assert log.read(but_last=1) == [first]
    assert log.epochs == [first]
    assert log.read() == [second]
    assert log.read() == []
    assert log.epochs == [first, second]
