"""The benchmarks compare like with like: the same mathematics, on the same draws."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial

import pytest
import timm
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.common import Rounds, interleave, peak_memory, slug
from benchmarks.released import ReleasedCPrompt
from benchmarks.work import count_work
from cprompt.methods.cprompt import CPrompt
from cprompt.vit.products import FLOP
from cprompt.vit.promptable import FrozenViT
from tests.methods.common import (
    assert_losses_and_gradients,
    backward,
    batch,
    chosen_tasks,
    midway,
    step_losses,
)

SIZES = (3, 2, 1, 4)
MARGIN = 1.5  # wide enough to decide the temperature of some images here


def learnt(backbone: FrozenViT, tasks: int) -> CPrompt:
    return midway(CPrompt, backbone, SIZES[:tasks], {"length": 3, "margin": MARGIN}, scale=0.2)


def drawn_tasks(method: CPrompt, images: int, seed: int) -> list[int]:
    """The task whose prompt each image draws in a step with that seed."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(method.n_tasks, (images,), generator=rng).tolist()


def released_copy(method: CPrompt) -> ReleasedCPrompt:
    """The released model in the same state, with keys of two more classes to come."""
    sizes = method.task_sizes
    released = ReleasedCPrompt(
        copy.deepcopy(method.backbone.vit),
        [*sizes, 2],
        length=3,
        layers=(0, 2),
        margin=method.config.margin,
    )
    for _ in sizes:
        released.begin_task()
    assert released.aux is not None
    with torch.no_grad():
        for mine, theirs in zip(released.prompts, method.prompts.all(), strict=True):
            for segment, values in zip(mine, theirs, strict=True):
                segment.copy_(values)
        weights, biases = (
            torch.split(rows.all(), sizes) for rows in (method.heads.weight, method.heads.bias)
        )
        for head, weight, bias in zip(released.heads, weights, biases, strict=True):
            head.weight.copy_(weight)
            head.bias.copy_(bias)
        if method.heads.aux_weight is not None and method.heads.aux_bias is not None:
            released.aux.weight.copy_(method.heads.aux_weight)
            released.aux.bias.copy_(method.heads.aux_bias)
        released.keys[: sum(sizes)] = method.keys.rows.all()
    return released


@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_the_released_step_has_our_losses_and_gradients(backbone: FrozenViT, tasks: int) -> None:
    method = learnt(backbone, tasks)
    released = released_copy(method)
    images, targets = batch(method)
    losses = step_losses(method, images, targets, seed=3)
    expected = released.losses(images, targets, drawn_tasks(method, len(images), seed=3))
    backward(expected)

    first, second = released.prompts[-1]
    head, aux, keys = released.heads[-1], released.aux, released.keys.grad
    assert aux is not None
    assert keys is not None
    assert first.grad is not None
    assert second.grad is not None
    known, seen = sum(SIZES[: tasks - 1]), sum(SIZES[:tasks])
    gradients = {
        "prompts.current": torch.stack([first.grad, second.grad])[None],
        "heads.weight.current": head.weight.grad,
        "heads.bias.current": head.bias.grad,
        "heads.aux_weight": aux.weight.grad,
        "heads.aux_bias": aux.bias.grad,
        "keys.rows.current": keys[known:seen],
    }
    assert_losses_and_gradients(method, losses, expected, gradients)
    assert not keys[:known].any()
    assert not keys[seen:].any()
    frozen = [*released.prompts[:-1], *(list(h.parameters()) for h in released.heads[:-1])]
    assert all(p.grad is None and not p.requires_grad for group in frozen for p in group)


def test_a_released_step_is_sgd_on_everything_and_returns_the_loss(backbone: FrozenViT) -> None:
    method = learnt(backbone, 3)
    released = released_copy(method)
    images, targets = batch(method)
    losses = step_losses(method, images, targets, seed=8)
    keys = released.keys.detach().clone()
    backward(losses)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    optimizer.step()

    total = released.step(images, targets, torch.Generator().manual_seed(8))

    assert total == pytest.approx(sum(float(loss.detach()) for loss in losses.values()), rel=1e-5)
    assert method.prompts.current is not None
    torch.testing.assert_close(torch.stack([*released.prompts[-1]]), method.prompts.current[0])
    torch.testing.assert_close(released.heads[-1].weight, method.heads.weight.current)
    others = [0, 1, 2, 3, 4, 6, 7]  # keys of old tasks and of the one to come: decay only
    decayed = keys[others] * (1 - 0.01 * 5e-4)
    torch.testing.assert_close(released.keys[others], decayed, rtol=1e-6, atol=0)


