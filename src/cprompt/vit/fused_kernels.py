"""The kernels of a frozen block of a small ViT, and those of the way back, in Triton.

A norm is computed where the product that follows it is, GELU where the one before it is, and
attention reads queries, keys and values as the product left them. So little is written to memory
that is read only once, and a block is a few kernels instead of a dozen. The products that have
nothing to share are left to cuBLAS. Weights get no gradient.

Products take the type of the weights (bfloat16) and add up in float32; the residual stream is
float32. Imported only where Triton is. A tensor's rows are tokens, and `rows` counts them.
"""

# Triton is not typed, and comes only with PyTorch for CUDA.
# mypy: disable-error-code="import-untyped,import-not-found"
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from cprompt.vit.gelu import FARTHEST, ODD


@dataclass(frozen=True)
class Launch:
    """How a kernel is cut: tokens and columns per program, warps, and loads in flight."""

    rows: int
    warps: int
    stages: int
    columns: int = 0
    chunk: int = 64
    """Columns of a weight that are read at a time."""


# Measured on an H200 with a ViT-Ti and 16 images of 197 to 297 tokens.
NORM_LINEAR = Launch(64, 4, 2, columns=192)
NORM_LINEAR_BACK = Launch(64, 8, 4)
HIDDEN_BACK = Launch(64, 4, 2, columns=192)
ATTEND = Launch(64, 4, 3)
ATTEND_BACK = Launch(64, 4, 1)


def norm_linear(
    x: Tensor, added: Tensor | None, norm: nn.LayerNorm, linear: nn.Linear
) -> tuple[Tensor, Tensor]:
    """The residual stream x + added (B, N, D), and `linear` of its norm (B, N, out)."""
    total = x if added is None else torch.empty_like(x)
    out = x.new_empty(*x.shape[:-1], linear.out_features, dtype=linear.weight.dtype)
    _launch_norm_linear(x, added, norm, linear, total, out, None, gelu=False)
    return total, out


