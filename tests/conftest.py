"""Small things that many tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Fixtures import what they need: the process that hands tests to workers reads this file too, and
# no worker starts before it has.
if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from cprompt.methods.registry import MethodRegistry
    from cprompt.research.record import Record
    from cprompt.vit.promptable import FrozenViT


@pytest.fixture(scope="session", autouse=True)
def _no_users_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded images go to a folder of the session, never to a user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A named pipe in a folder of its own: whoever opens it waits, until the end of the test."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("the system has no named pipes")
    (tmp_path / "pipes").mkdir()
    path = tmp_path / "pipes" / "pipe.jpg"
    os.mkfifo(path)
    yield path
    with suppress(OSError):  # nobody waits
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Files are written as always, but no test waits until they would survive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session")
def backbone() -> FrozenViT:
    """timm's test ViT at 48 pixels (9 patches), six blocks, dimension 64, random weights."""
    from cprompt.vit.loading import load_backbone

    return load_backbone("test_vit", weights="random:0", image_size=48)


@pytest.fixture
def own_methods() -> Iterator[MethodRegistry]:
    """The registry of methods, to which a test may add its own; they are gone afterwards."""
    from cprompt.methods.registry import METHODS
    from tests.registered import forgotten_afterwards

    with forgotten_afterwards():
        yield METHODS


@pytest.fixture
def rng() -> torch.Generator:
    import torch

    return torch.Generator().manual_seed(0)


TINY = {
    "backbone.name": "test_vit",
    "backbone.weights": "random:0",
    "backbone.image_size": 48,
    "data.options": {"classes": 6, "train_per_class": 5, "test_per_class": 3, "size": 48},
    "stream.sizes": [3, 1, 2],
    "training.epochs": 2,
    "training.batch_size": 4,
    "execution.device": "cpu",
    "execution.eval_batch_size": 8,
}
"""A run over three unequal tasks of drawn images, in about a second."""


@pytest.fixture
def tiny() -> dict[str, Any]:
    return dict(TINY)


@pytest.fixture
def hand_record() -> Record:
    """A finished run over tasks of 2, 1 and 2 classes with 10, 5 and 3 test images.

    Right after each task, with the prompt selected: 8; 7 and 4; 5, 3 and 1.
    """
    from cprompt.research.config import resolve
    from cprompt.research.evaluation import TaskCounts
    from cprompt.research.record import Record
    from cprompt.research.stream import TaskStream

    return Record(
        config=resolve("shapes").public(),
        stream=TaskStream(order=(3, 1, 4, 0, 2), sizes=(2, 1, 2)),
        dataset="shapes",
        classes=("ant", "bee", "cat", "dog", "elk"),
        backbone={"name": "test_vit", "weights": "random:0", "fingerprint": "0123456789abcdef"},
        images={"train": 50, "test": 18},
        parameters={"learnt": 1000, "backbone": 100000},
        rows=[
            TaskCounts(
                [4, 6], {"selected": [3, 5], "given": [4, 6], "first": [1, 2]}, None, [[10]]
            ),
            TaskCounts(
                [4, 6, 5],
                {"selected": [2, 5, 4], "given": [3, 6, 5], "first": [1, 3, 2]},
                None,
                [[7, 3], [1, 4]],
            ),
            TaskCounts(
                [4, 6, 5, 1, 2],
                {"selected": [1, 4, 3, 1, 0], "given": [2, 5, 4, 1, 1], "first": [0, 3, 1, 0, 1]},
                [2, 5, 4, 1, 1],
                [[6, 2, 2], [1, 3, 1], [0, 1, 2]],
            ),
        ],
        losses=[[{"ce": 2.0}, {"ce": 1.0}]] * 3,
        seconds={"training": 61.4, "evaluation": 2.6},
        environment={"cprompt": "0", "torch": "2", "cpu": "abacus", "cpu_count": 2},
    )


@pytest.fixture(scope="session")
def interpret(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., dict[str, NDArray[Any]]]:
    """Run a file as a program under Triton's interpreter; return the arrays that it saves.

    The interpreter needs no GPU but a process of its own. The program's argument is the .npz to
    write; `before` is code to run first.
    """
    import numpy as np

    def run(file: str, before: str = "") -> dict[str, NDArray[Any]]:
        pytest.importorskip("triton", reason="comes with PyTorch for CUDA only")
        path = tmp_path_factory.mktemp("kernels") / "made.npz"
        start = f"{before}import runpy; runpy.run_path({file!r}, run_name='__main__')"
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        subprocess.run([sys.executable, "-c", start, str(path)], check=True, env=environment)
        with np.load(path) as made:
            return dict(made)

    return run
