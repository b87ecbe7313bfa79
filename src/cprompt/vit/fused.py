"""A frozen block of a ViT whose steps between products are few kernels.

The kernels (`fused_kernels`) are Triton's and imported when first used, as Triton comes only with
PyTorch for CUDA. `run_fused` takes the place of `blocks.run_block`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.vit.blocks import attend, is_plain, join_prefix
from cprompt.vit.gelu import RoundedGELU, linear_gelu
from cprompt.vit.light_timm import Block, Mlp


def can_fuse(block: Any) -> bool:
    """Whether the kernels compute the block: plain, LayerNorms, GELU, no scales, no other norms."""
    if not is_plain(block) or type(block.mlp) is not Mlp:
        return False
    attn, mlp = block.attn, block.mlp
    unused = (block.ls1, block.ls2, attn.q_norm, attn.k_norm, attn.norm, mlp.norm)
    return (
        all(type(module) is nn.Identity for module in unused)
        and all(isinstance(norm, nn.LayerNorm) for norm in (block.norm1, block.norm2))
        and all(norm.bias is not None for norm in (block.norm1, block.norm2))
        and all(type(linear) is nn.Linear for linear in (mlp.fc1, mlp.fc2))
        and type(mlp.act) in (nn.GELU, RoundedGELU)
        and mlp.act.approximate == "none"
        and attn.head_dim in (16, 32, 64)  # of 128, the gradient would not fit into registers
    )


def fits(vit: Any) -> bool:
    """Whether the kernels compute all blocks of a ViT."""
    return all(can_fuse(block) for block in vit.vit.blocks)


def run_fused(
    block: Block,
    x: Tensor,
    pending: Tensor | None,
    prefix: tuple[Tensor, Tensor] | None = None,
    asking: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`blocks.run_block` for a block of which `can_fuse` holds, in bfloat16."""
    n, attn = asking or x.shape[1], block.attn
    x, qkv = _Into.apply(block, x.contiguous(), pending)
    if prefix is None:
        seen = _Attend.apply(qkv, attn.num_heads, n)
    else:
        seen = _attend_to_prefix(block, qkv, prefix, n)
    ended: tuple[Tensor, Tensor] = _After.apply(block, x[:, :n].contiguous(), seen)
    return ended


def _attend_to_prefix(
    block: Block, qkv: Tensor, prefix: tuple[Tensor, Tensor], asking: int
) -> Tensor:
    attn = block.attn
    B, N, _ = qkv.shape
    q, k, v = qkv.view(B, N, 3, attn.num_heads, attn.head_dim).permute(2, 0, 3, 1, 4)
    seen = attend(q[:, :, :asking], join_prefix(prefix[0], k), join_prefix(prefix[1], v))
    return seen.transpose(1, 2).reshape(B, asking, -1)


def _kernels() -> ModuleType:
    from cprompt.vit import fused_kernels

    return fused_kernels


class _Into(torch.autograd.Function):
    """The stream (B, N, D) with what was pending, and its queries, keys and values (B, N, 3 D)."""

    @staticmethod
    def forward(ctx: Any, block: Block, x: Tensor, pending: Tensor | None) -> tuple[Tensor, Tensor]:
        qkv = block.attn.qkv
        total: Tensor
        total, y = _kernels().add_norm(x, pending, block.norm1, qkv.weight.dtype)
        ctx.block, ctx.pending = block, pending is not None
        ctx.save_for_backward(total)
        return total, F.linear(y, qkv.weight, qkv.bias)

    @staticmethod
    def backward(ctx: Any, g_x: Tensor, g_qkv: Tensor) -> tuple[None, Tensor, Tensor | None]:
        (x,), block = ctx.saved_tensors, ctx.block
        g_y = g_qkv @ block.attn.qkv.weight
        g, low = _kernels().norm_back(x, block.norm1, g_y, g_x.contiguous())
        return None, g, low if ctx.pending else None


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, asking: int) -> Tensor:
        seen: Tensor
        seen, sums = _kernels().attend(qkv, heads, asking)
        ctx.save_for_backward(qkv, seen, sums)
        return seen

    @staticmethod
    def backward(ctx: Any, g_seen: Tensor) -> tuple[Tensor, None, None]:
        return _kernels().attend_back(*ctx.saved_tensors, g_seen.contiguous()), None, None


class _After(torch.autograd.Function):
    """From what attention saw (B, N, D) to the stream and what must still be added to it."""

    @staticmethod
    def forward(ctx: Any, block: Block, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        proj, fc1, fc2 = block.attn.proj, block.mlp.fc1, block.mlp.fc2
        total: Tensor
        projected = F.linear(seen, proj.weight, proj.bias)
        total, y = _kernels().add_norm(x, projected, block.norm2, fc1.weight.dtype)
        if not any(ctx.needs_input_grad):
            return total, F.linear(linear_gelu(y, fc1), fc2.weight, fc2.bias)
        hidden = F.linear(y, fc1.weight, fc1.bias)
        ctx.block = block
        ctx.save_for_backward(total, hidden)
        return total, F.linear(_kernels().gelu(hidden), fc2.weight, fc2.bias)

    @staticmethod
    def backward(ctx: Any, g_x: Tensor, g_pending: Tensor) -> tuple[None, Tensor, Tensor]:
        (x, hidden), block = ctx.saved_tensors, ctx.block
        g_hidden = _kernels().gelu_back(hidden, g_pending @ block.mlp.fc2.weight)
        g_y = g_hidden @ block.mlp.fc1.weight
        g: Tensor
        g, low = _kernels().norm_back(x, block.norm2, g_y, g_x.contiguous())
        return None, g, low @ block.attn.proj.weight
