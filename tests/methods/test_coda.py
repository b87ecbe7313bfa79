"""CODA-Prompt against a naive reference: loops over images, blocks and components."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method
from cprompt.methods.coda import Coda, component_weights, new_rows, non_orthogonality
from cprompt.research.config import resolve
from cprompt.vit.promptable import FrozenViT
from tests.methods.common import (
    assert_losses_and_gradients,
    backward,
    batch,
    copied_heads,
    cross_entropy,
    midway,
    naive_ccl,
    step_losses,
)

SIZES = (3, 2, 1, 4)


def learnt(backbone: FrozenViT, tasks: int, **settings: Any) -> Coda:
    small = {"length": 6, "components_per_task": 3}
    return midway(Coda, backbone, SIZES[:tasks], {**small, **settings})


class Naive:
    """The step for one image at a time, from the formulas; nothing shared or skipped."""

    def __init__(self, method: Coda, seed: int) -> None:
        self.vit = method.backbone.vit
        self.sizes = method.task_sizes
        self.config = method.config
        # By task, so that old ones can be left without gradient: (per task, blocks, ...).
        split = method.config.components_per_task
        self.P, self.K, self.A = (
            [part.clone().requires_grad_() for part in rows.all().detach().split(split)]
            for rows in (method.components, method.keys, method.attention)
        )
        self.heads, self.aux = copied_heads(method.heads, self.sizes)
        self.draw_rng = torch.Generator().manual_seed(seed)

    def components(self, tasks: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(P_k, K_k, A_k) of the first `tasks` tasks; those before the latest are constants."""
        found = []
        for task in range(tasks):
            old = task < len(self.sizes) - 1
            for p, k, a in zip(self.P[task], self.K[task], self.A[task], strict=True):
                found.append(tuple(x.detach() if old else x for x in (p, k, a)))
        return found  # type: ignore[return-value]

    def feature(self, image: Tensor, tasks: int) -> Tensor:
        """The class token, with prefixes from `tasks` tasks; 0: plain, the query."""
        q = None if tasks == 0 else self.feature(image, 0).detach()
        x = self.vit._pos_embed(self.vit.patch_embed(image[None]))[0]
        for i, block in enumerate(self.vit.blocks):
            prefix_k = prefix_v = x[:0]
            if q is not None and i in self.config.layers:
                place = self.config.layers.index(i)
                prompt = torch.zeros(self.config.length, len(q))
                for P, K, A in self.components(tasks):
                    asked = q * A[place]
                    alpha = (asked @ K[place]) / (asked.norm() * K[place].norm())
                    prompt = prompt + alpha * P[place]
                half = self.config.length // 2
                prefix_k, prefix_v = prompt[:half], prompt[half:]
            x = x + self.attend(block.attn, block.norm1(x), prefix_k, prefix_v)
            x = x + block.mlp(block.norm2(x))
        tap = self.config.query if tasks == 0 else self.config.feature
        return self.vit.norm(x[0]) if tap == "post_norm" else x[0]

    @staticmethod
    def attend(attn: Any, y: Tensor, prefix_k: Tensor, prefix_v: Tensor) -> Tensor:
        q, k, v = attn.qkv(y).chunk(3, dim=-1)
        k, v = torch.cat([prefix_k, k]), torch.cat([prefix_v, v])
        heads = []
        for h in range(attn.num_heads):
            d = slice(h * attn.head_dim, (h + 1) * attn.head_dim)
            scores = q[:, d] @ k[:, d].T / attn.head_dim**0.5
            heads.append(scores.softmax(-1) @ v[:, d])
        return attn.proj(torch.cat(heads, dim=-1))

    def losses(self, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        config, t, n = self.config, len(self.sizes), len(images)
        known = sum(self.sizes[:-1])
        terms: dict[str, list[Tensor]] = {"ce": [], "aux": [], "ccl": []}
        draws = torch.randint(t, (n,), generator=self.draw_rng) if config.pcl else [t - 1] * n
        for b in range(n):
            image, y = images[b], targets[b] - known
            h = self.feature(image, t)
            i = int(draws[b]) + 1
            w, bias = self.heads[-1]
            terms["ce"].append(cross_entropy(w @ self.feature(image, i) + bias, y))
            if config.pcl and config.aux_loss:
                w_aux, b_aux = self.aux if config.aux_head else self.heads[-1]  # type: ignore
                terms["aux"].append(cross_entropy(w_aux @ h + b_aux, y))
            if config.ccl and t > 1:
                terms["ccl"].append(naive_ccl(h, self.heads, config))
        found = {name: torch.stack(values).mean() for name, values in terms.items() if values}
        if config.mu > 0:
            found["ortho"] = config.mu * self.ortho()
        return found

    def ortho(self) -> Tensor:
        total = torch.zeros(())
        for which in range(3):
            for place in range(len(self.config.layers)):
                R = [parts[which][place].flatten() for parts in self.components(len(self.sizes))]
                gaps = [
                    (a @ b - float(i == j)) ** 2 for i, a in enumerate(R) for j, b in enumerate(R)
                ]
                total = total + torch.stack(gaps).mean()
        return total


VARIANTS: dict[str, dict[str, Any]] = {
    "its own": {},
    "with the orthogonality loss": {"mu": 0.02},
    "reading before the final norm": {"feature": "pre_norm"},
    "asking before the final norm": {"query": "pre_norm"},
    "other blocks": {"layers": [5, 1], "mu": 0.02},
    "with ccl": {"ccl": True, "tau": 2.0, "margin": 0.5, "alpha": 0.3},
    "with pcl": {"pcl": True},
    "with pcl, without the auxiliary loss": {"pcl": True, "aux_loss": False},
    "with pcl, auxiliary loss into the task's head": {"pcl": True, "aux_head": False},
    "with everything": {"ccl": True, "pcl": True, "mu": 0.02, "tau": 2.0},
}


@pytest.mark.parametrize("tasks", [1, 2, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_gradients_equal_the_naive_reference(
    backbone: FrozenViT, variant: str, tasks: int
) -> None:
    method = learnt(backbone, tasks, **VARIANTS[variant])
    images, targets = batch(method, 4)
    naive = Naive(method, seed=3)
    expected = naive.losses(images, targets)
    backward(expected)

    losses = step_losses(method, images, targets, seed=3)
    gradients = {
        "components.current": naive.P[-1].grad,
        "keys.current": naive.K[-1].grad,
        "attention.current": naive.A[-1].grad,
        "heads.weight.current": naive.heads[-1][0].grad,
        "heads.bias.current": naive.heads[-1][1].grad,
    }
    if naive.aux is not None:
        gradients["heads.aux_weight"], gradients["heads.aux_bias"] = (p.grad for p in naive.aux)
    assert_losses_and_gradients(method, losses, expected, gradients)


def test_a_drawn_old_prompt_trains_the_head_alone(backbone: FrozenViT) -> None:
    method = learnt(backbone, 4, pcl=True, aux_loss=False)
    images, targets = batch(method, 1)
    seeds = range(10)
    draws = [int(torch.randint(4, (1,), generator=torch.Generator().manual_seed(s))) for s in seeds]
    assert set(draws) == {0, 1, 2, 3}
    for seed, drawn in zip(seeds, draws, strict=True):
        method.zero_grad()
        step_losses(method, images, targets, seed=seed)["ce"].backward()
        reached = {n for n, p in method.named_parameters() if p.grad is not None and p.grad.any()}
        head = {"heads.weight.current", "heads.bias.current"}
        mixed = {"components.current", "keys.current", "attention.current"}
        assert reached == (head | mixed if drawn == 3 else head)


def test_ccl_trains_the_components_and_no_head(backbone: FrozenViT) -> None:
    method = learnt(backbone, 3, ccl=True, tau=3.0, margin=50.0)
    images, targets = batch(method)
    step_losses(method, images, targets)["ccl"].backward()
    reached = {n for n, p in method.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached == {"components.current", "keys.current", "attention.current"}


def test_weights_are_cosines_of_the_attended_query_with_each_key(rng: torch.Generator) -> None:
    query = torch.randn(3, 8, generator=rng)
    keys, attention = torch.randn(2, 5, 2, 8, generator=rng)
    alpha = component_weights(query, keys, attention)
    assert alpha.shape == (2, 3, 5)
    for block in range(2):
        for b in range(3):
            for k in range(5):
                cosine = F.cosine_similarity(
                    query[b] * attention[k, block], keys[k, block], dim=0, eps=0
                )
                torch.testing.assert_close(alpha[block, b, k], cosine, rtol=1e-5, atol=1e-6)


def test_weights_worked_by_hand() -> None:
    query = torch.tensor([[3.0, 4.0]])
    attention = torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]], [[-2.0, 0.0]], [[0.0, 0.0]]])
    keys = torch.tensor([[[5.0, 0.0]], [[0.0, 7.0]], [[1.0, 0.0]], [[1.0, 0.0]]])
    # q ⊙ A: (3, 0) along its key; (3, 4) with (0, 7): 4/5; (-6, 0) against its key; nothing.
    torch.testing.assert_close(
        component_weights(query, keys, attention), torch.tensor([[[1.0, 0.8, -1.0, 0.0]]])
    )


