"""HiDe-Prompt against a naive reference: one image, head and class at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method
from cprompt.methods.hide import HiDe, contrast_loss
from cprompt.seeds import generator
from cprompt.vit.promptable import FrozenViT
from tests.methods.common import (
    TaskImages,
    assert_losses_and_gradients,
    backward,
    chosen_tasks,
    midway,
    step_losses,
)

SIZES = (3, 2, 1, 4)
SMALL = {"length": 3, "layers": [0, 2, 3], "samples": 4, "align_epochs": 3}


def opened(backbone: FrozenViT, tasks: int, **settings: Any) -> HiDe:
    return midway(HiDe, backbone, SIZES[:tasks], {**SMALL, **settings}, batches=TaskImages)


def closed(backbone: FrozenViT, tasks: int, **settings: Any) -> HiDe:
    method = opened(backbone, tasks, **settings)
    method.end_task(TaskImages(method))
    method.close_task()
    return method


def naive_attention(attn: Any, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One image (N, D), head by head, with a prefix before its keys and values."""
    dim, width = x.shape[1], x.shape[1] // attn.num_heads
    q, k, v = (attn.qkv.weight @ x.T + attn.qkv.bias[:, None]).T.split(dim, dim=1)
    k, v = torch.cat([key, k]), torch.cat([value, v])
    heads = []
    for h in range(attn.num_heads):
        part = slice(h * width, (h + 1) * width)
        heads.append((q[:, part] @ k[:, part].T / width**0.5).softmax(1) @ v[:, part])
    return torch.cat(heads, 1) @ attn.proj.weight.T + attn.proj.bias


def feature(backbone: FrozenViT, image: Tensor, prompt: Tensor | None) -> Tensor:
    """The class token after the final norm; `prompt` (layers, 2, L, D), keys then values."""
    vit: Any = backbone.vit
    x = vit._pos_embed(vit.patch_embed(image[None]))[0]
    for i, block in enumerate(vit.blocks):
        at = {0: 0, 2: 1, 3: 2}.get(i)
        none = x.new_zeros(0, x.shape[1])
        key, value = (none, none) if prompt is None or at is None else prompt[at]
        x = x + naive_attention(block.attn, block.norm1(x), key, value)
        x = x + block.mlp(block.norm2(x))
    return vit.norm(x)[0]  # type: ignore[no-any-return]


def naive_contrast(features: list[Tensor], means: list[Tensor], tau: float) -> Tensor:
    everything = [*means, *features]
    terms = []
    for a in everything:
        total = torch.stack([(a * b).sum() / tau for b in everything]).logsumexp(0)
        terms.append(total - (a * a).sum() / tau)
    return torch.stack(terms).mean()


def data(parameter: nn.Parameter | None) -> Tensor:
    assert parameter is not None
    return parameter.detach().clone()


@pytest.mark.parametrize("tasks", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "settings",
    [{}, {"ensemble": 0.4, "contrast": 3.0, "contrast_temperature": 40.0}],
    ids=["the code's", "strong"],
)
def test_losses_and_gradients_equal_the_naive_reference(
    backbone: FrozenViT, tasks: int, settings: dict[str, Any]
) -> None:
    method = opened(backbone, tasks, **settings)
    config, known = method.config, sum(SIZES[: tasks - 1])
    e = data(method.prompts.current)[0].requires_grad_()
    weight = data(method.heads.weight.current).requires_grad_()
    bias = data(method.heads.bias.current).requires_grad_()
    prompt = e
    if tasks > 1:
        old = sum(method.prompts.frozen[i] for i in range(tasks - 1)) / (tasks - 1)
        prompt = (1 - config.ensemble) * e + config.ensemble * old
    shown = TaskImages(method)
    images, targets = shown.images[-5:], shown.targets[-5:]
    features, terms = [], []
    for image, y in zip(images, targets, strict=True):
        h = feature(backbone, image, prompt)
        logits = weight @ h + bias
        features.append(h)
        terms.append(logits.logsumexp(0) - logits[y - known])
    means = [method.prompted.mean[c] for c in range(known)]
    contrast = naive_contrast(features, means, config.contrast_temperature)
    expected = {"ce": torch.stack(terms).mean(), "contrast": config.contrast * contrast}
    backward(expected)

    losses = step_losses(method, images, targets)
    assert e.grad is not None
    gradients = {
        "prompts.current": e.grad[None],
        "heads.weight.current": weight.grad,
        "heads.bias.current": bias.grad,
    }
    assert_losses_and_gradients(method, losses, expected, gradients)


