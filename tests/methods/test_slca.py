"""SLCA against a naive reference: one image at a time, alignment written out."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method
from cprompt.methods.slca import SLCA, mean_scale, normalised_cross_entropy
from cprompt.research.checkpoint import load_checkpoint
from cprompt.research.config import resolve
from cprompt.research.experiment import CHECKPOINT, run
from cprompt.research.record import Record
from cprompt.seeds import generator
from cprompt.vit.promptable import FrozenViT
from tests.methods.common import (
    TaskImages,
    assert_losses_and_gradients,
    backward,
    midway,
    step_losses,
)

SIZES = (3, 2, 1, 4)
SMALL = {"samples": 4, "align_epochs": 3}


def opened(backbone: FrozenViT, tasks: int, **settings: Any) -> SLCA:
    return midway(
        SLCA, backbone, SIZES[:tasks], {**SMALL, **settings}, scale=0.05, batches=TaskImages
    )


def feature(vit: Any, image: Tensor) -> Tensor:
    return vit.forward_features(image[None])[0, 0]  # type: ignore[no-any-return]


def naive_normalised(logits: Tensor, y: int, sizes: tuple[int, ...], tau: float) -> Tensor:
    """The loss of one feature, task by task and class by class."""
    norms, start = [], 0
    for size in sizes:
        squares = sum(logits[c] ** 2 for c in range(start, start + size))
        norms.append(torch.as_tensor(squares).sqrt() + 1e-7)
        start += size
    scaled = [value / (sum(norms) / len(norms)) / tau for value in logits]
    return torch.stack(scaled).logsumexp(0) - scaled[y]


@pytest.mark.parametrize("tasks", [1, 2, 3, 4])
def test_loss_and_gradients_equal_the_naive_reference(backbone: FrozenViT, tasks: int) -> None:
    method = opened(backbone, tasks)
    vit = copy.deepcopy(method.tuned.vit)
    current = method.heads.weight.current, method.heads.bias.current
    weight, bias = (t.detach().clone().requires_grad_() for t in current if t is not None)
    images, targets = TaskImages(method).images[-5:], TaskImages(method).targets[-5:]
    terms = []
    for image, y in zip(images, targets, strict=True):
        logits = weight @ feature(vit, image) + bias
        terms.append(logits.exp().sum().log() - logits[y - sum(SIZES[: tasks - 1])])
    expected = {"ce": torch.stack(terms).mean()}
    backward(expected)

    losses = step_losses(method, images, targets)
    gradients = {f"tuned.vit.{n}": p.grad for n, p in vit.named_parameters()}
    gradients |= {"heads.weight.current": weight.grad, "heads.bias.current": bias.grad}
    assert_losses_and_gradients(method, losses, expected, gradients)
    if SIZES[tasks - 1] > 1:
        assert all(g.abs().max() > 1e-7 for n, g in gradients.items() if n.endswith("weight"))  # type: ignore[union-attr]


@pytest.mark.parametrize("sizes", [(3, 1, 2), (5,), (2, 4)])
def test_the_alignment_loss_and_its_gradient_equal_the_naive_ones(sizes: tuple[int, ...]) -> None:
    rng = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(7, sum(sizes), generator=rng)).requires_grad_()
    classes = torch.randint(sum(sizes), (7,), generator=rng)
    loss = normalised_cross_entropy(logits, classes, sizes, 0.1)
    (ours,) = torch.autograd.grad(loss, logits)
    each = [naive_normalised(logits[i], int(classes[i]), sizes, 0.1) for i in range(7)]
    expected = torch.stack(each).mean()
    (gradient,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours, gradient, rtol=1e-5, atol=1e-5)


def test_the_alignment_loss_worked_by_hand() -> None:
    # Norms 5 and 1, mean 3: logits over 3 · 0.5 are 2, 8/3 and -2/3.
    loss = normalised_cross_entropy(
        torch.tensor([[3.0, 4.0, -1.0]]), torch.tensor([0]), (2, 1), temperature=0.5
    )
    expected = math.log(math.exp(2) + math.exp(8 / 3) + math.exp(-2 / 3)) - 2
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_alignment_loss_of_zero_logits_is_finite() -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    loss = normalised_cross_entropy(logits, torch.tensor([2]), (2, 1), 0.1)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == pytest.approx(math.log(3))
    assert torch.isfinite(gradient).all()


def test_old_means_shrink_by_their_own_task_even_if_the_last_one_is_short() -> None:
    expected = [1 - 0.1 * 2 / 3] * 2 + [1 - 0.1 / 3] * 2 + [1.0]
    assert mean_scale((2, 2, 1), 0.1).tolist() == pytest.approx(expected)
    assert mean_scale((2, 2, 1), 0.0).tolist() == [1.0] * 5
    assert mean_scale((4,), 0.1).tolist() == [1.0] * 4
    cars = mean_scale((20,) * 9 + (16,), 0.1)
    assert cars[[0, 19, 20, 179, 180, 195]].tolist() == pytest.approx(
        [0.91] * 2 + [0.92, 0.99, 1, 1]
    )


@pytest.mark.parametrize("kind", ["full", "variance"])
def test_after_a_task_the_aligned_head_is_the_naive_ones(backbone: FrozenViT, kind: str) -> None:
    method = opened(backbone, 4, covariance=kind, mean_decay=0.3, temperature=0.2, seed=6)
    earlier = method.gaussians.mean[:6].clone(), method.gaussians.covariance[:6].clone()
    shown = TaskImages(method)
    heads = [t.all().detach().clone() for t in (method.heads.weight, method.heads.bias)]
    method.end_task(shown)

    with torch.no_grad():
        x = torch.stack([feature(method.tuned.vit, i) for i in shown.images]).double().numpy()
    means, roots = [], []
    for c in range(10):
        if c < 6:
            mean, sigma = (t[c].double().numpy() for t in earlier)
            sigma = sigma if kind == "full" else np.diag(sigma)
        else:
            own = x[shown.targets.numpy() == c]
            mean = own.mean(0)
            sigma = np.cov(own.T) if len(own) > 1 else np.zeros((64, 64))
            np.testing.assert_allclose(method.gaussians.mean[c].numpy(), mean, atol=1e-5)
            sigma = sigma if kind == "full" else np.diag(np.diag(sigma))
        task = [0, 0, 0, 1, 1, 2, 3, 3, 3, 3][c]
        means.append(torch.tensor(mean * [0.775, 0.85, 0.925, 1.0][task]).float())
        roots.append(torch.tensor(np.linalg.cholesky(sigma + 1e-4 * np.eye(64))).float())

    rng = generator(6, 3)
    weight, bias = (t.clone().requires_grad_() for t in heads)
    optimizer = torch.optim.SGD([weight, bias], lr=0.01, momentum=0.9, weight_decay=5e-4)
    for epoch in range(3):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 + math.cos(math.pi * epoch / 3)) / 2
        noise = torch.randn(10, 4, 64, generator=rng)
        drawn = [(means[c] + roots[c] @ noise[c, i], c) for c in range(10) for i in range(4)]
        order = torch.randperm(40, generator=rng).tolist()
        for step in range(10):
            part = [drawn[i] for i in order[4 * step : 4 * step + 4]]
            losses = [naive_normalised(weight @ h + bias, c, SIZES, 0.2) for h, c in part]
            optimizer.zero_grad()
            torch.stack(losses).mean().backward()
            optimizer.step()
    torch.testing.assert_close(method.aligned_weight, weight.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(method.aligned_bias, bias.detach(), rtol=1e-5, atol=1e-5)
    assert (method.aligned_weight - heads[0]).abs().max() > 1e-3

    method.close_task()
    image = shown.images[:1]
    with torch.no_grad():
        expected = method.aligned_weight @ feature(method.tuned.vit, image[0]) + method.aligned_bias
        torch.testing.assert_close(method(image)[0], expected, rtol=1e-5, atol=1e-5)


def test_alignment_starts_from_the_task_heads_as_they_were_trained(backbone: FrozenViT) -> None:
    method = opened(backbone, 2)
    trained = method.heads.weight.all().detach().clone()
    method.end_task(TaskImages(method))
    method.close_task()
    assert torch.equal(method.heads.weight.frozen, trained)
    assert not torch.allclose(method.aligned_weight, trained)


def test_one_task_is_answered_by_its_own_head(backbone: FrozenViT) -> None:
    method = opened(backbone, 1)
    images = TaskImages(method).images
    with torch.no_grad():
        before = method(images)
        method.end_task(TaskImages(method))
        method.close_task()
        assert torch.equal(method(images), before)


def test_what_is_drawn_depends_on_the_seed_setting_alone(backbone: FrozenViT) -> None:
    def aligned(seed: int, global_seed: int) -> Tensor:
        method = opened(backbone, 2, seed=seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(global_seed)
            method.end_task(TaskImages(method))
        return method.aligned_weight

    assert torch.equal(aligned(0, 1), aligned(0, 2))
    assert not torch.equal(aligned(0, 1), aligned(1, 1))


def test_a_task_of_one_class_with_one_image_is_learnt(backbone: FrozenViT) -> None:
    method = opened(backbone, 3)
    assert len(TaskImages(method).targets) == 1
    method.end_task(TaskImages(method))
    method.close_task()
    assert not method.gaussians.covariance[-1].any()
    with torch.no_grad():
        logits = method(TaskImages(method).images)
    assert logits.shape == (1, sum(SIZES[:3]))
    assert torch.isfinite(logits).all()


def test_a_run_in_bf16_is_near_the_one_in_fp32_but_not_the_same(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    def trained(precision: str) -> tuple[Record, dict[str, Tensor]]:
        small = {"training.epochs": 1, "training.precision": precision, "method.align_epochs": 1}
        record = run(resolve("shapes", "slca", overrides=tiny | small), tmp_path / precision)
        return record, load_checkpoint(tmp_path / precision / CHECKPOINT)[0]

    (exact, fp32), (rough, bf16) = trained("fp32"), trained("bf16")
    for task in (0, 2):  # the one class of the second task has no loss
        a, b = (record.losses[task][0]["ce"] for record in (exact, rough))
        assert a != b
        assert a == pytest.approx(b, rel=0.05)
    learnt = [n for n in fp32 if n.startswith("method/tuned.") and n.endswith("qkv.weight")]
    assert len(learnt) == 6
    for name in learnt:
        assert fp32[name].dtype == bf16[name].dtype == torch.float32
        assert 0 < (fp32[name] - bf16[name]).norm() / fp32[name].norm() < 0.01


@pytest.mark.parametrize(
    "wrong", [{"temperature": 0.0}, {"mean_decay": 1.0}, {"backbone_lr_scale": 0.0}, {"samples": 0}]
)
def test_settings_that_make_no_sense_are_named(backbone: FrozenViT, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        create_method("slca", backbone, wrong)


def test_heads_of_the_recipe_start_small_so_that_the_backbone_starts_slowly(
    backbone: FrozenViT,
) -> None:
    """The gradient that reaches the backbone at the first step, under both starts of the heads."""
    recipe = resolve("cars10", "slca").settings
    assert recipe["head_init"] == "normal"
    norms = {}
    for init in ("normal", "kaiming"):
        method = create_method("slca", backbone, {"head_init": init})
        assert isinstance(method, SLCA)
        method.begin_task(40, torch.Generator().manual_seed(0))
        assert method.heads.weight.current is not None
        spread = float(method.heads.weight.current.detach().std())
        assert spread == pytest.approx(0.02 if init == "normal" else backbone.dim**-0.5, rel=0.1)
        images = torch.randn(8, 3, 48, 48, generator=torch.Generator().manual_seed(0))
        method.loss(method.embed(images), torch.arange(8), {})["ce"].backward()
        gradients = [p.grad for p in method.tuned.parameters() if p.grad is not None]
        norms[init] = float(torch.stack([g.square().sum() for g in gradients]).sum().sqrt())
    assert norms["normal"] < norms["kaiming"] / 2
