"""`cprompt draw`: two batches and a test."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from PIL import Image

from cprompt.errors import DataError
from tests.cli.common import Main, ok


def test_drawn_photos_are_two_batches_and_a_test(photos: Path) -> None:
    counts = {
        part.name: {c.name: len(list(c.iterdir())) for c in part.iterdir()}
        for part in photos.iterdir()
    }
    assert set(counts) == {"january", "february", "test"}
    assert sorted(counts["january"].values()) == [6, 6, 6]
    assert sorted(counts["february"].values()) == [6, 6]
    assert counts["test"] == dict.fromkeys([*counts["january"], *counts["february"]], 2)


def test_a_folder_with_something_in_it_is_left_alone(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (photos, tmp_path / "file"):
        with pytest.raises(DataError) as error:
            ok("draw", place)
        assert error.value.file == str(place)


def test_a_place_that_cannot_be_written_to_is_an_error(
    main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert "cannot be written" in main.error("draw", tmp_path / "file" / "photos")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(Image.Image, "save", Mock(side_effect=full))
    said = main.error("draw", tmp_path / "photos")
    assert "cannot be written (No space left on device); free some disk space" in said
