"""RanPAC against numpy: projection, regression over all tasks, the penalty, what is saved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method, rebuild
from cprompt.methods.ranpac import RanPAC, projection
from cprompt.ranks import Ranks
from cprompt.vit.promptable import FrozenViT, Prompts
from tests.methods.common import class_tokens, learnt_in_tasks, of_class, random_images, step_losses

M, CLASSES = 50, 4


def naive_h(x: np.ndarray, seed: int = 0) -> np.ndarray:
    """ReLU of each feature's products with the columns of W."""
    drawn = np.random.RandomState(seed).standard_normal((x.shape[1], M)).astype(np.float32)
    return np.maximum(x @ drawn.astype(np.float64), 0)


def naive_logits(backbone: FrozenViT, ridge: float, per_class: int = 3) -> np.ndarray:
    """One regression on all classes' images at once."""
    h = naive_h(np.concatenate([tokens_of(backbone, c, per_class) for c in range(CLASSES)]))
    y = np.eye(CLASSES)[np.repeat(np.arange(CLASSES), per_class)]
    weight = np.linalg.solve(h.T @ h + ridge * np.eye(M), h.T @ y)
    return naive_h(class_tokens(backbone, random_images(5))) @ weight


def tokens_of(backbone: FrozenViT, number: int, images: int = 3) -> np.ndarray:
    return class_tokens(backbone, of_class(number, images))


def learnt(backbone: FrozenViT, tasks: list[list[int]], images: int = 3, **more: Any) -> RanPAC:
    method = learnt_in_tasks("ranpac", backbone, tasks, images, projections=M, **more)
    assert isinstance(method, RanPAC)
    return method


@pytest.mark.parametrize("tasks", [[[0, 1, 2, 3]], [[0], [1, 2], [3]]], ids=["one", "three"])
def test_tasks_add_up_to_one_regression_on_all_images(
    backbone: FrozenViT, tasks: list[list[int]]
) -> None:
    method = learnt(backbone, tasks, ridge=10.0)
    with torch.no_grad():
        found = method(random_images(5)).numpy()
    np.testing.assert_allclose(found, naive_logits(backbone, 10.0), rtol=1e-3, atol=1e-4)


def test_without_projections_it_is_a_regression_on_the_class_token(backbone: FrozenViT) -> None:
    method = learnt_in_tasks("ranpac", backbone, [[0, 1], [2, 3]], projections=0, ridge=1.0)
    x = np.concatenate([tokens_of(backbone, c) for c in range(CLASSES)])
    y = np.eye(CLASSES)[np.repeat(np.arange(CLASSES), 3)]
    weight = np.linalg.solve(x.T @ x + np.eye(backbone.dim), x.T @ y)
    with torch.no_grad():
        found = method(random_images(5)).numpy()
    expected = class_tokens(backbone, random_images(5)) @ weight
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_the_penalty_is_the_best_of_the_last_task_on_its_held_out_fifth(
    backbone: FrozenViT,
) -> None:
    """Seven images of each of two classes: in order, numbers 5 and 10 are held out."""
    method = learnt(backbone, [[0, 1], [2, 3]], images=7)
    h = naive_h(np.concatenate([tokens_of(backbone, c, 7) for c in (2, 3)]))
    y = np.eye(2)[np.repeat([0, 1], 7)]
    held = np.isin(np.arange(14), [4, 9])
    errors = {}
    for power in range(-8, 9):
        gram = h[~held].T @ h[~held] + 10.0**power * np.eye(M)
        weight = np.linalg.solve(gram, h[~held].T @ y[~held])
        errors[10.0**power] = np.square(h[held] @ weight - y[held]).mean()
    chosen = float(method.ridge)
    assert errors[chosen] == pytest.approx(min(errors.values()), rel=1e-3)
    assert max(errors.values()) > 1.1 * min(errors.values())  # it matters
    with torch.no_grad():
        found = method(random_images(5)).numpy()
    np.testing.assert_allclose(found, naive_logits(backbone, chosen, 7), rtol=1e-3, atol=1e-3)


