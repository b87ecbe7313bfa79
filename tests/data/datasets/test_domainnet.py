from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cprompt.data.datasets.domainnet import load
from cprompt.data.image_set import ImageSet
from cprompt.errors import DataError

Touch = Callable[..., None]
Rows = Callable[[ImageSet], list[tuple[str, int]]]

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


def test_named_lists_give_split_and_labels(tmp_path: Path, touch: Touch, rows: Rows) -> None:
    train = [("real/tiger/real_1.jpg", 1), ("sketch/owl/sketch_2.jpg", 0)]
    test = [("sketch/owl/sketch_9.jpg", 0), ("real/tiger/real_3.jpg", 1)]
    touch(*(name for name, _ in train + test), "real/owl/real_4.jpg")
    for file, listed in (("a.txt", train), ("b.txt", test)):
        text = "".join(f"domainnet/{name} {label}\n" for name, label in listed)
        (tmp_path / file).write_text(text)
    data = load(tmp_path, split_train=tmp_path / "a.txt", split_test=tmp_path / "b.txt")
    assert data.name == "domainnet"
    assert data.classes == ("sketch/owl", "real/tiger")
    assert rows(data.train) == train
    assert rows(data.test) == test


def test_without_lists_the_error_says_why_they_are_needed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'lines .domain/class/file\.jpg label.* split="rule"'):
        load(tmp_path)


@pytest.fixture
def six_domains(tmp_path: Path) -> Path:
    """203 categories with 2 images in each domain, of which three have fewer in all."""
    for domain in DOMAINS:
        for c in range(203):
            place = tmp_path / domain / f"c{c:03}"
            place.mkdir(parents=True)
            few = c in (0, 100, 150) and domain == "real"
            for i in range(1 if few else 2):
                (place / f"{i}.jpg").touch()
    return tmp_path


def test_the_rule_takes_the_largest_categories_and_gives_each_20_to_one_domain(
    six_domains: Path, rows: Rows
) -> None:
    data = load(six_domains, split="rule")
    assert data.name == "domainnet-rule-split"
    assert len(data.classes) == 200
    kept = [f"c{c:03}" for c in range(203) if c not in (0, 100, 150)]
    assert [name.split("/")[1] for name in data.classes] == kept
    origin = [name.split("/")[0] for name in data.classes]
    assert [origin[b : b + 20] for b in range(0, 200, 20)] == [
        [domain] * 20
        for domain in (
            *("real", "sketch", "painting", "quickdraw", "quickdraw"),
            *("painting", "real", "clipart", "sketch", "infograph"),
        )
    ]
    assert {d: origin.count(d) for d in DOMAINS} == {
        "clipart": 20,
        "infograph": 20,
        "painting": 40,
        "quickdraw": 40,
        "real": 40,
        "sketch": 40,
    }
    for part in (data.train, data.test):
        assert part.per_class().tolist() == [1] * 200
        assert all(name.startswith(f"{data.classes[label]}/") for name, label in rows(part))


def test_the_rule_prefers_the_alphabetically_first_of_equals(six_domains: Path) -> None:
    (six_domains / "real" / "c000" / "1.jpg").touch()
    names = {name.split("/")[1] for name in load(six_domains, split="rule").classes}
    assert "c000" in names
    assert "c202" not in names


def test_the_rule_splits_seven_to_three_by_seed(six_domains: Path, rows: Rows) -> None:
    for i in range(2, 10):
        (six_domains / "real" / "c001" / f"{i}.jpg").touch()
    data = load(six_domains, split="rule")
    assert data.classes[0] == "real/c001"
    assert data.train.per_class()[0] == 7
    assert data.test.per_class()[0] == 3
    assert rows(load(six_domains, split="rule").test) == rows(data.test)
    assert rows(load(six_domains, split="rule", seed=1).test) != rows(data.test)


def test_the_rule_follows_the_lists_of_a_domain(six_domains: Path, rows: Rows) -> None:
    for part, i in (("train", 1), ("test", 0)):
        lines = [f"real/c{c:03}/{i}.jpg {c}" for c in range(203) if c not in (0, 100, 150)]
        (six_domains / f"real_{part}.txt").write_text("\n".join(lines))
    data = load(six_domains, split="rule")
    assert rows(data.train)[0] == ("real/c001/1.jpg", 0)
    assert rows(data.test)[0] == ("real/c001/0.jpg", 0)


def test_too_few_categories_or_a_missing_domain_are_refused(
    tmp_path: Path, six_domains: Path, touch: Touch
) -> None:
    (six_domains / "real").rename(six_domains / "unreal")
    with pytest.raises(DataError, match="real: does not exist"):
        load(six_domains, split="rule")
    small = "small/"
    touch(*(f"{small}{domain}/cat/1.jpg" for domain in DOMAINS))
    with pytest.raises(DataError, match="has 1 categories, but 200 are needed"):
        load(tmp_path / small, split="rule")


def test_a_category_without_an_image_in_its_domain_is_named(six_domains: Path) -> None:
    for i in range(2):
        (six_domains / "real" / "c001" / f"{i}.jpg").unlink()
        (six_domains / "sketch" / "c001" / f"{i + 2}.jpg").touch()
    with pytest.raises(DataError, match="no training image for 'real/c001'"):
        load(six_domains, split="rule")
