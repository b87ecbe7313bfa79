import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision import transforms as T
from torchvision.transforms import functional as F

from cprompt.data.pipeline.views import (
    DRAWS,
    NORMALIZATIONS,
    Views,
    apply_views,
    build,
    name_of,
    random_crops,
)
from cprompt.errors import ConfigError

BILINEAR = T.InterpolationMode.BILINEAR
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
SIZES = [(60, 80), (80, 60), (33, 33), (1, 1), (1, 9), (7, 200), (16, 16), (500, 41)]


def scenery(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def as_tensor(image: Image.Image) -> Tensor:
    return torch.tensor(np.array(image), dtype=torch.float32).permute(2, 0, 1) / 255


def uniforms(count: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).random((count, DRAWS))


def same_size(count: int, height: int, width: int) -> NDArray[np.int64]:
    return np.tile(np.array([height, width]), (count, 1))


# --- the views of testing -----------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["photo", "cifar"])
def test_photos_are_tested_on_the_centre_of_a_slightly_larger_image(recipe: str) -> None:
    image = scenery(80, 60)
    # Short side 56 * 256 / 224 = 64, long side 64 * 80 / 60 = 85; margins 14 and 4.
    enlarged = image.resize((85, 64), Image.Resampling.BILINEAR)
    torch.testing.assert_close(
        build(recipe, 56, "none").prepare(image),
        as_tensor(enlarged.crop((14, 4, 70, 60))),
    )


def test_the_margin_is_rounded_to_the_nearest_pixel() -> None:
    (view,) = build("photo", 48, "none").test_views(same_size(1, 100, 200))  # 48 * 8/7 = 54.9
    assert view.resized.tolist() == [[55, 110]]


def test_at_224_the_short_side_is_256() -> None:
    image = scenery(512, 512)
    halved = image.resize((256, 256), Image.Resampling.BILINEAR)
    torch.testing.assert_close(
        build("photo", 224, "none").prepare(image),
        as_tensor(halved.crop((16, 16, 240, 240))),
    )


@pytest.mark.parametrize("normalization", list(NORMALIZATIONS))
@pytest.mark.parametrize("recipe", ["photo", "cifar", "drawn", "plain"])
def test_one_image_is_prepared_bit_for_bit_as_by_torchvision(
    recipe: str, normalization: str
) -> None:
    mean_and_std = NORMALIZATIONS[normalization]
    for size in (15, 16):
        first: list[Any] = {
            "photo": [T.Resize(round(size * 256 / 224), BILINEAR), T.CenterCrop(size)],
            "cifar": [T.Resize(round(size * 256 / 224), BILINEAR), T.CenterCrop(size)],
            "drawn": [T.Resize((size, size), BILINEAR)],
            "plain": [T.Resize(size, BILINEAR), T.CenterCrop(size)],
        }[recipe]
        theirs = T.Compose([*first, T.ToTensor(), T.Normalize(*mean_and_std)])
        ours = build(recipe, size, normalization)
        for height, width in SIZES:
            image = scenery(width, height)
            assert torch.equal(ours.prepare(image), theirs(image)), (height, width)


@pytest.mark.parametrize(
    ("normalization", "white", "black"),
    [
        ("none", (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)),
        ("imagenet", (2.2489083, 2.4285714, 2.64), (-2.1179039, -2.0357143, -1.8044444)),
        ("inception", (1.0, 1.0, 1.0), (-1.0, -1.0, -1.0)),
    ],
)
def test_white_and_black_become_themselves_minus_mean_over_deviation(
    normalization: str, white: tuple[float, ...], black: tuple[float, ...]
) -> None:
    prepare = build("photo", 16, normalization).prepare
    for colour, expected in (("white", white), ("black", black)):
        result = prepare(Image.new("RGB", (20, 20), colour))
        assert result.shape == (3, 16, 16)
        assert result.dtype == torch.float32
        torch.testing.assert_close(result[:, 5, 5], torch.tensor(expected))


# --- the views of training ----------------------------------------------------------------------


def by_torchvision(image: Image.Image, chain: tuple[Views, ...], row: int) -> NDArray[np.uint8]:
    """The last view is a crop; one before it is an enlarged image of another brightness."""
    *first, last = chain
    for views in first:
        image = F.resize(image, views.resized[row].tolist(), BILINEAR)
        image = F.adjust_brightness(image, float(views.brightness[row]))
    image = F.resized_crop(image, *last.window[row].tolist(), last.resized[row].tolist(), BILINEAR)
    return np.asarray(F.hflip(image) if last.flip[row] else image)


@pytest.mark.parametrize("recipe", ["photo", "cifar", "drawn"])
def test_a_view_is_taken_bit_for_bit_as_by_torchvision(recipe: str) -> None:
    preparation = build(recipe, 20, "none")
    sizes = np.repeat(np.array(SIZES), 6, axis=0)
    chain = preparation.train_views(uniforms(len(sizes)), sizes)
    assert chain[-1].flip.any()
    assert not chain[-1].flip.all()
    for row, (height, width) in enumerate(sizes.tolist()):
        image = scenery(width, height)
        view = apply_views(np.asarray(image), chain, row)
        assert view.shape == (20, 20, 3)
        assert np.array_equal(view, by_torchvision(image, chain, row)), (height, width)


def test_cifar_images_are_enlarged_to_the_margin_before_the_crop() -> None:
    enlarged, crop = build("cifar", 56, "none").train_views(uniforms(5), same_size(5, 32, 48))
    assert enlarged.window.tolist() == [[0, 0, 32, 48]] * 5
    assert enlarged.resized.tolist() == enlarged.shape.tolist() == [[64, 96]] * 5
    assert not enlarged.flip.any()
    assert crop.resized.tolist() == [[56, 56]] * 5
    assert (crop.window[:, :2] + crop.window[:, 2:] <= [64, 96]).all()
    assert crop.window[:, 2:].max() > 48  # of the enlarged image, not of the small one


def test_plain_draws_nothing() -> None:
    preparation = build("plain", 30, "none")
    sizes = same_size(3, 60, 80)
    (train,), (test,) = preparation.train_views(uniforms(3), sizes), preparation.test_views(sizes)
    for name in ("window", "resized", "corner", "shape", "flip", "brightness"):
        assert np.array_equal(getattr(train, name), getattr(test, name))
    assert (test.resized.tolist(), test.corner.tolist()) == ([[30, 40]] * 3, [[0, 5]] * 3)


@pytest.mark.parametrize("recipe", ["photo", "cifar", "drawn"])
def test_a_view_depends_on_its_own_row_alone(recipe: str) -> None:
    preparation = build(recipe, 20, "none")
    numbers, sizes = uniforms(len(SIZES)), np.array(SIZES)
    together = preparation.train_views(numbers, sizes)
    for row in range(len(SIZES)):
        alone = preparation.train_views(numbers[[row]], sizes[[row]])
        for one, all_ in zip(alone, together, strict=True):
            for name in ("window", "resized", "corner", "shape", "flip", "brightness"):
                assert np.array_equal(getattr(one, name)[0], getattr(all_, name)[row])


# --- random crops -------------------------------------------------------------------------------


class Scripted:
    """Stands for torch inside torchvision's `get_params`: its draws are the numbers of one row."""

    exp, log = staticmethod(torch.exp), staticmethod(torch.log)

    def __init__(self, row: NDArray[np.float64]) -> None:
        areas, ratios, self.places = row[:10], row[10:20], iter(row[20:22])
        self.pairs = iter(np.stack([areas, ratios], axis=1).ravel())

    def tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    def empty(self, _: int) -> SimpleNamespace:
        def uniform(low: float, high: float) -> Tensor:
            return self.tensor(float(low) + (float(high) - float(low)) * next(self.pairs))

        return SimpleNamespace(uniform_=uniform)

    def randint(self, low: int, high: int, size: tuple[int]) -> Tensor:
        return torch.tensor(low + math.floor(next(self.places) * (high - low)))


def theirs(row: NDArray[np.float64], height: int, width: int, scale: Any, ratio: Any) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(T.transforms, "torch", Scripted(row))
        image = Image.new("RGB", (width, height))
        return list(T.RandomResizedCrop.get_params(image, list(scale), list(ratio)))


@pytest.mark.parametrize(
    ("scale", "ratio"), [(SCALE, RATIO), ((0.6, 1.0), (0.87, 1.15)), ((0.9, 1.0), (1.0, 1.0))]
)
def test_from_the_same_numbers_the_box_is_torchvisions(scale: Any, ratio: Any) -> None:
    sizes = np.repeat(np.array(SIZES), 25, axis=0)
    numbers = uniforms(len(sizes), seed=3)
    boxes = random_crops(numbers, sizes, scale, ratio)
    for box, row, (height, width) in zip(boxes, numbers, sizes.tolist(), strict=True):
        assert box.tolist() == theirs(row, height, width, scale, ratio), (height, width)


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [
        # Nine tenths of the area at a ratio from 3/4 to 4/3 never fit into these.
        (100, 1000, [0, 433, 100, 133]),  # 100 * 4/3 = 133.3; (1000 - 133) // 2
        (1000, 100, [433, 0, 133, 100]),
        (8, 100, [0, 44, 8, 11]),  # 8 * 4/3 = 10.7 is rounded
        (100, 8, [44, 0, 11, 8]),
    ],
)
def test_where_no_try_fits_the_crop_is_central(height: int, width: int, box: list[int]) -> None:
    boxes = random_crops(uniforms(50), same_size(50, height, width), (0.9, 1.0), RATIO)
    assert boxes.tolist() == [box] * 50


