"""A frozen block on rows of many sequences at once, and its gradient for the first of the rows.

Linear layers and norms treat every token alike, so tokens of several passes can be one matrix
(rows, D). Attention looks at one sequence at a time and stands between the two stages:
`into_attention`, attention, `after_attention`. Weights need no gradient, and only one of the passes
does, so the way back is written out here, for the rows of that pass alone.

Every stage is a pure function without autograd, which a compiler takes as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from cprompt.vit.blocks import is_plain, settled
from cprompt.vit.gelu import RoundedGELU
from cprompt.vit.light_timm import Block, LayerScale, Mlp
from cprompt.vit.products import product, product_back

Normed: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""A residual stream (rows, D), and the mean and 1/std of each of its rows."""


def can_pack(block: Any) -> bool:
    """Whether these stages compute the block: a plain one of LayerNorms and GELU."""
    return (
        is_plain(block)
        and all(isinstance(norm, nn.LayerNorm) for norm in (block.norm1, block.norm2))
        and all(type(scale) in (nn.Identity, LayerScale) for scale in (block.ls1, block.ls2))
        and type(block.mlp) is Mlp
        and all(type(linear) is nn.Linear for linear in (block.mlp.fc1, block.mlp.fc2))
        and type(block.mlp.act) in (nn.GELU, RoundedGELU)
        and type(block.mlp.norm) is nn.Identity
    )


def into_attention(block: Block, x: Tensor, pending: Tensor | None) -> tuple[Tensor, ...]:
    """The residual stream, its mean and 1/std, and queries, keys and values (rows, 3 D)."""
    x = settled(x, pending)
    y, mean, scale = _norm(block.norm1, x)
    return x, mean, scale, _linear(block.attn.qkv, y)


def back_into_attention(block: Block, into: Normed, g_qkv: Tensor, g_after: Tensor) -> Tensor:
    """Gradient of what entered `into_attention`, from those of its results."""
    return g_after + _norm_back(block.norm1, into, product_back(g_qkv, block.attn.qkv.weight))


def after_attention(block: Block, x: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
    """From what attention saw (rows, D) to the block's end.

    The residual stream, its mean and 1/std, what enters GELU, and what must still be added to the
    stream.
    """
    x = x + block.ls1(_linear(block.attn.proj, seen))
    y, mean, scale = _norm(block.norm2, x)
    hidden = _linear(block.mlp.fc1, y)
    return x, mean, scale, hidden, block.ls2(_linear(block.mlp.fc2, block.mlp.act(hidden)))


def back_after_attention(
    block: Block, after: Normed, hidden: Tensor, g_out: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the residual stream and of what attention saw, from that of the block's end.

    A layer scale is its own transpose, so it scales the gradient as well.
    """
    mlp, dtype = block.mlp, hidden.dtype
    g = product_back(block.ls2(g_out).to(dtype), mlp.fc2.weight)
    g = torch.ops.aten.gelu_backward(g, hidden, approximate=mlp.act.approximate)
    g_after = g_out + _norm_back(block.norm2, after, product_back(g, mlp.fc1.weight))
    return g_after, product_back(block.ls1(g_after).to(dtype), block.attn.proj.weight)


# In the last block only class tokens are carried on: keys and values of all rows, few queries.


def keys_and_values(block: Block, x: Tensor, pending: Tensor | None) -> tuple[Tensor, ...]:
    """As `into_attention`, with keys and values (rows, 2 D) only."""
    x = settled(x, pending)
    y, mean, scale = _norm(block.norm1, x)
    return x, mean, scale, _linear(block.attn.qkv, y, slice(block.attn.attn_dim, None))


def back_keys_and_values(block: Block, into: Normed, g_kv: Tensor) -> Tensor:
    """Gradient of what entered `keys_and_values`."""
    attn = block.attn
    return _norm_back(block.norm1, into, product_back(g_kv, attn.qkv.weight[attn.attn_dim :]))


def queries(block: Block, x: Tensor) -> tuple[Tensor, ...]:
    """Mean, 1/std and queries of rows that `keys_and_values` returned."""
    y, mean, scale = _norm(block.norm1, x)
    return mean, scale, _linear(block.attn.qkv, y, slice(block.attn.attn_dim))


def back_queries(block: Block, into: Normed, g_q: Tensor, g_after: Tensor) -> Tensor:
    """Gradient of the rows that entered `queries`."""
    attn = block.attn
    return g_after + _norm_back(
        block.norm1, into, product_back(g_q, attn.qkv.weight[: attn.attn_dim])
    )


@dataclass(frozen=True)
class Stages:
    """The stages as they are called: as written above, or compiled."""

    into_attention: Callable[..., tuple[Tensor, ...]] = into_attention
    back_into_attention: Callable[..., Tensor] = back_into_attention
    after_attention: Callable[..., tuple[Tensor, ...]] = after_attention
    back_after_attention: Callable[..., tuple[Tensor, Tensor]] = back_after_attention
    keys_and_values: Callable[..., tuple[Tensor, ...]] = keys_and_values
    back_keys_and_values: Callable[..., Tensor] = back_keys_and_values
    queries: Callable[..., tuple[Tensor, ...]] = queries
    back_queries: Callable[..., Tensor] = back_queries

    def each(self, change: Callable[[Any], Any]) -> Stages:
        """All stages changed by `change`, such as torch.compile."""
        return Stages(*(change(getattr(self, stage.name)) for stage in fields(self)))


def _norm(norm: nn.LayerNorm, x: Tensor) -> Normed:
    y, mean, scale = torch.native_layer_norm(
        x, norm.normalized_shape, norm.weight, norm.bias, norm.eps
    )
    return y, mean, scale


def _norm_back(norm: nn.LayerNorm, of: Normed, g: Tensor) -> Tensor:
    x, mean, scale = of
    gradient: Tensor = torch.ops.aten.native_layer_norm_backward(
        g.to(x.dtype),
        x,
        norm.normalized_shape,
        mean,
        scale,
        norm.weight,
        norm.bias,
        [True, False, False],
    )[0]
    return gradient


def _linear(layer: nn.Linear, y: Tensor, part: slice | None = None) -> Tensor:
    """`layer`, or a part of its outputs, in the precision of its weights."""
    weight: Tensor = layer.weight
    bias: Tensor | None = layer.bias
    if part is not None:
        weight, bias = weight[part], None if bias is None else bias[part]
    return product(y.to(weight.dtype), weight, bias)
