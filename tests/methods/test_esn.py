"""ESN against a naive reference: keys and values of every token, one image and task at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method
from cprompt.methods.esn import (
    ESN,
    TEMPERATURES,
    TaskAttentionBlocks,
    block_std,
    free_energy,
    lift,
    task_energies,
    vote,
)
from cprompt.ranks import Ranks
from cprompt.research.config import resolve
from cprompt.vit.promptable import Embedded, FrozenViT
from tests.methods.common import assert_losses_and_gradients, backward, batch, midway, step_losses

SIZES = (3, 2, 1, 4)


def learnt(backbone: FrozenViT, tasks: int, **settings: Any) -> ESN:
    return midway(ESN, backbone, SIZES[:tasks], {"length": 3, **settings}, scale=0.2)


class Batches:
    """Batches of different sizes that can be gone through again."""

    def __init__(self, method: ESN) -> None:
        self.batches = [batch(method, n, seed) for n, seed in ((5, 1), (2, 2), (4, 3))]
        self.images = [images for images, _ in self.batches]
        self.embed = method.embed

    def __iter__(self) -> Iterator[tuple[Embedded, Tensor]]:
        return ((self.embed(images), targets) for images, targets in self.batches)


class Naive:
    """The method for one image at a time, from its definition; nothing merged or stacked."""

    def __init__(self, method: ESN) -> None:
        self.vit = method.backbone.vit
        self.sizes = method.task_sizes
        self.config = method.config
        self.layers = method.config.layers or (0, 2)  # the first and the middle of six blocks
        self.prompt = method.prompt.detach().clone().requires_grad_()
        self.tabs = [
            {name: rows.all()[t].detach().clone().requires_grad_() for name, rows in named(method)}
            for t in range(len(self.sizes))
        ]
        weights = method.heads.weight.all().detach().split(self.sizes)
        biases = method.heads.bias.all().detach().split(self.sizes)
        self.heads = [
            (w.clone().requires_grad_(), b.clone().requires_grad_())
            for w, b in zip(weights, biases, strict=True)
        ]

    def tokens(self, image: Tensor) -> Tensor:
        x = self.vit._pos_embed(self.vit.patch_embed(image[None]))[0]
        end = 1
        for i, block in enumerate(self.vit.blocks):
            if i in self.layers:
                segment = self.prompt[self.layers.index(i)]
                x = torch.cat([x[:end], segment, x[end:]])
                end += len(segment)
            x = block(x[None])[0]
        return x

    def feature(self, x: Tensor, task: int) -> Tensor:
        w = self.tabs[task]
        sequence = torch.cat([w["token"][None], x])
        y = self.norm(sequence, w, "norm1")
        q = w["q_weight"] @ y[0] + w["q_bias"]
        k = y @ w["k_weight"].T + w["k_bias"]
        v = y @ w["v_weight"].T + w["v_bias"]
        n_heads = self.vit.blocks[0].attn.num_heads
        d = len(q) // n_heads
        heads = []
        for h in range(n_heads):
            part = slice(h * d, (h + 1) * d)
            heads.append((k[:, part] @ q[part] / math.sqrt(d)).softmax(0) @ v[:, part])
        z = w["token"] + w["proj_weight"] @ torch.cat(heads) + w["proj_bias"]
        hidden = w["fc1_weight"] @ self.norm(z, w, "norm2") + w["fc1_bias"]
        gelu = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        return z + w["fc2_weight"] @ gelu + w["fc2_bias"]

    @staticmethod
    def norm(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / scale * w[f"{name}_weight"] + w[f"{name}_bias"]

    def logits(self, image: Tensor) -> list[Tensor]:
        x = self.tokens(image)
        return [w @ self.feature(x, i) + b for i, (w, b) in enumerate(self.heads)]

    def losses(self, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        config, known = self.config, sum(self.sizes[:-1])
        ce, energy = [], []
        for image, target in zip(images, targets, strict=True):
            z = self.logits(image)[-1]
            ce.append(z.exp().sum().log() - z[target - known])
            sign = {"released": -1.0, "paper": 1.0}[config.energy]
            free = -(sign * config.beta * z).exp().sum().log() / config.beta
            energy.append((free - config.anchor) ** 2)
        return {
            "ce": torch.stack(ce).mean(),
            "energy": config.energy_weight * torch.stack(energy).mean(),
        }

    @torch.no_grad()
    def winner(self, logits: list[Tensor], temperature: float) -> int:
        energies = [torch.logsumexp(z.double() / temperature, 0) for z in logits]
        return max(range(len(energies)), key=lambda i: energies[i])

    @torch.no_grad()
    def answer(self, logits: list[Tensor], temperatures: list[float]) -> int:
        winners = [self.winner(logits, t) for t in temperatures]
        task = min(set(winners), key=lambda i: (-winners.count(i), i))
        return sum(self.sizes[:task]) + int(logits[task].argmax())


def named(method: ESN) -> list[tuple[str, Any]]:
    return list(method.blocks.rows.items())


VARIANTS: dict[str, dict[str, Any]] = {
    "two segments": {},
    "one segment at the input": {"length": 6, "layers": [0]},
    "the paper's energy": {"energy": "paper"},
    "another pull": {"energy_weight": 0.3, "anchor": -2.0, "beta": 2.0},
    "the paper's energy, another pull": {"energy": "paper", "anchor": -3.0, "beta": 0.5},
    "a frozen prompt": {"freeze_prompt": True},
}


@pytest.mark.parametrize("tasks", [1, 2, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_gradients_equal_the_naive_reference(
    backbone: FrozenViT, variant: str, tasks: int
) -> None:
    method = learnt(backbone, tasks, **VARIANTS[variant])
    images, targets = batch(method)
    naive = Naive(method)
    expected = naive.losses(images, targets)
    backward(expected)

    losses = step_losses(method, images, targets)
    gradients = {
        "heads.weight.current": naive.heads[-1][0].grad,
        "heads.bias.current": naive.heads[-1][1].grad,
    }
    for name, tensor in naive.tabs[-1].items():
        gradients[f"blocks.rows.{name}.current"] = tensor.grad[None]  # type: ignore[index]
    assert all(gradient is not None for gradient in gradients.values())
    frozen = method.config.freeze_prompt and tasks > 1
    gradients["prompt"] = None if frozen else naive.prompt.grad
    assert (gradients["prompt"] is None) is frozen
    trainable = {n for n, p in method.named_parameters() if p.requires_grad}
    assert trainable == set(gradients) - ({"prompt"} if frozen else set())
    assert_losses_and_gradients(method, losses, expected, gradients, scaled=True)


def test_the_temperature_that_finds_the_current_task_most_often_joins_the_vote(
    backbone: FrozenViT,
) -> None:
    chosen = set()
    for scale in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
        method = learnt(backbone, 4)
        with torch.no_grad():
            for tensor in method.heads.state_dict().values():
                tensor *= scale
        naive, batches = Naive(method), Batches(method)
        with torch.no_grad():
            logits = [naive.logits(image) for images in batches.images for image in images]
        found = [[naive.winner(z, t) for z in logits].count(3) for t in TEMPERATURES]
        best = found.index(max(found))  # the lowest temperature of the best ones
        method.end_task(batches)
        assert method.voting.nonzero()[:, 0].tolist() == sorted({0, best})
        chosen.add(best)
    assert len(chosen) > 2


def test_images_in_other_processes_count_too(backbone: FrozenViT) -> None:
    class WithOthers(Ranks):
        def sum_(self, *tensors: Tensor) -> None:
            tensors[0][7] += 1000

    method = learnt(backbone, 4)
    method.ranks = WithOthers(0, 2)
    method.end_task(Batches(method))
    assert method.voting.nonzero()[:, 0].tolist() == [0, 7]


def test_the_first_task_chooses_no_temperature(backbone: FrozenViT) -> None:
    method = learnt(backbone, 1)

    def refuse() -> Iterator[tuple[Tensor, Tensor]]:
        raise AssertionError("the images are not needed")
        yield

    method.end_task(refuse())
    assert method.voting.tolist() == [True] + [False] * 11


def test_prediction_is_the_best_class_of_the_task_voted_for(backbone: FrozenViT) -> None:
    method = learnt(backbone, 4)
    method.close_task()
    for tensor in method.heads.state_dict().values():
        tensor *= 0.05  # logits so close that temperatures disagree
    naive = Naive(method)
    images, _ = batch(method, 12)
    with torch.no_grad():
        z = [naive.logits(image) for image in images]
        torch.testing.assert_close(
            method.task_logits(method.feature(method.embed(images))),
            torch.stack([torch.cat(logits) for logits in z]),
            rtol=1e-4,
            atol=1e-5,
        )
    given = set()
    for voting in ([0], [0, 7], [0, 2, 11], [1, 4, 9, 11]):
        method.voting.zero_()
        method.voting[voting] = True
        expected = [naive.answer(logits, [TEMPERATURES[v] for v in voting]) for logits in z]
        with torch.no_grad():
            assert method(images).argmax(-1).tolist() == expected
        given.add(tuple(expected))
    assert len(given) > 1


def test_a_short_last_task_is_answered_by_its_own_classes(backbone: FrozenViT) -> None:
    """Counting a task's first class as its number times the size of its head gives 4, not 8."""
    method = create_method("esn", backbone, {"length": 2})
    assert isinstance(method, ESN)
    rng = torch.Generator().manual_seed(0)
    for size in (4, 4, 2):
        method.begin_task(size, rng)
        method.close_task()
    method.heads.weight.frozen.zero_()
    for answer in range(10):
        method.heads.bias.frozen.copy_(F.one_hot(torch.tensor(answer), 10))
        assert method(batch(method, 3)[0]).argmax(-1).tolist() == [answer] * 3


