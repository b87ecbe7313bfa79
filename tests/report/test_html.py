"""HTML pages: everything that is text is escaped, and nothing is asked of the network."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from cprompt.report import html
from cprompt.report.figures import accuracy_curves, accuracy_heatmap, to_svg
from cprompt.research.record import Record
from tests.report.reader import Reader

NASTY = "<b>&\"'</b><script>x</script>"


def picture() -> Image.Image:
    return Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))


@pytest.mark.parametrize(
    ("fragment", "tags", "texts"),
    [
        (html.text("p", NASTY), ["p"], [NASTY]),
        (html.number(NASTY, NASTY), ["div", "b"], [NASTY, NASTY]),
        (html.figure("<svg></svg>", NASTY), ["figure", "svg", "figcaption"], [NASTY]),
        (
            html.table([NASTY, "n"], [[NASTY, "1"], ["x", "2"]]),
            ["table", "thead", "tr", "th", "th", "tbody", "tr", "td", "td", "tr", "td", "td"],
            [NASTY, "n", NASTY, "1", "x", "2"],
        ),
        (html.image(picture(), [(NASTY, "right")]), ["div", "img", "div"], [NASTY]),
        (html.row(html.text("p", "a"), html.text("p", "b")), ["div", "p", "p"], ["a", "b"]),
    ],
)
def test_names_are_text_whatever_is_in_them(
    fragment: str, tags: list[str], texts: list[str]
) -> None:
    read = Reader(fragment)
    assert (read.tags, read.texts, read.open) == (tags, texts, [])


def test_a_drawing_has_a_description_and_a_source() -> None:
    read = Reader(html.figure("<svg ></svg>", "caption", NASTY, NASTY))
    assert read.tags == ["figure", "svg", "figcaption", "span"]
    assert dict(read.elements)["svg"] == {"role": "img", "aria-label": NASTY}
    assert read.texts == ["caption", NASTY]


def test_headings_of_a_table_lead_to_their_definitions() -> None:
    fragment = html.table(["", "kind", "FF"], [["a", "b", "1"]], texts=2, links={"FF": "ff"})
    fragment += html.definitions([("ff", "FF", NASTY)])
    read = Reader(fragment)
    [anchor] = [a for t, a in read.elements if t == "a"]
    [term] = [a for t, a in read.elements if t == "dt"]
    assert (anchor["href"], term["id"]) == ("#ff", "ff")
    kinds = [a.get("class") for t, a in read.elements if t in ("th", "td")]
    assert kinds == [None, "left", None] * 2
    assert read.texts[-1] == NASTY
    assert read.open == []


def test_contents_lead_to_sections_and_what_is_in_them() -> None:
    read = Reader(html.contents([("a", NASTY, [("a-1", "one")]), ("b", "two", [])]))
    assert [a["href"] for t, a in read.elements if t == "a"] == ["#a", "#a-1", "#b"]
    assert read.texts == [NASTY, "one", "two"]
    assert read.open == []


def test_a_wide_table_scrolls_in_a_box_that_keys_can_reach() -> None:
    [(_, box), *_] = Reader(html.wide("<table></table>", NASTY)).elements
    assert box == {"class": "wide", "role": "region", "tabindex": "0", "aria-label": NASTY}
    assert ".wide { overflow-x: auto" in html.STYLE


def test_the_title_and_the_description_of_an_image_are_escaped() -> None:
    read = Reader(html.page(NASTY, []))
    assert NASTY in read.texts
    assert "b" not in read.tags
    assert "script" not in read.tags
    shown = Reader(html.image(picture(), [(NASTY, ""), ("second", "wrong")]))
    [image] = [attributes for tag, attributes in shown.elements if tag == "img"]
    assert image["alt"] == f"{NASTY}; second"
    assert set(image) == {"alt", "src"}


def test_an_image_is_in_the_page_to_the_bit() -> None:
    fragment = html.image(picture(), [("a", "right"), ("b", "wrong"), ("c", "")])
    read = Reader(fragment)
    [source] = [a["src"] for t, a in read.elements if t == "img"]
    assert source is not None
    start = "data:image/png;base64,"
    assert source.startswith(start)
    with Image.open(io.BytesIO(base64.b64decode(source.removeprefix(start)))) as stored:
        assert np.array_equal(np.asarray(stored), np.asarray(picture()))
    kinds = [attributes.get("class") for tag, attributes in read.elements if tag == "div"]
    assert kinds == ["picture", "right", "wrong", None]


def test_an_element_has_its_class() -> None:
    assert html.text("p", "x") == "<p>x</p>"
    assert html.text("p", "x", "soft") == '<p class="soft">x</p>'


def whole_page(record: Record) -> str:
    return html.page(
        NASTY,
        [
            html.text("h1", NASTY),
            html.row(html.number("5 %", NASTY)),
            html.figure(to_svg(accuracy_curves({NASTY: [record]})), NASTY),
            html.figure(to_svg(accuracy_heatmap(record)), NASTY),
            html.table([NASTY], [[NASTY]]),
            html.image(picture(), [(NASTY, "right")]),
        ],
    )


def test_a_page_is_a_whole_document(hand_record: Record) -> None:
    document = whole_page(hand_record)
    assert document.startswith("<!doctype html>\n<html lang=")
    read = Reader(document)
    assert read.open == []
    assert read.tags[:3] == ["html", "head", "meta"]
    assert next(a for t, a in read.elements if t == "meta") == {"charset": "utf-8"}
    assert read.tags.count("svg") == 2
    assert read.tags.count("h1") == 1


def test_a_page_asks_nobody_for_anything(hand_record: Record) -> None:
    document = whole_page(hand_record)
    read = Reader(document)
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(read.tags)
    for tag, attributes in read.elements:
        for name, value in attributes.items():
            if name.startswith("xmlns"):
                continue
            assert not name.startswith("on"), (tag, name)
            assert not re.search(r"https?:|//", value or "") or (value or "").startswith("data:")
            if name in ("src", "href", "xlink:href"):
                assert (value or "").startswith(("#", "data:")), (tag, name, value)
    styles = "".join(re.findall(r"<style[^>]*>(.*?)</style>", document, re.S))
    assert "@import" not in styles
    assert not re.search(r"url\((?!#)", document)


def test_a_page_follows_the_reader_s_light_or_dark() -> None:
    document = html.page("t", [])
    assert "color-scheme: light dark" in document
    assert "@media (prefers-color-scheme: dark)" in document
