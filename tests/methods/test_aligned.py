"""CPrompt with keys and head from class statistics, against naive statistics and discriminants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.errors import ConfigError
from cprompt.methods.aligned import AlignedCPrompt
from cprompt.methods.base import create_method, rebuild
from cprompt.methods.registry import current_settings
from cprompt.vit.promptable import FrozenViT
from tests.methods.common import TaskImages, batch, chosen_tasks, midway, random_images, step_losses
from tests.methods.test_cprompt import SIZES, Naive, learnt


def aligned(backbone: FrozenViT, tasks: int, **settings: Any) -> AlignedCPrompt:
    """After so many tasks, each ended with its images; the last one is still open."""
    settings = {"length": 3, **settings}
    method = midway(
        AlignedCPrompt, backbone, SIZES[:tasks], settings, scale=0.2, batches=TaskImages
    )
    method.end_task(TaskImages(method))
    return method


def naive_statistics(
    method: AlignedCPrompt, prompted: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means (C, D), the middle of them and Σ, from every image of every task, one by one.

    `TaskImages` draws by the number of tasks begun, so a method of fewer tasks gives those of an
    earlier one.
    """
    naive = Naive(method, seed=0)
    prompts = [p.detach() for p in naive.prompts]
    features: list[list[np.ndarray]] = [[] for _ in range(method.n_classes)]
    for task in range(method.n_tasks):
        earlier = create_method("finetune", method.backbone)
        earlier.task_sizes = method.task_sizes[: task + 1]
        shown = TaskImages(earlier)
        for image, y in zip(shown.images, shown.targets.tolist(), strict=True):
            with torch.no_grad():
                h = naive.feature(image, prompts[task] if prompted else None)
            features[y].append(h.double().numpy())
    means = np.stack([np.mean(each, axis=0) for each in features])
    scatter, freedom = np.zeros((64, 64)), 0
    for mean, each in zip(means, features, strict=True):
        freedom += len(each) - 1
        for h in each:
            scatter += np.outer(h - mean, h - mean)
    if freedom == 0:
        return means, means.mean(0), np.eye(64)
    sigma = scatter / freedom
    squares, trace = np.trace(sigma @ sigma), np.trace(sigma)
    gain = (1 - 2 / 64) * squares + trace**2
    share = min(1, gain / ((freedom + 1 - 2 / 64) * (squares - trace**2 / 64)))
    return means, means.mean(0), (1 - share) * sigma + share * trace / 64 * np.eye(64)


@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_the_aligned_head_is_the_mean_of_two_linear_discriminants(
    backbone: FrozenViT, tasks: int
) -> None:
    method = aligned(backbone, tasks)
    method.close_task()
    naive = Naive(method, seed=0)
    image = TaskImages(method).images[0]
    with torch.no_grad():
        logits = method(image[None])[0].numpy()
        chosen = int(chosen_tasks(method, image[None]))
    total = np.zeros(method.n_classes)
    distances = np.zeros(method.n_classes)
    for prompt in (method.prompts.frozen[chosen], None):
        means, centre, sigma = naive_statistics(method, prompted=prompt is not None)
        inverse = np.linalg.inv(sigma)
        with torch.no_grad():
            x = naive.feature(image, prompt).double().numpy()
        for c, mean in enumerate(means):
            direction = inverse @ (mean - centre)
            total[c] += ((x - centre) @ direction - (mean - centre) @ direction / 2) / 2
            distances[c] -= (x - mean) @ inverse @ (x - mean) / 4
    np.testing.assert_allclose(logits, total, rtol=1e-3, atol=2e-3)
    # The same as comparing squared distances in the metric of Σ, up to what all classes share.
    gaps = logits - logits.max()
    np.testing.assert_allclose(gaps, distances - distances.max(), rtol=1e-3, atol=5e-3)


@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_aligned_keys_are_mean_queries_compared_by_the_cosine(
    backbone: FrozenViT, tasks: int
) -> None:
    method = aligned(backbone, tasks)
    method.close_task()
    means, centre, sigma = naive_statistics(method, prompted=False)
    inverse = np.linalg.inv(sigma)
    images, _ = batch(method, 9)
    with torch.no_grad():
        query = method.query(method.embed(images))
        cosines, chosen = method.keys.similarity(query).numpy(), method.choose(query).tolist()
    task_of = np.repeat(np.arange(tasks), SIZES[:tasks])
    for q, row, task in zip(query.double().numpy(), cosines, chosen, strict=True):

        def dot(a: np.ndarray, b: np.ndarray) -> float:
            return float(a @ inverse @ b)

        away = q - centre
        expected = np.array(
            [
                dot(away, mean - centre)
                / max(np.sqrt(dot(away, away) * dot(mean - centre, mean - centre)), 1e-12)
                for mean in means
            ]
        )
        np.testing.assert_allclose(row, expected, atol=1e-3)
        assert task == task_of[int(np.argmax(expected))]


