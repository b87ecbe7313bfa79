"""Several passes over the same images, their tokens packed into rows of one matrix.

A training step sees the same images under the current prompt, under old ones and under none. These
passes do not depend on each other, so every linear layer and norm runs once, on the tokens of all
of them; attention runs per pass. Few large products use a GPU better than many small ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cprompt.vit.blocks import attend, settled
from cprompt.vit.light_timm import Attention, Block
from cprompt.vit.packed_block import Normed
from cprompt.vit.promptable import Embedded, FrozenViT, Prompts, autocast
from cprompt.vit.streams import run_on_streams

ATTENTION: list[SDPBackend] | None = None
"""The kernels that attention may use here; None: torch chooses among all."""

Tokens = Mapping[int, Tensor]
"""Prompts (L, D) or (n, L, D) by the block before which they join."""


def read_packed(
    vit: FrozenViT, embedded: Embedded, passes: Sequence[tuple[Tokens, Tensor | None]]
) -> list[Tensor]:
    """The class token (n, D) of each pass: its prompts, and the images it is over if not all.

    Only the first pass has a gradient, which reaches its prompts.
    """
    for tokens, _ in passes:
        vit._check(Prompts(tokens))
    trained = passes[0][0]
    work = _Work(vit, embedded, passes)
    return list(_ReadPacked.apply(work, *trained.values()))


class _Kept(NamedTuple):
    """What the gradient of one block needs, of the rows of the first pass only."""

    into: Normed
    asked: Normed | None
    """In the last block, the class tokens."""
    heads: tuple[Tensor, ...]
    """Queries, keys and values; `seen` has the graph from them to what attention saw."""
    seen: Tensor
    after: Normed
    hidden: Tensor


@dataclass
class _Work:
    vit: FrozenViT
    embedded: Embedded
    passes: Sequence[tuple[Tokens, Tensor | None]]
    kept: dict[int, _Kept] = field(default_factory=dict)
    """By block, from the first one that the gradient reaches."""


class _ReadPacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, work: _Work, *trained: Tensor) -> tuple[Tensor, ...]:
        layers = work.passes[0][0]
        needed = zip(layers, ctx.needs_input_grad[1:], strict=True)
        ctx.work, first = work, min((n for n, yes in needed if yes), default=work.vit.depth)
        with autocast(work.embedded.tokens, work.embedded.precision):
            found = _forward(work, first)
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Any, ...]:
        return None, *_backward(ctx.work, g)


# --- forward ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sizes:
    """Images and tokens of each pass, in the order of its rows."""

    sizes: tuple[tuple[int, int], ...]

    def views(self, rows: Tensor) -> list[Tensor]:
        """(rows, …) to (images, tokens, …) of each pass."""
        parts = torch.split(rows, [images * tokens for images, tokens in self.sizes])
        return [part.view(*size, -1) for part, size in zip(parts, self.sizes, strict=True)]

    @property
    def first(self) -> int:
        """Rows of the first pass."""
        images, tokens = self.sizes[0]
        return images * tokens

    def class_tokens(self) -> _Sizes:
        """The same images with one token each."""
        return _Sizes(tuple((images, 1) for images, _ in self.sizes))


def _forward(work: _Work, first_kept: int) -> tuple[Tensor, ...]:
    """Class tokens of all passes; keeps what the gradient needs from block `first_kept` on."""
    vit, tokens, precision = work.vit, work.embedded.tokens, work.embedded.precision
    x, pending, sizes = tokens, None, _Sizes(())
    views = [tokens if images is None else tokens[images] for _, images in work.passes]
    ends = [vit.n_prefix] * len(views)
    for layer, block in enumerate(vit._blocks(precision)):
        joining = [prompts.get(layer) for prompts, _ in work.passes]
        if layer == 0 or any(prompt is not None for prompt in joining):
            views = sizes.views(settled(x, pending)) if layer else views
            x, sizes = _pack(views, joining, ends)
            pending = vit.nothing_pending(x, precision)
            ends = [e + _length(p) for e, p in zip(ends, joining, strict=True)]
        run = _last_block if layer == vit.depth - 1 else _block
        x, pending, sizes, kept = run(vit, block, x, pending, sizes, layer >= first_kept)
        if kept is not None:
            work.kept[layer] = kept
    parts = sizes.views(settled(x, pending).float())
    return tuple(part[:, 0] for part in parts)


def _block(
    vit: FrozenViT, block: Any, x: Tensor, pending: Tensor | None, sizes: _Sizes, keep: bool
) -> tuple[Tensor, Tensor, _Sizes, _Kept | None]:
    x, mean, scale, qkv = vit.stages.into_attention(block, x, pending)
    into = _first((x, mean, scale), sizes) if keep else None
    heads = [_heads(block.attn, part, 3) for part in sizes.views(qkv)]
    return _after(vit, block, x, heads, sizes, into)


def _last_block(
    vit: FrozenViT, block: Any, x: Tensor, pending: Tensor | None, sizes: _Sizes, keep: bool
) -> tuple[Tensor, Tensor, _Sizes, _Kept | None]:
    """Only the class tokens are computed further; the others give them keys and values."""
    x, mean, scale, kv = vit.stages.keys_and_values(block, x, pending)
    into = _first((x, mean, scale), sizes) if keep else None
    few = sizes.class_tokens()
    x = torch.cat([part[:, 0] for part in sizes.views(x)])
    mean, scale, q = vit.stages.queries(block, x)
    heads = [
        (*_heads(block.attn, one, 1), *_heads(block.attn, two, 2))
        for one, two in zip(few.views(q), sizes.views(kv), strict=True)
    ]
    asked = _first((x, mean, scale), few) if keep else None
    return _after(vit, block, x, heads, few, into, asked)


def _after(
    vit: FrozenViT,
    block: Block,
    x: Tensor,
    heads: Sequence[tuple[Tensor, ...]],
    sizes: _Sizes,
    into: Normed | None,
    asked: Normed | None = None,
) -> tuple[Tensor, Tensor, _Sizes, _Kept | None]:
    """Attention and what follows it; with `into`, also what the gradient needs."""
    trained = heads[0]
    if into is not None:
        own = trained if x.is_cuda else tuple(part.clone() for part in trained)
        trained = tuple(part.detach().requires_grad_() for part in own)

    def with_gradient() -> Tensor:
        with torch.set_grad_enabled(into is not None):
            # Views, because tools that watch modules, as torch's FLOP counter, cannot watch leaves.
            return _attend(block.attn, [part.view_as(part) for part in trained])

    first, *others = run_on_streams(
        with_gradient, *(partial(_attend, block.attn, other) for other in heads[1:])
    )
    seen = torch.cat([first.detach(), *others])
    x, mean, scale, hidden, pending = vit.stages.after_attention(block, x, seen)
    if into is None:
        return x, pending, sizes, None
    after = _first((x, mean, scale), sizes)
    kept = _Kept(into, asked, trained, first, after, _kept(hidden, sizes))
    return x, pending, sizes, kept


def _pack(
    views: Sequence[Tensor], joining: Sequence[Tensor | None], ends: Sequence[int]
) -> tuple[Tensor, _Sizes]:
    """Tokens (n, N, D) of each pass, and the prompts that join them at `ends`, as rows."""
    lengths = [view.shape[1] + _length(prompt) for view, prompt in zip(views, joining, strict=True)]
    sizes = _Sizes(tuple((len(view), n) for view, n in zip(views, lengths, strict=True)))
    x = views[0].new_empty(
        sum(images * tokens for images, tokens in sizes.sizes), views[0].shape[2]
    )
    for to, view, prompt, end in zip(sizes.views(x), views, joining, ends, strict=True):
        to[:, :end] = view[:, :end]
        if prompt is not None:
            to[:, end : end + _length(prompt)] = prompt
        to[:, end + _length(prompt) :] = view[:, end:]
    return x, sizes


def _length(prompt: Tensor | None) -> int:
    return 0 if prompt is None else prompt.shape[-2]


def _first(normed: Normed, sizes: _Sizes) -> Normed:
    """Of the rows of the first pass."""
    x, mean, scale = (_kept(tensor, sizes) for tensor in normed)
    return x, mean, scale


def _kept(rows: Tensor, sizes: _Sizes) -> Tensor:
    """The rows of the first pass; on a CPU, whose memory is small, copied to free the others."""
    first = rows[: sizes.first]
    return _alone(first) if rows.is_cuda else first.clone()


def _alone(view: Tensor) -> Tensor:
    """The same memory, without the knowledge of what it is a view of.

    A compiler would compile a stage anew for every shape of that.
    """
    return view.data


def _heads(attn: Attention, rows: Tensor, kinds: int) -> tuple[Tensor, ...]:
    """(n, N, kinds · D) to `kinds` times (n, heads, N, d)."""
    n, N, _ = rows.shape
    return rows.view(n, N, kinds, attn.num_heads, attn.head_dim).permute(2, 0, 3, 1, 4).unbind()


def _attend(attn: Attention, heads: Sequence[Tensor]) -> Tensor:
    """What the queries of one pass see, as rows."""
    q, k, v = heads
    q, k = attn.q_norm(q), attn.k_norm(k)
    if ATTENTION is None or not q.is_cuda:
        seen = attend(q, k, v)
    else:
        with sdpa_kernel(ATTENTION):
            seen = attend(q, k, v)
    rows: Tensor = attn.norm(seen.transpose(1, 2).flatten(2)).flatten(0, 1)
    return rows


# --- backward -----------------------------------------------------------------------------------


def _backward(work: _Work, g: Tensor) -> list[Tensor | None]:
    """Gradients of the first pass's prompts, from that of its class tokens (n, D)."""
    if not work.kept:
        raise RuntimeError("the gradient of packed passes can be computed once only")
    vit, (prompts, _) = work.vit, work.passes[0]
    blocks = list(vit._blocks(work.embedded.precision))
    found: dict[int, Tensor] = {}
    images, g = len(g), _alone(g.contiguous())
    ends = _ends(vit.n_prefix, prompts)
    for layer in sorted(work.kept, reverse=True):
        g = _block_back(vit, blocks[layer], work.kept.pop(layer), g)
        if layer in prompts:
            prompt, begin = prompts[layer], ends[layer]
            end = begin + _length(prompt)
            tokens = g.view(images, -1, g.shape[-1])
            found[layer] = tokens[:, begin:end]
            if prompt.dim() == 2:
                found[layer] = found[layer].sum(0)
            if work.kept:
                g = _alone(torch.cat([tokens[:, :begin], tokens[:, end:]], dim=1).flatten(0, 1))
    return [found.get(layer) for layer in prompts]


