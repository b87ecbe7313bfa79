"""Steps against the textbook, and what happens where a device cannot replay them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cprompt.errors import ConfigError
from cprompt.methods.base import Draws, LossPart
from cprompt.ranks import Share
from cprompt.training.optimizer import make_optimizer, set_learning_rate
from cprompt.training.step import Stepper
from cprompt.vit.promptable import Embedded
from tests.training.common import CPU, OPTIONS, InParts, Raised, Toy, step_inputs, toy_stepper


def by_hand(
    values: dict[str, Tensor], images: Tensor, targets: Tensor, slopes: Tensor
) -> tuple[list[float], dict[str, Tensor]]:
    """The three terms, and the gradients of their sum."""
    a, b, x, y = values["a"], values["b"], images.sum(), targets.sum()
    terms = [x * (a[0] ** 2 + a[1] ** 2), y * (a[0] + a[1]) * b.sum(), (slopes * b).sum()]
    gradients = {"a": 2 * x * a + y * b.sum(), "b": slopes + y * (a[0] + a[1])}
    return [float(term) for term in terms], gradients


def clipped(gradients: dict[str, Tensor], clip: float | None) -> dict[str, Tensor]:
    norm = sum(float(g.square().sum()) for g in gradients.values()) ** 0.5
    scale = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
    return {name: scale * gradient for name, gradient in gradients.items()}


RATES = [0.05, 0.04, 0.02, 0.01]


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_steps_are_those_of_the_textbook(kind: str, clip: float | None) -> None:
    method = Toy()
    optimizer = make_optimizer(method.parameter_groups(), kind, CPU, **OPTIONS)
    stepper = Stepper(method, optimizer, clip)
    values = {name: p.detach().clone() for name, p in method.named_parameters()}
    first = {name: torch.zeros_like(value) for name, value in values.items()}
    second = {name: torch.zeros_like(value) for name, value in values.items()}
    for step, rate in enumerate(RATES, start=1):
        set_learning_rate(optimizer, rate)
        images, targets, draws = step_inputs(step)
        losses = stepper.step(images, targets, draws)
        terms, gradients = by_hand(values, images, targets, draws["slopes"])
        assert list(stepper.names) == ["square", "cross", "line"]
        assert losses.tolist() == pytest.approx(terms)
        assert not losses.requires_grad
        for name, gradient in clipped(gradients, clip).items():
            lr = rate * {"a": 0.1, "b": 1.0}[name]
            g = gradient + 0.01 * values[name]
            if kind == "sgd":
                first[name] = 0.9 * first[name] + g
                values[name] = values[name] - lr * first[name]
            else:
                first[name] = 0.9 * first[name] + 0.1 * g
                second[name] = 0.999 * second[name] + 0.001 * g**2
                m, v = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
                values[name] = values[name] - lr * m / (v.sqrt() + 1e-8)
        for name, parameter in method.named_parameters():
            torch.testing.assert_close(parameter.detach(), values[name], msg=name)


def test_a_gradient_of_the_step_before_is_forgotten() -> None:
    """Also by a tensor that this step's loss does not reach, which then stays where it is."""
    method = Toy()
    optimizer = make_optimizer(method.parameter_groups(), "sgd", CPU, lr=0.1)
    stepper = Stepper(method, optimizer, None)
    stepper.step(*step_inputs(1))
    method.loss = lambda *inputs: {"a": method.a.sum()}  # type: ignore[method-assign]
    b = method.b.detach().clone()
    stepper.step(*step_inputs(2))
    assert torch.equal(method.b, b)
    assert method.b.grad is None
    assert method.a.grad is not None
    assert method.a.grad.tolist() == [1, 1]


@pytest.mark.parametrize("weight", [None, 0.25])
def test_a_step_in_parts_is_that_of_the_whole_loss(weight: float | None) -> None:
    """Of a process that is alone, and of one that has a quarter of the batch's images."""
    share = None if weight is None else Share(slice(0, 2), weight, lambda rows: rows)
    parted, stepper = toy_stepper(Stepper, InParts, clip=None)
    plain, whole = toy_stepper(Stepper, Raised, clip=None)
    for step in range(1, 4):
        values = {name: p.detach().clone() for name, p in parted.named_parameters()}
        images, targets, draws = step_inputs(step)
        losses = stepper.step(images, targets, draws, share)
        expected = whole.step(images, targets, draws, share)
        (square, cross, line), gradients = by_hand(values, images, targets, draws["slopes"])
        terms = torch.tensor([square + float(images.sum()), cross, line]) * (weight or 1)
        for names, found in ((stepper.names, losses), (whole.names, expected)):
            assert names == ("square", "cross", "line")
            assert found.tolist() == pytest.approx(terms.tolist())
            assert not found.requires_grad
        for name, p in plain.named_parameters():
            parameter = parted.get_parameter(name)
            for gradient in (parameter.grad, p.grad):
                torch.testing.assert_close(gradient, gradients[name] * (weight or 1), msg=name)
            torch.testing.assert_close(parameter, p, msg=name)


PARTS = {"none first": ["still", "a"], "nothing first": ["nothing", "a"], "last": ["a", "nothing"]}


@pytest.mark.parametrize("order", PARTS)
def test_any_part_may_have_no_gradient_or_no_terms(order: str) -> None:
    method, stepper = toy_stepper(Stepper, Toy, clip=None)
    images, targets, draws = step_inputs(1)
    parts: dict[str, LossPart] = {
        "still": lambda: {"still": images.sum()},
        "nothing": dict,
        "a": lambda: {"a": (3 * method.a).sum()},
    }
    method.loss_parts = lambda *_: [parts[name] for name in PARTS[order]]  # type: ignore
    stepper.step(images, targets, draws)
    assert method.a.grad is not None
    assert method.a.grad.tolist() == [3, 3]
    assert stepper.names == tuple(name for name in PARTS[order] if name != "nothing")


def test_a_loss_without_any_gradient_is_told() -> None:
    method, stepper = toy_stepper(Stepper, Toy, clip=None)
    method.loss = lambda *_: {"a": method.a.detach().sum()}  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"the loss of .* has no gradient for anything"):
        stepper.step(*step_inputs(1))


class Sum(Toy):
    """Its second part has the same gradient for two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.c = torch.nn.Parameter(torch.tensor([2.0, 1.0], dtype=torch.float64))

    def loss_parts(self, embedded: Embedded, targets: Tensor, draws: Draws) -> list[LossPart]:
        return [lambda: {"b": self.b.sum()}, lambda: {"sum": (self.a + self.c).square().sum()}]

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": [self.a, self.b, self.c]}]


def test_a_gradient_that_two_tensors_share_is_clipped_once() -> None:
    method, stepper = toy_stepper(Stepper, Sum, clip=0.5)
    stepper.step(*step_inputs(0))
    a = 2 * torch.tensor([1.0 + 2.0, -2.0 + 1.0], dtype=torch.float64)
    gradients = {"a": a, "b": torch.ones(1, 3, dtype=torch.float64), "c": a}
    for name, gradient in clipped(gradients, 0.5).items():
        torch.testing.assert_close(method.get_parameter(name).grad, gradient, msg=name)