def test_released_prediction_is_ours(backbone: FrozenViT) -> None:
    method = learnt(backbone, 4)
    released = released_copy(method)
    images, _ = batch(method)
    with torch.no_grad():
        directions = method.backbone(images)
        released.keys[torch.tensor([0, 4, 5, 8])] = directions[:4]
        method.keys.rows.frozen[[0, 4, 5]] = directions[:3]
        method.keys.rows.current[2] = directions[3]  # type: ignore[index]
        assert chosen_tasks(method, images)[:4].tolist() == [0, 1, 2, 3]
        torch.testing.assert_close(released.predict(images), method(images), rtol=1e-4, atol=1e-5)


def test_a_new_released_prompt_is_a_copy_of_the_last(backbone: FrozenViT) -> None:
    released = ReleasedCPrompt(copy.deepcopy(backbone.vit), [3, 2], length=4, layers=(0, 2))
    released.begin_task()
    bound = 64**-0.5
    assert 0.95 * bound < max(float(s.detach().abs().max()) for s in released.prompts[0]) <= bound
    torch.testing.assert_close(released.keys @ released.keys.T, torch.eye(5), rtol=0, atol=1e-5)
    released.begin_task()
    for new, old in zip(released.prompts[1], released.prompts[0], strict=True):
        assert torch.equal(new, old)
        assert new.requires_grad
        assert not old.requires_grad


def flops(losses: Callable[[], Mapping[str, Tensor]]) -> int:
    """FLOP of losses and gradients; attention is taken apart so that none is computed twice."""
    with (
        FlopCounterMode(display=False, custom_mapping=FLOP) as counter,
        sdpa_kernel(SDPBackend.MATH),
    ):
        backward(losses())
    return int(counter.get_total_flops())


def test_the_work_counted_is_the_work_done(backbone: FrozenViT) -> None:
    """Two tasks, so half of the images pass again; what is left are heads and keys, by hand."""
    method = midway(CPrompt, backbone, (2, 2), {"length": 3})
    released = released_copy(method)
    images, targets = batch(method, 6)
    work = count_work(backbone.vit, (0, 2), 3)
    head = 2 * 6 * 64 * 2  # six images, two classes
    trained_heads = 2 * 3 * head  # the task's and the auxiliary one; two gradients each
    consistency = 2 * head + head  # the old head, with a gradient; the current one, without
    keys = 2 * 2 * head  # of four classes, with one gradient
    small = trained_heads + consistency + keys

    done = flops(lambda: released.losses(images, targets, [0, 1, 0, 1, 0, 1]))
    surely = 6 * work.prompted.gradient * 0.5**6  # somebody did draw the current prompt
    assert done == work.released(6, 2) + surely + small

    seed = next(s for s in range(99) if sum(drawn_tasks(method, 6, s)) == 3)
    done = flops(lambda: step_losses(method, images, targets, seed))
    of_old_prompts = 2 * head  # the task's head has a part of its own; one gradient
    assert done == work.least(6, 2) + small + of_old_prompts


def test_work_of_the_paper_s_model_is_what_its_layers_add_up_to() -> None:
    """ViT-B/16, 224 px, 50 tokens before blocks 0 and 5: multiply-adds by hand, two FLOP each."""
    with torch.device("meta"):  # shapes without numbers
        vit = timm.create_model("vit_base_patch16_224", num_classes=0)
    work = count_work(vit, (0, 5), 50)
    d, embedding = 768, 196 * 768 * 768
    first, then = (12 * n * d**2 + 2 * n**2 * d for n in (247, 297))
    assert work.embedding == 2 * embedding
    assert work.prompted.forward == 2 * (5 * first + 7 * then)
    assert work.plain.forward == 2 * 12 * (12 * 197 * d**2 + 2 * 197**2 * d)
    assert work.prompted.gradient - work.prompted.forward == 4 * d * (5 * 247**2 + 7 * 297**2)
    last = 2 * 297 * d**2 + 10 * d**2 + 2 * 297 * d
    assert work.prompted.read_forward == 2 * (5 * first + 6 * then + last)
    assert work.prompted.read_gradient - work.prompted.read_forward == 4 * d * (
        5 * 247**2 + 6 * 297**2 + 297
    )


def test_contenders_are_called_in_turn() -> None:
    calls: list[str] = []
    contenders = {name: partial(calls.append, name) for name in "ab"}
    timings = interleave(contenders, torch.device("cpu"), Rounds(warmup=2, repeats=3, calls=2))
    assert "".join(calls) == "aabb" + 3 * "aabb"
    assert all(0 <= t.low <= t.median <= t.high for t in timings.values())


def test_peak_memory_counts_what_was_already_freed() -> None:
    peak = peak_memory(partial(torch.ones, 50_000_000), torch.device("cpu"))
    pages_there_before = 1e6  # a process has some free memory that it asks nobody for
    assert peak is None or 200e6 - pages_there_before <= peak < 300e6


@pytest.mark.parametrize(
    ("name", "folder"),
    [("NVIDIA H200", "h200"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("cpu", "cpu")],
)
def test_a_machine_s_folder_has_a_short_name(name: str, folder: str) -> None:
    assert slug(name) == folder
