"""Every kind of block is shown by the template, and escaped."""

from __future__ import annotations

from cprompt.report import html
from cprompt.report.page.blocks import Block, Definitions, Drawing, Part, SectionPage, TableBlock
from tests.report.page.records import NASTY, Page


def page_with(*blocks: Block) -> Page:
    part = Part("ident", NASTY, NASTY, blocks)
    section = SectionPage("name", NASTY, [NASTY], [part])
    page = html.render(
        "report",
        title=NASTY,
        notes=[],
        n_runs=1,
        n_unfinished=0,
        contents=[("name", NASTY, [("ident", NASTY)])],
        sections=[section],
    )
    return Page(page.encode())


def test_headings_and_notes_are_text() -> None:
    page = page_with()
    assert page.by_tag["h2"] == page.by_tag["h3"] == [NASTY]
    assert page.by_tag["p"][1:3] == [NASTY, NASTY]
    assert [a["href"] for tag, a in page.elements if tag == "a"] == ["#name", "#ident"]
    assert "script" not in page.tags


def test_a_drawing_has_a_description_a_caption_and_a_source() -> None:
    page = page_with(Drawing(html.drawing("<svg ></svg>", NASTY), NASTY, "made of"))
    assert dict(page.elements)["svg"] == {"role": "img", "aria-label": NASTY}
    assert page.by_tag["figcaption"] == [f"{NASTY}made of"]
    assert page.by_tag["span"] == ["made of"]


def test_a_table_scrolls_in_a_box_that_keys_can_reach() -> None:
    block = TableBlock(NASTY, ["", "kind", NASTY], [[NASTY, "b", "1"]], 2, [NASTY], {NASTY: "ff"})
    page = page_with(block, Definitions([("ff", NASTY, NASTY)]))
    [box] = [a for tag, a in page.elements if tag == "div"]
    assert box == {"class": "wide", "role": "region", "tabindex": "0", "aria-label": NASTY}
    kinds = [a.get("class") for tag, a in page.elements if tag in ("th", "td")]
    assert kinds == [None, "left", None] * 2
    assert page.by_tag["th"] == ["", "kind", NASTY]
    assert page.by_tag["td"] == [NASTY, "b", "1"]
    assert "#ff" in [a["href"] for tag, a in page.elements if tag == "a"]
    assert page.by_tag["dt"] == page.by_tag["dd"] == [NASTY]
    assert page.by_tag["p"][-2] == NASTY


def test_a_folded_table_is_there_when_asked_for_and_names_may_be_broken() -> None:
    page = page_with(TableBlock("t", ["a"], [["b"]], kind="folded_table", style="names"))
    assert page.tags.index("details") < page.tags.index("table")
    assert "wide names" in [a.get("class") for tag, a in page.elements if tag == "div"]
