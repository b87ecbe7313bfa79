"""Named ways to turn a PIL picture into a network's input, one for training and one for testing."""

from __future__ import annotations

from collections.abc import Callable

from PIL import Image
from torch import Tensor
from torchvision import transforms as T

from cprompt.errors import ConfigError

Transform = Callable[[Image.Image], Tensor]
Channels = tuple[float, float, float]

NORMALIZATIONS: dict[str, tuple[Channels, Channels]] = {
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "inception": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Mean and standard deviation of each channel, for inputs in [0, 1]; "none" leaves them there."""


def _resize(size: int | tuple[int, int]) -> T.Resize:
    """Bilinear; one number is the length of the short side, and the aspect ratio is kept."""
    return T.Resize(size, T.InterpolationMode.BILINEAR, antialias=True)


def _random_crop(
    size: int, scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
) -> list[T.RandomResizedCrop | T.RandomHorizontalFlip]:
    crop = T.RandomResizedCrop(size, scale, ratio, T.InterpolationMode.BILINEAR, antialias=True)
    return [crop, T.RandomHorizontalFlip(0.5)]


def _margin(size: int) -> int:
    """The short side from which `size` is cropped: 256 for 224, and in that proportion."""
    return round(size * 256 / 224)


def _photo(size: int) -> tuple[list[Transform], list[Transform]]:
    return _random_crop(size), [_resize(_margin(size)), T.CenterCrop(size)]


def _cifar(size: int) -> tuple[list[Transform], list[Transform]]:
    train, test = _photo(size)
    return [_resize(_margin(size)), T.ColorJitter(brightness=63 / 255), *train], test


def _drawn(size: int) -> tuple[list[Transform], list[Transform]]:
    return _random_crop(size, (0.6, 1.0), (0.87, 1.15)), [_resize((size, size))]


def _plain(size: int) -> tuple[list[Transform], list[Transform]]:
    crop = [_resize(size), T.CenterCrop(size)]
    return crop, crop


RECIPES: dict[str, Callable[[int], tuple[list[Transform], list[Transform]]]] = {
    "photo": _photo,
    "cifar": _cifar,
    "drawn": _drawn,
    "plain": _plain,
}


def build(recipe: str, size: int, normalization: str) -> tuple[Transform, Transform]:
    """The transforms for training and for testing, each from PIL RGB to float32 (3, size, size).

    Random draws come from torch's global CPU generator. The recipes:

    - `photo`: any part of the picture from 8 % of its area up, mirrored half of the time; tested
      on the central square.
    - `cifar`: as `photo`, after enlarging and a change of brightness, for pictures smaller than
      `size`.
    - `drawn`: most of the picture (60 % up), hardly stretched, since proportions tell a square
      from a rectangle; mirrored half of the time, as the drawn figures are themselves. Tested on
      the whole picture.
    - `plain`: the central square, in training too; nothing is random.
    """
    if recipe not in RECIPES:
        raise ConfigError(f"unknown transform recipe {recipe!r}; use one of {', '.join(RECIPES)}")
    if normalization not in NORMALIZATIONS:
        raise ConfigError(
            f"unknown normalization {normalization!r}; use one of {', '.join(NORMALIZATIONS)}"
        )
    if size < 1:
        raise ConfigError(f"the input size must be at least 1 pixel, not {size}")
    to_input = [T.ToTensor()]
    if normalization != "none":
        to_input.append(T.Normalize(*NORMALIZATIONS[normalization]))
    train, test = RECIPES[recipe](size)
    return T.Compose([*train, *to_input]), T.Compose([*test, *to_input])