def test_the_orthogonality_loss_worked_by_hand() -> None:
    one_block = torch.tensor([[[1.0, 1.0]], [[0.0, 2.0]]])
    # Gram matrix [[2, 2], [2, 4]], minus I: [[1, 2], [2, 3]]; squares 1 + 4 + 4 + 9 over 4.
    torch.testing.assert_close(non_orthogonality(one_block), torch.tensor(4.5))
    two_blocks = torch.cat([one_block, torch.eye(2)[:, None]], dim=1)
    torch.testing.assert_close(non_orthogonality(two_blocks), torch.tensor(4.5))


def test_prediction_mixes_the_components_of_all_tasks_for_all_heads(backbone: FrozenViT) -> None:
    method = learnt(backbone, 4)
    method.close_task()
    naive = Naive(method, seed=0)
    images, _ = batch(method, 3)
    with torch.no_grad():
        for image, logits in zip(images, method(images), strict=True):
            h = naive.feature(image, 4)
            expected = torch.cat([w @ h + b for w, b in naive.heads])
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_every_task_adds_components_and_the_old_ones_stay(
    backbone: FrozenViT, rng: torch.Generator
) -> None:
    method = learnt(backbone, 1, components_per_task=4)
    for task in range(1, 4):
        before = [rows.all().detach().clone() for rows in method._rows]
        assert [len(rows) for rows in method._rows] == [4 * task] * 3
        method.close_task()
        method.begin_task(2, rng)
        for rows, old in zip(method._rows, before, strict=True):
            assert len(rows) == 4 * (task + 1)
            assert torch.equal(rows.frozen, old)
            assert rows.current is not None
            assert len(rows.current) == 4


