"""The kernel, run by Triton's interpreter, which needs no GPU but a process of its own.

Started as a program this file is that process: it writes what the kernel makes of `cases()`.
"""

import math
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from cprompt.data.pipeline.decoded import DecodedImages
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.data.pipeline.views import DRAWS, Preparation, ViewChain, Views, apply_views, build

ImageArray = NDArray[np.uint8]

SIZES = [(7, 5), (5, 13), (1, 1), (6, 2)]
BATCH = 2
SEED = 5
HALF = Fraction(1, 2)


def arrays() -> list[ImageArray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in SIZES]


def decoded() -> DecodedImages:
    return DecodedImages(arrays().__getitem__, len(SIZES), np.array(SIZES))


def by_hand() -> tuple[Preparation, ViewChain]:
    """Windows of one pixel, one row and one column; enlarged, shrunk and cut; bright and dark."""
    views = Views(
        window=np.array([[6, 4, 1, 1], [2, 0, 1, 13], [0, 0, 1, 1], [1, 1, 5, 1]]),
        resized=np.array([[4, 4], [4, 5], [9, 4], [5, 4]]),
        corner=np.array([[0, 0], [0, 1], [5, 0], [1, 0]]),
        shape=np.full((4, 2), 4),
        flip=np.array([True, True, False, False]),
        brightness=np.array([1.3, 0.7, 1, 0], dtype=np.float32),
    )
    return build("plain", 4, "none"), (views,)


def cases() -> Iterator[tuple[str, Preparation, ViewChain]]:
    """A name, how levels are normalised, and views of each of the images."""
    yield ("by hand", *by_hand())
    rng = np.random.default_rng(1)
    for recipe in ("photo", "cifar"):
        preparation = build(recipe, 4, "none")
        numbers = rng.random((len(SIZES), DRAWS))
        yield f"{recipe} train", preparation, preparation.train_views(numbers, np.array(SIZES))
    # The centre of an upright image is cut out further down, that of a wide one further right.
    yield "photo test", preparation, build("photo", 4, "none").test_views(np.array(SIZES))


NAMES = [name for name, _, _ in cases()]


def main(path: str) -> None:
    from cprompt.data.pipeline import resample

    cpu = torch.device("cpu")
    made: dict[str, Any] = {}
    for name, preparation, chain in cases():
        images = resample.DeviceImages(decoded(), preparation.normalizer(cpu), cpu)
        plan = images.plan(chain, np.arange(len(SIZES)))
        made[name] = images.inputs(plan, 0, len(SIZES)).numpy()

    resample._ROWS, resample._COLUMNS = 4, 4  # several blocks per image, not all of them full
    resample._CHUNK = 60  # some images are sent together, some alone
    batches = photo_loader()
    batches._on_device = resample.DeviceImages(decoded(), batches._normalize, cpu)
    for number, (images, targets) in enumerate(batches.epoch(2, start=1)):
        made[f"images {number}"], made[f"targets {number}"] = images.numpy(), targets.numpy()
    np.savez(path, **made)


def photo_loader() -> BatchLoader:
    return BatchLoader(
        decoded(), np.arange(len(SIZES)), build("photo", 5, "imagenet"), BATCH, seed=SEED
    )


@pytest.fixture(scope="module")
def interpreted(
    interpret: Callable[..., dict[str, NDArray[Any]]], bare_package: str
) -> dict[str, NDArray[Any]]:
    """What the kernel makes of every case."""
    return interpret(__file__, bare_package)


def levels(images: NDArray[np.float32]) -> NDArray[np.int64]:
    """(B, 3, S, S) in [0, 1] as whole levels (B, S, S, 3) in 0..255."""
    scaled = images.astype(np.float64).transpose(0, 2, 3, 1) * 255
    assert np.abs(scaled - scaled.round()).max() < 1e-4
    return scaled.round().astype(np.int64)


# --- a slow and obvious reference ---------------------------------------------------------------


