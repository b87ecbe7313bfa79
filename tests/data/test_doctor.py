from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cprompt.data.datasets.cifar100 import FINE_LABELS
from cprompt.data.doctor import Diagnosis, PerClass, Problem, diagnose
from cprompt.data.registry import Counts
from cprompt.errors import ConfigError

Touch = Callable[..., None]
WriteImage = Callable[..., None]


@pytest.fixture
def healthy(tmp_path: Path, image: WriteImage) -> Path:
    """Two classes with 6 and 5 training images and 2 and 1 test images, all different."""
    for value, name in enumerate(
        [f"train/a/{i}.png" for i in range(6)]
        + [f"train/b/{i}.png" for i in range(5)]
        + ["test/a/0.png", "test/a/1.png", "test/b/0.png"]
    ):
        image(name, value)
    return tmp_path


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


def test_every_unreadable_image_is_named(healthy: Path) -> None:
    (healthy / "train/a/1.png").write_bytes(b"")
    (healthy / "test/b/0.png").write_bytes((healthy / "test/b/0.png").read_bytes()[:-30])
    report = diagnose("folder", healthy)
    problem = only(report)
    assert not report.ok
    assert (problem.severity, problem.message) == ("error", "2 images cannot be read")
    assert problem.findings[0] == f"{healthy / 'train/a/1.png'}: is empty (0 bytes)"
    assert problem.findings[1].startswith(f"{healthy / 'test/b/0.png'}: is damaged or cut short")
    assert "re-copy or delete" in problem.hint
    assert report.counts == Counts(11, 3, 2)


def test_the_same_file_in_train_and_test_is_found(healthy: Path) -> None:
    (healthy / "test/a/7.png").write_bytes((healthy / "train/a/2.png").read_bytes())
    problem = only(diagnose("folder", healthy))
    assert problem.severity == "warning"
    assert problem.message == "1 images are both in train and in test, as the same file"
    assert problem.findings == (f"{healthy / 'train/a/2.png'} = {healthy / 'test/a/7.png'}",)


def test_the_same_pixels_in_train_and_test_are_found_in_another_format(
    healthy: Path, image: WriteImage
) -> None:
    image("test/b/7.bmp", 3)
    problem = only(diagnose("folder", healthy))
    assert problem.message == "1 images are both in train and in test, with the same pixels"
    assert problem.findings == (f"{healthy / 'train/a/3.png'} = {healthy / 'test/b/7.bmp'}",)


def test_images_of_another_shape_are_not_the_same(healthy: Path) -> None:
    pixels = np.asarray(Image.open(healthy / "train/a/3.png"))
    assert pixels.shape == (3, 4, 3)
    Image.fromarray(np.ascontiguousarray(pixels.swapaxes(0, 1))).save(healthy / "test/a/7.png")
    assert diagnose("folder", healthy).problems == ()


def test_a_training_image_in_two_classes_is_found_and_one_twice_in_a_class_is_not(
    healthy: Path, image: WriteImage
) -> None:
    image("train/b/twin.bmp", 0)
    image("train/a/copy.png", 1)
    problem = only(diagnose("folder", healthy))
    assert problem.message == "1 training images are in several classes"
    assert problem.findings == (f"{healthy / 'train/a/0.png'} = {healthy / 'train/b/twin.bmp'}",)
    assert problem.severity == "warning"


def test_small_and_untested_classes_get_a_warning(healthy: Path, image: WriteImage) -> None:
    for i in range(4):
        image(f"train/c/{i}.png", 500 + i)
    report = diagnose("folder", healthy)
    assert report.ok
    assert [(p.severity, p.message, p.findings) for p in report.problems] == [
        ("warning", "1 classes have fewer than 5 training images", ("c (4)",)),
        ("warning", "1 classes have no test image", ("c",)),
    ]


def test_files_among_the_images_that_are_ignored_are_counted(healthy: Path, touch: Touch) -> None:
    touch("train/a/1.heic", "test/b/2.HEIC", "train/a/readme", "train/a/.hidden", "top.heic")
    problem = only(diagnose("folder", healthy))
    assert problem.message == "3 files among the images are ignored (2 × .heic, 1 × no ending)"
    assert len(problem.findings) == 3


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
    assert unreadable.message == "1 images cannot be read"
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


def test_a_variant_of_a_published_dataset_gets_a_warning(tmp_path: Path, image: WriteImage) -> None:
    for i in range(10):
        image(f"n0/{i}.png", i)
    problem = only(diagnose("imagenet_r", tmp_path, split="random"))
    assert problem.message == "this is imagenet_r-random-split, a variant of imagenet_r"


def test_images_in_one_file_are_examined_by_number(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (601, 3072), dtype=np.uint8)
    noise[600] = noise[417]
    labels = [*(i % 100 for i in range(600)), 17]
    content = [bytes([0, c]) + row.tobytes() for c, row in zip(labels, noise, strict=True)]
    (tmp_path / "train.bin").write_bytes(b"".join(content[:500]))
    (tmp_path / "test.bin").write_bytes(b"".join(content[500:]))
    report = diagnose("cifar100", tmp_path)
    assert report.classes == FINE_LABELS
    assert report.counts == Counts(500, 101, 100)
    same, counts = report.problems
    assert same.findings == ("train[417] = test[100]",)
    assert "leave them" in same.hint
    assert counts.message.startswith("found 500 training images, 101 test images, 100 classes;")


def test_an_unknown_option_is_the_callers_error(healthy: Path) -> None:
    with pytest.raises(ConfigError, match="no option 'fold'"):
        diagnose("folder", healthy, fold=1)


def test_the_report_does_not_depend_on_the_number_of_workers(healthy: Path) -> None:
    (healthy / "train/a/1.png").write_bytes(b"words")
    assert diagnose("folder", healthy, workers=1) == diagnose("folder", healthy, workers=4)
