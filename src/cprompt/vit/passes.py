"""Several passes over the same images, of which the first has a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from cprompt.vit.promptable import Embedded, FrozenViT, Prompts
from cprompt.vit.streams import run_on_streams


@dataclass(frozen=True)
class Pass:
    """The prompts a pass sees, and the images it is over: all, or those numbered (n,)."""

    prompts: Prompts = field(default_factory=Prompts)
    images: Tensor | None = None


def read_passes(vit: FrozenViT, embedded: Embedded, passes: Sequence[Pass]) -> list[Tensor]:
    """The class token (n, D) of each pass, before the final norm.

    Only the first pass has a gradient, which reaches its prompts.
    """

    def read(one: Pass, with_gradient: bool) -> Tensor:
        with torch.set_grad_enabled(with_gradient and torch.is_grad_enabled()):
            images = embedded if one.images is None else embedded[one.images]
            return vit.read(images, one.prompts)

    first, *others = passes
    return list(
        run_on_streams(partial(read, first, True), *(partial(read, o, False) for o in others))
    )
