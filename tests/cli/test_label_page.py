"""What is said of labels in doubt, as lines and as a page."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from cprompt.classifier.doubtful_labels import DoubtfulLabel
from cprompt.classifier.label_check import LabelCheck
from cprompt.cli import label_page
from tests.report.reader import Reader

FILES = [Path("photos/cat/0.png"), Path("photos/cat/1.png"), Path("photos/cat/2.png")]
CHECK = LabelCheck(
    [DoubtfulLabel(2, "cat", 0.0004, "dog", 0.93), DoubtfulLabel(0, "cat", 0.002, "fox", 0.5)],
    judged=3,
    unknown_labels=["owl"],
)


def test_lines_name_the_photo_its_label_and_what_it_looks_like() -> None:
    assert label_page.lines(CHECK, FILES, 1) == [
        "2 of 3 labels are in doubt",
        "    photos/cat/2.png: cat 0.0 %, dog 93 %",
        "    and 1 more; --all names them",
        "1 class is not in the model, so its photos were not judged: 'owl'",
    ]
    assert "    photos/cat/0.png: cat 0.2 %, fox 50 %" in label_page.lines(CHECK, FILES, None)


def test_the_page_shows_doubtful_photos_and_groups_that_look_the_same(tmp_path: Path) -> None:
    files = [tmp_path / file for file in FILES]
    files[0].parent.mkdir(parents=True)
    for file in files:
        Image.new("RGB", (30, 20)).save(file)
    page = label_page.page(CHECK, files, [f"{files[0]} = {files[1]}"], tmp_path / "photos")
    read = Reader(page)
    assert read.by_tag["h2"] == ["2 labels in doubt", "1 group looks the same"]
    shown = [attributes["alt"] for tag, attributes in read.elements if tag == "img"]
    assert shown == [
        "✗ cat, 0.0 %; dog, 93 %?; cat/2.png",
        "✗ cat, 0.2 %; fox, 50 %?; cat/0.png",
        "group 1; cat/0.png",
        "group 1; cat/1.png",
    ]
