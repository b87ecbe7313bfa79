"""Views of images made on a CUDA device by one Triton kernel; imported only where there is one.

The result equals PIL's for the same views, level by level: a triangle filter, widened where an
image shrinks, along rows and then along columns, with weights of 22 bits and rounded levels in
between. From version 13 on, Pillow resizes columns first where that is less work; there about a
quarter of the levels differ by one.
"""

# Triton is not typed, and comes only with PyTorch for CUDA.
# mypy: disable-error-code="import-untyped,import-not-found"
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from cprompt.data.pipeline.decoded import DecodedImages, from_array
from cprompt.data.pipeline.views import Normalizer, ViewChain, Views, build, send

_ROWS, _COLUMNS = 4, 64  # of an output image, computed by one program of the kernel
_CHUNK = 2**26  # bytes uploaded at once


@dataclass(frozen=True)
class Plan:
    """Views of n images, ready on the device; one table per link of the chain."""

    tables: tuple[Tensor, ...]  # (n, 13) int64, see `_table`
    brightness: tuple[Tensor, ...]  # (n,) float32
    shapes: tuple[NDArray[np.int64], ...]  # (n, 2), on the host: sizes of the launches


class DeviceImages:
    """The images of a set on a device, and their views made there."""

    def __init__(self, images: DecodedImages, normalizer: Normalizer, device: torch.device) -> None:
        """`images` must know their sizes."""
        assert images.sizes is not None
        self.device = device
        self.sizes = images.sizes
        self._offsets, self._flat = _upload(images, device)
        levels = torch.arange(256, dtype=torch.uint8, device=device)
        table = normalizer(levels.view(256, 1, 1, 1).expand(-1, -1, -1, 3))
        self._normalized = table.view(256, 3).T.contiguous()  # (3, 256) float32

    def plan(self, chain: ViewChain, numbers: NDArray[np.int64]) -> Plan:
        """Send views to the device; row i is a view of image `numbers[i]`."""
        offsets, widths = self._offsets[numbers], self.sizes[numbers, 1]
        tables = []
        for views in chain:
            tables.append(send(torch.from_numpy(_table(views, offsets, widths)), self.device))
            offsets, widths = np.zeros_like(offsets), views.shape[:, 1]
        brightness = [send(torch.from_numpy(views.brightness), self.device) for views in chain]
        return Plan(tuple(tables), tuple(brightness), tuple(views.shape for views in chain))

    def inputs(self, plan: Plan, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of the plan as network input: float32 (B, 3, S, S).

        Only queues work: nothing here waits for the device.
        """
        source, source_slot = self._flat, 0
        for table, brightness, shapes in zip(
            plan.tables, plan.brightness, plan.shapes, strict=True
        ):
            height, width = shapes[start:stop].max(axis=0).tolist()
            last = table is plan.tables[-1]
            out = torch.empty(
                (stop - start, 3, height, width),
                dtype=torch.float32 if last else torch.uint8,
                device=self.device,
            )
            grid = (triton.cdiv(height, _ROWS), triton.cdiv(width, _COLUMNS), stop - start)
            with torch.cuda.device_of(out):
                _resample[grid](
                    source,
                    source_slot,
                    table,
                    brightness,
                    start,
                    self._normalized,
                    out,
                    3 * height * width,
                    LAST=last,
                    FIELDS=table.shape[1],
                    ROWS=_ROWS,
                    COLUMNS=_COLUMNS,
                )
            source, source_slot = out, 3 * height * width  # each image in its slot, (h, w, 3)
        return source


def try_kernel(device: torch.device) -> None:
    """Make a view of one pixel, which fails where Triton cannot compile for the device."""
    preparation = build("plain", 1, "none")
    sizes = np.ones((1, 2), dtype=np.int64)
    pixel = from_array(np.zeros((1, 1, 1, 3), np.uint8))
    images = DeviceImages(pixel, preparation.normalizer(device), device)
    images.inputs(images.plan(preparation.test_views(sizes), np.arange(1)), 0, 1)


def _upload(images: DecodedImages, device: torch.device) -> tuple[NDArray[np.int64], Tensor]:
    """All images one after the other in one uint8 tensor, and where each begins."""
    assert images.sizes is not None
    ends = np.cumsum(3 * images.sizes.prod(axis=1))
    offsets = np.concatenate([[0], ends[:-1]])
    flat = torch.empty(int(ends[-1]), dtype=torch.uint8, device=device)
    first = 0
    while first < len(images):
        stop = max(first + 1, int(np.searchsorted(ends, offsets[first] + _CHUNK, side="right")))
        place = flat[offsets[first] : ends[stop - 1]]
        # Pinned memory is kept by torch for the next part, and the host need not wait for the copy.
        part = torch.empty(len(place), dtype=torch.uint8, pin_memory=device.type == "cuda")
        np.concatenate([images[i].reshape(-1) for i in range(first, stop)], out=part.numpy())
        place.copy_(part, non_blocking=True)
        first = stop
    return offsets, flat


def _table(
    views: Views, offsets: NDArray[np.int64], widths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(n, 13): what the kernel reads of each view, in the order in which it reads."""
    flip = views.flip[:, None]
    columns = [offsets[:, None], widths[:, None], views.window, views.resized, views.corner]
    return np.hstack([*columns, views.shape, flip]).astype(np.int64)


# --- the kernel, in Triton's language -----------------------------------------------------------


@triton.jit(do_not_specialize=["source_slot", "first", "out_slot"])
def _resample(
    source,
    source_slot,
    table,
    brightness,
    first,
    normalized,
    out,
    out_slot,
    LAST: tl.constexpr,
    FIELDS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A block of one output image.

    Image i begins `source_slot` * i bytes behind the place its table says, and is written
    `out_slot` * i values behind the beginning of `out`: as levels (h, w, 3), or if these views are
    the LAST of the chain as normalised values (3, h, w).
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    image = tl.program_id(2).to(tl.int64)
    view = table + (first + image) * FIELDS
    stride = tl.load(view + 1)
    top, left = tl.load(view + 2), tl.load(view + 3)
    window_h, window_w = tl.load(view + 4), tl.load(view + 5)
    resized_h, resized_w = tl.load(view + 6), tl.load(view + 7)
    height, width = tl.load(view + 10), tl.load(view + 11)
    if (tl.program_id(0) * ROWS >= height) | (tl.program_id(1) * COLUMNS >= width):
        return

    y, x = tl.minimum(row, height - 1), tl.minimum(column, width - 1)
    if tl.load(view + 12) != 0:
        x = width - 1 - x
    near_y, off_y = _nearest(y + tl.load(view + 8), window_h, resized_h)
    near_x, off_x = _nearest(x + tl.load(view + 9), window_w, resized_w)
    taps_y, taps_x = _taps(window_h, resized_h), _taps(window_w, resized_w)
    unit_y = _unit(near_y, off_y, window_h, resized_h, taps_y)
    unit_x = _unit(near_x, off_x, window_w, resized_w, taps_x)
    corner = source + tl.load(view) + image * source_slot + (top * stride + left) * 3

    red = tl.zeros([ROWS, COLUMNS], tl.int32)
    green = tl.zeros([ROWS, COLUMNS], tl.int32)
    blue = tl.zeros([ROWS, COLUMNS], tl.int32)
    for tap_y in range(-taps_y, taps_y + 1):
        share_y = _share(tap_y, near_y, off_y, window_h, resized_h, unit_y)
        line = corner + (near_y + tap_y) * stride * 3
        line_red = tl.zeros([ROWS, COLUMNS], tl.int32)
        line_green = tl.zeros([ROWS, COLUMNS], tl.int32)
        line_blue = tl.zeros([ROWS, COLUMNS], tl.int32)
        for tap_x in range(-taps_x, taps_x + 1):
            share_x = _share(tap_x, near_x, off_x, window_w, resized_w, unit_x)
            counts = (share_x > 0) & (share_y > 0)
            at = line + (near_x + tap_x) * 3
            line_red += share_x * tl.load(at, counts, 0).to(tl.int32)
            line_green += share_x * tl.load(at + 1, counts, 0).to(tl.int32)
            line_blue += share_x * tl.load(at + 2, counts, 0).to(tl.int32)
        red += share_y * _level(line_red)
        green += share_y * _level(line_green)
        blue += share_y * _level(line_blue)

    factor = tl.load(brightness + first + image)
    red = _brighten(_level(red), factor)
    green = _brighten(_level(green), factor)
    blue = _brighten(_level(blue), factor)
    begin = out + image * out_slot
    here = row * width + column
    inside = (row < height) & (column < width)
    if LAST:
        area = height * width
        tl.store(begin + here, tl.load(normalized + red), inside)
        tl.store(begin + area + here, tl.load(normalized + 256 + green), inside)
        tl.store(begin + 2 * area + here, tl.load(normalized + 512 + blue), inside)
    else:
        tl.store(begin + 3 * here, red.to(tl.uint8), inside)
        tl.store(begin + 3 * here + 1, green.to(tl.uint8), inside)
        tl.store(begin + 3 * here + 2, blue.to(tl.uint8), inside)


# A window of w source pixels becomes r output pixels. In units of 1 / (2 r) source pixel all that
# matters is whole: the centre of output pixel i is at (2 i + 1) w, that of source pixel x at
# (2 x + 1) r, and the filter falls from its top to zero over 2 max(w, r).


@triton.jit
def _nearest(position, window, resized):
    """The source pixel that an output pixel's centre lies in, and how far off its own centre is."""
    centre = (2 * position + 1) * window
    pixel = centre // (2 * resized)
    return pixel, (2 * pixel + 1) * resized - centre


@triton.jit
def _taps(window, resized):
    """How many source pixels on either side of the nearest the filter can reach."""
    return ((tl.maximum(window, resized) + resized - 1) // resized).to(tl.int32)


@triton.jit
def _weight(tap, nearest, offset, window, resized):
    """The filter's height, a whole number, over the source pixel `tap` after the nearest one."""
    x = nearest + tap
    height = 2 * tl.maximum(window, resized) - tl.abs(offset + 2 * resized * tap)
    return tl.where((x >= 0) & (x < window), tl.maximum(height, 0), 0)


@triton.jit
def _unit(nearest, offset, window, resized, taps):
    """The factor that makes the weights of an output pixel add up to 2^22."""
    total = nearest * 0
    for tap in range(-taps, taps + 1):
        total += _weight(tap, nearest, offset, window, resized)
    return 4194304.0 / total.to(tl.float64)


@triton.jit
def _share(tap, nearest, offset, window, resized, unit):
    """A weight as in PIL, rounded to 22 bits; in float64, since float32 has only 24."""
    weight = _weight(tap, nearest, offset, window, resized).to(tl.float64)
    return (weight * unit + 0.5).to(tl.int32)


@triton.jit
def _level(shares):
    """A sum of shares of levels, rounded to the nearest level."""
    return (shares + 2097152) >> 22


@triton.jit
def _brighten(level, factor):
    """As PIL does: rounded down, and not past white."""
    return tl.minimum(tl.floor(level.to(tl.float32) * factor), 255.0).to(tl.int32)