def test_energies_worked_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0, math.log(3.0)]])
    energies = task_energies(logits, (2, 1), torch.tensor([1.0, 0.5]))
    # Task 1: log(1 + 1) at both. Task 2: log 3, and twice that at temperature 1/2.
    expected = torch.tensor([[[math.log(2), math.log(3)], [math.log(2), 2 * math.log(3)]]])
    torch.testing.assert_close(energies, expected)
    extreme = task_energies(torch.tensor([[1e3, -1e3, 5.0]]), (2, 1), torch.tensor(TEMPERATURES))
    assert torch.isfinite(extreme).all()


def test_many_middling_logits_win_when_warm_and_one_high_logit_when_cold() -> None:
    logits = torch.tensor([[1.0, 1.0, 1.0, 1.0, 2.0]])
    energies = task_energies(logits, (4, 1), torch.tensor(TEMPERATURES))
    # log 4 + 1/T > 2/T where T > 1/log 4 = 0.72.
    assert energies.argmax(-1).tolist() == [[1] * 9 + [0] * 3]


def test_free_energy_worked_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]])
    torch.testing.assert_close(free_energy(logits, 1.0, "paper"), torch.tensor([-math.log(4)]))
    released = free_energy(logits, 1.0, "released")
    torch.testing.assert_close(released, torch.tensor([-math.log(4 / 3)]))
    twice = free_energy(logits, 2.0, "paper")
    torch.testing.assert_close(twice, torch.tensor([-math.log(10) / 2]))
    high = torch.tensor([[-10.0, 40.0, 50.0]])
    torch.testing.assert_close(free_energy(high, 1.0, "released"), torch.tensor([-10.0]))
    torch.testing.assert_close(
        free_energy(high, 1.0, "paper"), torch.tensor([-50.0]), rtol=1e-5, atol=0
    )


