"""Reads what reports are made of: pages, and tables in Markdown and LaTeX."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Reader(HTMLParser):
    """Elements, their attributes and the text of a page, as a browser would see them.

    Fails where elements are not closed in order.
    """

    VOID = frozenset({"meta", "img", "br", "link", "input"})

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.by_tag: dict[str, list[str]] = {}
        """The text inside each element of a tag."""
        self.open: list[str] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.by_tag.setdefault(tag, []).append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        for tag in self.open:
            self.by_tag[tag][-1] += data

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]


def pipes(text: str) -> list[list[str]]:
    """The cells of every line of a Markdown table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def tex_rows(text: str) -> list[list[str]]:
    """The cells of each line between the rules, escapes left as they are."""
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    lines = [line for line in body.splitlines() if line.endswith(r" \\")]
    return [re.split(r"(?<!\\) & ", " " + line[: -len(r" \\")]) for line in lines]


def layout(text: str) -> list[str]:
    """One entry per column: l, r, or r in grey."""
    found = re.search(r"\\begin\{tabular\}\{(.*)\}\n", text)
    assert found
    return re.findall(r">\{\\color\{gray\}\}r|l|r", found[1])
