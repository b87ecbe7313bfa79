"""What the tests of single methods share.

Each naive reference is its own test file's, but for CCL, which is one formula for all methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cprompt.methods.base import Batches, Method, create_method
from cprompt.methods.parts.heads import ConsistencyConfig, ConsistentHeads
from cprompt.vit.promptable import Embedded, FrozenViT

M = TypeVar("M", bound=Method)
Head = tuple[Tensor, Tensor]
"""Weight (n, D) and bias (n,)."""


def midway(
    kind: type[M],
    backbone: FrozenViT,
    sizes: Sequence[int],
    settings: Mapping[str, Any],
    scale: float = 0.5,
    adjust: Callable[[M], None] | None = None,
    batches: Callable[[M], Batches] | None = None,
) -> M:
    """A method in the middle of the last task, with every tensor away from where it started.

    In each task `adjust` has the last word on what was learnt; tasks before the last one end with
    `batches`, where given, and are closed.
    """
    method = create_method(kind.name, backbone, settings)
    assert isinstance(method, kind)
    rng = torch.Generator().manual_seed(5)
    for task, size in enumerate(sizes):
        if task:
            if batches is not None:
                method.end_task(batches(method))
            method.close_task()
        method.begin_task(size, rng)
        with torch.no_grad():
            for parameter in method.parameters():
                parameter += scale * torch.randn(parameter.shape, generator=rng)
            if adjust is not None:
                adjust(method)
    return method


def random_images(n: int) -> Tensor:
    return torch.randn(n, 3, 48, 48, generator=torch.Generator().manual_seed(9))


def batch(method: Method, n: int = 7, seed: int = 9) -> tuple[Tensor, Tensor]:
    """Images with targets drawn from the current task's classes."""
    rng = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 3, 48, 48, generator=rng)
    local = torch.randint(method.task_sizes[-1], (n,), generator=rng)
    return images, local + method.known


def batch_in_turn(method: Method, n: int = 7) -> tuple[Tensor, Tensor]:
    """Images with the current task's classes in turn as targets."""
    return random_images(n), method.known + torch.arange(n) % method.task_sizes[-1]


class TaskImages:
    """The current task's images in two batches; its last class has one image only."""

    def __init__(self, method: Method) -> None:
        n = method.task_sizes[-1]
        self.targets = method.known + torch.tensor([*range(n - 1)] * 3 + [n - 1])
        rng = torch.Generator().manual_seed(method.n_tasks)
        self.images = torch.randn(len(self.targets), 3, 48, 48, generator=rng)
        self._embed = method.embed

    def __iter__(self) -> Iterator[tuple[Embedded, Tensor]]:
        half = len(self.targets) // 2 + 1
        yield self._embed(self.images[:half]), self.targets[:half]
        if half < len(self.targets):
            yield self._embed(self.images[half:]), self.targets[half:]


def apart(queries: Tensor) -> Tensor:
    """What tells queries apart; keys that point along it make images choose differently."""
    mean = F.normalize(queries.mean(0), dim=0)
    return queries - (queries @ mean)[:, None] * mean


def backward(losses: Mapping[str, Tensor]) -> None:
    sum(losses.values()).backward()  # type: ignore[union-attr]


def copied_heads(heads: ConsistentHeads, sizes: Sequence[int]) -> tuple[list[Head], Head | None]:
    """The head of each task, and the auxiliary one, as leaves with gradients of their own."""
    weights = heads.weight.all().detach().split(list(sizes))
    biases = heads.bias.all().detach().split(list(sizes))
    each = [
        (w.clone().requires_grad_(), b.clone().requires_grad_())
        for w, b in zip(weights, biases, strict=True)
    ]
    if heads.aux_weight is None or heads.aux_bias is None:
        return each, None
    weight, bias = (p.detach().clone().requires_grad_() for p in (heads.aux_weight, heads.aux_bias))
    return each, (weight, bias)


def cross_entropy(logits: Tensor, y: Tensor | int) -> Tensor:
    return logits.exp().sum().log() - logits[y]


def naive_ccl(h: Tensor, heads: Sequence[Head], config: ConsistencyConfig) -> Tensor:
    """Classifier consistency of one feature (D,), old head by old head; the last one is current."""
    w, bias = heads[-1]
    current_max = (w @ h + bias).detach().max()
    each = []
    for old_w, old_b in heads[:-1]:
        old = old_w.detach() @ h + old_b.detach()
        tau = 1.0 if current_max > old.detach().max() + config.margin else config.tau
        target = (old.detach() / tau).softmax(0)
        each.append(-(target * old.log_softmax(0)).sum())
    return config.alpha / len(each) * torch.stack(each).sum()


def assert_losses_and_gradients(
    method: Method,
    losses: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor | None],
    scaled: bool = False,
) -> None:
    """The losses are the expected ones, and so is what their sum leaves at every parameter.

    `scaled`: the absolute tolerance of a gradient grows with its largest entry, if above 1.
    """
    assert set(losses) == set(expected), f"{set(losses)} != {set(expected)}"
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value, rtol=1e-5, atol=1e-5, msg=name)
    backward(losses)
    parameters = dict(method.named_parameters())
    assert set(parameters) == set(gradients), f"{set(parameters)} != {set(gradients)}"
    for name, parameter in parameters.items():
        gradient, atol = gradients[name], 1e-5
        if scaled and gradient is not None:
            atol *= max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(
            parameter.grad, gradient, rtol=1e-5, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


def step_losses(
    method: Method, images: Tensor, targets: Tensor, seed: int = 0
) -> dict[str, Tensor]:
    """The loss terms of a step whose draws come from `seed`."""
    rng = torch.Generator().manual_seed(seed)
    return method.loss(method.embed(images), targets, method.draw(len(images), rng))


def chosen_tasks(method: Method, images: Tensor) -> Tensor:
    """The task whose prompt answers each image."""
    return method.choose(method.ask(images))


def of_class(number: int, images: int = 3) -> Tensor:
    """Images around a middle of the class's own."""
    rng = torch.Generator().manual_seed(number)
    middle = torch.randn(1, 3, 48, 48, generator=rng)
    return middle + 0.5 * torch.randn(images, 3, 48, 48, generator=rng)


def learnt_in_tasks(
    name: str, backbone: FrozenViT, tasks: Sequence[Sequence[int]], images: int = 3, **settings: Any
) -> Method:
    """A method without training, after tasks of these classes, each in batches of four images."""
    method = create_method(name, backbone, settings)
    for task in tasks:
        method.begin_task(len(task), torch.Generator().manual_seed(0))
        shown = torch.cat([of_class(c, images) for c in task])
        targets = method.known + torch.arange(len(task)).repeat_interleave(images)
        method.end_task(
            [(method.embed(x), y) for x, y in zip(shown.split(4), targets.split(4), strict=True)]
        )
        method.close_task()
    return method


def class_tokens(backbone: FrozenViT, images: Tensor) -> NDArray[np.float64]:
    """Class tokens after the final norm, by timm's own forward pass: (n, D)."""
    with torch.no_grad():
        tokens: Tensor = backbone.vit.forward_features(images)
    return tokens[:, 0].double().numpy()
