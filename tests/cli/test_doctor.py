"""`cprompt doctor`: what it counts, what it names, and its exit status."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cprompt import ContinualClassifier
from cprompt.classifier.label_check import check_labels
from cprompt.classifier.photo_sources import labelled
from cprompt.data.image_files import list_images
from tests.cli.common import Main, ok
from tests.report.reader import Reader


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of eight different images, in a folder whose name looks like markup."""
    root = tmp_path / "my [red] photos"
    rng = np.random.default_rng(0)
    for name in ("[red]", "b"):
        (root / name).mkdir(parents=True)
        for i in range(8):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def test_doctor_counts_a_healthy_folder_and_succeeds(folder: Path) -> None:
    printed = ok("doctor", "folder", folder, "--data.options.test_fraction", "0.25")
    assert "my [red] photos: 12 train, 4 test images, 2 classes\n" in printed
    assert "train images per class: 6 to 6, median 6\n" in printed
    assert "nothing wrong found" in printed


def test_doctor_does_not_split_plain_class_folders(folder: Path) -> None:
    printed = ok("doctor", folder)
    assert printed == ok("doctor", "folder", folder)
    assert "my [red] photos: 16 images, 2 classes\n" in printed
    assert "\nimages per class: 8 to 8, median 8\n" in printed
    assert "train" not in printed
    assert "test" not in printed


def test_doctor_refuses_what_learning_would_refuse(folder: Path, main: Main) -> None:
    shutil.copy(folder / "b" / "3.png", folder / "[red]" / "copy.png")
    code, out, _ = main("doctor", folder)
    assert code == 1
    assert f"{folder / '[red]' / 'copy.png'} = {folder / 'b' / '3.png'}" in out


def test_doctor_shows_the_parts_of_a_folder_that_has_them(folder: Path) -> None:
    for part in ("train", "test"):
        shutil.copytree(folder / "b", folder.parent / "parts" / part / "b")
    assert "8 train, 8 test images" in ok("doctor", folder.parent / "parts")


def test_doctor_names_a_broken_image_and_ends_with_1(folder: Path, main: Main) -> None:
    (folder / "[red]" / "3.png").write_bytes(b"")
    code, out, err = main("doctor", "folder", folder)
    assert (code, err) == (1, "")
    assert "error: 1 image cannot be read\n" in out
    assert f"    {folder / '[red]' / '3.png'}: is empty (0 bytes)\n" in out
    assert "  remedy: re-copy or delete" in out
    assert "nothing wrong" not in out


def test_doctor_names_ten_files_or_all(folder: Path, main: Main) -> None:
    for i in range(8):
        for name in ("[red]", "b"):
            whole = (folder / name / f"{i}.png").read_bytes()
            (folder / name / f"{i}.png").write_bytes(whole[:40])
    _, some, _ = main("doctor", "folder", folder)
    _, every, _ = main("doctor", "folder", folder, "--all")
    assert (some.count(".png"), every.count(".png")) == (10, 16)
    assert "and 6 more; --all names them" in some
    assert "more; --all" not in every


def test_doctor_says_what_is_wrong_with_a_folder_that_is_not_there(main: Main) -> None:
    code, out, err = main("doctor", "folder", "nowhere")
    assert (code, err) == (1, "")
    assert "error: " in out
    assert "nowhere" in out


def test_doctor_takes_options_of_the_dataset_only(main: Main) -> None:
    message = main.error("doctor", "shapes", "--training.lr", "1")
    assert "'training.lr'" in message
    assert "--data.options.NAME" in message
    assert "did you mean 'shapes'?" in main.error("doctor", "shape")
    assert main.error("doctor", "shapes", "--data.options.sise", "1").startswith(
        "dataset 'shapes' has no option 'sise'; it has classes, "
    )


# --- labels -------------------------------------------------------------------------------------


def test_doctor_lists_photos_that_the_model_would_put_elsewhere(
    model: Path, photos: Path, tmp_path: Path
) -> None:
    copy, page = tmp_path / "copy", tmp_path / "page.html"
    shutil.copytree(photos / "january", copy)
    names = sorted(folder.name for folder in copy.iterdir())
    printed = ok("doctor", copy, "--model", model, "--weights", "random:0", "--report", page)
    classifier = ContinualClassifier.load(model, weights="random:0")
    files, labels = labelled(copy)
    check = check_labels(classifier, files, labels)
    assert f"{len(check.doubtful)} of {len(files)} labels are in doubt" in printed
    for each in check.doubtful:
        assert f"{files[each.index]}: {each.label}" in printed
    shown = Reader(page.read_text("utf-8"))
    assert shown.by_tag["h2"][0] == f"{len(check.doubtful)} labels in doubt"
    (copy / names[0]).rename(copy / "never learnt")
    printed = ok("doctor", copy, "--model", model, "--weights", "random:0")
    assert "1 class is not in the model, so its photos were not judged" in printed
    assert "'never learnt'" in printed


@pytest.mark.parametrize("groups", [1, 2])
def test_doctor_shows_images_that_look_the_same_on_its_page(
    model: Path, photos: Path, tmp_path: Path, groups: int
) -> None:
    copy, page = tmp_path / "copy", tmp_path / "page.html"
    shutil.copytree(photos / "january", copy)
    first = list_images(copy)[:groups]
    for each in first:
        with Image.open(each) as image:
            pixels = np.array(image)
        pixels[0, 0] ^= 1
        Image.fromarray(pixels).save(each.with_stem(f"{each.stem} again"))
    ok("doctor", copy, "--model", model, "--weights", "random:0", "--report", page)
    shown = Reader(page.read_text("utf-8"))
    looks = "1 group looks" if groups == 1 else "2 groups look"
    assert shown.by_tag["h2"][1:] == [f"{looks} the same"]
    for each in first:
        assert f"{each.stem} again{each.suffix}" in page.read_text("utf-8")


def test_doctor_judges_nothing_before_errors_are_corrected(
    model: Path, folder: Path, main: Main
) -> None:
    (folder / "b" / "3.png").write_bytes(b"")
    code, out, _ = main("doctor", folder, "--model", model)
    assert code == 1
    assert "once the errors are corrected" in out


def test_doctor_needs_class_folders_and_a_model_to_judge_labels(
    folder: Path, tmp_path: Path, main: Main
) -> None:
    assert "--model MODEL" in main.error("doctor", folder, "--report", tmp_path / "page.html")
    assert "class folders" in main.error("doctor", "cifar100", folder, "--model", "model")
