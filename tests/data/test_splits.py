from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cprompt.data import splits
from cprompt.data.image_set import ImageSet
from cprompt.errors import ConfigError, DataError

Touch = Callable[..., None]
Rows = Callable[[ImageSet], list[tuple[str, int]]]


def written(tmp_path: Path, name: str, text: str) -> Path:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / name


def test_a_list_keeps_the_last_components_whatever_comes_before(tmp_path: Path) -> None:
    text = "./data/imagenet-r/n1/a.jpg 3\nimagenet-r/n1/b c.jpg 4\r\n\nn2/d.jpg\t5\nx\\n3\\e.jpg 6"
    file = written(tmp_path, "list.txt", text)
    expected = [("n1/a.jpg", 3), ("n1/b c.jpg", 4), ("n2/d.jpg", 5), ("n3/e.jpg", 6)]
    assert splits.read_list(file, depth=2) == expected


def test_a_yaml_list_reads_like_a_text_list(tmp_path: Path) -> None:
    file = written(tmp_path, "l.yaml", "data:\n- d/n1/a.jpg\n- d/n2/b.jpg\ntargets:\n- 7\n- 0\n")
    assert splits.read_list(file, depth=2) == [("n1/a.jpg", 7), ("n2/b.jpg", 0)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.txt", "n1/a.jpg 0\nn1/b.jpg\n", r"l\.txt, line 2: 'n1/b\.jpg' is not 'path label'"),
        ("l.txt", "n1/a.jpg one\n", r"line 1: 'n1/a\.jpg one' is not 'path label'"),
        ("l.txt", "a.jpg 0\n", r"line 1: 'a\.jpg' should end in folder/file"),
        ("l.txt", "../a.jpg 0\n", r"should end in folder/file"),
        ("l.txt", " \n", r"l\.txt: the split list is empty"),
        ("l.yaml", "data: [n/a.jpg]\ntargets: [0, 1]\n", "1 entries in `data` but 2 in `targets`"),
        ("l.yaml", "data: [n/a.jpg]\n", "two lists, `data` and `targets`"),
        ("l.yaml", "- 1\n", "two lists, `data` and `targets`"),
        ("l.yaml", "data: [n/a.jpg]\ntargets: [x]\n", r"entry 1: 'n/a\.jpg' with label 'x'"),
        ("l.yaml", "data: [n/a.jpg]\ntargets: [-1]\n", "entry 1: label -1 is negative"),
        ("l.yaml", "data: [n/a.jpg\n", r"l\.yaml: the split list is not valid YAML"),
    ],
)
def test_a_bad_list_is_named_with_the_place(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        splits.read_list(written(tmp_path, name, text), depth=2)


def test_a_list_that_is_missing_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.txt: the split list does not exist"):
        splits.read_list(tmp_path / "gone.txt", depth=2)
    (tmp_path / "l.txt").write_bytes(b"\xff\xfe\x00 0\n")
    with pytest.raises(DataError, match=r"l\.txt: the split list cannot be read"):
        splits.read_list(tmp_path / "l.txt", depth=2)


def listed(tmp_path: Path, train: str, test: str, **options: str):
    train_list, test_list = written(tmp_path, "1.txt", train), written(tmp_path, "2.txt", test)
    missing = options.get("missing", "error")
    return splits.listed_dataset("d", tmp_path, train_list, test_list, depth=2, missing=missing)


def test_classes_are_named_by_label_and_rows_keep_their_order(
    tmp_path: Path, touch: Touch, rows: Rows
) -> None:
    touch("z/1.jpg", "z/2.jpg", "a/1.jpg", "a/2.jpg")
    data = listed(tmp_path, "a/2.jpg 1\nz/1.jpg 0\n", "a/1.jpg 1\nz/2.jpg 0\n")
    assert data.classes == ("z", "a")
    assert rows(data.train) == [("a/2.jpg", 1), ("z/1.jpg", 0)]
    assert rows(data.test) == [("a/1.jpg", 1), ("z/2.jpg", 0)]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("a/1.jpg 0\n", "a/1.jpg 0\n", r"1 image is in both .*1\.txt and .*such as a/1\.jpg"),
        ("a/1.jpg 0\nb/1.jpg 0\n", "a/2.jpg 0\n", r"1\.txt: b/1\.jpg has label 0, .* for 'a'"),
        ("a/1.jpg 0\n", "a/2.jpg 1\n", r"2\.txt: a/2\.jpg has label 1, .*'a' has label 0"),
        ("a/1.jpg 0\nb/1.jpg 2\n", "a/2.jpg 0\n", r"no image with label 1 \(1 labels below 2"),
    ],
)
def test_lists_that_contradict_themselves_are_refused(
    tmp_path: Path, train: str, test: str, message: str, touch: Touch
) -> None:
    touch("a/1.jpg", "a/2.jpg", "b/1.jpg")
    with pytest.raises(DataError, match=message):
        listed(tmp_path, train, test)


