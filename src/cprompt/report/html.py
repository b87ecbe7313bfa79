"""Self-contained HTML pages: no script, no request, light or dark as the reader has set.

Pages are Jinja templates in `templates/`; everything they show is escaped, except `Markup`.
"""

from __future__ import annotations

import base64
import io
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image, ImageOps

_THUMBNAIL = (160, 160)


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


def whole_thumbnail(image: Image.Image) -> str:
    """The address of the whole image, small.

    A page of many photos asks for it as soon as it has loaded one: a photo of 12 megapixels takes
    36 MB, its thumbnail some 50 kB.
    """
    return png_address(ImageOps.contain(image, _THUMBNAIL))


def square_thumbnail(image: Image.Image) -> str:
    """As `whole_thumbnail`, of the square in the middle."""
    return png_address(ImageOps.fit(image, _THUMBNAIL))
