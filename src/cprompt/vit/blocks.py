"""One block of timm's ViT, with an optional key/value prefix and optionally fewer queries."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.processor import processor
from cprompt.vit.light_timm import Attention, Block
from cprompt.vit.products import product


def per_image(prompt: Tensor, batch: int) -> Tensor:
    """(L, D) or (B, L, D) to (B, L, D)."""
    return prompt.expand(batch, -1, -1)


def settled(x: Tensor, pending: Tensor | None) -> Tensor:
    """The residual stream plus what the previous block left to be added."""
    return x if pending is None else x + pending


def is_plain(block: Any) -> bool:
    """Whether `run_block` can compute the block: timm's own, with its plain attention."""
    return type(block) is Block and type(block.attn) is Attention and block.attn.gate is None


def run_block(
    block: Block,
    x: Tensor,
    pending: Tensor | None,
    prefix: tuple[Tensor, Tensor] | None = None,
    asking: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Run one timm block; return the residual stream (B, N, D) and what must still be added to it.

    The block's last addition is left to the next block as `pending`, where a compiler can fuse it
    with the following norm. `prefix` is a key and a value, each (L, D) or (B, L, D), that attention
    sees in addition. It joins after the projections and any key norm, so the sequence keeps its
    length. With `asking`, only the first `asking` tokens are computed further.
    """
    attn = block.attn
    x = settled(x, pending)
    y = block.norm1(x)
    B, N, _ = y.shape
    if asking is None:
        q, k, v = attn.qkv(y).view(B, N, 3, attn.num_heads, attn.head_dim).permute(2, 0, 3, 1, 4)
    else:
        x = x[:, :asking]
        q, k, v = _query_few(attn, y, asking)
    q, k = attn.q_norm(q), attn.k_norm(k)
    if prefix is not None:
        k, v = join_prefix(prefix[0], k), join_prefix(prefix[1], v)
    y = attend(q, k, v)
    y = attn.proj(attn.norm(y.transpose(1, 2).reshape(B, x.shape[1], -1)))
    x = x + block.ls1(y)
    return x, block.ls2(block.mlp(block.norm2(x)))


def join_prefix(prefix: Tensor, heads: Tensor) -> Tensor:
    """A key or value prefix (L, D) or (B, L, D) before the tokens of `heads` (B, heads, N, d)."""
    B, count, _, width = heads.shape
    own = per_image(prefix, B).to(heads.dtype).reshape(B, -1, count, width)
    return torch.cat([own.transpose(1, 2), heads], dim=2)


@cache
def fused_is_slow() -> bool:
    """Whether this CPU multiplies bf16 matrices faster than torch's fused kernel goes through them.

    Up to twice as fast at the lengths of a ViT on an AMD EPYC. With AMX, which the kernel uses, it
    is the products that take up to twice as long.
    """
    return not processor().amx


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of queries (B, heads, n, d) to keys and values (B, heads, N, d).

    Written out as products where `fused_is_slow`. They are rounded between, which the fused kernel
    avoids; beside the rounding of everything else in the pass that hardly shows. In a gradient it
    does, so with one the fused kernel is used all the same.
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or not _by_products(q):
        return F.scaled_dot_product_attention(q, k, v)
    share = (q * q.shape[-1] ** -0.5 @ k.mT).softmax(-1)
    seen: Tensor = share.to(v.dtype) @ v
    return seen


def _by_products(q: Tensor) -> bool:
    return q.dtype == torch.bfloat16 and q.device.type == "cpu" and fused_is_slow()


def _query_few(attn: Attention, y: Tensor, asking: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of the first `asking` tokens, keys and values of all: (B, heads, tokens, d)."""
    B, N, _ = y.shape
    weight, bias, wide = attn.qkv.weight, attn.qkv.bias, attn.attn_dim
    split = (None, None) if bias is None else (bias[:wide], bias[wide:])
    q = product(y[:, :asking], weight[:wide], split[0])
    kv = product(y, weight[wide:], split[1])
    q = q.view(B, asking, attn.num_heads, attn.head_dim).transpose(1, 2)
    k, v = kv.view(B, N, 2, attn.num_heads, attn.head_dim).permute(2, 0, 3, 1, 4)
    return q, k, v
