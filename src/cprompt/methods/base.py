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

from cprompt.backbone import FrozenViT
from cprompt.errors import ConfigError
from cprompt.settings import from_mapping

Batches = Iterable[tuple[Tensor, Tensor]]
"""(pictures, targets) pairs that can be gone through more than once."""


class Method(nn.Module):
    """A continual learner on a frozen backbone.

    For every task the learner calls `begin_task`, then `loss` for each batch, then `end_task` with
    the task's training pictures once more, then `close_task`. Classes are named by their arrival
    position: the classes of a task are `known`, …, `known + n - 1`. Predictions are per image: no
    output may depend on what else is in the batch.

    All parameters with `requires_grad` are trained; `state_dict` is exactly what was learnt, as
    the backbone is no part of it.
    """

    name: ClassVar[str]
    Config: ClassVar[type]
    selects_task: ClassVar[bool] = False
    """Whether a picture is answered through the prompt of one chosen task."""

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

    def loss(self, images: Tensor, targets: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        """The loss terms of one batch, by name; their sum is minimised.

        `images` (B, 3, H, W), `targets` (B,) arrival positions. Random draws come from `rng`, a
        CPU generator that the learner seeds for each step.
        """
        raise TypeError(f"{type(self).__name__} defines no loss")

    def end_task(self, batches: Batches) -> None:
        """Use the task's training pictures once more, without augmentation, if need be."""

    def close_task(self) -> None:
        """Freeze what the task learnt; must depend on nothing but the method's own state."""

    def choose(self, images: Tensor) -> Tensor:
        """The task (B,) whose prompt answers each picture; only where `selects_task`."""
        raise TypeError(f"{type(self).__name__} does not choose a task's prompt")

    def forward(self, images: Tensor, task: Tensor | None = None) -> Tensor:
        """Logits (B, n_classes) over all classes seen.

        `task` (B,) gives the prompts to use instead of the chosen ones, where `selects_task`.
        """
        raise TypeError(f"{type(self).__name__} defines no forward")

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Optimiser groups of the trainable parameters; `lr_scale` multiplies a group's lr."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]


METHODS: dict[str, type[Method]] = {}

M = TypeVar("M", bound=type[Method])


def register(name: str, config: type) -> Callable[[M], M]:
    """Class decorator: make a method known as `name`, with `config` as its settings."""

    def add(cls: M) -> M:
        if name in METHODS:
            raise ConfigError(f"two methods are called {name!r}")
        if not dataclasses.is_dataclass(config):
            raise ConfigError(f"{config.__name__}, the settings of {name!r}, is no dataclass")
        cls.name = name
        cls.Config = config
        METHODS[name] = cls
        return cls

    return add


def method_class(name: str) -> type[Method]:
    """The registered class of that name."""
    if name not in METHODS:
        raise ConfigError(f"no method is called {name!r}; there are {', '.join(sorted(METHODS))}")
    return METHODS[name]


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
