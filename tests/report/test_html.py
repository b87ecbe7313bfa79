"""HTML pages: everything that is text is escaped, and the network is never asked."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

import numpy as np
import pytest
from jinja2 import UndefinedError
from markupsafe import Markup
from PIL import Image

from cprompt.report import html
from tests.report.reader import Reader

NASTY = "<b>&\"'</b><script>x</script>"


def table(head: list[str], rows: list[list[str]], texts: int = 1, links: Any = ()) -> str:
    """The table of the pages' macros."""
    macros: Any = html._templates().get_template("macros.html.j2").module
    return str(macros.table(head, rows, texts, dict(links)))


def test_names_are_text_whatever_is_in_them() -> None:
    read = Reader(table([NASTY, "n"], [[NASTY, "1"], ["x", "2"]]))
    rows = ["tr", "th", "th", "tbody", "tr", "td", "td", "tr", "td", "td"]
    assert read.tags == ["table", "thead", *rows]
    assert [text for text in read.texts if text.strip()] == [NASTY, "n", NASTY, "1", "x", "2"]
    assert read.open == []


def test_headings_of_a_table_lead_to_their_definitions() -> None:
    read = Reader(table(["", "kind", "FF"], [["a", "b", "1"]], texts=2, links={"FF": "ff"}))
    [anchor] = [a for t, a in read.elements if t == "a"]
    assert anchor["href"] == "#ff"
    kinds = [a.get("class") for t, a in read.elements if t in ("th", "td")]
    assert kinds == [None, "left", None] * 2


def test_a_drawing_is_the_svg_itself_with_a_description_that_is_escaped() -> None:
    svg = '<svg width="1"><svg ></svg></svg>'
    assert html.drawing(svg) == svg
    first, second = Reader(html.drawing(svg, NASTY)).elements
    assert first == ("svg", {"role": "img", "aria-label": NASTY, "width": "1"})
    assert second == ("svg", {})


def test_an_image_is_in_its_address_to_the_bit() -> None:
    image = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    address = html.png_address(image)
    start = "data:image/png;base64,"
    assert address.startswith(start)
    with Image.open(io.BytesIO(base64.b64decode(address.removeprefix(start)))) as stored:
        assert np.array_equal(np.asarray(stored), np.asarray(image))


def test_a_page_is_a_whole_document_with_the_body_as_it_is() -> None:
    document = html.render("base", title=NASTY, body=Markup("<p>one</p><p>{}</p>").format(NASTY))
    assert document.startswith("<!doctype html>\n<html lang=")
    read = Reader(document)
    assert read.open == []
    assert read.tags[:3] == ["html", "head", "meta"]
    assert next(a for t, a in read.elements if t == "meta") == {"charset": "utf-8"}
    assert read.by_tag["title"] == [NASTY]
    assert read.by_tag["p"] == ["one", NASTY]
    assert "script" not in read.tags


def test_a_page_asks_the_network_for_nothing_and_follows_light_and_dark() -> None:
    document = html.render("base", title="t", body="")
    assert not {"script", "link", "img", "base"} & set(Reader(document).tags)
    assert not re.search(r"https?:|//|@import|url\(", document)
    assert "color-scheme: light dark" in document
    assert "@media (prefers-color-scheme: dark)" in document


def test_a_template_without_one_of_its_values_fails() -> None:
    with pytest.raises(UndefinedError):
        html.render("base", title="t")