def test_a_fifth_of_each_class_is_held_out_in_whatever_order_images_come(
    backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fifth image that arrives is of the first class; still both are held out alike."""
    held: list[np.ndarray] = []

    def keep(x: Tensor, y: Tensor, x_held: Tensor, y_held: Tensor) -> float:
        held.append(y_held.numpy())
        assert (len(x), len(x_held)) == (len(y), len(y_held))
        return 1.0

    monkeypatch.setattr("cprompt.methods.ranpac.best_ridge", keep)
    method = create_method("ranpac", backbone, {"projections": M})
    method.begin_task(2, torch.Generator())
    targets = torch.tensor([1, 0, 1, 0, 0] * 2 + [1, 1, 0, 1, 0] * 2)
    method.end_task([(method.embed(random_images(20)), targets)])
    assert held[0].sum(axis=0).tolist() == [2, 2]


class TwoAlike(Ranks):
    """The other rank has the same images."""

    def sum_(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            tensor.mul_(2)

    def gather(self, rows: Tensor) -> Tensor:
        return torch.cat([rows, rows])


def test_the_penalty_is_chosen_on_the_images_of_all_ranks(
    backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each rank would choose its own, and they would answer differently."""
    seen: list[int] = []

    def keep(x: Tensor, y: Tensor, x_held: Tensor, y_held: Tensor) -> float:
        seen.append(len(x) + len(x_held))
        return 1.0

    monkeypatch.setattr("cprompt.methods.ranpac.best_ridge", keep)
    method = create_method("ranpac", backbone, {"projections": M})
    method.ranks = TwoAlike(0, 2)
    method.begin_task(2, torch.Generator())
    method.end_task([(method.embed(random_images(8)), torch.arange(8) % 2)])
    assert seen == [16]
    assert method.moments.count.tolist() == [8, 8]  # type: ignore[union-attr]


def test_a_task_with_too_few_images_keeps_the_penalty(backbone: FrozenViT) -> None:
    method = learnt(backbone, [[0, 1], [2, 3]], images=2)
    assert float(method.ridge) == 1.0  # as at the start
    learnt_more = learnt(backbone, [[0, 1, 2], [3]])
    assert float(learnt_more.ridge) == float(learnt(backbone, [[0, 1, 2]]).ridge)


def test_the_projection_is_not_saved_and_is_the_same_again(backbone: FrozenViT) -> None:
    method = learnt(backbone, [[0, 1], [2, 3]])
    state = method.state_dict()
    assert not any(t.shape == (backbone.dim, M) for t in state.values())
    again = create_method("ranpac", backbone, {"projections": M})
    rebuild(again, method.task_sizes, state, open_=False)
    with torch.no_grad():
        assert torch.equal(again(random_images(3)), method(random_images(3)))
    assert not torch.equal(projection(4, M, seed=1), projection(4, M, seed=0))
    # The first draws of a stream that NumPy has frozen; a model learnt today needs them for ever.
    torch.testing.assert_close(
        projection(1, 3, seed=0), torch.tensor([[1.7640524, 0.4001572, 0.9787380]])
    )


def test_without_adaptation_nothing_is_trained(backbone: FrozenViT) -> None:
    method = create_method("ranpac", backbone, {"projections": M})
    method.begin_task(2, torch.Generator().manual_seed(0))
    assert not list(method.parameters())
    assert step_losses(method, random_images(2), torch.tensor([0, 1])) == {}


def test_images_are_counted_under_the_prompt_of_the_first_task(backbone: FrozenViT) -> None:
    adapted = {"projections": M, "adaptation": "prompt", "prompt_length": 2, "ridge": 1.0}
    method = create_method("ranpac", backbone, adapted)
    assert isinstance(method, RanPAC)
    method.begin_task(2, torch.Generator().manual_seed(0))
    prefixes = method.first.prefixes
    assert prefixes is not None
    with torch.no_grad():
        prefixes += torch.randn(prefixes.shape, generator=torch.Generator().manual_seed(1))
    images = torch.cat([of_class(0), of_class(1)])
    targets = torch.arange(2).repeat_interleave(3)
    assert set(step_losses(method, images, targets)) == {"ce"}
    method.end_task([(method.embed(images), targets)])
    method.close_task()
    pairs = {i: (p[0], p[1]) for i, p in enumerate(prefixes.detach())}
    with torch.no_grad():
        encoded = backbone.encode(backbone.embed(images), Prompts(prefixes=pairs))
        x = backbone.vit.norm(encoded)[:, 0].double().numpy()
    h = naive_h(x)
    np.testing.assert_allclose(method.moments.second.numpy(), h.T @ h, rtol=1e-3, atol=1e-2)
    plain = naive_h(np.concatenate([tokens_of(backbone, c) for c in (0, 1)]))
    assert np.abs(plain.T @ plain - h.T @ h).max() > 1  # the prompt matters
    method.begin_task(1, torch.Generator())
    assert step_losses(method, images, targets) == {}
    assert not any(p.requires_grad for p in method.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"projections": -1}, "projections -1 must be 0 or more"),
        ({"seed": -1}, "seed -1 must be in"),
        ({"ridge": 0.0}, "ridge 0.0 must be positive"),
        ({"prompt_length": 0}, "prompt_length 0 must be at least 1"),
    ],
)
def test_bad_settings_are_named(
    backbone: FrozenViT, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        create_method("ranpac", backbone, settings)
