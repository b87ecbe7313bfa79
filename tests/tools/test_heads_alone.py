"""tools/heads_alone.py, whose numbers the results page shows."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from cprompt.research.stream import TaskStream
from cprompt.training.settings import TrainingConfig
from tests.scripts import load_tool

STREAM = TaskStream(order=(0, 1, 2, 3), sizes=(2, 2))


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("heads_alone")


def one_hot(*classes: int) -> tuple[Tensor, Tensor]:
    """Features that name their class."""
    targets = torch.tensor(classes)
    return torch.eye(4)[targets], targets


def test_features_that_name_their_class_are_all_answered_right(tool: ModuleType) -> None:
    training = TrainingConfig(epochs=20, batch_size=2, lr=1.0, optimizer="sgd")
    found = tool.accuracies(
        one_hot(0, 1, 2, 3), one_hot(0, 1, 2, 3), STREAM, training, "zero", seed=0
    )
    assert found == [100.0, 100.0]


def test_heads_without_a_step_answer_as_they_began(tool: ModuleType) -> None:
    """Zeros answer class 0 for everything: right for two of three, then for two of six."""
    training = TrainingConfig(epochs=1, batch_size=2, lr=1e-12, optimizer="sgd", weight_decay=0.0)
    test = one_hot(0, 1, 0, 2, 3, 3)
    test[0].zero_()  # whatever the weights, only biases speak, and those are zero
    train = one_hot(0, 1, 2, 3)
    train[0].zero_()
    found = tool.accuracies(train, test, STREAM, training, "zero", seed=0)
    assert found == pytest.approx([100 * 2 / 3, 100 * 2 / 6])


def test_a_task_learns_from_its_own_classes_only(tool: ModuleType) -> None:
    """Mislabelling every image of the second task leaves the first task's answer as it is."""
    training = TrainingConfig(epochs=20, batch_size=2, lr=1.0, optimizer="sgd")
    train, test = one_hot(0, 1, 2, 3), one_hot(0, 1, 2, 3)
    train[1][2:] = torch.tensor([3, 2])
    assert tool.accuracies(train, test, STREAM, training, "zero", seed=0) == [100.0, 50.0]
