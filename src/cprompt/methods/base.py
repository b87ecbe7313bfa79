"""What a method is, and the register of all of them.

A method owns what is learnt (prompts, keys, heads) and the mathematics of one step. It has no
loop, reads no data and touches no file; the learner does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from cprompt.errors import ConfigError
from cprompt.methods.registry import METHODS, method_class
from cprompt.settings import from_mapping
from cprompt.vit.promptable import FrozenViT

Batches = Iterable[tuple[Tensor, Tensor]]
"""(images, targets) pairs that can be gone through more than once."""

Draws = Mapping[str, Tensor]
"""The random numbers of one step, by name."""


class Method(nn.Module):
    """A continual learner on a frozen backbone.

    For every task the learner calls `begin_task`, then `loss` for each batch, then `end_task` with
    the task's training images once more, then `close_task`. Classes are named by their arrival
    position: the classes of a task are `known`, …, `known + n - 1`. Predictions are per image: no
    output may depend on what else is in the batch.

    All parameters with `requires_grad` are trained; `state_dict` is exactly what was learnt, as
    the backbone is no part of it.

    An image is answered in steps, which `forward` puts together: `embed`, `query` and `choose`
    where the method has them, `feature`, `answer`. Each costs what its name says, so that whoever
    asks again about the same image can keep what has not changed: a query never does, a feature
    where `features_last`.
    """

    name: ClassVar[str]
    Config: ClassVar[type]
    uses_query: ClassVar[bool] = False
    """Whether a pass without prompts, the query, comes before the one that is answered."""
    selects_task: ClassVar[bool] = False
    """Whether an image is answered through the prompt of one task, chosen by its query."""
    features_last: ClassVar[bool] = False
    """Whether an image's feature, under a given task's prompt, is still the same after every
    later task."""

    def __init__(self, backbone: FrozenViT, config: Any) -> None:
        super().__init__()
        # Kept out of the module's own children: the backbone is not learnt, so not saved.
        self.__dict__["backbone"] = backbone
        self.config = config
        self.task_sizes: list[int] = []

    backbone: FrozenViT

    @property
    def n_tasks(self) -> int:
        """Tasks begun so far."""
        return len(self.task_sizes)

    @property
    def n_classes(self) -> int:
        """Classes seen so far, those of the current task included."""
        return sum(self.task_sizes)

    @property
    def known(self) -> int:
        """Classes of all tasks before the latest one."""
        return sum(self.task_sizes[:-1])

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Make room for `n_classes` new classes; initial values are drawn from `rng` (CPU)."""
        self.task_sizes.append(n_classes)

    def draw(self, pictures: int, rng: torch.Generator, multiple: int = 1) -> Draws:
        """What a step on so many images needs at random, as tensors by name.

        All draws come from `rng`, a CPU generator that the learner seeds for each step, and are
        made before the step, so that the step itself can be recorded and replayed by a device. A
        length that depends on chance is rounded up to a `multiple`, so that few recordings do.
        """
        return {}

    def loss(self, images: Tensor, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """The loss terms of one batch, by name; their sum is minimised.

        `images` (B, 3, H, W), `targets` (B,) arrival positions, `draws` from `draw(B, …)`. Reading
        a value back (`item`, boolean masks) would make the device wait and forbid replaying.
        """
        raise TypeError(f"{type(self).__name__} defines no loss")

    def end_task(self, batches: Batches) -> None:
        """Use the task's training images once more, without augmentation, if need be."""

    def close_task(self) -> None:
        """Freeze what the task learnt; must depend on nothing but the method's own state."""

    def embed(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) to what every pass over them starts from."""
        return self.backbone.embed(images)

    def query(self, embedded: Tensor) -> Tensor:
        """What an image is to the frozen backbone alone (B, D); only where `uses_query`."""
        raise TypeError(f"{type(self).__name__} makes no query")

    def choose(self, query: Tensor) -> Tensor:
        """The task (B,) whose prompt answers each query (B, D); only where `selects_task`."""
        raise TypeError(f"{type(self).__name__} does not choose a task's prompt")

    def feature(self, embedded: Tensor, query: Tensor | None, task: Tensor | None) -> Tensor:
        """What the heads read of each image: (B, …).

        `task` (B,), whose prompts to use, is given where `selects_task`; `query` (B, D) where
        `uses_query`, unless all it would do is to choose a task that is given.
        """
        raise TypeError(f"{type(self).__name__} defines no feature")

    def answer(self, feature: Tensor) -> Tensor:
        """Logits (B, n_classes) over all classes seen."""
        raise TypeError(f"{type(self).__name__} defines no answer")

    def forward(self, images: Tensor, task: Tensor | None = None) -> Tensor:
        """Logits (B, n_classes) over all classes seen.

        `task` (B,) gives the prompts to use instead of the chosen ones, where `selects_task`.
        """
        embedded = self.embed(images)
        query = None
        if self.uses_query and not (self.selects_task and task is not None):
            query = self.query(embedded)
        if self.selects_task and task is None:
            assert query is not None
            task = self.choose(query)
        return self.answer(self.feature(embedded, query, task))

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Optimiser groups of the trainable parameters; `lr_scale` multiplies a group's lr."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]


M = TypeVar("M", bound=type[Method])


def register(name: str, config: type, *, title: str | None = None) -> Callable[[M], M]:
    """Class decorator: make a method known as `name`, with the dataclass `config` as its settings.

    `title` is how tables and figures call it; by default as `name`.
    """

    def add(cls: M) -> M:
        if not dataclasses.is_dataclass(config):
            raise ConfigError(f"{config.__name__}, the settings of {name!r}, is not a dataclass")
        cls.name = name
        cls.Config = config
        METHODS.add(cls, title)
        return cls

    return add


def create_method(
    name: str, backbone: FrozenViT, settings: Mapping[str, Any] | None = None
) -> Method:
    """Build the method `name` with the given settings, the rest at their defaults."""
    cls = method_class(name)
    config: Any = from_mapping(cls.Config, settings or {}, where=f"method {name}")
    return cls(backbone, config)


def rebuild(method: Method, sizes: Iterable[int], state: Mapping[str, Tensor], open_: bool) -> None:
    """Bring a fresh method to a saved state.

    Tasks of the given sizes are begun and closed again so that every tensor exists in its shape
    (the last one stays open if `open_`), then all values come from `state`.
    """
    rng = torch.Generator().manual_seed(0)
    sizes = list(sizes)
    for task, size in enumerate(sizes):
        method.begin_task(size, rng)
        if not (open_ and task == len(sizes) - 1):
            method.close_task()
    method.load_state_dict(dict(state), strict=True)
