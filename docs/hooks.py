"""What the site's build does beside plain Markdown; the pages stay readable where they lie."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

_TEST_MODE = re.compile(r"^<!-- test: .*? -->\n", re.MULTILINE)
_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)]*)\)")
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Without the notes to the tests; files of the repository outside docs/ by name only."""
    markdown = _TEST_MODE.sub("", markdown)
    if "/" not in page.file.src_uri:
        markdown = _OUTSIDE.sub(r"`\2`", markdown)
    return markdown


def on_page_content(content: str, **_: Any) -> str:
    """Equations as MathML, which browsers show by themselves: no script, no font to fetch."""
    content = _BLOCK.sub(lambda found: _mathml(found[1], "block"), content)
    return _INLINE.sub(lambda found: _mathml(found[1], "inline"), content)


def _mathml(latex: str, display: str) -> str:
    found = convert(html.unescape(latex).strip(), display=display)
    if "\\" in found:
        raise PluginError(f"a command in {latex!r} has no MathML")
    return found
