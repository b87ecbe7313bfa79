"""A diagnosis of a whole dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cprompt.data.doctor import Diagnosis, PerClass, Problem, diagnose
from cprompt.data.registry import Counts
from cprompt.errors import ConfigError

Touch = Callable[..., None]
WriteImage = Callable[..., None]


def only(report: Diagnosis) -> Problem:
    assert len(report.problems) == 1
    return report.problems[0]


def test_a_healthy_dataset_has_no_problem_and_its_counts(healthy: Path) -> None:
    steps: list[tuple[int, int]] = []
    report = diagnose("folder", healthy, progress=lambda done, total: steps.append((done, total)))
    assert report == Diagnosis(
        healthy.name,
        Counts(train=11, test=3, classes=2),
        PerClass(5, 5.5, 6),
        PerClass(1, 1.5, 2),
        ("a", "b"),
        (),
    )
    assert report.ok
    assert steps == [(i, 14) for i in range(1, 15)]


@pytest.mark.parametrize("broken", ["nowhere", "train/a/0.png", "train/a"])
def test_a_dataset_that_does_not_load_is_reported_not_raised(healthy: Path, broken: str) -> None:
    report = diagnose("folder", healthy / broken)
    assert not report.ok
    assert report.counts is None
    assert report.train_per_class is None
    assert str(healthy / broken) in only(report).message


def test_an_empty_class_is_an_error(healthy: Path) -> None:
    (healthy / "train/empty").mkdir()
    problem = only(diagnose("folder", healthy))
    assert problem.severity == "error"
    assert "class 'empty'" in problem.message


def test_every_missing_listed_image_is_named_and_the_rest_examined(
    tmp_path: Path, image: WriteImage, touch: Touch
) -> None:
    names = [f"n{c}/{i}.png" for c in range(2) for i in range(10)]
    for value, name in enumerate(names):
        if not name.endswith(("3.png", "9.png")):
            image(name, value)
    touch("n0/3.png")
    for part, ends in (("train", range(8)), ("test", range(8, 10))):
        lines = [f"n{c}/{i}.png {c}" for c in range(2) for i in ends]
        (tmp_path / f"coda_{part}.txt").write_text("\n".join(lines))
    report = diagnose("imagenet_r", tmp_path)
    missing, unreadable, counts = report.problems
    assert missing.severity == "error"
    assert missing.message == "3 listed images are not on disk"
    assert missing.findings == tuple(
        str(tmp_path / n) for n in ("n0/9.png", "n1/3.png", "n1/9.png")
    )
    assert unreadable.message == "1 image cannot be read"
    assert counts.severity == "warning"
    assert counts.message == (
        "found 15 training images, 2 test images, 2 classes; a complete imagenet_r has "
        "24,000 training images, 6,000 test images, 200 classes"
    )


def test_lists_without_any_image_are_reported_not_raised(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / f"coda_{part}.txt").write_text(f"n0/{part}.jpg 0")
    first, second = diagnose("imagenet_r", tmp_path).problems
    assert first.message == "2 listed images are not on disk"
    assert "not one of the listed training images is on disk" in second.message


def test_an_unknown_option_is_the_callers_error(healthy: Path) -> None:
    with pytest.raises(ConfigError, match="no option 'fold'"):
        diagnose("folder", healthy, fold=1)


def test_the_report_does_not_depend_on_the_number_of_workers(healthy: Path) -> None:
    (healthy / "train/a/1.png").write_bytes(b"words")
    assert diagnose("folder", healthy, workers=1) == diagnose("folder", healthy, workers=4)