def averages(line: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """A line (n, 3) resized: each output pixel is a weighted mean around its centre, rounded.

    Exact, but for the weights: these are rounded to 22 bits, which decides what becomes of means
    that lie halfway between two levels.
    """
    step = Fraction(len(line), length)
    support = max(step, Fraction(1))
    out = np.zeros((length, 3), dtype=np.int64)
    for i in range(length):
        centre = (i + HALF) * step
        weights = [max(1 - abs(x + HALF - centre) / support, 0) for x in range(len(line))]
        total = sum(weights)
        rounded = [Fraction(math.floor(w / total * 2**22 + HALF), 2**22) for w in weights]
        for c in range(3):
            mean = sum(w * int(v) for w, v in zip(rounded, line[:, c], strict=True))
            out[i, c] = math.floor(mean + HALF)
    return out


def slowly(image: ImageArray, chain: ViewChain, row: int) -> NDArray[np.int64]:
    current = image.astype(np.int64)
    for views in chain:
        top, left, height, width = views.window[row]
        current = current[top : top + height, left : left + width]
        height, width = views.resized[row]
        current = np.stack([averages(line, width) for line in current])
        current = np.stack([averages(line, height) for line in current.transpose(1, 0, 2)], axis=1)
        bright = np.floor(current.astype(np.float32) * views.brightness[row])  # a C float in PIL
        (top, left), (height, width) = views.corner[row], views.shape[row]
        current = bright.clip(0, 255).astype(np.int64)[top : top + height, left : left + width]
        if views.flip[row]:
            current = current[:, ::-1]
    return current


def rows_first(image: ImageArray, chain: ViewChain, row: int) -> ImageArray:
    """`apply_views`, but with every row resized before any column, unlike Pillow 13."""
    for views in chain:
        top, left, height, width = views.window[row].tolist()
        part = Image.fromarray(image[top : top + height, left : left + width])
        wide = part.resize((int(views.resized[row, 1]), height), Image.Resampling.BILINEAR)
        rest = Views(
            **{**vars(views), "window": np.array([[0, 0, height, wide.width]] * len(SIZES))}
        )
        image = apply_views(np.asarray(wide), (rest,), row)
    return image


# --- tests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_gives_the_levels_of_pil(
    name: str, interpreted: dict[str, NDArray[Any]]
) -> None:
    (chain,) = [chain for case, _, chain in cases() if case == name]
    got = levels(interpreted[name])
    assert got.shape == (len(SIZES), 4, 4, 3)
    for row, image in enumerate(arrays()):
        assert np.array_equal(got[row], rows_first(image, chain, row))
        assert np.abs(got[row] - apply_views(image, chain, row)).max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_gives_weighted_means(name: str, interpreted: dict[str, NDArray[Any]]) -> None:
    (chain,) = [chain for case, _, chain in cases() if case == name]
    expected = np.stack([slowly(image, chain, i) for i, image in enumerate(arrays())])
    assert np.array_equal(levels(interpreted[name]), expected)


def test_the_cases_flip_enlarge_and_shrink() -> None:
    chain = [views for _, _, all_ in cases() for views in all_]
    steps = np.concatenate([views.window[:, 2:] / views.resized for views in chain])
    assert (steps < 0.5).any()
    assert (steps > 2).any()
    for recipe in ("photo", "cifar"):
        (last,) = [chain[-1] for case, _, chain in cases() if case == f"{recipe} train"]
        assert len(set(last.flip.tolist())) == 2


def test_a_loader_serves_the_same_batches_from_the_device(
    interpreted: dict[str, NDArray[Any]],
) -> None:
    batches = photo_loader()
    level = 1 / 255 / 0.224  # the least deviation of a channel
    for number, (images, targets) in enumerate(batches.epoch(2, start=1)):
        assert interpreted[f"targets {number}"].tolist() == targets.tolist()
        assert np.abs(interpreted[f"images {number}"] - images.numpy()).max() < 1.01 * level
    assert f"images {number + 1}" not in interpreted


if __name__ == "__main__":
    main(sys.argv[1])