def test_keys_do_not_depend_on_how_classes_came_in_tasks(backbone: FrozenViT) -> None:
    images, targets = random_images(12), torch.arange(12) % 4

    def keys(sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        method = create_method("aligned", backbone, {"length": 3})
        assert isinstance(method, AlignedCPrompt)
        for size in sizes:
            method.begin_task(size, torch.Generator().manual_seed(0))
            own = (targets >= method.known) & (targets < method.n_classes)
            method.end_task([(method.embed(images[own]), targets[own])])
            method.close_task()
        return method.keys.rows, method.keys.centre

    for one, other in zip(keys((4,)), keys((2, 1, 1)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_alignment_trains_no_key_and_changes_no_other_loss(backbone: FrozenViT) -> None:
    plain, method = learnt(backbone, 3), aligned(backbone, 3)
    for name in ("prompts", "heads"):
        getattr(method, name).load_state_dict(getattr(plain, name).state_dict())
    images, targets = batch(plain)
    losses, expected = (step_losses(m, images, targets, seed=1) for m in (method, plain))
    assert set(losses) == {"ce", "aux", "ccl"}
    for name, value in losses.items():
        assert torch.equal(value, expected[name]), name
    assert not list(method.keys.parameters())
    assert set(dict(plain.named_buffers())) == {
        "prompts.frozen",
        "heads.weight.frozen",
        "heads.bias.frozen",
        "keys.rows.frozen",
        "keys.key_task",
    }


def test_an_open_task_is_answered_by_the_heads_being_trained(backbone: FrozenViT) -> None:
    method = aligned(backbone, 2)
    h = torch.randn(3, 128, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        open_ = method.answer(h)
        torch.testing.assert_close(open_, method.heads(h[:, :64]))
        method.close_task()
        assert not torch.allclose(method.answer(h), open_)
        assert torch.equal(
            method.answer(h), F.linear(h, method.aligned_weight, method.aligned_bias)
        )


def test_classes_of_one_image_each_are_told_apart_by_distance(backbone: FrozenViT) -> None:
    method = create_method("aligned", backbone, {"length": 3})
    images = random_images(3)
    for task in range(3):
        method.begin_task(1, torch.Generator().manual_seed(task))
        method.end_task([(method.embed(images[task : task + 1]), torch.tensor([task]))])
        method.close_task()
    with torch.no_grad():
        assert method(images).argmax(-1).tolist() == [0, 1, 2]
        assert chosen_tasks(method, images).tolist() == [0, 1, 2]


def test_a_given_task_replaces_the_selection_with_align_too(backbone: FrozenViT) -> None:
    method = aligned(backbone, 3)
    method.close_task()
    images, _ = batch(method, 4)
    with torch.no_grad():
        given = method(images, task=chosen_tasks(method, images))
        torch.testing.assert_close(given, method(images))
        other = method(images, task=(chosen_tasks(method, images) + 1) % 3)
    assert not torch.allclose(given, other)


def test_aligned_and_saved_it_answers_the_same(backbone: FrozenViT) -> None:
    method = aligned(backbone, 4)
    method.close_task()
    again = create_method("aligned", backbone, {"length": 3})
    rebuild(again, method.task_sizes, method.state_dict(), open_=False)
    images, _ = batch(method)
    with torch.no_grad():
        assert torch.equal(again(images), method(images))


def test_every_class_needs_a_key_of_its_own(backbone: FrozenViT) -> None:
    with pytest.raises(ConfigError, match="keys must be 'class'"):
        create_method("aligned", backbone, {"keys": "task"})


def test_what_was_stored_as_a_setting_of_cprompt_is_read_as_this_method() -> None:
    assert current_settings({"name": "cprompt", "align": True, "length": 5}) == {
        "name": "aligned",
        "length": 5,
    }
    assert current_settings({"name": "cprompt", "align": False, "tau": 1.2}) == {
        "name": "cprompt",
        "tau": 1.2,
    }
    assert current_settings({"name": "slca", "align_epochs": 5}) == {
        "name": "slca",
        "align_epochs": 5,
    }
