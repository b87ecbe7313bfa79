import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from cprompt.data import transforms
from cprompt.errors import ConfigError


def scenery(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def as_tensor(picture: Image.Image) -> Tensor:
    return torch.tensor(np.array(picture), dtype=torch.float32).permute(2, 0, 1) / 255


def map_of_places() -> Image.Image:
    """200 x 200: red is the column, green the row, blue is 200 and so tells the brightness."""
    at = np.arange(200, dtype=np.uint8)
    columns, rows = np.broadcast_to(at, (200, 200)), np.broadcast_to(at[:, None], (200, 200))
    return Image.fromarray(np.stack([columns, rows, np.full_like(rows, 200)], axis=2))


def crops(recipe: str, draws: int) -> tuple[list[float], list[float], int]:
    """Area and width / height of each random crop, and how many were mirrored."""
    train, _ = transforms.build(recipe, 50, "none")
    torch.manual_seed(0)
    areas, ratios, mirrored = [], [], 0
    for _ in range(draws):
        red, green, blue = train(map_of_places())
        # Pixel centres are half a pixel inside the crop, so 50 of them span 49 / 50 of it.
        wide = ((red[0, -1] - red[0, 0]) / blue[0, 0]).item() * 50 / 49
        high = ((green[-1, 0] - green[0, 0]) / blue[0, 0]).item() * 50 / 49
        mirrored += wide < 0
        areas.append(abs(wide) * high)
        ratios.append(abs(wide) / high)
    return areas, ratios, mirrored


@pytest.mark.parametrize("recipe", ["photo", "cifar"])
def test_photos_are_tested_on_the_centre_of_a_slightly_larger_picture(recipe: str) -> None:
    picture = scenery(80, 60)
    _, test = transforms.build(recipe, 56, "none")
    # Short side 56 * 256 / 224 = 64, long side 64 * 80 / 60 = 85; margins 14 and 4.
    enlarged = picture.resize((85, 64), Image.Resampling.BILINEAR)
    torch.testing.assert_close(test(picture), as_tensor(enlarged.crop((14, 4, 70, 60))))


def test_at_224_the_short_side_is_256() -> None:
    picture = scenery(512, 512)
    _, test = transforms.build("photo", 224, "none")
    halved = picture.resize((256, 256), Image.Resampling.BILINEAR)
    torch.testing.assert_close(test(picture), as_tensor(halved.crop((16, 16, 240, 240))))


def test_drawn_pictures_are_tested_whole() -> None:
    picture = scenery(80, 60)
    _, test = transforms.build("drawn", 32, "none")
    torch.testing.assert_close(
        test(picture), as_tensor(picture.resize((32, 32), Image.Resampling.BILINEAR))
    )


def test_plain_takes_the_central_square_in_training_too() -> None:
    picture = scenery(80, 60)
    train, test = transforms.build("plain", 30, "none")
    expected = as_tensor(picture.resize((40, 30), Image.Resampling.BILINEAR).crop((5, 0, 35, 30)))
    torch.testing.assert_close(train(picture), expected)
    torch.testing.assert_close(test(picture), expected)


@pytest.mark.parametrize("recipe", ["photo", "cifar"])
def test_photo_crops_take_8_to_100_percent_of_the_area(recipe: str) -> None:
    # The bounds leave room for crops of whole pixels: `cifar` cuts them out of 57 x 57.
    areas, ratios, mirrored = crops(recipe, 300)
    assert 0.07 < min(areas) < 0.15
    assert 0.85 < max(areas) < 1.02
    assert 0.7 < min(ratios) < 0.8
    assert 1.25 < max(ratios) < 1.42
    assert 120 < mirrored < 180


def test_drawn_crops_take_most_of_the_picture_and_keep_its_proportions() -> None:
    areas, ratios, mirrored = crops("drawn", 300)
    assert 0.58 < min(areas) < 0.65
    assert 0.95 < max(areas) < 1.02
    assert 0.85 < min(ratios) < 0.9
    assert 1.1 < max(ratios) < 1.17
    assert 120 < mirrored < 180


def test_only_cifar_changes_brightness_and_by_a_quarter_at_most() -> None:
    grey = Image.new("RGB", (40, 40), (100, 100, 100))
    torch.manual_seed(0)
    for recipe in ("photo", "drawn", "plain"):
        train, _ = transforms.build(recipe, 16, "none")
        assert all(train(grey).unique().item() * 255 == pytest.approx(100) for _ in range(20))
    train, test = transforms.build("cifar", 16, "none")
    levels = [train(grey).unique().item() * 255 for _ in range(100)]
    assert 100 * (1 - 63 / 255) - 1 <= min(levels) < 80
    assert 120 < max(levels) <= 100 * (1 + 63 / 255) + 1
    assert test(grey).unique().item() == pytest.approx(100 / 255)


@pytest.mark.parametrize(
    ("normalization", "white"),
    [
        ("none", (1.0, 1.0, 1.0)),
        ("imagenet", (2.2489083, 2.4285714, 2.64)),
        ("inception", (1.0, 1.0, 1.0)),
    ],
)
def test_white_becomes_one_minus_mean_over_deviation(
    normalization: str, white: tuple[float, float, float]
) -> None:
    for transform in transforms.build("photo", 16, normalization):
        result = transform(Image.new("RGB", (20, 20), "white"))
        assert result.shape == (3, 16, 16)
        assert result.dtype == torch.float32
        torch.testing.assert_close(result[:, 0, 0], torch.tensor(white))


@pytest.mark.parametrize(
    ("normalization", "black"),
    [
        ("none", (0.0, 0.0, 0.0)),
        ("imagenet", (-2.1179039, -2.0357143, -1.8044444)),
        ("inception", (-1.0, -1.0, -1.0)),
    ],
)
def test_black_becomes_minus_mean_over_deviation(
    normalization: str, black: tuple[float, float, float]
) -> None:
    _, test = transforms.build("plain", 16, normalization)
    result = test(Image.new("RGB", (20, 20), "black"))
    torch.testing.assert_close(result[:, 5, 5], torch.tensor(black))


def test_transforms_can_be_sent_to_another_process() -> None:
    picture = scenery(40, 40)
    for recipe in transforms.RECIPES:
        _, test = transforms.build(recipe, 16, "imagenet")
        torch.testing.assert_close(pickle.loads(pickle.dumps(test))(picture), test(picture))


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
        transforms.build(recipe, size, normalization)