@pytest.mark.parametrize(
    ("recipe", "least", "low", "high"),
    [
        ("photo", 0.08, 3 / 4, 4 / 3),
        ("wide", 0.3, 3 / 4, 4 / 3),
        ("drawn", 0.6, 0.87, 1.15),
    ],
)
def test_crops_are_as_large_and_as_stretched_as_the_recipe_says(
    recipe: str, least: float, low: float, high: float
) -> None:
    """Of 5000 crops of a large square the extremes are near the bounds."""
    numbers, sizes = uniforms(5000), same_size(5000, 1000, 1000)
    (views,) = build(recipe, 8, "none").train_views(numbers, sizes)
    height, width = views.window[:, 2].astype(float), views.window[:, 3].astype(float)
    area, ratio = height * width / 1e6, width / height
    assert area.min() == pytest.approx(least, abs=0.01)
    assert area.max() == pytest.approx(1, abs=0.05)
    assert ratio.min() == pytest.approx(low, rel=0.01)
    assert ratio.max() == pytest.approx(high, rel=0.01)


def assert_same_distribution(ours: NDArray[Any], theirs: NDArray[Any]) -> None:
    """Means and the distribution at its deciles, within 4.5 standard errors."""
    error = math.sqrt(ours.var() / len(ours) + theirs.var() / len(theirs))
    assert abs(ours.mean() - theirs.mean()) < 4.5 * error
    for part in np.arange(0.1, 1, 0.1):
        at = np.quantile(theirs, part)
        error = math.sqrt(part * (1 - part) * (1 / len(ours) + 1 / len(theirs)))
        assert abs((ours <= at).mean() - (theirs <= at).mean()) < 4.5 * error


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [(75, 100, SCALE, RATIO), (64, 64, (0.6, 1.0), (0.87, 1.15)), (40, 120, SCALE, RATIO)],
)
def test_crops_are_distributed_as_torchvisions(
    height: int, width: int, scale: Any, ratio: Any
) -> None:
    image = Image.new("RGB", (width, height))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        params = T.RandomResizedCrop.get_params
        theirs = np.array([params(image, list(scale), list(ratio)) for _ in range(3000)])
    ours = random_crops(uniforms(30_000), same_size(30_000, height, width), scale, ratio)
    for statistic in (
        lambda box: box[:, 0],
        lambda box: box[:, 1],
        lambda box: box[:, 2] * box[:, 3],
        lambda box: np.log(box[:, 3] / box[:, 2]),
    ):
        assert_same_distribution(statistic(ours), statistic(theirs))


