"""The site builds without a warning and shows without a network."""

from __future__ import annotations

import logging
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import cprompt

ROOT = Path(__file__).parents[2]


class References(HTMLParser):
    """What a page loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "srcset", "poster", "data") or (name == "href" and tag == "link"):
                self.loaded.append(value or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning of the build is a failure."""
    folder = tmp_path_factory.mktemp("site")
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    log, keep = logging.getLogger("mkdocs"), Keep(logging.WARNING)
    log.addHandler(keep)
    try:
        build(config)
    finally:
        log.removeHandler(keep)
    assert said == []
    return folder


def test_every_page_is_built_and_none_loads_anything_from_elsewhere(site: Path) -> None:
    pages = {p.relative_to(ROOT / "docs").with_suffix("") for p in (ROOT / "docs").rglob("*.md")}
    assert {p.relative_to(site).with_suffix("") for p in site.rglob("*.html")} >= pages
    for page in site.rglob("*.html"):
        found = References()
        found.feed(page.read_text("utf-8"))
        for reference in found.loaded:
            assert not re.match(r"(?:\w+:)?//", reference), f"{page.name}: {reference}"
            if not reference.startswith("data:") and page.name != "404.html":
                path = (page.parent / reference.split("#")[0].split("?")[0]).resolve()
                assert path.exists(), f"{page.name}: {reference}"


def test_no_style_sheet_fetches_anything(site: Path) -> None:
    sheets = list(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        for url in re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")]+)", sheet.read_text("utf-8")):
            assert not re.match(r"(?:\w+:)?//", url), f"{sheet.name}: {url}"


def test_equations_are_mathml_and_notes_to_the_tests_are_gone(site: Path) -> None:
    page = (site / "methods" / "cprompt.html").read_text("utf-8")
    assert page.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') >= 5
    for built in site.rglob("*.html"):
        text = built.read_text("utf-8")
        assert "arithmatex" not in text, built.name
        assert "<!-- test:" not in text, built.name


def test_every_public_name_is_on_a_reference_page(site: Path) -> None:
    pages = "".join(page.read_text("utf-8") for page in (site / "reference").glob("*.html"))
    shown = {name.rpartition(".")[2] for name in re.findall(r'<h2 id="cprompt\.([\w.]+)"', pages)}
    assert set(cprompt.__all__) - {"__version__"} <= shown
    assert {"DatasetInfo", "Observer", "ConfigError"} <= shown


def test_examples_in_docstrings_are_shown_as_code(site: Path) -> None:
    page = (site / "reference" / "backbone.html").read_text("utf-8")
    assert page.count('<span class="gp">&gt;&gt;&gt; </span>') >= 3  # prompts
    assert "<blockquote>" not in page
