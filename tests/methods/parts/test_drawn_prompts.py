"""Prompts drawn at random: what is drawn, and that rounding up its length changes nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cprompt.methods.parts.drawn_prompts import draw_tasks, old_features, with_old
from cprompt.methods.registry import METHODS
from cprompt.vit.promptable import FrozenViT
from tests.methods.common import backward, batch, midway


def drawn(images: int, tasks: int, seed: int, multiple: int = 1) -> tuple[list[int], list[int]]:
    draws = draw_tasks(images, tasks, torch.Generator().manual_seed(seed), multiple)
    return draws["old_images"].tolist(), draws["old_tasks"].tolist()


def test_every_task_is_equally_likely_for_every_image() -> None:
    tasks, images, rounds = 4, 5, 2000
    counts = torch.zeros(images, tasks)
    for seed in range(rounds):
        current = set(range(images))
        for image, task in zip(*drawn(images, tasks, seed), strict=True):
            counts[image, task] += 1
            current.remove(image)  # an error if one was told twice
        counts[sorted(current), tasks - 1] += 1
    expected = rounds / tasks
    deviation = math.sqrt(rounds * (1 / tasks) * (1 - 1 / tasks))
    assert (counts - expected).abs().max() < 4.5 * deviation  # of 20 counts


def test_the_first_numbers_of_the_generator_are_the_tasks() -> None:
    for seed in range(20):
        each = torch.randint(3, (7,), generator=torch.Generator().manual_seed(seed)).tolist()
        expected = [(image, task) for image, task in enumerate(each) if task < 2]
        assert [*zip(*drawn(7, 3, seed), strict=True)] == expected


@pytest.mark.parametrize("multiple", [1, 3, 4, 16])
def test_the_length_is_rounded_up_by_repeating_the_last_pair(multiple: int) -> None:
    lengths = set()
    for seed in range(60):
        pairs = [*zip(*drawn(7, 2, seed), strict=True)]
        rounded = [*zip(*drawn(7, 2, seed, multiple), strict=True)]
        lengths.add(len(rounded))
        # The multiples below the batch, and the batch itself, which is never exceeded.
        wanted = next(n for n in (*range(0, 7, multiple), 7) if n >= len(pairs))
        assert rounded == pairs + pairs[-1:] * (wanted - len(pairs))
    assert lengths <= {*range(0, 7, multiple), 7}
    assert 7 in lengths


def test_nothing_is_told_where_all_drew_the_current_task() -> None:
    seed = next(s for s in range(999) if not drawn(3, 2, s)[0])
    assert drawn(3, 2, seed, multiple=4) == ([], [])
    assert drawn(3, 1, 0) == ([], [])


def test_without_prompt_consistency_no_task_is_drawn(backbone: FrozenViT) -> None:
    settings = {"length": 1, "pcl": False}
    method = midway(METHODS["cprompt"], backbone, (2, 3), settings)
    assert method.draw(5, torch.Generator().manual_seed(0)) == {}


def test_features_of_old_prompts_take_their_images_places_without_gradient() -> None:
    draws = {"old_images": torch.tensor([3, 1, 1]), "old_tasks": torch.tensor([0, 2, 2])}
    h = torch.arange(10.0).view(5, 2).requires_grad_()
    scale = torch.tensor(100.0, requires_grad=True)

    def under(images: Tensor, tasks: Tensor) -> Tensor:
        return scale * torch.stack([images, tasks], dim=1)

    old = old_features(draws, under)
    assert old is not None
    assert not old.requires_grad
    both = with_old(h, draws, old)
    assert both.tolist() == [[0, 1], [100, 200], [4, 5], [300, 0], [8, 9]]
    (gradient,) = torch.autograd.grad(both.sum(), h)
    assert gradient.tolist() == [[1, 1], [0, 0], [1, 1], [0, 0], [1, 1]]

    for none in ({}, {"old_images": torch.tensor([]), "old_tasks": torch.tensor([])}):
        assert old_features(none, under) is None
    assert with_old(h, draws, None) is h


SETTINGS: dict[str, dict[str, Any]] = {
    "coda": {"length": 2, "components_per_task": 3, "pcl": True, "ccl": True},
    "cprompt": {"length": 2},
    "dualprompt": {"g_length": 2, "e_length": 2, "pcl": True, "ccl": True},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("old", "rounded"), [(5, 8), (7, 8), (9, 11)])
def test_a_step_is_the_same_however_its_length_is_rounded(
    name: str, old: int, rounded: int, backbone: FrozenViT
) -> None:
    seed = next(s for s in range(99) if len(drawn(11, 3, s)[0]) == old)
    found = []
    for multiple, length in ((1, old), (4, rounded)):
        method = midway(METHODS[name], backbone, (2, 1, 3), SETTINGS[name])
        images, targets = batch(method, 11)
        draws = method.draw(11, torch.Generator().manual_seed(seed), multiple)
        assert len(draws["old_images"]) == length
        losses = method.loss(method.embed(images), targets, draws)
        backward(losses)
        found.append(dict(losses))
        for parameter, p in method.named_parameters():
            assert p.grad is not None
            found[-1][f"gradient of {parameter}"] = p.grad
    one, four = found
    assert one.keys() == four.keys()
    for key, value in one.items():
        # In `ce` and its gradients a product of more images may be added up in another order.
        torch.testing.assert_close(four[key], value, rtol=1e-5, atol=1e-6, msg=key)
        assert key == "ce" or key.startswith("gradient") or torch.equal(four[key], value), key
