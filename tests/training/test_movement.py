"""How far parameters went, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cprompt.methods.base import Method, create_method
from cprompt.methods.registry import METHODS
from cprompt.research.config import resolve
from cprompt.training.movement import Movement, group_of, measure, start_values
from cprompt.vit.promptable import FrozenViT


def begun(name: str, backbone: FrozenViT, settings: dict[str, object] | None = None) -> Method:
    method = create_method(name, backbone, {**resolve("demo", name).settings, **(settings or {})})
    method.begin_task(3, torch.Generator().manual_seed(0))
    return method


def test_norms_are_those_of_all_values_of_a_group(backbone: FrozenViT) -> None:
    method = begun("cprompt", backbone)
    before = start_values(method)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=noise)
    found = measure(method, before)
    after = dict(method.named_parameters())
    assert set(found) == {"prompts", "keys", "heads"}
    for group, movement in found.items():
        names = [name for name in before if name.startswith(group)]
        a = np.concatenate([before[n].double().numpy().ravel() for n in names])
        b = np.concatenate([after[n].detach().double().numpy().ravel() for n in names])
        scales = np.linspace(-3, 3, 60001)
        nearest = min(np.sqrt(b @ b - 2 * c * (a @ b) + c * c * (a @ a)) for c in scales)
        assert movement.began == pytest.approx(np.linalg.norm(a))
        assert movement.moved == pytest.approx(np.linalg.norm(b - a))
        assert movement.turned == pytest.approx(nearest, rel=1e-4)
        assert movement.relative == pytest.approx(np.linalg.norm(b - a) / np.linalg.norm(a))


def test_what_only_shrank_did_not_turn(backbone: FrozenViT) -> None:
    """Weight decay alone, as SGD with momentum applies it over many steps."""
    method = begun("coda", backbone)
    before = start_values(method)
    parameters = [p for p in method.parameters() if p.requires_grad]
    sgd = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-3)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(200):
        sgd.step()
    for movement in measure(method, before).values():
        assert movement.relative > 0.1
        assert movement.relative_turn < 1e-6


def test_a_group_that_began_at_zero_is_new_or_untouched(backbone: FrozenViT) -> None:
    method = begun("slca", backbone, {"head_init": "zero"})
    before = start_values(method)
    assert measure(method, before)["heads"] == Movement(0.0, 0.0, 0.0)
    assert measure(method, before)["heads"].relative == 0
    with torch.no_grad():
        for parameter in method.heads.parameters():  # type: ignore[union-attr]
            parameter += 2.0
    heads = measure(method, before)["heads"]
    count = sum(p.numel() for p in method.heads.parameters())  # type: ignore[union-attr]
    assert heads.moved == heads.turned == pytest.approx(2 * np.sqrt(count))
    assert heads.relative == heads.relative_turn == 1


def test_a_single_number_turns_by_all_it_moves(backbone: FrozenViT) -> None:
    method = create_method("lda", backbone)
    method.register_parameter("scale", torch.nn.Parameter(torch.tensor([2.0])))
    before = start_values(method)
    method.scale.data.fill_(3.0)  # type: ignore[union-attr, operator]
    assert measure(method, before) == {"scale": Movement(2.0, 1.0, 1.0)}


def test_a_group_keeps_its_learning_rate_and_what_is_not_trained_is_left_out(
    backbone: FrozenViT,
) -> None:
    method = begun("slca", backbone)
    found = measure(method, start_values(method))
    assert {group: m.lr_scale for group, m in found.items()} == {"tuned": 0.01, "heads": 1.0}
    method.tuned.requires_grad_(False)  # type: ignore[union-attr, operator]
    assert set(measure(method, start_values(method))) == {"heads"}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_few_groups_and_each_parameter_one(name: str, backbone: FrozenViT) -> None:
    """So that prompts that stay where they were drawn are not hidden among heads that move."""
    method = begun(name, backbone)
    trained = [n for n, p in method.named_parameters() if p.requires_grad]
    groups = {group_of(n) for n in trained}
    assert len(groups) <= 5
    for head in ("heads", "head"):
        if head in groups:
            assert len(groups) > 1
