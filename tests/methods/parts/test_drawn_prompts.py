"""Prompts drawn at random: what is drawn, the loss that it gives, and lengths rounded up."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.methods.base import Method
from cprompt.methods.coda import Coda, non_orthogonality
from cprompt.methods.cprompt import CPrompt
from cprompt.methods.dualprompt import DualPrompt
from cprompt.methods.parts.drawn_prompts import DrawnPromptsMethod, draw_tasks
from cprompt.methods.registry import METHODS
from cprompt.vit.promptable import FrozenViT
from tests.methods.common import assert_losses_and_gradients, backward, batch, midway


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


def features(
    method: Method, images: Tensor, draws: dict[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """h under the current prompt, the same with old prompts where they were drawn, and queries."""
    embedded = method.embed(images)
    query = method.query(embedded)
    drew, tasks = draws["old_images"], draws["old_tasks"]
    each = [*zip(drew.split(1), tasks.split(1), strict=True)] if len(drew) else []
    if isinstance(method, Coda):
        h = method.prompted(embedded, query)
        old = [method.prompted(embedded[b], query[b], i + 1) for b, i in each]
    else:
        assert isinstance(method, CPrompt | DualPrompt)
        prompts = method.prompts if isinstance(method, CPrompt) else method.e_prompts
        assert prompts.current is not None
        h = method.prompted(embedded, prompts.current[0])
        old = [method.prompted(embedded[b], prompts.frozen[i]) for b, i in each]
    mixed = h.index_copy(0, drew, torch.cat(old).detach()) if old else h
    return h, mixed, query


def own_term(method: Method, query: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """What a method adds to the terms of its heads."""
    if isinstance(method, Coda):
        rows = (method.components, method.keys, method.attention)
        return {"ortho": method.config.mu * sum(non_orthogonality(r.all()) for r in rows)}
    assert isinstance(method, CPrompt | DualPrompt)
    cosines = F.cosine_similarity(query[:, None], method.keys.rows.all()[None], dim=-1)
    if isinstance(method, CPrompt):
        return {"mk": F.cross_entropy(cosines, targets)}
    if method.config.keys == "class":
        return {"mk": method.config.pull * F.cross_entropy(cosines, targets)}
    return {"pull": method.config.pull * (1 - cosines[:, -1].mean())}


IN_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "coda": ("coda", SETTINGS["coda"] | {"mu": 0.3}),
    "cprompt": ("cprompt", SETTINGS["cprompt"]),
    "cprompt, one head": ("cprompt", SETTINGS["cprompt"] | {"aux_head": False}),
    "dualprompt": ("dualprompt", SETTINGS["dualprompt"] | {"pull": 0.7}),
    "dualprompt, prefixes": (
        "dualprompt",
        SETTINGS["dualprompt"] | {"prompting": "prefix", "keys": "class", "pull": 0.7},
    ),
}
DRAWN = {
    "some drew an old task": ([1, 2, 5, 5], [1, 0, 1, 1]),
    "all drew an old task": ([0, 1, 2, 3, 4, 5, 6], [0, 1, 1, 0, 0, 1, 0]),
    "none drew an old task": ([], []),
}


@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("case", IN_PARTS)
def test_the_parts_of_a_loss_add_up_to_the_whole(
    case: str, drawn: str, backbone: FrozenViT
) -> None:
    """To the loss in one graph: old features take the places of h, and the heads read all."""
    name, settings = IN_PARTS[case]
    method = midway(METHODS[name], backbone, (2, 1, 3), settings)
    assert isinstance(method, DrawnPromptsMethod)
    images, targets = batch(method, 7)
    numbers = zip(("old_images", "old_tasks"), DRAWN[drawn], strict=True)
    draws = {key: torch.tensor(value, dtype=torch.long) for key, value in numbers}
    h, mixed, query = features(method, images, draws)
    terms = method.heads.losses(h, mixed, targets - method.known, draws)
    assert {"ce", "aux", "ccl"} == terms.keys()
    expected = terms | own_term(method, query, targets)
    learnt = dict(method.named_parameters())
    whole = torch.autograd.grad(sum(expected.values()), learnt.values(), allow_unused=True)

    embedded = method.embed(images)
    apart: list[Tensor | None] = [None] * len(learnt)
    for part in method.loss_parts(embedded, targets, draws):
        total = torch.stack(list(part().values())).sum()
        alone = torch.autograd.grad(total, learnt.values(), allow_unused=True)
        apart = [
            one if two is None else two if one is None else one + two
            for one, two in zip(apart, alone, strict=True)
        ]
    for parameter, one, two in zip(learnt, apart, whole, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5, msg=parameter)

    losses = method.loss(embedded, targets, draws)
    assert_losses_and_gradients(method, losses, expected, dict(zip(learnt, whole, strict=True)))