def test_a_vote_is_the_mode_and_a_tie_goes_to_the_earliest_task() -> None:
    def energies(*winners: int) -> Tensor:
        return F.one_hot(torch.tensor(winners), 3).float()

    batch = torch.stack([energies(2, 2, 0, 1), energies(2, 1, 1, 0), energies(0, 2, 1, 1)])
    everyone = torch.tensor([True, True, True, True])
    assert vote(batch, everyone).tolist() == [2, 1, 1]
    first_and_last = torch.tensor([True, False, False, True])
    assert vote(batch, first_and_last).tolist() == [1, 0, 0]


def test_lifting_moves_a_block_only_as_far_as_it_must() -> None:
    logits = torch.tensor([[5.0, 0.0, 4.5, 2.0], [5.0, 0.0, 6.5, 2.0], [5.0, 0.0, 1.0, 2.0]])
    chosen = torch.tensor([[True, True, False, False]] * 2 + [[False, False, True, True]])
    torch.testing.assert_close(
        lift(logits, chosen),
        torch.tensor([[5.5, 0.5, 4.5, 2.0], [7.5, 2.5, 6.5, 2.0], [5.0, 0.0, 5.0, 6.0]]),
    )
    torch.testing.assert_close(lift(logits, torch.ones(3, 4, dtype=torch.bool)), logits)


def test_a_block_has_the_published_number_of_parameters(rng: torch.Generator) -> None:
    blocks = TaskAttentionBlocks(768, 12)
    blocks.open(torch.zeros(768), rng)
    sizes = {name: parameter.numel() for name, parameter in blocks.named_parameters()}
    assert sizes.pop("rows.token.current") == 768
    assert sum(sizes.values()) == 2_956_416


