"""Named ways to turn an image into a network's input: views are drawn, then applied.

Drawing is arithmetic on uniform numbers and image sizes, for many images at once and the same on
every device. Applying a view touches pixels: here with PIL, in `resample` on a CUDA device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from torch import Tensor

from cprompt.errors import ConfigError

Channels = tuple[float, float, float]
Range = tuple[float, float]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

NORMALIZATIONS: dict[str, tuple[Channels, Channels]] = {
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "inception": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Mean and standard deviation of each channel, for inputs in [0, 1]; "none" leaves them there."""


@dataclass(frozen=True)
class Recipe:
    """What is seen of an image in training and in testing."""

    margin: float = 256 / 224
    """Testing: the short side becomes `margin` times the input size, then the central square is
    cut out."""
    squeeze: bool = False
    """Testing: the whole image is squeezed into the square instead."""
    scale: Range | None = (0.08, 1.0)
    """Training: share of the area that a random crop takes; None trains on the test view."""
    ratio: Range = (3 / 4, 4 / 3)
    """Width / height of a random crop."""
    brightness: float | None = None
    """Training: largest relative change. The crop is then cut out of the image resized by
    `margin`, not out of the image itself."""


RECIPES: dict[str, Recipe] = {
    "photo": Recipe(),
    "cifar": Recipe(brightness=63 / 255),
    "drawn": Recipe(squeeze=True, scale=(0.6, 1.0), ratio=(0.87, 1.15)),
    "plain": Recipe(margin=1.0, scale=None),
    "wide": Recipe(scale=(0.3, 1.0)),
}

_TRIES = 10
_AREAS, _RATIOS = slice(0, _TRIES), slice(_TRIES, 2 * _TRIES)
_TOP, _LEFT, _FLIP, _BRIGHTNESS = range(2 * _TRIES, 2 * _TRIES + 4)
DRAWS = 2 * _TRIES + 4
"""Uniform numbers in [0, 1) that a training view is made from."""


@dataclass(frozen=True)
class Views:
    """n ways to resize part of an image, in whole pixels.

    The `window` is cut out and resized to `resized`; of that the part of `shape` at `corner` is
    kept. Levels are rounded, multiplied by `brightness` and rounded down, and the columns are
    reversed where `flip` says so. Pixel (0, 0) is at the top left.
    """

    window: Ints  # (n, 4): top, left, height, width
    resized: Ints  # (n, 2): height, width
    corner: Ints  # (n, 2): top, left
    shape: Ints  # (n, 2): height, width
    flip: NDArray[np.bool_]  # (n,)
    brightness: NDArray[np.float32]  # (n,)


ViewChain: TypeAlias = tuple[Views, ...]
"""Views of the same n images, applied one after the other, each to what the last one gave."""


def build(
    recipe: str, size: int, normalization: str, own: tuple[Channels, Channels] | None = None
) -> Preparation:
    """How images become float32 (3, size, size), by the names of a recipe and a normalisation.

    The normalisation "auto" is `own`: mean and standard deviation that the backbone was trained
    with, whatever they are. The recipes:

    - `photo`: any part of the image from 8 % of its area up, mirrored half of the time; tested
      on the central square.
    - `cifar`: as `photo`, after enlarging and a change of brightness, for images smaller than
      `size`.
    - `drawn`: most of the image (60 % up), hardly stretched, since proportions tell a square
      from a rectangle; mirrored half of the time, as the drawn figures are themselves. Tested on
      the whole image.
    - `plain`: the central square, in training too; nothing is random.
    - `wide`: as `photo`, from 30 % of the area up.
    """
    if recipe not in RECIPES:
        raise ConfigError(f"unknown transform {recipe!r}", hint=f"use one of {', '.join(RECIPES)}")
    known = NORMALIZATIONS if own is None else {**NORMALIZATIONS, "auto": own}
    if normalization not in known:
        raise ConfigError(
            f"unknown normalization {normalization!r}", hint=f"use one of {', '.join(known)}"
        )
    if size < 1:
        raise ConfigError(f"the input size must be at least 1 pixel, not {size}")
    return Preparation(RECIPES[recipe], size, *known[normalization])


