"""`cprompt cache`: what decoded images take, and clearing them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from cprompt.data.image_set import ImageSet
from cprompt.data.pipeline.cache import CacheConfig, cached, open_images
from tests.cli.common import ok


def decode_some(cache: Path, images: Path) -> None:
    """Four images of 16 × 16 in the cache: 3072 bytes."""
    images.mkdir()
    for i in range(4):
        Image.fromarray(np.full((16, 16, 3), i, np.uint8)).save(images / f"{i}.png")
    labels = np.zeros(4, np.int64)
    files = sorted(images.iterdir())
    open_images(ImageSet(files, labels, ("a",)), CacheConfig(folder=str(cache)))


def test_sets_are_shown_with_their_size_and_their_source(tmp_path: Path) -> None:
    decode_some(tmp_path / "cache", tmp_path / "my [red] images")
    printed = ok("cache", "--folder", tmp_path / "cache")
    assert "my [red] images" in printed
    assert "0.0 MiB" in printed
    assert f"in {tmp_path / 'cache'}" in printed


def test_clearing_deletes_them_and_says_how_much(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    decode_some(cache, tmp_path / "images")
    assert len(cached(CacheConfig(folder=str(cache)).path)) == 1
    assert "0.0 MiB freed" in ok("cache", "--folder", cache, "--clear")
    assert not [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size]
    assert "holds no images" in ok("cache", "--folder", cache)
