from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cprompt.data.datasets.imagenet_r import load
from cprompt.data.image_set import ImageSet
from cprompt.data.splits import MissingImagesError
from cprompt.errors import DataError

Touch = Callable[..., None]
Rows = Callable[[ImageSet], list[tuple[str, int]]]

# Labels are not the sorted folders: the first one listed has the highest.
TRAIN = {"n01443537/art_0.jpg": 2, "n01443537/toy_1.jpg": 2, "n02165456/art_0.jpg": 0}
TRAIN |= {"n03594945/misc_7.jpg": 1}
TEST = {"n03594945/art_3.jpg": 1, "n01443537/cartoon_2.jpg": 2, "n02165456/art_9.jpg": 0}


def text(listed: dict[str, int], prefix: str = "") -> str:
    return "".join(f"{prefix}{path} {label}\n" for path, label in listed.items())


def yaml(listed: dict[str, int]) -> str:
    paths = "".join(f"- data/imagenet-r/{path}\n" for path in listed)
    return f"data:\n{paths}targets:\n" + "".join(f"- {label}\n" for label in listed.values())


def expected(listed: dict[str, int], inner: str) -> list[tuple[str, int]]:
    return [(inner + path, label) for path, label in listed.items()]


@pytest.mark.parametrize("inner", ["", "imagenet-r/"])
@pytest.mark.parametrize("prefix", ["", "imagenet-r/", "./data/imagenet-r/"])
def test_text_lists_in_the_root_give_split_and_labels(
    tmp_path: Path, touch: Touch, rows: Rows, inner: str, prefix: str
) -> None:
    touch(*(inner + path for path in TRAIN | TEST))
    (tmp_path / "coda_train.txt").write_text(text(TRAIN, prefix))
    (tmp_path / "coda_test.txt").write_text(text(TEST, prefix))
    data = load(tmp_path)
    assert data.name == "imagenet_r"
    assert data.classes == ("n02165456", "n03594945", "n01443537")
    assert rows(data.train) == expected(TRAIN, inner)
    assert rows(data.test) == expected(TEST, inner)


def test_yaml_lists_beside_the_class_folders_are_found(
    tmp_path: Path, touch: Touch, rows: Rows
) -> None:
    touch(*(f"imagenet-r/{path}" for path in TRAIN | TEST))
    (tmp_path / "imagenet-r" / "imagenet-r_train.yaml").write_text(yaml(TRAIN))
    (tmp_path / "imagenet-r" / "imagenet-r_test.yaml").write_text(yaml(TEST))
    data = load(tmp_path)
    assert data.classes == ("n02165456", "n03594945", "n01443537")
    assert rows(data.train) == expected(TRAIN, "imagenet-r/")
    assert rows(data.test) == expected(TEST, "imagenet-r/")


def test_named_lists_win_over_those_in_the_root(tmp_path: Path, touch: Touch, rows: Rows) -> None:
    touch(*TRAIN, *TEST, "coda_train.txt", "coda_test.txt")
    (tmp_path / "my train.txt").write_text(text(TEST))
    (tmp_path / "my test.yaml").write_text(yaml(TRAIN))
    data = load(
        tmp_path, split_train=str(tmp_path / "my train.txt"), split_test=tmp_path / "my test.yaml"
    )
    assert rows(data.train) == expected(TEST, "")
    assert rows(data.test) == expected(TRAIN, "")


def test_without_lists_the_error_says_what_to_get(tmp_path: Path, touch: Touch) -> None:
    touch(*TRAIN, *TEST, "coda_train.txt")
    with pytest.raises(DataError, match=r'imagenet-r_train\.yaml .* CODA-Prompt.* split="random"'):
        load(tmp_path)


def test_a_random_split_says_so_in_its_name(tmp_path: Path, touch: Touch, rows: Rows) -> None:
    touch(*(f"imagenet-r/n{c}/{i}.jpg" for c in (3, 1, 2) for i in range(10)))
    data = load(tmp_path, split="random")
    assert data.name == "imagenet_r-random-split"
    assert data.classes == ("n1", "n2", "n3")
    assert data.train.per_class().tolist() == [8, 8, 8]
    assert data.test.per_class().tolist() == [2, 2, 2]
    assert all(name.split("/")[1] == data.classes[label] for name, label in rows(data.train))
    assert rows(load(tmp_path, split="random").test) == rows(data.test)
    assert any(rows(load(tmp_path, split="random", seed=s).test) != rows(data.test) for s in (1, 2))


def test_images_that_a_copy_lacks_are_named_or_skipped(
    tmp_path: Path, touch: Touch, rows: Rows
) -> None:
    touch(*(path for path in TRAIN | TEST if path != "n01443537/toy_1.jpg"))
    (tmp_path / "coda_train.txt").write_text(text(TRAIN))
    (tmp_path / "coda_test.txt").write_text(text(TEST))
    with pytest.raises(MissingImagesError, match=r"1 listed image is missing: .*toy_1\.jpg"):
        load(tmp_path)
    data = load(tmp_path, missing="skip")
    assert len(data.train) == len(TRAIN) - 1
    assert rows(data.test) == expected(TEST, "")


def test_a_class_that_loses_all_training_images_is_named(tmp_path: Path, touch: Touch) -> None:
    touch(*(path for path in TRAIN | TEST if path != "n02165456/art_0.jpg"))
    (tmp_path / "coda_train.txt").write_text(text(TRAIN))
    (tmp_path / "coda_test.txt").write_text(text(TEST))
    with pytest.raises(DataError, match="no training image for 'n02165456'"):
        load(tmp_path, missing="skip")
