"""Several passes over the same images, of which the first has a gradient."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from cprompt.vit.packed import read_packed
from cprompt.vit.packed_block import can_pack
from cprompt.vit.promptable import Embedded, FrozenViT, PromptableViT, Prompts
from cprompt.vit.streams import run_on_streams

PACKED_ON: Container[str] = ("cpu",)
"""Kinds of devices on which passes are packed: where it was measured to pay."""


@dataclass(frozen=True)
class Pass:
    """The prompts a pass sees, and the images it is over: all, or those numbered (n,)."""

    prompts: Prompts = field(default_factory=Prompts)
    images: Tensor | None = None


def read_passes(vit: FrozenViT, embedded: Embedded, passes: Sequence[Pass]) -> list[Tensor]:
    """The class token (n, D) of each pass, before the final norm.

    Only the first pass has a gradient, which reaches its prompts.
    """
    prefixed = any(one.prompts.prefixes for one in passes)
    if reads_packed(vit) and not prefixed:
        tokens = [(one.prompts.tokens, one.images) for one in passes]
        return read_packed(vit, embedded, tokens)
    return read_apart(vit, embedded, passes)


def reads_packed(vit: PromptableViT) -> bool:
    """Whether passes that are prompted by tokens are packed: if all blocks are known and frozen.

    A quiet CPU gains little or nothing; a busy one may, because its threads wait for each other
    after fewer operations. A GPU loses: passes on streams of their own hide each other's small
    kernels (docs/speed.md).
    """
    if not isinstance(vit, FrozenViT):
        return False
    device = next(vit.parameters()).device
    return device.type in PACKED_ON and all(can_pack(block) for block in vit.vit.blocks)


def read_apart(vit: FrozenViT, embedded: Embedded, passes: Sequence[Pass]) -> list[Tensor]:
    """`read_passes`, each pass by itself."""

    def read(one: Pass, with_gradient: bool) -> Tensor:
        with torch.set_grad_enabled(with_gradient and torch.is_grad_enabled()):
            images = embedded if one.images is None else embedded[one.images]
            return vit.read(images, one.prompts)

    first, *others = passes
    return list(
        run_on_streams(partial(read, first, True), *(partial(read, o, False) for o in others))
    )