def norm_linear_gelu(
    x: Tensor, added: Tensor, norm: nn.LayerNorm, linear: nn.Linear, keep: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """As `norm_linear`, then GELU; if `keep`, also what enters GELU."""
    total = torch.empty_like(x)
    out = x.new_empty(*x.shape[:-1], linear.out_features, dtype=linear.weight.dtype)
    hidden = torch.empty_like(out) if keep else None
    _launch_norm_linear(x, added, norm, linear, total, out, hidden, gelu=True)
    return total, out, hidden


def _launch_norm_linear(
    x: Tensor,
    added: Tensor | None,
    norm: nn.LayerNorm,
    linear: nn.Linear,
    total: Tensor,
    out: Tensor,
    hidden: Tensor | None,
    gelu: bool,
) -> None:
    rows, cut = x.numel() // x.shape[-1], NORM_LINEAR
    columns = _per_program(linear.out_features, cut)
    _norm_linear[triton.cdiv(rows, cut.rows), linear.out_features // columns](
        x,
        x if added is None else added,
        norm.weight,
        norm.bias,
        linear.weight,
        linear.bias,
        total,
        out,
        out if hidden is None else hidden,
        rows,
        EPS=norm.eps,
        OUT=linear.out_features,
        COLUMNS=columns,
        ADD=added is not None,
        GELU=gelu,
        KEEP=hidden is not None,
        **_sizes(x.shape[-1], cut),
    )


def norm_linear_back(
    x: Tensor, norm: nn.LayerNorm, linear: nn.Linear, g_out: Tensor, g_x: Tensor
) -> tuple[Tensor, Tensor]:
    """`g_x` plus the gradient of x through `norm_linear`, in float32 and in the weights' type."""
    rows, cut = x.numel() // x.shape[-1], NORM_LINEAR_BACK
    g, low = torch.empty_like(x), torch.empty_like(x, dtype=linear.weight.dtype)
    _norm_linear_back[(triton.cdiv(rows, cut.rows),)](
        x,
        norm.weight,
        linear.weight,
        g_out,
        g_x,
        g,
        low,
        rows,
        EPS=norm.eps,
        OUT=linear.out_features,
        **_sizes(x.shape[-1], cut),
    )
    return g, low


def hidden_back(linear: nn.Linear, hidden: Tensor, g_out: Tensor) -> Tensor:
    """Gradient of what enters GELU, from that of what `linear` makes of what leaves it."""
    rows, cut = hidden.numel() // hidden.shape[-1], HIDDEN_BACK
    g = torch.empty_like(hidden)
    columns = _per_program(linear.in_features, cut)
    _hidden_back[triton.cdiv(rows, cut.rows), linear.in_features // columns](
        hidden,
        linear.weight,
        g_out,
        g,
        rows,
        HIDDEN=linear.in_features,
        COLUMNS=columns,
        **_sizes(linear.out_features, cut),
    )
    return g


def attend(qkv: Tensor, heads: int, asking: int) -> tuple[Tensor, Tensor]:
    """What the first `asking` tokens see (B, asking, D), and log2 of their softmax's sums."""
    images, tokens, wide = qkv.shape
    seen = qkv.new_empty(images, asking, wide // 3)
    sums = qkv.new_empty(images, heads, asking, dtype=torch.float32)
    cut = ATTEND
    _attend[triton.cdiv(asking, cut.rows), images * heads](
        qkv, seen, sums, tokens, asking, **_heads(wide // 3, heads, cut)
    )
    return seen, sums


def attend_back(qkv: Tensor, seen: Tensor, sums: Tensor, g_seen: Tensor) -> Tensor:
    """Gradient of queries, keys and values (B, N, 3 D)."""
    (images, tokens, wide), (_, heads, asking) = qkv.shape, sums.shape
    g_qkv = torch.empty_like(qkv) if asking == tokens else torch.zeros_like(qkv)
    cut = ATTEND_BACK
    parts = triton.cdiv(asking, cut.rows) + triton.cdiv(tokens, cut.rows)
    _attend_back[parts, images * heads](
        qkv, seen, sums, g_seen, g_qkv, tokens, asking, **_heads(wide // 3, heads, cut)
    )
    return g_qkv


def _per_program(columns: int, cut: Launch) -> int:
    """Columns of the result that one program computes: those of `cut`, if they divide it."""
    return cut.columns if columns % cut.columns == 0 else cut.chunk


def parts_of(width: int) -> tuple[int, int]:
    """`width` as a power of two and the rest, which is a power of two or zero if kernels fit.

    >>> parts_of(192), parts_of(256)
    ((128, 64), (256, 0))
    """
    first = 1 << (width.bit_length() - 1)
    return first, width - first


def _sizes(width: int, cut: Launch) -> dict[str, int]:
    first, rest = parts_of(width)
    return {
        "WIDTH": width,
        "FIRST": first,
        "REST": rest,
        "CHUNK": cut.chunk,
        "ROWS": cut.rows,
        "num_warps": cut.warps,
        "num_stages": cut.stages,
    }


def _heads(width: int, heads: int, cut: Launch) -> dict[str, int]:
    return {
        "WIDTH": width,
        "HEADS": heads,
        "HEAD": width // heads,
        "ROWS": cut.rows,
        "num_warps": cut.warps,
        "num_stages": cut.stages,
    }


# --- norms and products, in Triton's language ---------------------------------------------------
# A tile's width is a power of two, and a token's often is not. So a token is two tiles, of its
# FIRST columns and of the REST, named a and b; without a rest, b is as a and not used.


@triton.jit
def _row(base, row, rows, column, STRIDE: tl.constexpr):
    """Columns of the rows of a matrix whose rows are STRIDE apart; zeros from `rows` on."""
    place = base + row[:, None] * STRIDE + column[None, :]
    return tl.load(place, mask=(row < rows)[:, None], other=0.0)


@triton.jit
def _put(base, row, rows, column, STRIDE: tl.constexpr, value):
    place = base + row[:, None] * STRIDE + column[None, :]
    tl.store(place, value.to(base.dtype.element_ty), mask=(row < rows)[:, None])


@triton.jit
def _sum(a, b, REST: tl.constexpr):
    """The sum of each row (rows, 1)."""
    total = tl.sum(a, 1)
    if REST:
        total += tl.sum(b, 1)
    return total[:, None]


@triton.jit
def _normed(a, b, EPS: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr):
    """Rows of zero mean and unit variance, and 1/std."""
    mean = _sum(a, b, REST) / WIDTH
    a -= mean
    b -= mean
    scale = tl.rsqrt(_sum(a * a, b * b, REST) / WIDTH + EPS)
    return a * scale, b * scale, scale


@triton.jit
def _share(x, C0: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, FAR: tl.constexpr):
    """Φ(x) and the slope of its sigmoid's argument; see `cprompt.vit.gelu`."""
    square = tl.minimum(x * x, FAR)
    share = tl.sigmoid(x * (C0 + square * (C1 + square * C2)))
    return share, C0 + square * (3 * C1 + square * (5 * C2))


_C0, _C1, _C2 = (tl.constexpr(c) for c in ODD)
_FAR = tl.constexpr(FARTHEST)


@triton.jit
def _gelu(x):
    share, _slope = _share(x, _C0, _C1, _C2, _FAR)
    return x * share


@triton.jit
def _gelu_slope(x):
    share, slope = _share(x, _C0, _C1, _C2, _FAR)
    return share + x * share * (1 - share) * slope


@triton.jit(do_not_specialize=["rows"])
def _norm_linear(
    x,
    added,
    norm_weight,
    norm_bias,
    weight,
    bias,
    total,
    out,
    hidden,
    rows,
    EPS: tl.constexpr,
    OUT: tl.constexpr,
    COLUMNS: tl.constexpr,
    ADD: tl.constexpr,
    GELU: tl.constexpr,
    KEEP: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """All of ROWS tokens, COLUMNS of what they become; the first of these programs keep x."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    of_a = tl.arange(0, FIRST)
    of_b = FIRST + tl.arange(0, REST) if REST else of_a
    a = _row(x, row, rows, of_a, WIDTH)
    b = _row(x, row, rows, of_b, WIDTH) if REST else a
    if ADD:
        a += _row(added, row, rows, of_a, WIDTH)
        if REST:
            b += _row(added, row, rows, of_b, WIDTH)
        if tl.program_id(1) == 0:
            _put(total, row, rows, of_a, WIDTH, a)
            if REST:
                _put(total, row, rows, of_b, WIDTH, b)
    a, b, _scale = _normed(a, b, EPS, WIDTH, REST)
    a = a * tl.load(norm_weight + of_a)[None, :] + tl.load(norm_bias + of_a)[None, :]
    a = a.to(weight.dtype.element_ty)
    if REST:
        b = b * tl.load(norm_weight + of_b)[None, :] + tl.load(norm_bias + of_b)[None, :]
        b = b.to(weight.dtype.element_ty)
    begin = tl.program_id(1) * COLUMNS
    for chunk in range(0, COLUMNS, CHUNK):
        to = begin + chunk + tl.arange(0, CHUNK)
        made = tl.dot(a, tl.load(weight + to[None, :] * WIDTH + of_a[:, None]))
        if REST:
            made = tl.dot(b, tl.load(weight + to[None, :] * WIDTH + of_b[:, None]), made)
        made += tl.load(bias + to).to(tl.float32)[None, :]
        if KEEP:
            _put(hidden, row, rows, to, OUT, made)
        if GELU:
            made = _gelu(made)
        _put(out, row, rows, to, OUT, made)


@triton.jit(do_not_specialize=["rows"])
def _norm_linear_back(
    x,
    norm_weight,
    weight,
    g_out,
    g_x,
    g,
    low,
    rows,
    EPS: tl.constexpr,
    OUT: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    of_a = tl.arange(0, FIRST)
    of_b = FIRST + tl.arange(0, REST) if REST else of_a
    g_a = tl.zeros((ROWS, FIRST), tl.float32)
    g_b = tl.zeros((ROWS, REST if REST else FIRST), tl.float32)
    for chunk in range(0, OUT, CHUNK):
        of = chunk + tl.arange(0, CHUNK)
        part = _row(g_out, row, rows, of, OUT)
        g_a = tl.dot(part, tl.load(weight + of[:, None] * WIDTH + of_a[None, :]), g_a)
        if REST:
            g_b = tl.dot(part, tl.load(weight + of[:, None] * WIDTH + of_b[None, :]), g_b)
    a = _row(x, row, rows, of_a, WIDTH)
    b = _row(x, row, rows, of_b, WIDTH) if REST else a
    a, b, scale = _normed(a, b, EPS, WIDTH, REST)
    g_a *= tl.load(norm_weight + of_a)[None, :]
    g_b *= tl.load(norm_weight + of_b)[None, :]
    mean = _sum(g_a, g_b, REST) / WIDTH
    along = _sum(g_a * a, g_b * b, REST) / WIDTH
    g_a = scale * (g_a - mean - a * along) + _row(g_x, row, rows, of_a, WIDTH)
    _put(g, row, rows, of_a, WIDTH, g_a)
    _put(low, row, rows, of_a, WIDTH, g_a)
    if REST:
        g_b = scale * (g_b - mean - b * along) + _row(g_x, row, rows, of_b, WIDTH)
        _put(g, row, rows, of_b, WIDTH, g_b)
        _put(low, row, rows, of_b, WIDTH, g_b)


@triton.jit(do_not_specialize=["rows"])
def _hidden_back(
    hidden,
    weight,
    g_out,
    g,
    rows,
    HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    of_a = tl.arange(0, FIRST)
    of_b = FIRST + tl.arange(0, REST) if REST else of_a
    a = _row(g_out, row, rows, of_a, WIDTH)
    b = _row(g_out, row, rows, of_b, WIDTH) if REST else a
    begin = tl.program_id(1) * COLUMNS
    for chunk in range(0, COLUMNS, CHUNK):
        unit = begin + chunk + tl.arange(0, CHUNK)
        made = tl.dot(a, tl.load(weight + of_a[:, None] * HIDDEN + unit[None, :]))
        if REST:
            made = tl.dot(b, tl.load(weight + of_b[:, None] * HIDDEN + unit[None, :]), made)
        entered = _row(hidden, row, rows, unit, HIDDEN).to(tl.float32)
        _put(g, row, rows, unit, HIDDEN, made * _gelu_slope(entered))


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
    image, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
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
    image, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
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
