"""The main page, and the headers that keep a page from loading anything from other sites."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

from fastapi.responses import HTMLResponse

_INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


def main_page() -> HTMLResponse:
    """The page on which a person predicts, teaches and measures."""
    content, headers = _main()
    return HTMLResponse(content, headers=headers)


def page_headers(content: str) -> dict[str, str]:
    """A policy that allows the page's own style and script, by their hashes, and nothing else."""
    hashes: dict[str, list[str]] = {"style": [], "script": []}
    for kind, inline in _INLINE.findall(content):
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    policy = {
        "default-src": "'none'",
        "script-src": " ".join(hashes["script"]) or "'none'",
        "style-src": " ".join(hashes["style"]) or "'none'",
        "img-src": "'self' blob: data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Cache-Control": "no-cache",
    }


@cache
def _main() -> tuple[str, dict[str, str]]:
    content = resources.files("cprompt.serve").joinpath("page.html").read_text(encoding="utf-8")
    return content, page_headers(content)