def _ends(n_prefix: int, prompts: Tokens) -> dict[int, int]:
    """Where each prompt joins: after the class and register tokens and the prompts before it."""
    ends = {}
    for layer in sorted(prompts):
        ends[layer] = n_prefix
        n_prefix += _length(prompts[layer])
    return ends


def _block_back(vit: FrozenViT, block: Any, kept: _Kept, g: Tensor) -> Tensor:
    """Gradient of what entered the block, from that of what left it."""
    stages = vit.stages
    g_after, g_seen = stages.back_after_attention(block, kept.after, kept.hidden, g)
    of_heads = torch.autograd.grad(kept.seen, kept.heads, g_seen.to(kept.seen.dtype))
    q, k, v = (part.transpose(1, 2) for part in of_heads)  # (n, N, heads, d)
    if kept.asked is None:
        return stages.back_into_attention(block, kept.into, _side_by_side(q, k, v), g_after)
    g = stages.back_keys_and_values(block, kept.into, _side_by_side(k, v))
    asked = stages.back_queries(block, kept.asked, _side_by_side(q), g_after)
    g.view(len(q), -1, g.shape[-1])[:, 0] += asked
    return g


def _side_by_side(*heads: Tensor) -> Tensor:
    """(n, N, heads, d) of each kind to rows (n · N, kinds · heads · d)."""
    return _alone(torch.stack(heads, dim=2).flatten(2).flatten(0, 1))
