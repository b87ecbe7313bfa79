"""Steps against the textbook, and what happens where a device cannot replay them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cprompt.training.optimizer import make_optimizer, set_learning_rate
from cprompt.training.step import Stepper
from tests.training.common import CPU, OPTIONS, Toy, step_inputs


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
