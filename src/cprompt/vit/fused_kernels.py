"""What lies between the matrix products of a frozen ViT block, as Triton kernels.

Residual addition and norm are one kernel, GELU and attention one each, and so is the gradient of
each. Attention reads queries, keys and values as their product left them, and leaves what it saw
as the next product takes it, so nothing is copied between. Weights get no gradient.

Norms and sums are computed in float32, which the residual stream is; the rest is in the type of
the weights (bfloat16). Imported only where Triton is.
"""

# Triton is not typed, and comes only with PyTorch for CUDA.
# mypy: disable-error-code="import-untyped,import-not-found"
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from cprompt.vit.gelu import FARTHEST, ODD

# How kernels are cut, measured on an H200 with 16 images of 197 to 297 tokens.
NORM_ELEMENTS = 2048  # of the residual stream, per program
GELU_ELEMENTS = 1024
TOKENS = 64  # of one head of one image, per program of attention
ATTEND = {"num_warps": 4, "num_stages": 3}
ATTEND_BACK = {"num_warps": 4, "num_stages": 1, "maxnreg": 168}


def add_norm(
    x: Tensor, added: Tensor | None, norm: nn.LayerNorm, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The residual stream x + added (…, D), and its norm in `dtype`."""
    total = x if added is None else torch.empty_like(x)
    normed = torch.empty_like(x, dtype=dtype)
    rows, width, cut = _rows(x)
    _add_norm[(triton.cdiv(rows, cut["ROWS"]),)](
        x,
        x if added is None else added,
        norm.weight,
        norm.bias,
        total,
        normed,
        rows,
        EPS=norm.eps,
        ADD=added is not None,
        WIDTH=width,
        **cut,
    )
    return total, normed


def norm_back(x: Tensor, norm: nn.LayerNorm, g: Tensor, g_x: Tensor) -> tuple[Tensor, Tensor]:
    """`g_x` plus the gradient of x, from that of its norm; in float32, and in the type of `g`."""
    wide, low = torch.empty_like(x), torch.empty_like(g)
    rows, width, cut = _rows(x)
    _norm_back[(triton.cdiv(rows, cut["ROWS"]),)](
        x, norm.weight, g, g_x, wide, low, rows, EPS=norm.eps, WIDTH=width, **cut
    )
    return wide, low


def gelu(hidden: Tensor) -> Tensor:
    """GELU of every element."""
    out = torch.empty_like(hidden)
    _gelu[(triton.cdiv(hidden.numel(), GELU_ELEMENTS),)](
        hidden, out, hidden.numel(), ELEMENTS=GELU_ELEMENTS
    )
    return out


def gelu_back(hidden: Tensor, g: Tensor) -> Tensor:
    """Gradient of what enters GELU, from that of what leaves it."""
    out = torch.empty_like(hidden)
    _gelu_back[(triton.cdiv(hidden.numel(), GELU_ELEMENTS),)](
        hidden, g, out, hidden.numel(), ELEMENTS=GELU_ELEMENTS
    )
    return out


def attend(qkv: Tensor, heads: int, asking: int) -> tuple[Tensor, Tensor]:
    """What the first `asking` tokens see (B, asking, D), and log2 of their softmax's sums."""
    images, tokens, wide = qkv.shape
    seen = qkv.new_empty(images, asking, wide // 3)
    sums = qkv.new_empty(images, heads, asking, dtype=torch.float32)
    _attend[triton.cdiv(asking, TOKENS), images * heads](
        qkv, seen, sums, tokens, asking, **_heads(wide // 3, heads), **ATTEND
    )
    return seen, sums


def attend_back(qkv: Tensor, seen: Tensor, sums: Tensor, g_seen: Tensor) -> Tensor:
    """Gradient of queries, keys and values (B, N, 3 D)."""
    (images, tokens, wide), (_, heads, asking) = qkv.shape, sums.shape
    g_qkv = torch.empty_like(qkv) if asking == tokens else torch.zeros_like(qkv)
    parts = triton.cdiv(asking, TOKENS) + triton.cdiv(tokens, TOKENS)
    _attend_back[parts, images * heads](
        qkv,
        seen,
        sums,
        g_seen,
        g_qkv,
        tokens,
        asking,
        **_heads(wide // 3, heads),
        **ATTEND_BACK,
    )
    return g_qkv


def _rows(x: Tensor) -> tuple[int, int, dict[str, int]]:
    """Rows and columns of x (…, D), and how they are cut."""
    width = x.shape[-1]
    padded = triton.next_power_of_2(width)
    return x.numel() // width, width, {"PADDED": padded, "ROWS": max(1, NORM_ELEMENTS // padded)}


def _heads(width: int, heads: int) -> dict[str, int]:
    return {"WIDTH": width, "HEADS": heads, "HEAD": width // heads, "ROWS": TOKENS}


# --- norms, in Triton's language ----------------------------------------------------------------
# One program has ROWS tokens, whole. Tiles are PADDED columns wide, a power of two; columns from
# WIDTH on are zero.


@triton.jit
def _places(rows, WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """Where this program's rows begin, where their elements are from there, and which exist.

    Only the first needs 64 bits, which a GPU computes slowly.
    """
    row, column = tl.arange(0, ROWS), tl.arange(0, PADDED)
    first = tl.program_id(0) * ROWS
    inside = (first + row < rows)[:, None] & (column < WIDTH)[None, :]
    return first.to(tl.int64) * WIDTH, row[:, None] * WIDTH + column[None, :], column, inside


@triton.jit
def _normed(x, inside, EPS: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of zero mean and unit variance, and 1/std."""
    centred = tl.where(inside, x - tl.sum(x, 1)[:, None] / WIDTH, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1)[:, None] / WIDTH + EPS)
    return centred * scale, scale


@triton.jit(do_not_specialize=["rows"])
def _add_norm(
    x,
    added,
    weight,
    bias,
    total,
    normed,
    rows,
    EPS: tl.constexpr,
    ADD: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    first, place, column, inside = _places(rows, WIDTH, PADDED, ROWS)
    value = tl.load(x + first + place, mask=inside, other=0.0)
    if ADD:
        value += tl.load(added + first + place, mask=inside, other=0.0)
        tl.store(total + first + place, value, mask=inside)
    value, _scale = _normed(value, inside, EPS, WIDTH)
    value *= tl.load(weight + column, mask=column < WIDTH, other=0.0)[None, :]
    value += tl.load(bias + column, mask=column < WIDTH, other=0.0)[None, :]
    tl.store(normed + first + place, value.to(normed.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _norm_back(
    x,
    weight,
    g,
    g_x,
    wide,
    low,
    rows,
    EPS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    first, place, column, inside = _places(rows, WIDTH, PADDED, ROWS)
    value, scale = _normed(tl.load(x + first + place, mask=inside, other=0.0), inside, EPS, WIDTH)
    back = tl.load(g + first + place, mask=inside, other=0.0).to(tl.float32)
    back *= tl.load(weight + column, mask=column < WIDTH, other=0.0)[None, :]
    along = tl.sum(back * value, 1)[:, None] / WIDTH
    back = scale * (back - tl.sum(back, 1)[:, None] / WIDTH - value * along)
    back += tl.load(g_x + first + place, mask=inside, other=0.0)
    tl.store(wide + first + place, back, mask=inside)
    tl.store(low + first + place, back.to(low.dtype.element_ty), mask=inside)


# --- GELU ---------------------------------------------------------------------------------------

_C0, _C1, _C2 = (tl.constexpr(c) for c in ODD)
_FARTHEST = tl.constexpr(FARTHEST)


@triton.jit
def _share(x):
    """Φ(x) and the slope of its sigmoid's argument; see `cprompt.vit.gelu`."""
    square = tl.minimum(x * x, _FARTHEST)
    share = tl.sigmoid(x * (_C0 + square * (_C1 + square * _C2)))
    return share, _C0 + square * (3 * _C1 + square * (5 * _C2))


# `count` stays specialised: eight elements are loaded at once only if it is known to be a multiple.


@triton.jit
def _gelu(hidden, out, count, ELEMENTS: tl.constexpr):
    first, place = tl.program_id(0).to(tl.int64) * ELEMENTS, tl.arange(0, ELEMENTS)
    inside = place < count - first
    x = tl.load(hidden + first + place, mask=inside, other=0.0).to(tl.float32)
    share, _slope = _share(x)
    tl.store(out + first + place, (x * share).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gelu_back(hidden, g, out, count, ELEMENTS: tl.constexpr):
    first, place = tl.program_id(0).to(tl.int64) * ELEMENTS, tl.arange(0, ELEMENTS)
    inside = place < count - first
    x = tl.load(hidden + first + place, mask=inside, other=0.0).to(tl.float32)
    share, slope = _share(x)
    back = tl.load(g + first + place, mask=inside, other=0.0).to(tl.float32)
    back *= share + x * share * (1 - share) * slope
    tl.store(out + first + place, back.to(out.dtype.element_ty), mask=inside)


# --- attention ----------------------------------------------------------------------------------
# One program has ROWS tokens of one head of one image; its queries, keys and values are columns of
# rows that are 3 WIDTH long. Scores are powers of two instead of e.

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["tokens", "asking"])
def _attend(
    qkv,
    seen,
    sums,
    tokens,
    asking,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    image, head = tl.program_id(1).to(tl.int64) // HEADS, tl.program_id(1) % HEADS
    column = tl.arange(0, HEAD)
    asked = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    of_image = qkv + image * tokens * 3 * WIDTH + head * HEAD
    q = tl.load(
        of_image + asked[:, None] * (3 * WIDTH) + column[None, :],
        mask=(asked < asking)[:, None],
        other=0.0,
    )
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, HEAD), tl.float32)
    for first in range(0, tokens, ROWS):
        token = first + tl.arange(0, ROWS)
        keys = of_image + WIDTH + token[None, :] * (3 * WIDTH) + column[:, None]
        k = tl.load(keys, mask=(token < tokens)[None, :], other=0.0)
        score = tl.dot(q, k) * (HEAD**-0.5 * _LOG2E)
        score = tl.where((token < tokens)[None, :], score, float("-inf"))
        higher = tl.maximum(largest, tl.max(score, 1))
        share = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(largest - higher)
        total = total * shrink + tl.sum(share, 1)
        values = of_image + 2 * WIDTH + token[:, None] * (3 * WIDTH) + column[None, :]
        v = tl.load(values, mask=(token < tokens)[:, None], other=0.0)
        found = tl.dot(share.to(qkv.dtype.element_ty), v, found * shrink[:, None])
        largest = higher
    place = seen + (image * asking + asked[:, None]) * WIDTH + head * HEAD + column[None, :]
    tl.store(
        place, (found / total[:, None]).to(qkv.dtype.element_ty), mask=(asked < asking)[:, None]
    )
    tl.store(
        sums + tl.program_id(1) * asking + asked, largest + tl.log2(total), mask=asked < asking
    )


@triton.jit(do_not_specialize=["tokens", "asking"])
def _attend_back(
    qkv,
    seen,
    sums,
    g_seen,
    g_qkv,
    tokens,
    asking,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The first programs have the gradients of queries, the others those of keys and values."""
    image, head = tl.program_id(1).to(tl.int64) // HEADS, tl.program_id(1) % HEADS
    of_image = image * tokens * 3 * WIDTH + head * HEAD
    asked = image * asking * WIDTH + head * HEAD
    sums += tl.program_id(1) * asking
    of_queries = tl.cdiv(asking, ROWS)
    if tl.program_id(0) < of_queries:
        _queries_back(
            qkv + of_image,
            seen + asked,
            sums,
            g_seen + asked,
            g_qkv + of_image,
            tl.program_id(0) * ROWS,
            tokens,
            asking,
            WIDTH,
            HEAD,
            ROWS,
        )
    else:
        _keys_and_values_back(
            qkv + of_image,
            seen + asked,
            sums,
            g_seen + asked,
            g_qkv + of_image,
            (tl.program_id(0) - of_queries) * ROWS,
            tokens,
            asking,
            WIDTH,
            HEAD,
            ROWS,
        )


@triton.jit
def _row(base, row, rows, column, STRIDE: tl.constexpr):
    """Columns of the rows of a matrix whose rows are STRIDE apart; zeros from `rows` on."""
    place = base + row[:, None] * STRIDE + column[None, :]
    return tl.load(place, mask=(row < rows)[:, None], other=0.0)


@triton.jit
def _queries_back(
    qkv,
    seen,
    sums,
    g_seen,
    g_qkv,
    first,
    tokens,
    asking,
    WIDTH: tl.constexpr,
    HEAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    column = tl.arange(0, HEAD)
    asked = first + tl.arange(0, ROWS)
    q = _row(qkv, asked, asking, column, 3 * WIDTH)
    g = _row(g_seen, asked, asking, column, WIDTH)
    along = tl.sum(g.to(tl.float32) * _row(seen, asked, asking, column, WIDTH), 1)
    total = tl.load(sums + asked, mask=asked < asking, other=0.0)
    found = tl.zeros((ROWS, HEAD), tl.float32)
    for start in range(0, tokens, ROWS):
        token = start + tl.arange(0, ROWS)
        k = _row(qkv + WIDTH, token, tokens, column, 3 * WIDTH)
        v = _row(qkv + 2 * WIDTH, token, tokens, column, 3 * WIDTH)
        share = tl.exp2(tl.dot(q, tl.trans(k)) * (HEAD**-0.5 * _LOG2E) - total[:, None])
        share = tl.where((token < tokens)[None, :], share, 0.0)
        back = share * (tl.dot(g, tl.trans(v)) - along[:, None])
        found = tl.dot(back.to(qkv.dtype.element_ty), k, found)
    place = g_qkv + asked[:, None] * (3 * WIDTH) + column[None, :]
    tl.store(place, (found * HEAD**-0.5).to(qkv.dtype.element_ty), mask=(asked < asking)[:, None])


@triton.jit
def _keys_and_values_back(
    qkv,
    seen,
    sums,
    g_seen,
    g_qkv,
    first,
    tokens,
    asking,
    WIDTH: tl.constexpr,
    HEAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    column = tl.arange(0, HEAD)
    token = first + tl.arange(0, ROWS)
    k = _row(qkv + WIDTH, token, tokens, column, 3 * WIDTH)
    v = _row(qkv + 2 * WIDTH, token, tokens, column, 3 * WIDTH)
    g_k = tl.zeros((ROWS, HEAD), tl.float32)
    g_v = tl.zeros((ROWS, HEAD), tl.float32)
    for start in range(0, asking, ROWS):
        asked = start + tl.arange(0, ROWS)
        q = _row(qkv, asked, asking, column, 3 * WIDTH)
        g = _row(g_seen, asked, asking, column, WIDTH)
        along = tl.sum(g.to(tl.float32) * _row(seen, asked, asking, column, WIDTH), 1)
        total = tl.load(sums + asked, mask=asked < asking, other=0.0)
        share = tl.exp2(tl.dot(k, tl.trans(q)) * (HEAD**-0.5 * _LOG2E) - total[None, :])
        share = tl.where((asked < asking)[None, :], share, 0.0)
        g_v = tl.dot(share.to(qkv.dtype.element_ty), g, g_v)
        back = share * (tl.dot(v, tl.trans(g)) - along[None, :])
        g_k = tl.dot(back.to(qkv.dtype.element_ty), q, g_k)
    place = g_qkv + WIDTH + token[:, None] * (3 * WIDTH) + column[None, :]
    there = (token < tokens)[:, None]
    tl.store(place, (g_k * HEAD**-0.5).to(qkv.dtype.element_ty), mask=there)
    tl.store(place + WIDTH, g_v.to(qkv.dtype.element_ty), mask=there)
