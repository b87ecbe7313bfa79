"""The demo's page: numbers, images and answers, and no network."""

from __future__ import annotations

import copy
import re

import pytest
from PIL import Image

from cprompt.report.demo import Example, demo_page
from cprompt.research.record import Record
from tests.report.reader import Reader

NASTY = "<b>&\"'</b><script>x</script>"

ABOUT = {"strata": "one pass", "cprompt": "prompts", "finetune": "nothing"}


@pytest.fixture
def document(hand_record: Record) -> str:
    plain = copy.deepcopy(hand_record)
    plain.rows[-1].correct["selected"][:] = [0, 0, 0, 1, 1]  # 2 of 18, none of the first task
    answers = (NASTY, NASTY, "other")
    examples = [
        Example(Image.new("RGB", (8, 8)), task, NASTY, dict(zip(ABOUT, answers, strict=True)))
        for task in range(3)
        for _ in range(2)
    ]
    hand_record.config["seeds"] = {"order": 4, "init": 5, "data": 6}
    records = dict(zip(ABOUT, (hand_record, hand_record, plain), strict=True))
    return demo_page(records, ABOUT, examples, 61.6)


def test_the_numbers_are_those_of_the_records(document: str) -> None:
    read = Reader(document)
    assert read.open == []
    assert read.by_tag["b"] == [
        *("50.0 %", "50.0 %", "11.1 %"),
        *("80 → 50 %", "80 → 50 %", "80 → 0 %"),
    ]
    assert "Strata (one pass), all classes, at the end" in document
    text = " ".join(read.by_tag["p"])
    assert "5 classes of drawn images arrive in 3 batches" in text
    assert "the right one for 61 % of the test images" in text
    assert "seeds order 4, init 5, data 6, 50 training and 18 test images, 62 s on abacus" in text


def test_images_are_in_columns_with_the_answers_below(document: str) -> None:
    read = Reader(document)
    [strip] = [a for _, a in read.elements if a.get("class") == "strip"]
    style = strip["style"] or ""
    assert "columns: repeat(3, minmax(7rem, 1fr))" in style
    assert "rows: repeat(2, auto)" in style
    images = [a for tag, a in read.elements if tag == "img"]
    assert [a["alt"] for a in images] == [
        f"{NASTY} (batch {task}); ✓ Strata: {NASTY}; ✓ CPrompt: {NASTY}; ✗ Fine-tuning: other"
        for task in (1, 1, 2, 2, 3, 3)
    ]
    kinds = [a.get("class") for tag, a in read.elements if tag == "div"][-5:]
    assert kinds == ["image", None, "right", "right", "wrong"]


def test_the_page_stands_alone(document: str) -> None:
    read = Reader(document)
    assert read.tags.count("svg") == 5
    ids = [a["id"] for _, a in read.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(read.tags)
    for tag, attributes in read.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href"):
                assert (value or "").startswith(("#", "data:image/png")), (tag, name, value)
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", document)
    assert "@import" not in document
    assert not re.search(r"url\((?!#)", document)
