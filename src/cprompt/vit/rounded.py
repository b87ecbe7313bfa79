"""bfloat16 copies of a frozen ViT's matrices, rounded once instead of in every pass."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.vit.gelu import RoundedGELU, is_exact_gelu
from cprompt.vit.light_timm import PatchEmbed, VisionTransformer


class RoundedWeights:
    """The matrices of a frozen ViT, rounded to bfloat16 as autocast does; norms are unchanged.

    GELU is that of `RoundedGELU`.
    """

    def __init__(self, vit: VisionTransformer) -> None:
        self.blocks: nn.Sequential = copy.deepcopy(vit.blocks)
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                module.to(torch.bfloat16)
            elif is_exact_gelu(getattr(module, "act", None)):
                module.act = RoundedGELU()
        self.patch = _PatchProduct(vit.patch_embed) if _PatchProduct.fits(vit.patch_embed) else None


class _PatchProduct:
    """A patch embedding as one matrix product, which is what its strided convolution is."""

    @staticmethod
    def fits(embed: Any) -> bool:
        """Whether the embedding is timm's plain one: no padding, no norm, flat output."""
        return (
            type(embed) is PatchEmbed
            and type(embed.norm) is nn.Identity
            and embed.flatten is True
            and not embed.dynamic_img_pad
        )

    def __init__(self, embed: PatchEmbed) -> None:
        self.side: tuple[int, int] = embed.patch_size
        self.weight = embed.proj.weight.detach().flatten(1).to(torch.bfloat16)
        bias = embed.proj.bias
        self.bias = None if bias is None else bias.detach().to(torch.bfloat16)

    def __call__(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) to (B, patches, D), row by row."""
        B, C, H, W = images.shape
        h, w = self.side
        patches = images.to(self.weight.dtype).view(B, C, H // h, h, W // w, w)
        return F.linear(
            patches.permute(0, 2, 4, 1, 3, 5).reshape(B, -1, C * h * w), self.weight, self.bias
        )
