"""Optimisers, their state and learning rates."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cprompt.training.optimizer import learning_rate, make_optimizer, set_learning_rate, start_state
from cprompt.training.settings import TrainingConfig
from cprompt.training.step import Stepper
from tests.training.common import CPU, OPTIONS, Toy, step_inputs


@pytest.mark.parametrize(("kind", "cls"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)])
def test_groups_keep_their_scale_and_the_callers_are_left_alone(kind: str, cls: type) -> None:
    groups = Toy().parameter_groups()
    optimizer = make_optimizer(groups, kind, CPU, **OPTIONS)
    assert type(optimizer) is cls
    assert [group.get("lr_scale") for group in optimizer.param_groups] == [0.1, None]
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.05]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.01]
    assert optimizer.param_groups[0].get("momentum") == (0.9 if kind == "sgd" else None)
    assert [set(group) for group in groups] == [{"params", "lr_scale"}, {"params"}]
    set_learning_rate(optimizer, 0.3)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.03, 0.3])
    set_learning_rate(optimizer, 0.2)  # of the rate given, not of the last one
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.02, 0.2])


def test_a_rate_that_a_recording_reads_is_changed_in_its_place() -> None:
    optimizer = make_optimizer(Toy().parameter_groups(), "sgd", CPU, lr=0.1)
    rates = [torch.tensor(0.1), torch.tensor(0.1)]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    set_learning_rate(optimizer, 0.4)
    assert [float(rate) for rate in rates] == pytest.approx([0.04, 0.4])
    assert all(
        group["lr"] is rate for group, rate in zip(optimizer.param_groups, rates, strict=True)
    )


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_state_from_zero_makes_torch_s_own_first_steps_to_the_bit(kind: str) -> None:
    ended = []
    for given in (False, True):
        method = Toy().float()
        optimizer = make_optimizer(method.parameter_groups(), kind, CPU, **OPTIONS)
        if given:
            start_state(optimizer)
            states = [optimizer.state[p] for p in method.parameters()]
            assert all(states)
            assert not any(tensor.any() for state in states for tensor in state.values())
        stepper = Stepper(method, optimizer, None)
        for step in range(4):
            images, targets, draws = step_inputs(step)
            stepper.step(images.float(), targets, {n: t.float() for n, t in draws.items()})
        tensors: dict[str, Tensor] = dict(method.named_parameters())
        for name, parameter in method.named_parameters():
            tensors |= {f"{name}/{n}": t for n, t in optimizer.state[parameter].items()}
        ended.append(tensors)
    own, from_zero = ended
    assert own.keys() == from_zero.keys()
    assert len(own) == 2 * (1 + {"sgd": 1, "adam": 3}[kind])
    for name, tensor in own.items():
        assert torch.equal(tensor, from_zero[name]), name


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_state_that_is_there_is_kept(kind: str) -> None:
    method = Toy()
    optimizer = make_optimizer(method.parameter_groups(), kind, CPU, **OPTIONS)
    Stepper(method, optimizer, None).step(*step_inputs(0))
    before = [{n: t.clone() for n, t in s.items()} for s in optimizer.state.values()]
    start_state(optimizer)
    after = [dict(state) for state in optimizer.state.values()]
    assert len(before) == len(after) == 2
    for one, other in zip(before, after, strict=True):
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            assert tensor.any()
            assert torch.equal(other[name], tensor), name


def test_sgd_without_momentum_is_given_none() -> None:
    optimizer = make_optimizer(Toy().parameter_groups(), "sgd", CPU, lr=0.1, momentum=0.0)
    start_state(optimizer)
    assert not any(optimizer.state.values())


def test_learning_rates_by_hand() -> None:
    cosine = TrainingConfig(epochs=4, lr=0.1)
    assert [learning_rate(cosine, e) for e in range(4)] == pytest.approx(
        [0.1, 0.1 * (1 + 0.5**0.5) / 2, 0.05, 0.1 * (1 - 0.5**0.5) / 2]
    )
    coda = TrainingConfig(epochs=3, lr=1.0, schedule="coda")
    assert [learning_rate(coda, e) for e in range(3)] == pytest.approx(
        [1, math.cos(0.2475 * math.pi), math.cos(0.495 * math.pi)]
    )
    step = TrainingConfig(epochs=5, lr=0.2, schedule="step", milestones=(2, 4))
    assert [learning_rate(step, e) for e in range(5)] == pytest.approx(
        [0.2, 0.2, 0.02, 0.02, 0.002]
    )
    constant = TrainingConfig(epochs=3, lr=0.3, schedule="constant")
    assert learning_rate(constant, 2) == 0.3
