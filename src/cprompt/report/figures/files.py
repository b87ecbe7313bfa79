"""Figures as files and as SVG inside a page: the same bytes for the same records."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from cprompt.report.figures.style import INK

_NO_METADATA: dict[str, dict[str, None]] = {
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
    "pdf": dict.fromkeys(("Creator", "Producer", "CreationDate")),
    "png": dict.fromkeys(("Software",)),
}
"""Removes what matplotlib writes about itself: dates, and network addresses."""


def to_svg(figure: Figure, name: str = "") -> str:
    """The figure as an <svg> element without a background, in the text colour around it.

    On a page with several figures, give each its own `name`: all ids inside start with it.
    """
    svg = _saved(figure, "svg", {"svg.fonttype": "none"}, transparent=True).decode()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    if not name:
        return svg
    refers = re.compile(r'(\bid="|url\(#|href="#)')
    return re.sub("<[^>]*>", lambda tag: refers.sub(rf"\g<1>{name}-", tag[0]), svg)


def to_files(figure: Figure) -> dict[str, bytes]:
    """The figure on white for print, by file ending; fonts are inside the files, dates are not."""
    return {
        "svg": _saved(figure, "svg", {"svg.fonttype": "path"}),
        "pdf": _saved(figure, "pdf", {"pdf.fonttype": 42}),
        "png": _saved(figure, "png", {}, dpi=200),
    }


def settle(figure: Figure) -> Figure:
    """Compute the layout once, so that writing four formats does not compute it four times."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _saved(figure: Figure, form: str, settings: dict[str, Any], **options: Any) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "cprompt", **settings}):
        figure.savefig(buffer, format=form, metadata=_NO_METADATA[form], **options)
    return buffer.getvalue()
