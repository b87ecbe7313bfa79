"""Self-contained HTML pages: no script, no request, light or dark as the reader has set.

Pages are Jinja templates in `templates/`; everything they show is escaped, except `Markup`.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("cprompt.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> str:
    """The page that `templates/TEMPLATE.html.j2` makes of the values."""
    return _templates().get_template(f"{template}.html.j2").render(values)


def drawing(svg: str, label: str = "") -> Markup:
    """An <svg> element as part of a page, with a description for readers who cannot see it.

    svg: as `figures.to_svg` makes it; it is not escaped.
    """
    described = Markup('<svg role="img" aria-label="{}" ').format(label)
    return Markup(svg.replace("<svg ", described, 1) if label else svg)


def png_address(image: Image.Image) -> str:
    """The image itself as the address of an <img>: a data URL."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


# --- fragments, for pages without a template of their own ---------------------------------------


def page(title: str, body: Sequence[str]) -> str:
    """A whole document; `body` are HTML fragments, which are not escaped."""
    return render("base", title=title, body=Markup("\n".join(body)))


def text(tag: str, content: str, kind: str = "", ident: str = "") -> str:
    """An element around escaped text, with a class and an id."""
    attributes = Markup().join(
        Markup(' {}="{}"').format(name, value)
        for name, value in (("class", kind), ("id", ident))
        if value
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), attributes, content)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    texts: int = 1,
    links: Mapping[str, str] | None = None,
) -> str:
    """A plain table; the first `texts` columns are text, the others numbers.

    links: ids in the page that headings lead to.
    """
    macros: Any = _templates().get_template("macros.html.j2").module
    return str(macros.table(head, rows, texts, links or {}))
