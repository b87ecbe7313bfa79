"""Small dataset trees with the true layouts, for the tests of the loaders."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cprompt.data import image_set
from cprompt.data.image_set import ImageSet


@pytest.fixture
def touch(tmp_path: Path) -> Callable[..., None]:
    """Make empty files: enough for a loader, which decodes nothing."""

    def make(*names: str) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()

    return make


@pytest.fixture
def image(tmp_path: Path) -> Callable[..., None]:
    """Write a 4×3 image whose pixels encode `value`, so that no two values look alike."""

    def make(name: str, value: int, **options: object) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((3, 4, 3), (value % 256, value // 256, 0), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name, **options)

    return make


@pytest.fixture
def rows(tmp_path: Path) -> Callable[[ImageSet], list[tuple[str, int]]]:
    """(path below tmp_path, label) of each image, in order."""

    def of(part: ImageSet) -> list[tuple[str, int]]:
        return [
            (path.relative_to(tmp_path).as_posix(), int(label))
            for path, label in zip(part.images, part.labels, strict=True)
        ]

    return of


@pytest.fixture(scope="session")
def bare_package() -> str:
    """Code that makes `cprompt` importable without its `__init__`, which imports everything."""
    package = Path(image_set.__file__).parents[1]
    return (
        "import sys, types\n"
        f"package = types.ModuleType('cprompt'); package.__path__ = [{str(package)!r}]\n"
        "sys.modules['cprompt'] = package\n"
    )


@pytest.fixture
def python_without_torch(bare_package: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code in a process of its own that may import `cprompt.data` but not torch."""

    def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        code = f"{bare_package}sys.modules['torch'] = None\n{code}"
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run
