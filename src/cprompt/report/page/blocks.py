"""What a section of the page consists of; `templates/report.html.j2` shows each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from markupsafe import Markup


@dataclass(frozen=True)
class Drawing:
    """A figure with what it shows and what it was made from."""

    svg: Markup
    caption: str
    source: str
    kind: Literal["drawing"] = "drawing"


@dataclass(frozen=True)
class TableBlock:
    """A table as text; the first `texts` columns are text, the others numbers.

    links: ids in the page, by heading. style: a class of the page's style sheet.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    notes: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    style: str = ""
    kind: Literal["table", "folded_table"] = "table"


@dataclass(frozen=True)
class Definitions:
    """A list of (id, term, meaning)."""

    entries: Sequence[tuple[str, str, str]]
    kind: Literal["definitions"] = "definitions"


Block = Drawing | TableBlock | Definitions


@dataclass(frozen=True)
class Part:
    """A heading of the page, one paragraph that explains it, and blocks."""

    ident: str
    heading: str
    explanation: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class SectionPage:
    """A section of the page: its notes come first."""

    name: str
    title: str
    notes: Sequence[str]
    parts: Sequence[Part]