def test_half_of_the_views_are_mirrored_whatever_their_crop() -> None:
    count = 20_000
    (views,) = build("photo", 20, "none").train_views(uniforms(count), same_size(count, 60, 80))
    assert abs(views.flip.mean() - 0.5) < 4.5 * 0.5 / math.sqrt(count)
    large = views.window[:, 2] > np.median(views.window[:, 2])
    assert abs(views.flip[large].mean() - 0.5) < 4.5 * 0.5 / math.sqrt(large.sum())


def test_only_cifar_changes_brightness_evenly_and_by_63_levels_of_255_at_most() -> None:
    count, most = 20_000, 63 / 255
    for recipe in ("photo", "drawn", "plain"):
        chain = build(recipe, 20, "none").train_views(uniforms(9), same_size(9, 60, 80))
        assert all((views.brightness == 1).all() for views in chain)
    enlarged, crop = build("cifar", 20, "none").train_views(
        uniforms(count), same_size(count, 60, 80)
    )
    change = enlarged.brightness.astype(np.float64) - 1
    deciles = np.quantile(change, np.arange(0, 1.01, 0.1))
    assert np.abs(deciles - np.linspace(-most, most, 11)).max() < 4.5 * most / math.sqrt(count)
    assert np.abs(change).max() <= most + 1e-6
    assert (crop.brightness == 1).all()