@pytest.mark.parametrize("n_means", [0, 1, 4])
def test_the_contrastive_loss_and_its_gradient_equal_the_naive_ones(n_means: int) -> None:
    rng = torch.Generator().manual_seed(1)
    features = torch.randn(5, 8, generator=rng).requires_grad_()
    means = torch.randn(n_means, 8, generator=rng)
    loss = contrast_loss(features, means, 0.8)
    (ours,) = torch.autograd.grad(loss, features)
    expected = naive_contrast(list(features), list(means), 0.8)
    (gradient,) = torch.autograd.grad(expected, features)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours, gradient, rtol=1e-5, atol=1e-5)


def test_the_contrastive_loss_worked_by_hand() -> None:
    # The mean (1, 0) and the feature (2, 0), at temperature 2: similarities 1/2, 1, 1 and 2.
    loss = contrast_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0]]), 2.0)
    rows = (math.log(1 + math.exp(0.5)), math.log(1 + math.exp(-1)))
    assert loss.item() == pytest.approx(sum(rows) / 2)


def test_a_closed_prompt_is_the_ensemble_and_the_next_one_starts_from_it(
    backbone: FrozenViT,
) -> None:
    method = opened(backbone, 1, ensemble=0.25)
    first = data(method.prompts.current)
    method.close_task()
    assert torch.equal(method.prompts.frozen, first)
    for size in (2, 1):
        method.begin_task(size, torch.Generator())
        assert torch.equal(data(method.prompts.current), method.prompts.frozen[-1:])
        frozen = method.prompts.frozen
        assert method.prompts.current is not None
        method.prompts.current.data.fill_(float(size))
        method.close_task()
        expected = 0.75 * size + 0.25 * frozen.mean(0)
        torch.testing.assert_close(method.prompts.frozen[-1], expected)


def test_open_or_closed_the_same_prompt_acts(backbone: FrozenViT) -> None:
    method = opened(backbone, 4, ensemble=0.5)
    images = TaskImages(method).images
    task = torch.full((len(images),), 3)
    with torch.no_grad():
        before = method(images, task=task)
        method.close_task()
        torch.testing.assert_close(method(images, task=task), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["full", "variance"])
def test_statistics_are_of_the_plain_and_of_the_prompted_features(
    backbone: FrozenViT, kind: str
) -> None:
    method = closed(backbone, 4, covariance=kind)
    shown = TaskImages(method)
    for gaussians, prompt in (
        (method.plain, None),
        (method.prompted, method.prompts.frozen[-1]),
    ):
        x = torch.stack([feature(backbone, i, prompt) for i in shown.images]).double().numpy()
        for c in range(6, 10):
            own = x[shown.targets.numpy() == c]
            assert gaussians.count[c] == len(own) == (1 if c == 9 else 3)
            np.testing.assert_allclose(gaussians.mean[c].numpy(), own.mean(0), atol=1e-5)
            sigma = np.cov(own.T) if len(own) > 1 else np.zeros((64, 64))
            sigma = sigma if kind == "full" else np.diag(sigma)
            np.testing.assert_allclose(gaussians.covariance[c].numpy(), sigma, atol=1e-5)