def test_a_new_block_starts_from_the_class_token_and_small_weights(backbone: FrozenViT) -> None:
    method = learnt(backbone, 2)
    method.close_task()
    method.begin_task(2, torch.Generator().manual_seed(0))
    block = {name: rows.current.detach()[0] for name, rows in named(method)}
    assert torch.equal(block["token"], backbone.vit.cls_token[0, 0])
    for name, tensor in block.items():
        if name in ("norm1_weight", "norm2_weight"):
            assert torch.equal(tensor, torch.ones(64))
        elif name.endswith("_bias"):
            assert not tensor.any()
        elif name != "token":
            assert tensor.std() == pytest.approx(0.02, rel=0.05)
    assert not torch.equal(block["q_weight"], block["k_weight"])


@pytest.mark.parametrize("freeze", [False, True])
def test_the_prompt_is_one_for_all_and_goes_on_training_unless_frozen(
    backbone: FrozenViT, freeze: bool
) -> None:
    method = learnt(backbone, 1, freeze_prompt=freeze)
    for task, size in enumerate((2, 3), start=1):
        method.close_task()
        prompt = method.prompt.detach().clone()
        method.begin_task(size, torch.Generator().manual_seed(task))
        assert torch.equal(method.prompt, prompt)  # what was learnt stays
        before = {name: t.clone() for name, t in method.state_dict().items()}
        optimizer = torch.optim.SGD(method.parameter_groups(), lr=0.1, weight_decay=0.1)
        torch.stack(list(step_losses(method, *batch(method)).values())).sum().backward()
        optimizer.step()
        changed = {n for n, t in method.state_dict().items() if not torch.equal(t, before[n])}
        assert ("prompt" in changed) is not freeze
        # The key's bias adds the same to every score: whether it moves is a matter of rounding.
        either = {"prompt", "blocks.rows.k_bias.current"}
        assert changed - either == {n for n in before if n.endswith(".current")} - either


def test_bad_settings_say_what_is_wrong(backbone: FrozenViT) -> None:
    for settings, message in [
        ({"energy": "both"}, "'both' is not one of 'released', 'paper'"),
        ({"energy_weight": -0.1}, "energy_weight -0.1 must not be negative"),
        ({"beta": 0.0}, "beta 0.0 must be positive"),
        ({"length": 0}, "length 0 must be at least 1"),
        ({"layers": [7]}, "has no block 7, only 0 to 5"),
    ]:
        with pytest.raises(ConfigError, match=message):
            create_method("esn", backbone, settings)


def test_the_flavours_are_esn_s_own_and_cprompt_s_prompt() -> None:
    matched = resolve("cars10", "esn")
    assert matched.flavour == "matched"
    assert (matched.training.batch_size, matched.training.epochs) == (128, 130)
    assert (matched.settings["length"], matched.settings["layers"]) == (50, None)
    assert matched.data.normalization == "none"
    assert resolve("cifar100", "esn").training.epochs == 18

    official = resolve("domainnet", "esn", "official")
    assert (official.training.batch_size, official.training.epochs) == (128, 10)
    assert (official.settings["length"], official.settings["layers"]) == (100, [0])
    assert official.data.normalization == "imagenet"
    assert (matched.settings["block_init"], official.settings["block_init"]) == ("fixed", "width")
    for flavour in (matched, official):
        assert (flavour.settings["energy"], flavour.settings["anchor"]) == ("released", -10.0)
        assert (flavour.training.optimizer, flavour.training.lr) == ("sgd", 0.01)


@pytest.mark.parametrize(("dim", "n_heads"), [(768, 12), (192, 3)])
def test_a_new_block_is_as_strong_at_any_width_as_at_the_published_one(
    dim: int, n_heads: int
) -> None:
    """The spread of what value and projection make of a normalised token: (0.02² · 768) at 768."""
    strength = {}
    for init in ("fixed", "width"):
        blocks = TaskAttentionBlocks(dim, n_heads, block_std(init, dim))
        blocks.open(torch.zeros(dim), torch.Generator().manual_seed(0))
        w = {name: rows.all()[0].detach() for name, rows in blocks._named().items()}
        x = F.layer_norm(torch.randn(500, dim, generator=torch.Generator().manual_seed(1)), (dim,))
        strength[init] = float((x @ w["v_weight"].T @ w["proj_weight"].T).std())
    assert strength["width"] == pytest.approx(0.02**2 * 768, rel=0.03)
    assert strength["fixed"] == pytest.approx(0.02**2 * dim, rel=0.03)
