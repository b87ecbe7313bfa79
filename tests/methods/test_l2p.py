"""L2P against a naive reference: one image at a time, explicit formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method
from cprompt.methods.l2p import L2P
from cprompt.research.config import resolve
from cprompt.vit.promptable import FrozenViT
from tests.methods.common import (
    apart,
    assert_losses_and_gradients,
    backward,
    batch_in_turn,
    copied_heads,
    cross_entropy,
    midway,
    naive_ccl,
    random_images,
    step_losses,
)

SIZES = (3, 2, 1, 4)
POOL = 6

OFFICIAL: dict[str, Any] = {
    "layers": [0],
    "top_n": 3,
    "readout": "prompts",
    "feature": "post_norm",
    "query": "post_norm",
    "init": [0.0, 0.01],
    "head_init": "zero",
}


def learnt(backbone: FrozenViT, tasks: int, **settings: Any) -> L2P:
    def spread_keys(method: L2P) -> None:
        method.keys.copy_(apart(backbone(random_images(POOL), tap=method.config.query)))

    small = {"length": 3, "pool": POOL}
    return midway(L2P, backbone, SIZES[:tasks], {**small, **settings}, adjust=spread_keys)


class Naive:
    """The step as the papers tell it; shares nothing with the method but values and draws."""

    def __init__(self, method: L2P, seed: int) -> None:
        self.vit = method.backbone.vit
        self.sizes = method.task_sizes
        self.config = method.config
        self.layers = self.config.layers or (0, 2)  # the first and the middle of six blocks
        self.pool = method.pool.detach().clone().requires_grad_()
        self.keys = method.keys.detach().clone().requires_grad_()
        self.heads, self.aux = copied_heads(method.heads, self.sizes)
        self.rng = torch.Generator().manual_seed(seed)

    def tokens(self, image: Tensor, prompts: list[Tensor]) -> tuple[Tensor, int]:
        """Output tokens before the final norm, and how many after the first are prompts."""
        x = self.vit._pos_embed(self.vit.patch_embed(image[None]))[0]
        end = 1
        for i, block in enumerate(self.vit.blocks):
            if i in self.layers:
                for prompt in prompts:
                    segment = prompt[self.layers.index(i)]
                    x = torch.cat([x[:end], segment, x[end:]])
                    end += len(segment)
            x = block(x[None])[0]
        return x, end - 1

    def feature(self, image: Tensor, ids: list[int]) -> Tensor:
        tokens, n = self.tokens(image, [self.pool[i] for i in ids])
        if self.config.feature == "post_norm":
            tokens = self.vit.norm(tokens)
        if self.config.readout == "cls":
            return tokens[0]
        return torch.stack([tokens[1 + i] for i in range(n)]).sum(0) / n

    def cosines(self, image: Tensor) -> Tensor:
        with torch.no_grad():
            tokens, _ = self.tokens(image, [])
            q = self.vit.norm(tokens)[0] if self.config.query == "post_norm" else tokens[0]
        return torch.stack([q @ k / (q.norm() * k.norm()) for k in self.keys])

    def choose(self, images: Tensor) -> list[list[int]]:
        """The prompts of each image, by sorting; with the vote, the same for all."""
        n = self.config.top_n
        each = []
        for image in images:
            cosines = self.cosines(image).tolist()
            each.append(sorted(range(POOL), key=lambda i, c=cosines: -c[i])[:n])  # type: ignore
        if not self.config.batchwise:
            return each
        votes = [sum(i in ids for ids in each) for i in range(POOL)]
        return [sorted(range(POOL), key=lambda i: -votes[i])[:n]] * len(images)

    def losses(self, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        config, t = self.config, len(self.sizes)
        known = sum(self.sizes[:-1])
        chosen = self.choose(images)
        drawn = chosen
        if config.pcl:
            scores = torch.rand(len(images), POOL, generator=self.rng).tolist()
            drawn = [sorted(range(POOL), key=lambda i, s=s: s[i])[: config.top_n] for s in scores]
        terms: dict[str, list[Tensor]] = {"ce": [], "aux": [], "ccl": [], "pull": []}
        for b, image in enumerate(images):
            y = int(targets[b]) - known
            h = self.feature(image, chosen[b])
            w, bias = self.heads[-1]
            terms["ce"].append(cross_entropy(w @ self.feature(image, drawn[b]) + bias, y))
            if self.aux is not None:
                terms["aux"].append(cross_entropy(self.aux[0] @ h + self.aux[1], y))
            if config.ccl and t > 1:
                terms["ccl"].append(naive_ccl(h, self.heads, config))
            cosines = self.cosines(image)
            terms["pull"].append(config.pull * sum(1 - cosines[i] for i in chosen[b]))
        return {name: torch.stack(values).mean() for name, values in terms.items() if values}


VARIANTS: dict[str, dict[str, Any]] = {
    "matched": {},
    "official": OFFICIAL,
    "several prompts of two segments, mean of unnormed prompts": {
        "top_n": 2,
        "readout": "prompts",
        "pull": 0.3,
    },
    "with ccl": {"ccl": True, "tau": 2.0},
    "with pcl": {"pcl": True, "top_n": 2},
    "official with both": {**OFFICIAL, "ccl": True, "pcl": True, "margin": 0.5},
}


def compare(method: L2P) -> None:
    images, targets = batch_in_turn(method)
    naive = Naive(method, seed=3)
    expected = naive.losses(images, targets)
    backward(expected)
    losses = step_losses(method, images, targets, seed=3)
    gradients = {
        "pool": naive.pool.grad,
        "keys": naive.keys.grad,
        "heads.weight.current": naive.heads[-1][0].grad,
        "heads.bias.current": naive.heads[-1][1].grad,
    }
    if naive.aux is not None:
        gradients["heads.aux_weight"], gradients["heads.aux_bias"] = (p.grad for p in naive.aux)
    assert_losses_and_gradients(method, losses, expected, gradients)


@pytest.mark.parametrize("tasks", [1, 2, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_gradients_equal_the_naive_reference(
    backbone: FrozenViT, variant: str, tasks: int
) -> None:
    method = learnt(backbone, tasks, **VARIANTS[variant])
    chosen = Naive(method, seed=0).choose(random_images(7))
    assert len({tuple(sorted(ids)) for ids in chosen}) > 2  # else a mix-up would not show
    compare(method)


@pytest.mark.parametrize("settings", [{}, OFFICIAL])
def test_prediction_uses_each_image_s_own_prompts_and_all_heads(
    backbone: FrozenViT, settings: dict[str, Any]
) -> None:
    method = learnt(backbone, 4, **settings)
    method.close_task()
    naive = Naive(method, seed=0)
    images = random_images(16)
    with torch.no_grad():
        expected = []
        for image, ids in zip(images, naive.choose(images), strict=True):
            h = naive.feature(image, ids)
            expected.append(torch.cat([w @ h + b for w, b in naive.heads]))
        for size in (1, 7, 16):
            logits = torch.cat([method(part) for part in images.split(size)])
            torch.testing.assert_close(logits, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_the_vote_of_the_batch_warns_that_it_leaks_and_equals_the_reference(
    backbone: FrozenViT,
) -> None:
    with pytest.warns(UserWarning, match="depends on its batch"):
        method = learnt(backbone, 2, **OFFICIAL, batchwise=True)
    images = random_images(7)
    naive = Naive(method, seed=0)
    chosen = method.select(method.similarity(method.query(backbone.embed(images))))
    assert [set(ids) for ids in chosen.tolist()] == [set(ids) for ids in naive.choose(images)]
    compare(method)
    with torch.no_grad():
        alone = torch.cat([method(image[None]) for image in images])
        assert not torch.allclose(method(images), alone, atol=1e-3)


def test_the_vote_takes_the_most_frequent_prompts_and_the_first_of_equals(
    backbone: FrozenViT,
) -> None:
    with pytest.warns(UserWarning, match="too high"):
        method = create_method("l2p", backbone, {"pool": 4, "top_n": 2, "batchwise": True})
    assert isinstance(method, L2P)
    similarity = torch.tensor(
        [[0.9, 0.0, 0.0, 0.8], [0.1, 0.7, 0.2, 0.9], [0.0, 0.6, 0.9, 0.5]]
    )  # choices 0 3, 3 1, 2 1: prompts 1 and 3 have two votes each
    assert method.select(similarity).tolist() == [[1, 3]] * 3
    assert method.select(similarity[[0, 2]]).tolist() == [[0, 1]] * 2  # one vote each


def test_drawn_prompts_are_uniform_and_never_the_same_twice(backbone: FrozenViT) -> None:
    method = learnt(backbone, 1, top_n=2, pcl=True)
    drawn = method.draw(6000, torch.Generator().manual_seed(0))["prompts"]
    first, second = drawn.unbind(1)
    assert (first != second).all()
    pairs = torch.bincount(first * POOL + second, minlength=POOL**2).view(POOL, POOL)
    off_diagonal = pairs[~torch.eye(POOL, dtype=torch.bool)]
    assert len(off_diagonal) == 30
    assert (off_diagonal - 200).abs().max() < 5 * 200**0.5  # 30 ordered pairs, 200 expected each


def test_the_pull_trains_the_chosen_keys_and_nothing_else_trains_keys(
    backbone: FrozenViT,
) -> None:
    method = learnt(backbone, 3, ccl=True, pcl=True)
    images, targets = batch_in_turn(method, 3)
    losses = step_losses(method, images, targets, seed=0)
    used = {ids[0] for ids in Naive(method, seed=0).choose(images)}
    losses.pop("pull").backward(retain_graph=True)
    assert method.keys.grad is not None
    assert set(method.keys.grad.abs().sum(1).nonzero()[:, 0].tolist()) == used
    assert method.pool.grad is None
    method.keys.grad = None
    sum(losses.values()).backward()  # type: ignore[union-attr]
    assert method.keys.grad is None


def test_pool_and_keys_go_on_from_task_to_task_and_old_heads_do_not(
    backbone: FrozenViT, rng: torch.Generator
) -> None:
    method = learnt(backbone, 2)
    pool, keys = method.pool.detach().clone(), method.keys.detach().clone()
    method.close_task()
    method.begin_task(2, rng)
    assert torch.equal(method.pool, pool)
    assert torch.equal(method.keys, keys)
    trainable = {n for n, p in method.named_parameters() if p.requires_grad}
    assert trainable == {"pool", "keys", "heads.weight.current", "heads.bias.current"}
    assert method.heads.weight.current is not None
    assert len(method.heads.weight.current) == 2


def test_initial_values_have_the_bounds_asked_for(backbone: FrozenViT) -> None:
    rng = torch.Generator().manual_seed(0)
    official = create_method("l2p", backbone, {**OFFICIAL, "length": 10})
    official.begin_task(3, rng)
    assert isinstance(official, L2P)
    for values in (official.pool, official.keys):
        assert 0 <= values.min() < 0.0005
        assert 0.0095 < values.max() < 0.01
    assert official.heads.weight.current is not None
    assert not official.heads.weight.current.any()
    matched = create_method("l2p", backbone)
    matched.begin_task(3, rng)
    assert isinstance(matched, L2P)
    assert matched.pool.shape == (10, 2, 50, 64)
    bound = 64**-0.5
    assert -bound <= matched.pool.min() < -0.99 * bound
    assert 0.99 * bound < matched.pool.max() <= bound
    torch.testing.assert_close(matched.keys @ matched.keys.T, torch.eye(10), rtol=0, atol=1e-5)
    assert matched.heads.weight.current is not None
    assert 0.8 * 3**0.5 * bound < matched.heads.weight.current.abs().max() <= 3**0.5 * bound


def test_the_paper_s_parameter_count_is_the_matched_flavour_s() -> None:
    """0.78 M on Cars: prompts and keys. Official, 196 classes: 10 prompts of 10, keys, head."""
    import timm

    with torch.device("meta"):
        vit = timm.create_model("vit_base_patch16_224", num_classes=0)
    for flavour, expected in (("matched", 775_680), ("official", 10 * 10 * 768 + 10 * 768)):
        config = resolve("cars10", "l2p", flavour)
        method = create_method("l2p", FrozenViT(vit, "base", "random"), config.settings)
        assert isinstance(method, L2P)
        assert method.pool.numel() + method.keys.numel() == expected
        assert method.layers == ((0, 5) if flavour == "matched" else (0,))


def test_the_official_flavour_trains_as_its_authors_did() -> None:
    official = resolve("cifar100", "l2p", "official")
    training = official.training
    assert (training.optimizer, training.schedule, training.clip) == ("adam", "constant", 1.0)
    assert training.lr == pytest.approx(0.03 * training.batch_size / 256)
    assert (training.epochs, training.weight_decay) == (5, 0.0)
    assert official.settings["batchwise"] is False
    matched = resolve("cifar100", "l2p")
    assert matched.training == resolve("cifar100", "cprompt").training
    assert (matched.settings["ccl"], matched.settings["pcl"]) == (False, False)


def test_every_benchmark_has_its_epochs() -> None:
    benchmarks = ("cars10", "cars20", "imagenet_r10", "imagenet_r20", "cifar100", "domainnet")
    for flavour, epochs in (
        ("matched", (120, 120, 10, 10, 18, 15)),
        ("official", (50,) * 4 + (5, 5)),
    ):
        assert epochs == tuple(resolve(b, "l2p", flavour).training.epochs for b in benchmarks)


def test_bad_settings_say_what_is_wrong(backbone: FrozenViT) -> None:
    for settings, message in [
        ({"top_n": 11}, "top_n 11 must be between 1 and the 10 prompts of the pool"),
        ({"pool": 0}, "pool 0 must be at least 1"),
        ({"length": 0}, "length 0 must be at least 1"),
        ({"layers": [6]}, "has no block 6, only 0 to 5"),
        ({"init": [1.0]}, "must be two numbers, the smaller one first"),
        ({"init": [1.0, -1.0]}, "must be two numbers, the smaller one first"),
        ({"pull": -1}, "pull -1.0 must not be negative"),
        ({"tau": 0.5}, "tau 0.5 must be at least 1"),
        ({"readout": "mean"}, "'mean' is not one of 'cls', 'prompts'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            create_method("l2p", backbone, settings)
