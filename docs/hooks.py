"""What the site's build adds to plain Markdown; the pages stay readable in the repository."""

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
    """Drop the comments for the tests; name files outside docs/ instead of linking to them."""
    markdown = _TEST_MODE.sub("", markdown)
    if "/" not in page.file.src_uri:
        markdown = _OUTSIDE.sub(r"`\2`", markdown)
    return markdown


def on_page_content(content: str, **_: Any) -> str:
    """Turn equations into MathML, which browsers show without a script or a downloaded font."""
    content = _BLOCK.sub(lambda found: _mathml(found[1], "block"), content)
    return _INLINE.sub(lambda found: _mathml(found[1], "inline"), content)


def _mathml(latex: str, display: str) -> str:
    found = convert(html.unescape(latex).strip(), display=display)
    if "\\" in found:
        raise PluginError(f"a command in {latex!r} has no MathML")
    return found
