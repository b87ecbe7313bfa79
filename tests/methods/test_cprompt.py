"""CPrompt against a naive reference: three separate passes, loops over tasks and images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method
from cprompt.methods.cprompt import CPrompt
from cprompt.methods.parts.keys import PromptKeys
from cprompt.seeds import generator
from cprompt.training.movement import start_values
from cprompt.vit.promptable import FrozenViT
from tests.methods.common import (
    assert_losses_and_gradients,
    backward,
    batch,
    chosen_tasks,
    copied_heads,
    cross_entropy,
    midway,
    naive_ccl,
    step_losses,
)

SIZES = (3, 2, 1, 4)


def learnt(backbone: FrozenViT, tasks: int, **settings: Any) -> CPrompt:
    return midway(CPrompt, backbone, SIZES[:tasks], {"length": 3, **settings})


class Naive:
    """SPEC-like restatement of the step: one image at a time, nothing shared or skipped."""

    def __init__(self, method: CPrompt, seed: int) -> None:
        self.vit = method.backbone.vit
        self.sizes = method.task_sizes
        self.layers = (0, 2)  # the first and the middle of six blocks
        config = method.config
        self.config = config
        rows = method.prompts.all().detach()
        self.prompts = [p.clone().requires_grad_() for p in rows]
        self.heads, self.aux = copied_heads(method.heads, self.sizes)
        if isinstance(method.keys, PromptKeys):
            self.keys = method.keys.rows.all().detach().clone().requires_grad_()
        # The draw is the only thing taken from the method: i ~ Uni(1, t) for each image.
        self.draw_rng = torch.Generator().manual_seed(seed)

    def feature(self, image: Tensor, prompt: Tensor | None) -> Tensor:
        x = self.vit._pos_embed(self.vit.patch_embed(image[None]))[0]
        end = 1
        for i, block in enumerate(self.vit.blocks):
            if prompt is not None and i in self.layers:
                segment = prompt[self.layers.index(i)]
                x = torch.cat([x[:end], segment, x[end:]])
                end += len(segment)
            x = block(x[None])[0]
        return x[0]

    def losses(self, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        config, t, n = self.config, len(self.sizes), len(images)
        known = sum(self.sizes[:-1])
        frozen_prompts = [p.detach() for p in self.prompts[:-1]]
        terms: dict[str, list[Tensor]] = {"ce": [], "aux": [], "ccl": [], "mk": []}
        draws = torch.randint(t, (n,), generator=self.draw_rng) if config.pcl else [t - 1] * n
        for b in range(n):
            image, y = images[b], targets[b] - known
            h = self.feature(image, self.prompts[-1])

            m = int(draws[b])
            prompt = self.prompts[-1] if m == t - 1 else frozen_prompts[m]
            w, bias = self.heads[-1]
            terms["ce"].append(cross_entropy(w @ self.feature(image, prompt) + bias, y))
            if config.pcl and config.aux_loss:
                w_aux, b_aux = self.aux if config.aux_head else self.heads[-1]  # type: ignore
                terms["aux"].append(cross_entropy(w_aux @ h + b_aux, y))

            if config.ccl and t > 1:
                terms["ccl"].append(naive_ccl(h, self.heads, config))

            q = self.feature(image, None)
            cosines = torch.stack([F.cosine_similarity(q, k, dim=0) for k in self.keys])
            target = targets[b] if config.keys == "class" else torch.tensor(t - 1)
            terms["mk"].append(cross_entropy(cosines, target))
        return {name: torch.stack(values).mean() for name, values in terms.items() if values}


VARIANTS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "another temperature, margin and strength": {"tau": 2.0, "margin": 0.0, "alpha": 0.3},
    "without ccl": {"ccl": False},
    "without pcl": {"pcl": False},
    "vanilla": {"ccl": False, "pcl": False, "keys": "task"},
    "one key a task": {"keys": "task"},
    "without the auxiliary loss": {"aux_loss": False},
    "auxiliary loss into the task's head": {"aux_head": False},
}


@pytest.mark.parametrize("tasks", [1, 2, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_gradients_equal_the_naive_reference(
    backbone: FrozenViT, variant: str, tasks: int
) -> None:
    method = learnt(backbone, tasks, **VARIANTS[variant])
    images, targets = batch(method)
    naive = Naive(method, seed=3)
    expected = naive.losses(images, targets)
    backward(expected)

    losses = step_losses(method, images, targets, seed=3)
    k = len(method.keys.rows) - len(method.keys.rows.frozen)
    assert naive.keys.grad is not None
    only_key = len(naive.keys) == 1  # cross-entropy of one choice: always zero
    if only_key:
        assert naive.keys.grad.abs().max() < 1e-8
    prompt = naive.prompts[-1].grad
    gradients = {
        "prompts.current": None if prompt is None else prompt[None],
        "heads.weight.current": naive.heads[-1][0].grad,
        "heads.bias.current": naive.heads[-1][1].grad,
        "keys.rows.current": None if only_key else naive.keys.grad[-k:],
    }
    if naive.aux is not None:
        gradients["heads.aux_weight"], gradients["heads.aux_bias"] = (p.grad for p in naive.aux)
    assert_losses_and_gradients(method, losses, expected, gradients)


def test_ccl_trains_the_prompt_and_nothing_else(backbone: FrozenViT) -> None:
    method = learnt(backbone, 3, tau=3.0, margin=50.0)
    images, targets = batch(method)
    step_losses(method, images, targets, seed=0)["ccl"].backward()
    reached = {n for n, p in method.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached == {"prompts.current"}


def test_the_paper_s_layers_are_the_first_and_the_sixth_of_twelve() -> None:
    import timm

    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0)
    method = create_method("cprompt", FrozenViT(vit, "tiny", "random"))
    assert isinstance(method, CPrompt)
    assert method.layers == (0, 5)
    assert method.config.length == 50


def test_a_new_prompt_is_a_copy_or_fresh(backbone: FrozenViT, rng: torch.Generator) -> None:
    for init, is_copy in (("copy", True), ("fresh", False)):
        method = learnt(backbone, 2, prompt_init=init)
        method.close_task()
        method.begin_task(2, rng)
        assert method.prompts.current is not None
        assert torch.equal(method.prompts.current[0], method.prompts.frozen[-1]) is is_copy
    first = create_method("cprompt", backbone)
    first.begin_task(3, rng)
    assert isinstance(first, CPrompt)
    assert first.prompts.current is not None
    bound = 64**-0.5
    assert 0.98 * bound < first.prompts.current.abs().max() <= bound


def test_prediction_follows_query_key_prompt_and_all_heads(backbone: FrozenViT) -> None:
    method = learnt(backbone, 4)
    method.close_task()
    naive = Naive(method, seed=0)
    images, _ = batch(method)
    key_task = [0] * 3 + [1] * 2 + [2] + [3] * 4
    with torch.no_grad():
        for image, logits, chosen in zip(
            images, method(images), chosen_tasks(method, images), strict=True
        ):
            q = naive.feature(image, None)
            nearest = torch.stack([F.cosine_similarity(q, k, dim=0) for k in naive.keys]).argmax()
            task = key_task[int(nearest)]
            assert chosen == task
            h = naive.feature(image, naive.prompts[task])
            expected = torch.cat([w @ h + b for w, b in naive.heads])
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_a_given_task_replaces_the_selection(backbone: FrozenViT) -> None:
    method = learnt(backbone, 3)
    method.close_task()
    images, _ = batch(method, 4)
    task = torch.tensor([2, 0, 1, 2])
    given = method(images, task=task)
    one_by_one = torch.cat([method(images[i : i + 1], task=task[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(given, one_by_one, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(method(images, task=chosen_tasks(method, images)), method(images))


def test_bad_settings_say_what_is_wrong(backbone: FrozenViT) -> None:
    for settings, message in [
        ({"tau": 0.5}, "tau 0.5 must be at least 1"),
        ({"smoothing": "none"}, "'none' is not one of 'adaptive', 'edl', 'roh'"),
        ({"layers": [0, 9]}, "has no block 9, only 0 to 5"),
        ({"layers": [1, 1]}, "different block numbers"),
        ({"lenght": 5}, "did you mean 'length'"),
        ({"length": "long"}, "'long' is not a whole number"),
        ({"prompt_init": "old"}, "'old' is not one of 'copy', 'fresh'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            create_method("cprompt", backbone, settings)


def test_what_is_saved_is_what_was_learnt_and_small() -> None:
    """ViT-B/16, 200 classes, 10 tasks: at most 5 MB without optimiser state."""
    import timm

    vit = timm.create_model("vit_base_patch16_224", num_classes=0)
    method = create_method("cprompt", FrozenViT(vit, "base", "random"))
    rng = torch.Generator().manual_seed(0)
    for _ in range(10):
        method.begin_task(20, rng)
        method.close_task()
    state = method.state_dict()
    assert sum(t.numel() * t.element_size() for t in state.values()) < 5e6
    learnt = 10 * 2 * 50 * 768 + 200 * 768 + 200 * 769  # prompts, keys, heads
    assert sum(t.numel() for n, t in state.items() if n != "keys.key_task") == learnt


def test_a_single_key_is_not_trained_and_nobody_is_warned_of_it(backbone: FrozenViT) -> None:
    method = create_method("cprompt", backbone, {"length": 2, "keys": "task"})
    rng = generator(0)
    method.begin_task(3, rng)
    assert "keys.rows.current" not in start_values(method)
    method.close_task()
    method.begin_task(3, rng)
    assert "keys.rows.current" in start_values(method)