def name_of(normalization: str, own: tuple[Channels, Channels]) -> str:
    """The normalisation with "auto" resolved; "auto" stays where `own` has no name."""
    if normalization != "auto":
        return normalization
    return next((name for name, values in NORMALIZATIONS.items() if values == own), "auto")


@dataclass(frozen=True)
class Preparation:
    """From decoded images to input of `size` x `size` pixels, for training and for testing."""

    recipe: Recipe
    size: int
    mean: Channels
    std: Channels

    def train_views(self, uniforms: Floats, sizes: Ints) -> ViewChain:
        """Row i of `uniforms` (n, DRAWS) makes the view of an image of `sizes[i]` (h, w)."""
        recipe = self.recipe
        if recipe.scale is None:
            return self.test_views(sizes)
        first: ViewChain = ()
        if recipe.brightness is not None:
            change = recipe.brightness * (2 * uniforms[:, _BRIGHTNESS] - 1)
            first = (_views(sizes, _by_short_side(sizes, self._margin()), brightness=1 + change),)
            sizes = first[0].shape
        crop = random_crops(uniforms, sizes, recipe.scale, recipe.ratio)
        last = _views(sizes, self._square(sizes), window=crop, flip=uniforms[:, _FLIP] < 0.5)
        return (*first, last)

    def test_views(self, sizes: Ints) -> ViewChain:
        """The view of each image of `sizes` (n, 2: height, width) for testing."""
        square = self._square(sizes)
        if self.recipe.squeeze:
            return (_views(sizes, square),)
        resized = _by_short_side(sizes, self._margin())
        corner = np.rint((resized - self.size) / 2).astype(np.int64)
        return (_views(sizes, resized, corner=corner, shape=square),)

    def test_window(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Left, top, width and height of the test view, in parts of an image's sides."""
        (view,) = self.test_views(np.array([[height, width]], dtype=np.int64))
        (rows, columns), (top, left), (high, wide) = (
            each[0].tolist() for each in (view.resized, view.corner, view.shape)
        )
        return left / columns, top / rows, wide / columns, high / rows

    def prepare(self, image: Image.Image) -> Tensor:
        """One RGB image under the test view: float32 (3, size, size)."""
        array = np.asarray(image)
        size = np.array([array.shape[:2]], dtype=np.int64)
        levels = apply_views(array, self.test_views(size), 0)
        return self.normalizer(torch.device("cpu"))(torch.from_numpy(levels[None].copy()))[0]

    def normalizer(self, device: torch.device) -> Normalizer:
        """From levels to network input, on `device`."""
        return Normalizer(self.mean, self.std, device)

    def _square(self, sizes: Ints) -> Ints:
        return np.full_like(sizes, self.size)

    def _margin(self) -> int:
        return round(self.size * self.recipe.margin)


class Normalizer:
    """Divides levels by 255, subtracts the mean and divides by the standard deviation.

    Its numbers stay on the device, since sending them would wait for all work queued there.
    """

    def __init__(self, mean: Channels, std: Channels, device: torch.device) -> None:
        # 255 as a tensor: CUDA would multiply by the inverse of a plain number, and round twice.
        self._white = torch.tensor(255.0, device=device)
        self._mean = torch.tensor(mean, device=device).view(3, 1, 1)
        self._std = torch.tensor(std, device=device).view(3, 1, 1)

    def __call__(self, levels: Tensor) -> Tensor:
        """uint8 (B, H, W, 3) to float32 (B, 3, H, W)."""
        channels = levels.permute(0, 3, 1, 2).contiguous().float()
        return channels.div_(self._white).sub_(self._mean).div_(self._std)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on `device`; to CUDA through pinned memory, so that the host does not wait."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def apply_views(image: NDArray[np.uint8], chain: ViewChain, row: int) -> NDArray[np.uint8]:
    """One image (h, w, 3) through row `row` of the views, bit for bit as torchvision on PIL."""
    for views in chain:
        top, left, height, width = views.window[row].tolist()
        part = Image.fromarray(image[top : top + height, left : left + width])
        height, width = views.resized[row].tolist()
        part = part.resize((width, height), Image.Resampling.BILINEAR)
        factor = float(views.brightness[row])
        if factor != 1:
            part = ImageEnhance.Brightness(part).enhance(factor)
        (top, left), (height, width) = views.corner[row].tolist(), views.shape[row].tolist()
        image = np.asarray(part)[top : top + height, left : left + width]
        if views.flip[row]:
            image = image[:, ::-1]
    return image


def random_crops(uniforms: Floats, sizes: Ints, scale: Range, ratio: Range) -> Ints:
    """Windows (n, 4: top, left, height, width), by the rule of torchvision's RandomResizedCrop.

    Ten times an area (uniform) and a ratio width / height (its logarithm uniform) are drawn; the
    first pair that fits inside the image is put anywhere in it. Where none fits, the window is
    the central part, as much of it as the bounds of the ratio allow.
    """
    size_h, size_w = sizes.T
    area = (size_h * size_w)[:, None] * _between(*scale, uniforms[:, _AREAS])
    log_ratio = math.log(ratio[0]), math.log(ratio[1])
    shape = np.exp(_between(*log_ratio, uniforms[:, _RATIOS]))
    widths = np.rint(np.sqrt(area * shape)).astype(np.int64)
    heights = np.rint(np.sqrt(area / shape)).astype(np.int64)
    fits = (widths > 0) & (widths <= size_w[:, None]) & (heights > 0) & (heights <= size_h[:, None])

    found, first = fits.any(1), fits.argmax(1)
    rows = np.arange(len(sizes))
    narrow, wide = size_w / size_h < ratio[0], size_w / size_h > ratio[1]
    widest = np.where(wide, np.rint(size_h * ratio[1]).astype(np.int64), size_w)
    highest = np.where(narrow, np.rint(size_w / ratio[0]).astype(np.int64), size_h)
    width = np.where(found, widths[rows, first], widest)
    height = np.where(found, heights[rows, first], highest)

    top = np.where(found, uniforms[:, _TOP] * (size_h - height + 1), (size_h - height) // 2)
    left = np.where(found, uniforms[:, _LEFT] * (size_w - width + 1), (size_w - width) // 2)
    return np.stack([top.astype(np.int64), left.astype(np.int64), height, width], axis=1)


def _between(low: float, high: float, uniforms: Floats) -> Floats:
    return low + (high - low) * uniforms


def _by_short_side(sizes: Ints, side: int) -> Ints:
    """Sizes (n, 2) with the short side `side` long and the aspect ratio kept, rounded down."""
    scaled: Floats = side * sizes / sizes.min(axis=1, keepdims=True)
    return scaled.astype(np.int64)


def _views(
    sizes: Ints,
    resized: Ints,
    *,
    window: Ints | None = None,
    corner: Ints | None = None,
    shape: Ints | None = None,
    flip: NDArray[np.bool_] | None = None,
    brightness: Floats | None = None,
) -> Views:
    """Views of images of `sizes`: all of each, resized, unless more is said."""
    n = len(sizes)
    return Views(
        window=np.hstack([np.zeros_like(sizes), sizes]) if window is None else window,
        resized=resized,
        corner=np.zeros_like(sizes) if corner is None else corner,
        shape=resized if shape is None else shape,
        flip=np.zeros(n, dtype=np.bool_) if flip is None else flip,
        brightness=(np.ones(n) if brightness is None else brightness).astype(np.float32),
    )
