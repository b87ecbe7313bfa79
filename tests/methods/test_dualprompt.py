"""DualPrompt against a naive reference: one image, one head of attention at a time."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method
from cprompt.methods.dualprompt import DualPrompt
from cprompt.research.config import resolve
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT
from tests.methods.common import (
    apart,
    assert_losses_and_gradients,
    backward,
    batch_in_turn,
    chosen_tasks,
    copied_heads,
    cross_entropy,
    midway,
    naive_ccl,
    random_images,
    step_losses,
)

SIZES = (3, 2, 1, 4)

SMALL: dict[str, Any] = {"g_length": 2, "e_length": 3}
PREFIX: dict[str, Any] = {
    "prompting": "prefix",
    "g_layers": [0, 1],
    "e_layers": [2, 3, 4],
    "feature": "post_norm",
    "query": "post_norm",
    "init": [0.0, 0.01],
    "head_init": "zero",
}


def learnt(backbone: FrozenViT, tasks: int, **settings: Any) -> DualPrompt:
    def spread_keys(method: DualPrompt) -> None:
        rows = method.keys.rows
        assert rows.current is not None
        keys = apart(backbone(random_images(16), tap=method.config.query))
        rows.current.copy_(keys[len(rows.frozen) : len(rows)])

    return midway(DualPrompt, backbone, SIZES[:tasks], {**SMALL, **settings}, adjust=spread_keys)


def naive_block(block: Any, x: Tensor, prefix: tuple[Tensor, Tensor] | None) -> Tensor:
    """A transformer block on (N, D), head by head, with key and value rows set before its own."""
    attention: Any = block.attn
    y = block.norm1(x)
    weights = attention.qkv.weight.chunk(3)
    biases = attention.qkv.bias.chunk(3)
    q, k, v = (y @ w.T + b for w, b in zip(weights, biases, strict=True))
    if prefix is not None:
        k, v = torch.cat([prefix[0], k]), torch.cat([prefix[1], v])
    d = attention.head_dim
    heads = []
    for i in range(attention.num_heads):
        part = slice(i * d, (i + 1) * d)
        scores = q[:, part] @ k[:, part].T / d**0.5
        heads.append(scores.softmax(-1) @ v[:, part])
    x = x + block.ls1(attention.proj(torch.cat(heads, dim=1)))
    out: Tensor = x + block.ls2(block.mlp(block.norm2(x)))
    return out


class Naive:
    """The step as the papers tell it; shares nothing with the method but values and draws."""

    def __init__(self, method: DualPrompt, seed: int) -> None:
        self.vit = method.backbone.vit
        self.sizes = method.task_sizes
        self.config = method.config
        self.g_layers = self.config.g_layers or (0,)
        self.e_layers = self.config.e_layers or (2,)  # the middle one of six blocks
        self.g = method.g_prompt.detach().clone().requires_grad_()
        self.e = [p.clone().requires_grad_() for p in method.e_prompts.all().detach()]
        self.heads, self.aux = copied_heads(method.heads, self.sizes)
        self.keys = method.keys.rows.all().detach().clone().requires_grad_()
        self.rng = torch.Generator().manual_seed(seed)

    def cls(self, image: Tensor, tap: str, g: Tensor | None = None, e: Tensor | None = None) -> Any:
        x = self.vit._pos_embed(self.vit.patch_embed(image[None]))[0]
        end = 1
        for i, block in enumerate(self.vit.blocks):
            prompt = None
            if g is not None and i in self.g_layers:
                prompt = g[self.g_layers.index(i)]
            if e is not None and i in self.e_layers:
                prompt = e[self.e_layers.index(i)]
            prefix = None
            if prompt is not None and self.config.prompting == "prefix":
                prefix = (prompt[0], prompt[1])
            elif prompt is not None:
                x = torch.cat([x[:end], prompt[0], x[end:]])
                end += len(prompt[0])
            x = naive_block(block, x, prefix)
        return self.vit.norm(x)[0] if tap == "post_norm" else x[0]

    def feature(self, image: Tensor, task: int) -> Tensor:
        h: Tensor = self.cls(image, self.config.feature, self.g, self.e[task])
        return h

    def cosines(self, image: Tensor) -> Tensor:
        with torch.no_grad():
            q = self.cls(image, self.config.query)
        return torch.stack([q @ k / (q.norm() * k.norm()) for k in self.keys])

    def choose(self, image: Tensor) -> int:
        """The task of the nearest key; with a key a class, through a list of the keys' tasks."""
        nearest = int(self.cosines(image).argmax())
        if self.config.keys == "task":
            return nearest
        return [task for task, size in enumerate(self.sizes) for _ in range(size)][nearest]

    def losses(self, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        config, t, n = self.config, len(self.sizes), len(images)
        known = sum(self.sizes[:-1])
        draws = [t - 1] * n
        if config.pcl:
            draws = torch.randint(t, (n,), generator=self.rng).tolist()
        terms: dict[str, list[Tensor]] = {"ce": [], "aux": [], "ccl": [], "pull": [], "mk": []}
        for b, image in enumerate(images):
            y = int(targets[b]) - known
            h = self.feature(image, t - 1)
            drawn = self.feature(image, draws[b])
            w, bias = self.heads[-1]
            if draws[b] < t - 1:  # an old prompt: the G-prompt learns nothing here either
                drawn = drawn.detach()
            terms["ce"].append(cross_entropy(w @ drawn + bias, y))
            if self.aux is not None:
                terms["aux"].append(cross_entropy(self.aux[0] @ h + self.aux[1], y))
            if config.ccl and t > 1:
                terms["ccl"].append(naive_ccl(h, self.heads, config))
            cosines = self.cosines(image)
            if config.keys == "task":
                terms["pull"].append(config.pull * (1 - cosines[t - 1]))
            else:
                terms["mk"].append(config.pull * cross_entropy(cosines, int(targets[b])))
        return {name: torch.stack(values).mean() for name, values in terms.items() if values}


VARIANTS: dict[str, dict[str, Any]] = {
    "matched": {},
    "official": PREFIX,
    "tokens at several blocks": {"g_layers": [1, 0], "e_layers": [4, 2], "feature": "post_norm"},
    "prefixes, weak pull, fresh prompts": {
        **PREFIX,
        "pull": 0.3,
        "prompt_init": "fresh",
        "feature": "pre_norm",
    },
    "with ccl": {"ccl": True, "tau": 2.0},
    "with pcl": {"pcl": True},
    "one key a class": {"keys": "class", "pull": 0.5},
    "prefixes with both": {**PREFIX, "ccl": True, "pcl": True, "margin": 0.5, "keys": "class"},
}


@pytest.mark.parametrize("tasks", [1, 2, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_gradients_equal_the_naive_reference(
    backbone: FrozenViT, variant: str, tasks: int
) -> None:
    method = learnt(backbone, tasks, **VARIANTS[variant])
    images, targets = batch_in_turn(method)
    naive = Naive(method, seed=3)
    expected = naive.losses(images, targets)
    backward(expected)
    losses = step_losses(method, images, targets, seed=3)
    k = len(method.keys.rows) - len(method.keys.rows.frozen)
    e_gradient = naive.e[-1].grad
    gradients = {
        "g_prompt": naive.g.grad,
        "e_prompts.current": None if e_gradient is None else e_gradient[None],
        "heads.weight.current": naive.heads[-1][0].grad,
        "heads.bias.current": naive.heads[-1][1].grad,
        "keys.rows.current": naive.keys.grad[-k:],  # type: ignore[index]
    }
    if naive.aux is not None:
        gradients["heads.aux_weight"], gradients["heads.aux_bias"] = (p.grad for p in naive.aux)
    assert_losses_and_gradients(method, losses, expected, gradients)


@pytest.mark.parametrize("settings", [{}, PREFIX])
def test_every_image_gets_its_own_keys_and_values_whatever_its_batch(
    backbone: FrozenViT, settings: dict[str, Any]
) -> None:
    method = learnt(backbone, 4, **settings)
    method.close_task()
    naive = Naive(method, seed=0)
    images = random_images(16)
    with torch.no_grad():
        tasks = [naive.choose(image) for image in images]
        assert len(set(tasks)) > 2  # else a mix-up between images would not show
        assert chosen_tasks(method, images).tolist() == tasks
        features = [naive.feature(image, task) for image, task in zip(images, tasks, strict=True)]
        expected = torch.stack([torch.cat([w @ h + b for w, b in naive.heads]) for h in features])
        for size in (1, 7, 16):
            logits = torch.cat([method(part) for part in images.split(size)])
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_the_prefixes_attention_sees_are_those_of_the_image_s_task(
    backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts whose every number says task, block and part, followed into the attention."""
    method = learnt(backbone, 3, **PREFIX)
    method.close_task()
    for task in range(3):
        for block in range(3):
            for part in range(2):
                method.e_prompts.frozen[task, block, part] = 100 * task + 10 * block + part
    seen: list[tuple[Tensor, Tensor]] = []
    attend = F.scaled_dot_product_attention

    def spy(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if k.shape[2] > q.shape[2] > 1:  # in the last block one token asks, without a prefix
            seen.append((k[:, :, : k.shape[2] - q.shape[2]], v[:, :, : k.shape[2] - q.shape[2]]))
        return attend(q, k, v, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    task = torch.tensor([2, 0, 1, 1, 2, 0, 2])
    with torch.no_grad():
        method(random_images(7), task=task)
    assert len(seen) == 5  # two blocks with the G-prompt, three with an E-prompt
    for block, prefixes in enumerate(seen[2:]):
        for part, prefix in enumerate(prefixes):
            expected = (100 * task + 10 * block + part).float()
            assert torch.equal(prefix, expected[:, None, None, None].expand_as(prefix))


def test_a_given_task_replaces_the_selection(backbone: FrozenViT) -> None:
    method = learnt(backbone, 3, **PREFIX)
    method.close_task()
    naive = Naive(method, seed=0)
    images, task = random_images(4), [2, 0, 1, 2]
    with torch.no_grad():
        given = method(images, task=torch.tensor(task))
        for image, t, logits in zip(images, task, given, strict=True):
            h = naive.feature(image, t)
            expected = torch.cat([w @ h + b for w, b in naive.heads])
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keys", ["task", "class"])
def test_batchwise_every_image_gets_the_task_that_most_of_its_batch_choose(
    backbone: FrozenViT, keys: str
) -> None:
    with pytest.warns(UserWarning, match="dualprompt with batchwise: .* depends on its batch"):
        method = learnt(backbone, 4, keys=keys, batchwise=True)
    alone = learnt(backbone, 4, keys=keys)
    method.close_task()
    alone.close_task()
    images = random_images(16)
    own = chosen_tasks(alone, images).tolist()
    assert len(set(own)) > 2
    with torch.no_grad():
        for size in (1, 3, 7, 16):
            for start in range(0, 16, size):
                part, tasks = images[start : start + size], own[start : start + size]
                most = max(tasks.count(task) for task in tasks)
                winner = min(task for task in tasks if tasks.count(task) == most)
                assert chosen_tasks(method, part).tolist() == [winner] * len(part)
                given = torch.full((len(part),), winner)
                torch.testing.assert_close(
                    method(part), alone(part, task=given), rtol=1e-5, atol=1e-5
                )
        assert not torch.allclose(method(images), alone(images), atol=1e-3)  # it leaks


def test_of_equally_many_votes_the_earlier_task_wins(backbone: FrozenViT) -> None:
    with pytest.warns(UserWarning, match="accuracies are too high"):
        method = learnt(backbone, 3, batchwise=True)
    method.close_task()
    keys = method.keys.rows.all()
    assert method.choose(keys[[2, 1, 2, 1, 0]]).tolist() == [1] * 5
    assert method.choose(keys[[2, 0]]).tolist() == [0] * 2
    assert method.choose(keys[[2, 0, 2]]).tolist() == [2] * 3


def test_batchwise_changes_neither_training_nor_given_tasks(backbone: FrozenViT) -> None:
    with pytest.warns(UserWarning, match="batchwise"):
        method = learnt(backbone, 3, pcl=True, batchwise=True)
    alone = learnt(backbone, 3, pcl=True)
    images, targets = batch_in_turn(method)
    losses = [step_losses(m, images, targets, seed=3) for m in (method, alone)]
    assert losses[0] == losses[1]
    task = torch.tensor([2, 0, 1, 1, 2, 0, 2])
    with torch.no_grad():
        assert torch.equal(method(images, task=task), alone(images, task=task))


def test_no_published_flavour_votes_and_single_answers_do_not_warn(backbone: FrozenViT) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for flavour in ("matched", "official"):
            settings = resolve("cifar100", "dualprompt", flavour).settings
            assert settings["batchwise"] is False
            create_method("dualprompt", backbone, settings)


def test_keys_of_tasks_to_come_do_not_compete(backbone: FrozenViT) -> None:
    for keys in ("task", "class"):
        method = learnt(backbone, 1, keys=keys)
        method.close_task()
        assert chosen_tasks(method, random_images(9)).tolist() == [0] * 9


def test_the_g_prompt_goes_on_and_old_e_prompts_stay(
    backbone: FrozenViT, rng: torch.Generator
) -> None:
    method = learnt(backbone, 3)
    g, old = method.g_prompt.detach().clone(), method.e_prompts.frozen.clone()
    optimizer = torch.optim.SGD(method.parameter_groups(), lr=0.1, weight_decay=0.1)
    images, targets = batch_in_turn(method)
    torch.autograd.backward(torch.stack(list(step_losses(method, images, targets).values())).sum())
    optimizer.step()
    assert not torch.equal(method.g_prompt, g)
    assert torch.equal(method.e_prompts.frozen, old)
    g = method.g_prompt.detach().clone()
    method.close_task()
    method.begin_task(2, rng)
    assert torch.equal(method.g_prompt, g)
    assert method.g_prompt.requires_grad


def test_a_new_e_prompt_is_a_copy_or_fresh_and_a_key_never_is(
    backbone: FrozenViT, rng: torch.Generator
) -> None:
    for init, is_copy in (("copy", True), ("fresh", False)):
        method = learnt(backbone, 2, **PREFIX, prompt_init=init)
        method.close_task()
        method.begin_task(2, rng)
        current, key = method.e_prompts.current, method.keys.rows.current
        assert current is not None
        assert key is not None
        assert torch.equal(current[0], method.e_prompts.frozen[-1]) is is_copy
        assert key.shape == (1, 64)
        assert 0 <= key.min() < key.max() < 0.01


def test_initial_values_have_the_bounds_asked_for(
    backbone: FrozenViT, rng: torch.Generator
) -> None:
    official = create_method("dualprompt", backbone, {**PREFIX, "g_length": 5, "e_length": 20})
    official.begin_task(3, rng)
    assert isinstance(official, DualPrompt)
    assert official.g_prompt.shape == (2, 2, 5, 64)
    assert official.e_prompts.current is not None
    assert official.e_prompts.current.shape == (1, 3, 2, 20, 64)
    for values in (official.g_prompt, official.e_prompts.current):
        assert 0 <= values.min() < 0.0005
        assert 0.0095 < values.max() < 0.01
    assert official.heads.weight.current is not None
    assert not official.heads.weight.current.any()
    matched = create_method("dualprompt", backbone, {"keys": "class"})
    matched.begin_task(3, rng)
    assert isinstance(matched, DualPrompt)
    assert matched.e_prompts.current is not None
    for values in (matched.g_prompt, matched.e_prompts.current[0]):
        assert values.shape == (1, 1, 50, 64)
        assert 0.99 / 8 < values.abs().max() <= 1 / 8
    keys = matched.keys.rows.all()
    torch.testing.assert_close(keys @ keys.T, torch.eye(3), rtol=0, atol=1e-5)


def test_the_published_parameter_counts_come_out(rng: torch.Generator) -> None:
    """196 classes in 10 tasks. Matched: prompts 50 + 10·50 tokens, 10 keys. Official: with head."""
    import timm

    with torch.device("meta"):
        vit = timm.create_model("vit_base_patch16_224", num_classes=0)
    head = 196 * 769
    for benchmark, flavour, expected in (
        ("cars10", "matched", (50 + 500 + 10) * 768 + head),
        ("cifar100", "official", 404_164),
        ("imagenet_r10", "official", 1_095_364),
    ):
        settings = resolve(benchmark, "dualprompt", flavour).settings
        method = create_method("dualprompt", FrozenViT(vit, "base", "random"), settings)
        assert isinstance(method, DualPrompt)
        for size in (20,) * 9 + (16,):
            method.begin_task(size, rng)
            method.close_task()
        state = {n: t for n, t in method.state_dict().items() if n != "keys.key_task"}
        assert sum(t.numel() for t in state.values()) == expected
        blocks = ((0,), (5,)) if flavour == "matched" else ((0, 1), (2, 3, 4))
        assert (method.g_layers, method.e_layers) == blocks


def test_the_flavours_train_as_published() -> None:
    for benchmark, lr, epochs in (("cifar100", 0.03, 5), ("imagenet_r20", 0.005, 50)):
        training = resolve(benchmark, "dualprompt", "official").training
        assert (training.optimizer, training.schedule, training.clip) == ("adam", "constant", 1.0)
        assert training.lr == pytest.approx(lr * training.batch_size / 256)
        assert (training.epochs, training.weight_decay) == (epochs, 0.0)
    for benchmark in ("cars10", "cars20", "imagenet_r10", "imagenet_r20", "cifar100", "domainnet"):
        matched, cprompt = resolve(benchmark, "dualprompt"), resolve(benchmark, "cprompt")
        assert matched.training == cprompt.training
        for name in ("tau", "margin"):
            assert matched.settings[name] == cprompt.settings[name]
        assert (matched.settings["ccl"], matched.settings["pcl"]) == (False, False)


def test_blocks_a_small_backbone_lacks_are_named(backbone: FrozenViT) -> None:
    shallow = load_backbone("test_vit", "random:0", 48)
    shallow.vit.blocks = nn.Sequential(*list(shallow.vit.blocks)[:4])
    shallow.depth = 4
    official = resolve("cifar100", "dualprompt", "official").settings
    create_method("dualprompt", backbone, official)
    with pytest.raises(ConfigError, match=r"e_layers \(2, 3, 4\): test_vit has blocks 0 to 3 only"):
        create_method("dualprompt", shallow, official)
    matched = create_method("dualprompt", shallow)
    assert isinstance(matched, DualPrompt)
    assert (matched.g_layers, matched.e_layers) == ((0,), (1,))


def test_bad_settings_say_what_is_wrong(backbone: FrozenViT) -> None:
    for settings, message in [
        ({"g_length": 0}, "g_length 0 must be at least 1"),
        ({"e_length": -1}, "e_length -1 must be at least 1"),
        ({"e_layers": []}, "e_layers must name a block"),
        ({"g_layers": [-1]}, "g_layers .*: test_vit has blocks 0 to 5 only"),
        ({"g_layers": [0, 2]}, "must be different block numbers"),
        ({"e_layers": [3, 3]}, "must be different block numbers"),
        ({"keys": "image"}, "'image' is not one of 'class', 'task'"),
        ({"prompting": "deep"}, "'deep' is not one of 'tokens', 'prefix'"),
        ({"pull": -1}, "pull -1.0 must not be negative"),
    ]:
        with pytest.raises(ConfigError, match=message):
            create_method("dualprompt", backbone, settings)
