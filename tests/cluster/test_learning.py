"""Learning on Ray: the same model whatever the number of shards, and whoever dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from cprompt import ContinualClassifier
from cprompt.cluster.learning import CountOnRay
from cprompt.errors import ClusterError
from cprompt.training.observers import Observer
from tests.classifier.common import batch, photos, saved, tiny
from tests.cluster.conftest import TwoNodes

COUNTS = {"red": 70, "blue": 20, "green": 70}
"""Eight batches of 21 images."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("photos")
    images, names = batch(0, **COUNTS)
    files = [saved(folder / f"{i:03}.png", image) for i, image in enumerate(images)]
    return list(zip(files, names, strict=True))


@pytest.fixture(scope="module")
def alone(pairs: list[tuple[Path, str]]) -> ContinualClassifier:
    """Learnt in one process."""
    return tiny().learn(pairs)


def check_same(found: ContinualClassifier, alone: ContinualClassifier) -> None:
    """Statistics within 1e-9, and the same answers."""
    assert found.classes_ == alone.classes_
    assert found.history_[-1].photos == COUNTS
    expected = alone.method_.state_dict()
    for name, value in found.method_.state_dict().items():
        if name.startswith("moments."):
            gap = float((value - expected[name]).abs().max())
            assert gap <= 1e-9 * float(expected[name].abs().max()), name
        if name.startswith("kept."):
            assert torch.equal(value, expected[name]), name
    asked = [p for name in ("red", "green", "cyan") for p in photos(name, 4, seed=9)]
    assert found.predict(asked) == alone.predict(asked)
    np.testing.assert_allclose(found.predict_proba(asked), alone.predict_proba(asked), atol=1e-6)


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_any_number_of_shards_gives_the_model_of_one_process(
    shards: int, cluster: TwoNodes, pairs: list[tuple[Path, str]], alone: ContinualClassifier
) -> None:
    reports: list[int] = []

    class Count(Observer):
        def decoded(self, done: int, total: int) -> None:
            reports.append(done)

    found = tiny()
    count = CountOnRay(cluster.address, shards)
    assert found.learn_counted(pairs, count, observer=Count()) == []
    assert len(reports) == shards
    assert reports[-1] == len(pairs)
    check_same(found, alone)


def test_a_worker_that_dies_loses_and_doubles_nothing(
    cluster: TwoNodes,
    pairs: list[tuple[Path, str]],
    alone: ContinualClassifier,
    once: Callable[[Callable[[], object]], Callable[[], None]],
) -> None:
    kill = once(lambda: cluster.kill_worker("_count"))

    class Kill(Observer):
        def decoded(self, done: int, total: int) -> None:
            kill()

    found = tiny()
    found.learn_counted(pairs, CountOnRay(cluster.address, 7), observer=Kill())
    check_same(found, alone)


def test_photos_that_cannot_be_read_are_named_together(
    cluster: TwoNodes, pairs: list[tuple[Path, str]], tmp_path: Path
) -> None:
    bad = [tmp_path / "cut.png", tmp_path / "gone.png"]
    bad[0].write_bytes(b"\x89PNG")
    mixed = [(bad[0], "red"), *pairs[:40], (bad[1], "red"), *pairs[40:60]]
    found = tiny()
    unread = found.learn_counted(mixed, CountOnRay(cluster.address, 3))
    assert [error.file for error in unread] == [str(file) for file in bad]
    assert found.history_[-1].photos == {"red": 60}


def test_photos_that_only_the_driver_has_are_one_clear_error(
    cluster: TwoNodes, tmp_path: Path
) -> None:
    gone = [(tmp_path / f"{i}.png", "red") for i in range(3)]
    with pytest.raises(ClusterError, match=r"the worker at [\d.]+ stopped: .*0\.png: does not"):
        tiny().learn_counted(gone, CountOnRay(cluster.address, 1))


def test_weights_that_a_worker_lacks_are_one_clear_error(
    cluster: TwoNodes, pairs: list[tuple[Path, str]], tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    from cprompt.vit.loading import load_backbone

    file = tmp_path / "test_vit.safetensors"
    vit = load_backbone("test_vit", "random:0", 48)
    save_file({name: tensor.contiguous() for name, tensor in vit.vit.state_dict().items()}, file)
    classifier = tiny(weights=str(file))
    classifier.preparation_  # noqa: B018 (loads the backbone here)
    file.unlink()
    with pytest.raises(ClusterError) as error:
        classifier.learn_counted(pairs, CountOnRay(cluster.address, 1))
    assert str(file) in str(error.value)
    assert "same path on every worker" in str(error.value)
    assert classifier.classes_ == []
