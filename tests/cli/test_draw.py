"""`cprompt draw`: two batches and a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from cprompt.errors import DataError
from tests.cli.common import ok


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