def test_brightness_rounds_down_and_stops_at_white() -> None:
    grey = np.full((40, 40, 3), (10, 101, 250), dtype=np.uint8)
    numbers = np.full((1, DRAWS), 0.5)
    numbers[0, -1] = 0.75  # the factor is then 1 + 63/255 / 2 = 1.1235
    chain = build("cifar", 16, "none").train_views(numbers, same_size(1, 40, 40))
    assert np.unique(apply_views(grey, chain, 0).reshape(-1, 3), axis=0).tolist() == [
        [11, 113, 255]
    ]


@pytest.mark.parametrize(
    ("recipe", "size", "normalization", "said"),
    [
        ("foto", 32, "none", "'foto'.*photo, cifar, drawn, plain"),
        ("photo", 32, "zero", "'zero'.*none, imagenet, inception"),
        ("photo", 0, "none", "not 0"),
    ],
)
def test_what_is_unknown_is_named_with_what_is_valid(
    recipe: str, size: int, normalization: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        build(recipe, size, normalization)


def test_auto_is_the_backbones_own_normalisation_whatever_it_is() -> None:
    own = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
    built = build("photo", 16, "auto", own)
    assert (built.mean, built.std) == own
    assert build("photo", 16, "imagenet", own) == build("photo", 16, "imagenet")
    with pytest.raises(ConfigError, match="unknown normalization 'auto'"):
        build("photo", 16, "auto")


def test_a_normalisation_is_named_where_it_has_a_name() -> None:
    own = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
    assert name_of("auto", NORMALIZATIONS["imagenet"]) == "imagenet"
    assert name_of("auto", own) == "auto"
    assert name_of("none", own) == "none"


@pytest.mark.parametrize("recipe", ["photo", "plain", "drawn"])
@pytest.mark.parametrize("size", [(60, 90), (90, 60), (31, 31)])
def test_the_test_window_is_where_the_view_lies(recipe: str, size: tuple[int, int]) -> None:
    """A photo that is white inside the window and black outside looks white."""
    height, width = size
    preparation = build(recipe, 24, "none")
    left, top, wide, high = preparation.test_window(height, width)
    image = np.zeros((height, width, 3), np.uint8)
    y, x = (np.arange(n) for n in size)
    rows = (y + 1 > top * height) & (y < (top + high) * height)
    columns = (x + 1 > left * width) & (x < (left + wide) * width)
    image[np.ix_(rows, columns)] = 255
    seen = preparation.prepare(Image.fromarray(image))
    assert float(seen[:, 2:-2, 2:-2].min()) == 1.0
    assert float(seen.mean()) > 0.97
    if recipe == "photo":
        assert image.mean() < 255 * 0.9
    if recipe == "drawn":
        assert (left, top, wide, high) == (0, 0, 1, 1)
