"""`cprompt evaluate`: every photo is counted once."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from tests.cli.common import ok


def test_evaluation_counts_every_photo(model: Path, photos: Path) -> None:
    found = json.loads(ok("evaluate", model, photos / "test", "--json", "--weights", "random:0"))
    assert found["photos"] == 10
    assert sum(c["photos"] for c in found["per_class"].values()) == 10
    assert set(found["per_batch"]) == {"1", "2"}
    told = ok("evaluate", model, photos / "test", "--weights", "random:0")
    share = re.search(r"accuracy ([\d.]+) % of 10 photos", told)
    assert share is not None
    assert float(share[1]) == round(100 * found["accuracy"], 1)
    mistakes = re.findall(r"^(\d+) × .* taken for ", told, re.MULTILINE)
    assert sum(map(int, mistakes)) <= 10


def test_photos_of_classes_never_learnt_are_counted_apart(
    model: Path, photos: Path, tmp_path: Path
) -> None:
    one = next((photos / "test").iterdir())
    shutil.copytree(one, tmp_path / "new" / "never seen")
    told = ok("evaluate", model, tmp_path / "new", "--weights", "random:0")
    assert "2 photos of classes never learnt" in told
    assert "no photo is of a class that was learnt" in told