@pytest.mark.parametrize("kind", ["full", "variance"])
def test_both_heads_learn_from_drawn_features_as_the_naive_ones_do(
    backbone: FrozenViT, kind: str
) -> None:
    method = opened(
        backbone, 4, covariance=kind, seed=6, align_lr=0.02, align_weight_decay=0.01, ensemble=0.3
    )
    start = {
        0: (method.tii_weight.clone(), method.tii_bias.clone()),
        1: (method.heads.weight.all().detach().clone(), method.heads.bias.all().detach().clone()),
    }
    method.end_task(TaskImages(method))
    after = {
        0: (method.tii_weight, method.tii_bias),
        1: (method.heads.weight.all().detach(), method.heads.bias.all().detach()),
    }
    for which, gaussians in ((0, method.plain), (1, method.prompted)):
        roots = []
        for kept in gaussians.covariance.double().numpy():
            sigma = kept if kind == "full" else np.diag(kept)
            roots.append(torch.tensor(np.linalg.cholesky(sigma + 1e-4 * np.eye(64))).float())
        weight, bias = (t.clone().requires_grad_() for t in start[which])
        optimizer = torch.optim.SGD([weight, bias], lr=0.02, momentum=0.9, weight_decay=0.01)
        rng = generator(6, 3, which)
        for epoch in range(3):
            optimizer.param_groups[0]["lr"] = 0.02 * (1 + math.cos(math.pi * epoch / 3)) / 2
            noise = torch.randn(10, 4, 64, generator=rng)
            drawn = [
                (gaussians.mean[c] + roots[c] @ noise[c, i], c) for c in range(10) for i in range(4)
            ]
            order = torch.randperm(40, generator=rng).tolist()
            for step in range(10):
                losses = []
                for h, c in (drawn[i] for i in order[4 * step : 4 * step + 4]):
                    logits = weight @ h + bias
                    losses.append(logits.logsumexp(0) - logits[c])
                optimizer.zero_grad()
                torch.stack(losses).mean().backward()
                optimizer.step()
        torch.testing.assert_close(after[which][0], weight.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(after[which][1], bias.detach(), rtol=1e-4, atol=1e-5)
        assert (after[which][0][:6] - start[which][0][:6]).abs().max() > 1e-3  # old rows too


def test_the_first_task_is_not_aligned(backbone: FrozenViT) -> None:
    method = opened(backbone, 1)
    before = method.heads.weight.all().detach().clone(), method.tii_weight.clone()
    method.end_task(TaskImages(method))
    assert torch.equal(method.heads.weight.all(), before[0])
    assert torch.equal(method.tii_weight, before[1])


def test_the_task_chosen_is_that_of_the_identity_heads_best_class(backbone: FrozenViT) -> None:
    method = closed(backbone, 4)
    images = torch.randn(10, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        h = torch.stack([feature(backbone, image, None) for image in images])
        method.tii_weight = h - h.mean(0)  # image c is most like class c
        method.tii_bias = -method.tii_weight @ h.mean(0)
        assert (h @ method.tii_weight.T + method.tii_bias).argmax(1).tolist() == [*range(10)]
        assert chosen_tasks(method, images).tolist() == [0, 0, 0, 1, 1, 2, 3, 3, 3, 3]
        assert chosen_tasks(method, images[[9, 3]]).tolist() == [3, 1]


def test_each_image_gets_the_keys_and_values_of_its_own_prompt(backbone: FrozenViT) -> None:
    method = closed(backbone, 3)
    rng = torch.Generator().manual_seed(2)
    method.prompts.frozen = torch.randn(3, 3, 2, 3, 64, generator=rng)
    images = torch.randn(5, 3, 48, 48, generator=rng)
    task = torch.tensor([2, 0, 1, 1, 0])
    with torch.no_grad():
        logits = method(images, task=task)
        for b in range(5):
            h = feature(backbone, images[b], method.prompts.frozen[task[b]])
            expected = method.heads.weight.frozen @ h + method.heads.bias.frozen
            torch.testing.assert_close(logits[b], expected, rtol=1e-5, atol=1e-5)


def test_a_task_of_one_class_with_one_image_is_learnt(backbone: FrozenViT) -> None:
    method = closed(backbone, 3)
    assert not method.plain.covariance[-1].any()
    assert not method.prompted.covariance[-1].any()
    with torch.no_grad():
        logits = method(torch.zeros(2, 3, 48, 48))
    assert logits.shape == (2, sum(SIZES[:3]))
    assert torch.isfinite(logits).all()


def test_what_is_drawn_depends_on_the_seed_setting_alone(backbone: FrozenViT) -> None:
    def learnt(seed: int, global_seed: int) -> tuple[Tensor, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(global_seed)
            method = closed(backbone, 2, seed=seed)
        return method.tii_weight, method.heads.weight.frozen

    for a, b, c in zip(learnt(0, 1), learnt(0, 2), learnt(1, 1), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_head_and_prompt_have_rates_of_their_own(backbone: FrozenViT) -> None:
    method = opened(backbone, 2, head_lr_scale=0.3)
    prompt, head = method.parameter_groups()
    assert prompt == {"params": [method.prompts.current]}
    assert head["lr_scale"] == 0.3
    assert head["params"] == [method.heads.weight.current, method.heads.bias.current]


def test_prompts_stand_in_the_first_five_blocks_unless_told(backbone: FrozenViT) -> None:
    method = create_method("hide", backbone)
    assert isinstance(method, HiDe)
    assert method.layers == (0, 1, 2, 3, 4)
    with pytest.raises(ConfigError, match="has no block 6, only 0 to 5"):
        create_method("hide", backbone, {"layers": [0, 6]})


@pytest.mark.parametrize(
    "wrong",
    [
        {"length": 0},
        {"layers": [1, 1]},
        {"ensemble": 1.0},
        {"contrast": -1.0},
        {"contrast_temperature": 0.0},
        {"head_lr_scale": 0.0},
        {"align_epochs": 0},
    ],
)
def test_settings_that_make_no_sense_are_named(backbone: FrozenViT, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        create_method("hide", backbone, wrong)