def test_new_rows_are_orthonormal_and_orthogonal_to_what_was_learnt(backbone: FrozenViT) -> None:
    method = learnt(backbone, 3, components_per_task=4)  # old rows are far from orthonormal
    method.close_task()
    method.begin_task(2, torch.Generator().manual_seed(1))
    for rows in method._rows:
        assert rows.current is not None
        for block in range(5):
            new = rows.current.detach()[:, block].flatten(1)
            old = rows.frozen[:, block].flatten(1)
            torch.testing.assert_close(new @ new.T, torch.eye(4), rtol=0, atol=1e-5)
            torch.testing.assert_close(new @ old.T, torch.zeros(4, 12), rtol=0, atol=2e-5)
    assert method.keys.current is not None
    assert not torch.equal(method.keys.current[:, 0], method.keys.current[:, 1])


def test_a_full_space_still_takes_new_unit_rows(rng: torch.Generator) -> None:
    old = torch.randn(6, 2, 8, generator=rng)
    beside = new_rows(4, old, rng)  # 6 + 4 > 8: only among themselves
    for block in range(2):
        torch.testing.assert_close(
            beside[:, block] @ beside[:, block].T, torch.eye(4), rtol=0, atol=1e-5
        )
    many = new_rows(20, old, rng)  # 20 > 8: unit length is all there is
    torch.testing.assert_close(many.norm(dim=-1), torch.ones(20, 2))


def test_more_tasks_than_the_dimension_has_room_for(backbone: FrozenViT) -> None:
    method = learnt(backbone, 1, components_per_task=30, length=2)
    for size in (1, 2, 3):
        method.close_task()
        method.begin_task(size, torch.Generator().manual_seed(size))
    assert len(method.keys) == 120  # of dimension 64
    images, targets = batch(method, 3)
    for loss in step_losses(method, images, targets).values():
        assert torch.isfinite(loss)


def test_bad_settings_say_what_is_wrong(backbone: FrozenViT) -> None:
    for settings, message in [
        ({"layers": [0, 6]}, "test_vit has no block 6, only 0 to 5"),
        ({"layers": [2, 2]}, "different block numbers"),
        ({"layers": None}, "layers: None is not a list"),
        ({"length": 7}, "length 7 must be even"),
        ({"length": 0}, "length 0 must be at least 1"),
        ({"components_per_task": 0}, "components_per_task 0 must be at least 1"),
        ({"mu": -1.0}, "mu -1.0 must not be negative"),
        ({"ccl": True, "tau": 0.5}, "tau 0.5 must be at least 1"),
    ]:
        with pytest.raises(ConfigError, match=message):
            create_method("coda", backbone, settings)


def test_the_flavours_are_coda_s_own_and_cprompt_s_training() -> None:
    assert resolve("imagenet_r20", "coda").flavour == "official"
    matched = resolve("imagenet_r20", "coda", "matched")
    assert (matched.training.optimizer, matched.training.epochs) == ("sgd", 10)
    assert (matched.training.lr, matched.training.batch_size) == (0.01, 16)
    assert (matched.settings["ccl"], matched.settings["pcl"]) == (False, False)
    assert resolve("cifar100", "coda", "matched").settings["tau"] == 1.2

    official = resolve("cifar100", "coda", "official")
    training = official.training
    assert (training.optimizer, training.schedule, training.epochs) == ("adam", "coda", 20)
    assert (training.lr, training.batch_size, training.weight_decay) == (0.001, 128, 0.0)
    assert official.data.normalization == "none"
    for flavour in ("matched", "official"):
        per_task = [
            resolve(benchmark, "coda", flavour).settings["components_per_task"]
            for benchmark in ("cars10", "cars20", "imagenet_r10", "imagenet_r20", "domainnet")
        ]
        assert per_task == [10, 5, 10, 5, 10]


def test_stored_numbers_are_those_of_the_paper_s_resource_table() -> None:
    """Ten tasks, 196 classes, D = 768: components, keys and attention vectors, and the heads."""
    import timm

    vit = timm.create_model("vit_base_patch16_224", depth=5, num_classes=0)
    method = create_method("coda", FrozenViT(vit, "base", "random"))
    for size in [20] * 9 + [16]:
        method.begin_task(size, torch.Generator().manual_seed(0))
        method.close_task()
    assert sum(t.numel() for t in method.state_dict().values()) == 3_840_000 + 150_724
