"""Small ViTs and prompts that the tests of the backbone share."""

from __future__ import annotations

from typing import Any

import torch
from timm.models.vision_transformer import ParallelThingsBlock, VisionTransformer
from torch import Tensor

from cprompt.vit.promptable import Prompts


def images(n: int = 3, size: int = 48) -> Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(1))


def close(one: Tensor | None, other: Tensor | None) -> None:
    """Equal but for the order in which products are added up."""
    torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "registers": {"reg_tokens": 3},
    "layer scale": {"init_values": 0.3},
    "norms of queries and keys": {"qk_norm": True},
    "norm after attention": {"scale_attn_norm": True},
    "no bias": {"qkv_bias": False},
    "any size": {"dynamic_img_size": True},
    "blocks of another kind": {"block_fn": ParallelThingsBlock},
}


def small(kind: str, **more: Any) -> VisionTransformer:
    """Three blocks of dimension 32, all weights away from zero and one, on 4 by 4 patches."""
    size: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 4}
    vit = VisionTransformer(**size, depth=3, num_classes=0, **KINDS[kind], **more)
    rng = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=rng)
    return vit


def prompts_of_both_kinds(vit: VisionTransformer, batch: int) -> tuple[Prompts, list[Tensor]]:
    """Tokens and prefixes, shared and of each image, in the last block too; with gradient."""
    rng = torch.Generator().manual_seed(3)

    def new(*shape: int) -> Tensor:
        return torch.randn(*shape, vit.embed_dim, generator=rng).requires_grad_()

    first, last = 0, len(vit.blocks) - 1
    tokens = {first: new(4), last: new(batch, 2)}
    prefixes = {}
    if not isinstance(vit.blocks[0], ParallelThingsBlock):
        prefixes = {first: (new(batch, 3), new(batch, 3)), last: (new(2), new(2))}
    leaves = [*tokens.values(), *(t for pair in prefixes.values() for t in pair)]
    return Prompts(tokens, prefixes), leaves


def gradients(feature: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """Of a sum of the features in which no two count alike."""
    weights = torch.linspace(-1, 1, feature.numel()).view_as(feature)
    return torch.autograd.grad((feature * weights).sum(), leaves)


class Compiler:
    """Leaves what it is handed as it is, and keeps it."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        self.graphs.append(graph)
        return graph.forward
