"""How far a task's training moved each group of parameters from where it began."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cprompt.methods.base import Method

_HELD_BY = ("rows", "current")
"""Names inside `GrowingRows`, which say nothing about what is trained."""
_OF_HEAD = ("weight", "bias")


@dataclass(frozen=True)
class Movement:
    """How far a group of parameters went in one task; norms are over all its values.

    began: ‖before‖. moved: ‖after - before‖. turned: the smallest ‖after - c · before‖ over all c,
    so what is left of `moved` without mere scaling, which is all that weight decay alone does
    under SGD. lr_scale: the group's learning rate, relative to the run's.

    >>> Movement(began=10.0, moved=1.0, turned=0.5, lr_scale=1.0).relative
    0.1
    """

    began: float
    moved: float
    turned: float
    lr_scale: float = 1.0

    @property
    def relative(self) -> float:
        """`moved`, relative to `began`; for a group that began at zero, 1 if it moved at all."""
        return self._share(self.moved)

    @property
    def relative_turn(self) -> float:
        """`turned`, relative to `began`, in the same way."""
        return self._share(self.turned)

    def _share(self, distance: float) -> float:
        return distance / self.began if self.began else float(distance > 0)


def group_of(name: str) -> str:
    """The group of a parameter, from its name in the method.

    Weights and biases belong to the module that holds them, all of a whole backbone to one group.

    >>> group_of("prompts.current"), group_of("keys.rows.current"), group_of("heads.weight.current")
    ('prompts', 'keys', 'heads')
    >>> group_of("tuned.vit.blocks.0.attn.qkv.weight"), group_of("first.prefixes"), group_of("bias")
    ('tuned', 'first.prefixes', 'head')
    """
    path = [part for part in name.split(".") if part not in _HELD_BY]
    if path[-1].endswith(_OF_HEAD):
        path.pop()
    elif len(path) <= 2:
        return ".".join(path)
    return path[0] if path else "head"


def start_values(method: Method) -> dict[str, Tensor]:
    """Copies of all that the next task trains, by name."""
    trained = {p for group in method.parameter_groups() for p in group["params"]}
    return {
        name: parameter.detach().clone()
        for name, parameter in method.named_parameters()
        if parameter.requires_grad and parameter in trained
    }


def measure(method: Method, before: Mapping[str, Tensor]) -> dict[str, Movement]:
    """The movement of each group since `start_values` gave `before`."""
    scales = {p: g.get("lr_scale", 1.0) for g in method.parameter_groups() for p in g["params"]}
    parameters = dict(method.named_parameters())
    groups: dict[str, list[str]] = {}
    for name in parameters:  # always in this order, so that sums have the same bits
        if name in before:
            groups.setdefault(group_of(name), []).append(name)
    return {
        group: _movement(
            [before[name] for name in names],
            [parameters[name].detach() for name in names],
            max(scales[parameters[name]] for name in names),
        )
        for group, names in groups.items()
    }


def _movement(before: list[Tensor], after: list[Tensor], lr_scale: float) -> Movement:
    """Sums over tensors in double precision: the differences may be tiny."""
    a = [tensor.to("cpu", torch.float64).flatten() for tensor in before]
    b = [tensor.to("cpu", torch.float64).flatten() for tensor in after]
    squared = sum(float(x @ x) for x in a)
    moved = _norm([y - x for x, y in zip(a, b, strict=True)])
    turned = moved
    if squared and sum(map(len, a)) > 1:  # a single number can only be scaled
        along = sum(float(x @ y) for x, y in zip(a, b, strict=True)) / squared
        turned = _norm([y - along * x for x, y in zip(a, b, strict=True)])
    return Movement(math.sqrt(squared), moved, turned, lr_scale)


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(t @ t) for t in tensors))
