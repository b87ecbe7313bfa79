"""The page of an evaluation: its numbers, its pictures, and no network."""

from __future__ import annotations

import base64
import io
import re
import warnings
from typing import Any

import pytest
from PIL import Image

from cprompt.report.evaluation import MOST_PAIRS, Mistake, confused_pairs, evaluation_page
from cprompt.report.figures import MOST_CLASSES
from cprompt.report.html import square_thumbnail
from tests.report.reader import Reader

NASTY = "<b>&猫\"'</b><script>x</script>"


def found(names: list[str]) -> dict[str, Any]:
    """Ten photos per class: 6 right, 2 taken for the next class, 2 unknown, of which 1 is right."""
    n = len(names)
    counts = [
        [6 if j == i else 2 if j in ((i + 1) % n, n) else 0 for j in range(n + 1)] for i in range(n)
    ]
    each = {"photos": 10, "right": 6, "unknown": 2, "right_forced": 7}
    return {
        "photos": 10 * n + 5,
        "accuracy": 0.6,
        "accuracy_forced": 0.7,
        "accuracy_if_answered": 0.75,
        "unknown_share": 0.2,
        "ece": 0.123,
        "bins": [{"low": 0.5, "high": 1.0, "photos": 10, "confidence": 0.8, "accuracy": 0.6}],
        "confusion": {"truth": names, "answer": [*names, "unknown"], "counts": counts},
        "per_class": dict.fromkeys(names, each),
        "per_batch": {
            "1": {key: n * value for key, value in each.items()},
            "2": dict.fromkeys(each, 0),
        },
        "unseen": {"photos": 5, "right": 0, "unknown": 4, "right_forced": 0},
    }


def page(names: list[str], mistakes: int = 2) -> str:
    images = [Image.new("RGB", (300, 200), (i, 0, 0)) for i in range(mistakes)]
    wrong = [
        Mistake(square_thumbnail(image), f"{NASTY}/{i}.jpg", NASTY, "dog", 0.9)
        for i, image in enumerate(images)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return evaluation_page(found(names), wrong, NASTY, "about")


def test_both_accuracies_are_at_the_top_and_in_every_table() -> None:
    read = Reader(page(["cat", "dog", NASTY]))
    assert read.open == []
    assert read.by_tag["b"] == ["60.0 %", "70.0 %", "75.0 %", "20.0 %"]
    cells = read.by_tag["td"]
    at = cells.index("batch 1")
    assert cells[at : at + 5] == ["batch 1", "30", "60.0 %", "70.0 %", "20.0 %"]
    at = cells.index("batch 2")
    assert cells[at : at + 5] == ["batch 2", "0", "–", "–", "–"]
    assert cells[-5:] == [NASTY, "10", "60.0 %", "70.0 %", "20.0 %"]
    text = " ".join(read.by_tag["p"])
    assert "30 photos of classes that were learnt; in addition 5 of classes never learnt" in text
    assert "is 12.3 %" in text


def test_names_are_escaped_and_nothing_is_requested() -> None:
    document = page(["cat", NASTY])
    assert "<script" not in document
    addresses = re.findall(r"""(?:src|href)=["']([^"']*)|url\(([^)]*)""", document)
    assert addresses
    for pair in addresses:
        assert "".join(pair).startswith(("data:", "#"))


def test_each_mistake_has_a_thumbnail_with_answer_and_truth() -> None:
    read = Reader(page(["cat", "dog"], mistakes=3))
    images = [attributes for tag, attributes in read.elements if tag == "img"]
    assert [image["alt"] for image in images] == [
        f"✗ dog, 90 %; is {NASTY}; {NASTY}/{i}.jpg" for i in range(3)
    ]
    first = base64.b64decode((images[0]["src"] or "").partition(",")[2])
    with Image.open(io.BytesIO(first)) as thumbnail:
        assert thumbnail.width == thumbnail.height < 200
    assert page(["cat", "dog"], mistakes=0).count("data:image/png") == 0
    assert "No photo was given a wrong name" in page(["cat", "dog"], mistakes=0)


@pytest.mark.parametrize(("classes", "drawn"), [(MOST_CLASSES - 1, True), (MOST_CLASSES, False)])
def test_many_classes_have_a_list_of_pairs_and_no_picture(classes: int, drawn: bool) -> None:
    document = page([f"class {i}" for i in range(classes)])
    assert ('aria-label="Confusion of classes"' in document) is drawn
    listed = document[document.index('aria-label="Most frequent') :].partition("</table>")[0]
    assert listed.count("<tr>") == 1 + MOST_PAIRS


def test_pairs_are_sorted_and_leave_the_diagonal_out() -> None:
    confusion = {
        "truth": ["a", "b"],
        "answer": ["a", "b", "unknown"],
        "counts": [[5, 1, 0], [3, 0, 4]],
    }
    assert confused_pairs(confusion) == [
        ("b", "unknown", 4, "57.1 %"),
        ("b", "a", 3, "42.9 %"),
        ("a", "b", 1, "16.7 %"),
    ]
