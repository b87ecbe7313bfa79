"""The page of thumbnails: every photo is there, whole, and nothing is requested."""

from __future__ import annotations

import base64
import io
import re

from PIL import Image

from cprompt.report.html import whole_thumbnail
from cprompt.report.sheet import Shelf, Thumbnail, sheet_page
from tests.report.reader import Reader

NASTY = "<b>&猫\"'</b><script>x</script>"


def test_each_shelf_shows_its_photos_with_their_lines() -> None:
    image = Image.new("RGB", (400, 200), (9, 0, 0))
    photo = Thumbnail(whole_thumbnail(image), [("cat", "right"), (NASTY, "soft")])
    document = sheet_page(
        NASTY, "about", [Shelf("one", "why", [photo, photo]), Shelf("two", NASTY, [])]
    )
    read = Reader(document)
    assert read.open == []
    assert read.by_tag["h2"] == ["one", "two"]
    assert read.by_tag["p"] == ["about", "why", NASTY]
    images = [attributes for tag, attributes in read.elements if tag == "img"]
    assert [each["alt"] for each in images] == [f"cat; {NASTY}"] * 2
    address = str(images[0]["src"])
    shown = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
    assert shown.size == (160, 80)
    assert "<script" not in document
    for pair in re.findall(r"""(?:src|href)=["']([^"']*)|url\(([^)]*)""", document):
        assert "".join(pair).startswith(("data:", "#"))
