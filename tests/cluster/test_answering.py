"""Asking on Ray: the same answers as here, each once, whoever dies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cprompt.cluster.answering import Questions, answer_here, answer_on_ray, parts_of
from cprompt.cluster.tasks import Work
from cprompt.errors import ClusterError, DataError
from tests.classifier.common import learnt, photos, saved
from tests.cluster.conftest import TwoNodes


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Questions:
    folder = tmp_path_factory.mktemp("model") / "model"
    learnt({"red": 8, "blue": 8, "green": 8}).save(folder)
    return Questions.of(folder, device="cpu", top=2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four batches, with one photo that cannot be read."""
    folder = tmp_path_factory.mktemp("asked")
    images = [p for name in ("red", "blue", "cyan") for p in photos(name, 70, seed=5)]
    found = [saved(folder / f"{i:03}.png", image) for i, image in enumerate(images)]
    found[100].write_bytes(b"")
    return found


@pytest.mark.parametrize(
    ("photos", "shards", "expected"),
    [(1, None, [1]), (130, None, [64, 64, 2]), (130, 2, [64, 66]), (130, 9, [64, 64, 2])],
)
def test_parts_begin_where_batches_do(photos: int, shards: int | None, expected: list[int]) -> None:
    assert [len(part) for part in parts_of(photos, shards)] == expected


def test_many_photos_are_not_cut_into_more_parts_than_needed() -> None:
    parts = parts_of(1_000_000)
    assert sum(map(len, parts)) == 1_000_000
    assert max(map(len, parts)) <= 4096 + 64


def test_a_version_saved_meanwhile_does_not_answer(tmp_path: Path) -> None:
    classifier = learnt({"red": 4, "blue": 4})
    classifier.save(tmp_path / "model")
    before = classifier.model_id
    asked = Questions.of(tmp_path / "model", device="cpu")
    classifier.learn(photos("green", 4), ["green"] * 4)
    classifier.save(tmp_path / "model")
    assert asked.model_id == before != classifier.model_id
    assert asked.classifier().model_id == before


def test_a_worker_that_dies_loses_and_doubles_no_answer(
    cluster: TwoNodes,
    questions: Questions,
    files: list[Path],
    once: Callable[[Callable[[], object]], Callable[[], None]],
) -> None:
    parts = dict(enumerate(parts_of(len(files))))
    assert len(parts) == 4
    here: dict[int, Any] = {}
    answer_here(questions, files, parts, here.__setitem__)
    kill = once(lambda: cluster.kill_worker("_answer"))
    there: dict[int, Any] = {}

    def keep(number: int, answers: Any) -> None:
        assert number not in there
        there[number] = answers
        kill()

    answer_on_ray(cluster.address, questions, files, parts, keep, Work())
    assert there.keys() == here.keys()
    for number, expected in here.items():
        for mine, theirs in zip(there[number], expected, strict=True):
            if isinstance(theirs, DataError):
                assert str(mine) == str(theirs)
                assert mine.file == str(files[100])
                continue
            assert (mine.label, mine.known) == (theirs.label, theirs.known)
            for name in ("probability", "familiarity", "score"):
                assert getattr(mine, name) == pytest.approx(getattr(theirs, name), abs=1e-6)


def test_photos_that_only_the_driver_has_are_one_clear_error(
    cluster: TwoNodes, questions: Questions, tmp_path: Path
) -> None:
    with pytest.raises(ClusterError, match=r"the worker at .* stopped: .*a\.png: does not exist"):
        answer_on_ray(
            cluster.address,
            questions,
            [tmp_path / "a.png"],
            {0: range(1)},
            lambda number, answers: None,
            Work(),
        )


def test_weights_that_a_worker_lacks_are_one_clear_error(
    cluster: TwoNodes, questions: Questions, files: list[Path]
) -> None:
    asked = dataclasses.replace(questions, weights="/nowhere/test_vit.safetensors")
    with pytest.raises(ClusterError, match=r"stopped: /nowhere/test_vit\.safetensors: .*same path"):
        answer_on_ray(
            cluster.address, asked, files, {0: range(1)}, lambda number, answers: None, Work()
        )