def test_missing_images_are_counted_and_the_first_named_or_skipped(
    tmp_path: Path, touch: Touch, rows: Rows
) -> None:
    touch("a/0.jpg", "a/9.jpg")
    train = "".join(f"a/{i}.jpg 0\n" for i in range(5))
    with pytest.raises(splits.MissingImagesError) as caught:
        listed(tmp_path, train, "a/8.jpg 0\na/9.jpg 0\n")
    assert caught.value.files == tuple(tmp_path / f"a/{i}.jpg" for i in (1, 2, 3, 4, 8))
    message = str(caught.value)
    assert "d: 5 listed images are missing: " in message
    assert "1.jpg" in message
    assert "3.jpg, …" in message
    assert "4.jpg" not in message
    assert 'missing="skip"' in message
    data = listed(tmp_path, train, "a/8.jpg 0\na/9.jpg 0\n", missing="skip")
    assert rows(data.train) == [("a/0.jpg", 0)]
    assert rows(data.test) == [("a/9.jpg", 0)]


def test_skipping_every_training_image_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not one of the listed training .* even .*1\.jpg"):
        listed(tmp_path, "a/1.jpg 0\n", "a/2.jpg 0\n", missing="skip")


def test_an_unknown_way_with_missing_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing='ignore': expected 'error' or 'skip'"):
        listed(tmp_path, "a/1.jpg 0\n", "a/2.jpg 0\n", missing="ignore")


def paths(root: Path, name: str, count: int) -> list[Path]:
    return [root / name / f"{i:03}.jpg" for i in range(count)]


@pytest.mark.parametrize(
    ("count", "fraction", "tested"),
    [(1, 0.5, 0), (2, 0.01, 1), (2, 0.99, 1), (10, 0.2, 2), (10, 0.99, 9), (7, 0.3, 2)],
)
def test_both_sides_get_their_share_and_at_least_one(
    tmp_path: Path, count: int, fraction: float, tested: int
) -> None:
    images = paths(tmp_path, "a", count)
    train, test = splits.split_classes({"a": images}, tmp_path, fraction, seed=0)
    assert len(test["a"]) == tested
    assert sorted(train["a"] + test["a"]) == images
    assert train["a"] == sorted(train["a"])


def test_a_split_depends_on_the_seed_and_not_on_the_other_classes_or_the_root() -> None:
    here, there = Path("/here"), Path("/there")
    _, alone = splits.split_classes({"a": paths(here, "a", 40)}, here, 0.5, seed=1)
    _, again = splits.split_classes(
        {"0": paths(there, "0", 9), "a": paths(there, "a", 40)}, there, 0.5, seed=1
    )
    _, other = splits.split_classes({"a": paths(here, "a", 40)}, here, 0.5, seed=2)
    assert [p.name for p in alone["a"]] == [p.name for p in again["a"]]
    assert alone["a"] != other["a"]


def test_images_added_later_move_few_to_the_other_side(tmp_path: Path) -> None:
    _, before = splits.split_classes({"a": paths(tmp_path, "a", 100)}, tmp_path, 0.2, seed=0)
    _, after = splits.split_classes({"a": paths(tmp_path, "a", 105)}, tmp_path, 0.2, seed=0)
    assert len(set(before["a"]) - set(after["a"])) <= 5


@pytest.mark.parametrize("fraction", [0, 1, -0.2, 1.5, True, "0.2"])
def test_a_fraction_outside_0_to_1_is_refused(tmp_path: Path, fraction: float) -> None:
    with pytest.raises(ConfigError, match="is not a number between 0 and 1"):
        splits.split_classes({"a": paths(tmp_path, "a", 4)}, tmp_path, fraction, seed=0)


def test_one_list_file_alone_or_beside_another_split_is_refused() -> None:
    choices = ("lists", "rule")
    assert splits.named_lists("lists", choices, None, None) is None
    assert splits.named_lists("lists", choices, "a", Path("b")) == (Path("a"), Path("b"))
    with pytest.raises(ConfigError, match="go together"):
        splits.named_lists("lists", choices, "a", None)
    with pytest.raises(ConfigError, match="'rule' reads no lists"):
        splits.named_lists("rule", choices, "a", "b")
    with pytest.raises(ConfigError, match="split='luck': expected 'lists' or 'rule'"):
        splits.named_lists("luck", choices, None, None)
