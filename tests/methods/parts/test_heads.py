"""How heads begin, and what they compute."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cprompt.methods.base import create_method
from cprompt.methods.parts.consistency import Smoothing, ccl_loss
from cprompt.methods.parts.heads import (
    ConsistencyConfig,
    ConsistentHeads,
    HeadInit,
    TaskHeads,
    _FrozenLinear,
    new_head,
)
from cprompt.research.config import resolve
from cprompt.vit.promptable import FrozenViT

DIM = 192


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.mark.parametrize(("init", "bound"), [("kaiming", (3 / DIM) ** 0.5), ("linear", DIM**-0.5)])
def test_a_uniform_head_fills_its_bounds_evenly(init: HeadInit, bound: float) -> None:
    weight, bias = new_head(500, DIM, seeded(), init)
    assert weight.shape == (500, DIM)
    assert 0.999 * bound < weight.max() <= bound
    assert -bound <= weight.min() < -0.999 * bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
    if init == "kaiming":
        assert torch.equal(bias, torch.zeros(500))
    else:
        assert 0.98 * bound < bias.abs().max() <= bound


def test_the_bounds_are_those_of_torch(rng: torch.Generator) -> None:
    """Large layers reach their bounds, so their extremes give them away."""
    layer = nn.Linear(DIM, 2000)
    weight, bias = new_head(2000, DIM, rng, "linear")
    for ours, theirs in ((weight, layer.weight), (bias, layer.bias)):
        assert ours.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=0.01)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="linear")
    weight, _ = new_head(2000, DIM, rng, "kaiming")
    assert weight.abs().max().item() == pytest.approx(layer.weight.abs().max().item(), rel=0.001)


def test_a_normal_head_has_the_deviation_of_timms(rng: torch.Generator) -> None:
    weight, bias = new_head(500, DIM, rng, "normal")
    assert weight.std().item() == pytest.approx(0.02, rel=0.01)
    assert weight.mean().item() == pytest.approx(0, abs=3e-4)
    assert torch.equal(bias, torch.zeros(500))


def test_a_class_of_each_old_task_is_drawn_for_every_image() -> None:
    heads = ConsistentHeads(DIM, ConsistencyConfig(smoothing="roh"))
    rng = seeded()
    for old_tasks, size in enumerate((3, 1, 4)):
        heads.open(size, rng)
        drawn = heads.draw(5, seeded())
        if old_tasks:
            expected = torch.rand(5, old_tasks, generator=seeded())
            assert torch.equal(drawn["classes"], expected)
        else:
            assert drawn == {}
        heads.close()


@pytest.mark.parametrize("smoothing", ["adaptive", "edl", "roh"])
def test_classifier_consistency_is_computed_with_the_settings(smoothing: Smoothing) -> None:
    """Against the loss of the paper, given what the old heads and the current one say."""
    config = ConsistencyConfig(tau=3.0, margin=2.5, alpha=0.25, smoothing=smoothing)
    heads, rng = ConsistentHeads(8, config), seeded()
    for size in (2, 3, 2):
        if heads.sizes:
            heads.close()
        heads.open(size, rng)
    h, drawn = torch.randn(2, 6, 8, generator=rng)
    draws = heads.draw(6, rng)
    losses = heads.losses(h, drawn, torch.tensor([0, 1, 1, 0, 1, 0]), draws)
    given = {"tau": 3.0, "margin": 2.5, "alpha": 0.25, "smoothing": smoothing}
    uniforms = draws.get("classes")
    expected = ccl_loss(heads.old(h), (2, 3), heads.current(h), uniforms=uniforms, **given)
    torch.testing.assert_close(losses["ccl"], expected)
    for name, other in (("tau", 1.5), ("margin", 0.0), ("alpha", 1.0)):
        if smoothing == "adaptive" or name == "alpha":
            changed: Any = {**given, name: other}
            value = ccl_loss(heads.old(h), (2, 3), heads.current(h), uniforms=uniforms, **changed)
            assert abs(float(value - expected)) > 1e-4, name  # it would be noticed


def test_a_head_of_zeros_leaves_the_later_draws_as_they_are() -> None:
    usual, zero = seeded(), seeded()
    new_head(4, DIM, usual)
    weight, bias = new_head(4, DIM, zero, "zero")
    assert not weight.any()
    assert not bias.any()
    assert torch.equal(torch.rand(3, generator=usual), torch.rand(3, generator=zero))


@pytest.mark.parametrize("name", ["coda", "cprompt", "dualprompt", "esn", "hide", "l2p", "slca"])
def test_every_method_with_task_heads_begins_them_as_set(name: str, backbone: FrozenViT) -> None:
    settings: dict[str, Any] = {"head_init": "zero"}
    method: Any = create_method(name, backbone, settings)
    method.begin_task(3, seeded())
    assert not method.heads.weight.current.any()
    usual: Any = create_method(name, backbone, {})
    usual.begin_task(3, seeded())
    assert usual.heads.weight.current.abs().max() > 0.9 * math.sqrt(3 / backbone.dim)


def test_the_auxiliary_head_begins_as_the_tasks_own(backbone: FrozenViT) -> None:
    method: Any = create_method("cprompt", backbone, {"head_init": "zero"})
    method.begin_task(3, seeded())
    assert not method.heads.aux_weight.any()


def test_the_task_identity_head_of_hide_too(backbone: FrozenViT) -> None:
    method: Any = create_method("hide", backbone, {"head_init": "zero"})
    method.begin_task(3, seeded())
    assert not method.tii_weight.any()


@pytest.mark.parametrize(
    ("method", "init"), [("coda", "linear"), ("esn", "linear"), ("l2p", "zero")]
)
def test_their_own_settings_begin_heads_as_their_code_does(method: str, init: str) -> None:
    chosen = resolve("cars10", method, "official").settings
    assert chosen["head_init"] == init
    matched = resolve("cars10", method, "matched").settings
    assert matched["head_init"] == "kaiming"


def by_hand(x: Tensor, weight: Tensor, bias: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """W x + b of each row x, and the gradient of its x if that of the result is `slopes`."""
    x, weight, bias, slopes = (t.detach().double() for t in (x, weight, bias, slopes))
    logits = torch.stack([torch.stack([(w * row).sum() for w in weight]) for row in x]) + bias
    back = torch.stack([sum(s * w for s, w in zip(row, weight, strict=True)) for row in slopes])  # type: ignore[misc]
    return logits, back


def test_frozen_heads_have_a_gradient_for_the_features_alone() -> None:
    heads, rng = TaskHeads(8, "linear"), seeded()
    for size in (2, 3, 4):
        if heads.sizes:
            heads.close()
        heads.open(size, rng)
    features = torch.randn(6, 8, generator=rng).requires_grad_()
    slopes = torch.randn(6, 5, generator=rng)
    logits = heads.old(features)
    torch.autograd.backward(logits, slopes)
    frozen = heads.weight.frozen, heads.bias.frozen
    assert frozen[0].shape == (5, 8)
    expected, back = by_hand(features, *frozen, slopes)
    assert features.grad is not None
    torch.testing.assert_close(logits.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(features.grad.double(), back, rtol=1e-6, atol=1e-6)
    assert all(p.grad is None for p in heads.parameters())

    weight, bias = (tensor.clone().requires_grad_() for tensor in frozen)
    again = features.detach().clone().requires_grad_()
    torch.autograd.backward(_FrozenLinear.apply(again, weight, bias), slopes)
    assert again.grad is not None
    assert torch.equal(again.grad, features.grad)
    assert weight.grad is None
    assert bias.grad is None


@pytest.mark.parametrize(
    "only",
    [None, [True, False, True, True, False], [False] * 5, [True] * 5],
    ids=["no choice", "some", "none", "all"],
)
def test_images_left_out_of_a_cross_entropy_add_nothing(
    only: list[bool] | None,
) -> None:
    heads, rng = ConsistentHeads(8, ConsistencyConfig()), seeded()
    heads.open(3, rng)
    weight, bias = heads.weight.current, heads.bias.current
    assert weight is not None
    assert bias is not None
    with torch.no_grad():
        bias.normal_(generator=rng)
    features = torch.randn(5, 8, generator=rng).requires_grad_()
    classes = [2, 0, 1, 1, 2]
    drew = None if only is None else torch.tensor(only)
    loss = heads.cross_entropy(features, torch.tensor(classes), drew)
    assert loss.shape == ()
    torch.autograd.backward(loss)

    leaves = [t.detach().double().requires_grad_() for t in (features, weight, bias)]
    total = 0 * leaves[0].sum()
    for image, label in enumerate(classes):
        logits = leaves[1] @ leaves[0][image] + leaves[2]
        if only is None or only[image]:
            total = total + logits.exp().sum().log() - logits[label]
    total = total / len(classes)
    assert loss.item() == pytest.approx(total.item(), rel=1e-6)
    gradients = torch.autograd.grad(total, leaves, materialize_grads=True)
    for leaf, gradient in zip((features, weight, bias), gradients, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad.double(), gradient, rtol=1e-5, atol=1e-6)
