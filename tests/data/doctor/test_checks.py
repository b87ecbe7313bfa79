"""What each check of the doctor finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from cprompt.data.datasets.cifar100 import FINE_LABELS
from cprompt.data.doctor import Diagnosis, Problem, diagnose
from cprompt.data.registry import Counts

Touch = Callable[..., None]
WriteImage = Callable[..., None]


def only(report: Diagnosis) -> Problem:
    assert len(report.problems) == 1
    return report.problems[0]


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
    assert problem.message == "1 image is both in train and in test, as the same file"
    assert problem.findings == (f"{healthy / 'train/a/2.png'} = {healthy / 'test/a/7.png'}",)


def test_the_same_pixels_in_train_and_test_are_found_in_another_format(
    healthy: Path, image: WriteImage
) -> None:
    image("test/b/7.bmp", 3)
    problem = only(diagnose("folder", healthy))
    assert problem.message == "1 image is both in train and in test, with the same pixels"
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
        ("warning", "1 class has fewer than 5 training images", ("c (4)",)),
        ("warning", "1 class has no test image", ("c",)),
    ]


def test_files_among_the_images_that_are_ignored_are_counted(healthy: Path, touch: Touch) -> None:
    touch("train/a/1.cr2", "test/b/2.CR2", "train/a/readme", "train/a/.hidden", "top.cr2")
    problem = only(diagnose("folder", healthy))
    assert problem.message == "3 files among the images are ignored (2 × .cr2, 1 × no ending)"
    assert len(problem.findings) == 3


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


def test_images_that_look_the_same_are_grouped_by_whether_classes_agree(tmp_path: Path) -> None:
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
    for name, seed in (("a/0", 0), ("a/1", 1), ("b/0", 2), ("b/1", 3)):
        levels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        scene = Image.fromarray(levels).resize((160, 120), Image.Resampling.BICUBIC)
        scene.save(tmp_path / f"{name}.png")
        if name in ("a/0", "b/1"):
            scene.resize((80, 60)).save(tmp_path / "b" / f"small{seed}.png")
    found = {p.message: p.findings for p in diagnose("folder", tmp_path).problems}
    assert found["1 group of images looks the same, in several classes"] == (
        f"{tmp_path}/a/0.png = {tmp_path}/b/small0.png",
    )
    assert found["1 group of images looks the same, in one class"] == (
        f"{tmp_path}/b/1.png = {tmp_path}/b/small3.png",
    )
