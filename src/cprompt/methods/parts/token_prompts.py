"""Prompts of several token segments; each segment joins the sequence before one block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT, Prompts


@dataclass(frozen=True)
class SegmentsConfig:
    """Size and place of a prompt; the defaults are the paper's."""

    length: int = setting(50, "tokens in each prompt segment")
    layers: tuple[int, ...] | None = setting(
        None, "block before which each segment joins, from 0; empty: the first and the middle one"
    )

    def __post_init__(self) -> None:
        check(self.length > 0, f"length {self.length} must be at least 1")
        if self.layers is not None:
            check(
                len(self.layers) > 0 and len(set(self.layers)) == len(self.layers),
                f"layers {self.layers} must be different block numbers",
            )


def place(config: SegmentsConfig, backbone: FrozenViT) -> tuple[int, ...]:
    """The blocks of the segments on this backbone; by default the first and the middle one."""
    layers = config.layers or (0, max(backbone.depth // 2 - 1, 1))
    for layer in layers:
        check(
            0 <= layer < backbone.depth,
            f"layers: {backbone.name} has no block {layer}, only 0 to {backbone.depth - 1}",
        )
    return layers


def fresh(config: SegmentsConfig, backbone: FrozenViT, rng: torch.Generator) -> Tensor:
    """Initial values (segments, length, D), U(±1/sqrt(D))."""
    bound = 1 / math.sqrt(backbone.dim)
    shape = (len(place(config, backbone)), config.length, backbone.dim)
    return torch.empty(shape).uniform_(-bound, bound, generator=rng)


def prompted_feature(
    backbone: FrozenViT, embedded: Embedded, prompt: Tensor, layers: Sequence[int]
) -> Tensor:
    """h = f(x, P)[0], eq. 1, before the final norm: (B, D).

    `prompt` is (segments, L, D), shared by the batch, or (B, segments, L, D).
    """
    segments = dict(zip(layers, prompt.unbind(-3), strict=True))  # each before its block
    return backbone.read(embedded, Prompts(segments))
