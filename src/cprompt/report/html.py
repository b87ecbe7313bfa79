"""Self-contained HTML pages: no script, no request, light and dark by the reader's setting."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence

from PIL import Image

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #5b6570;
  --line: #d8dee4; --card: #f6f8fa; --right: #0072B2; --wrong: #D55E00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --soft: #9aa5b1;
  --line: #30363d; --card: #161b22; --right: #56B4E9; --wrong: #E69F00; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 68rem; color: var(--ink);
  background: var(--paper); font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; }
p { margin: .4rem 0 .9rem; max-width: 46rem; }
.soft, figcaption, footer { color: var(--soft); font-size: .9rem; }
.row { display: flex; flex-wrap: wrap; gap: 1.25rem; align-items: flex-start; }
figure { margin: 0; padding: 1rem; border: 1px solid var(--line); border-radius: .6rem;
  background: var(--card); flex: 0 1 auto; min-width: 0; }
figure svg { display: block; max-width: 100%; height: auto; }
figcaption { margin-top: .6rem; }
.number { flex: 1 1 12rem; padding: 1rem 1.25rem; border: 1px solid var(--line);
  border-radius: .6rem; background: var(--card); }
.number b { display: block; font-size: 2rem; line-height: 1.2; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
.strip { display: grid; grid-auto-flow: column; gap: .8rem; overflow-x: auto; }
.picture { border: 1px solid var(--line); border-radius: .5rem; overflow: hidden;
  background: var(--card); font-size: .82rem; line-height: 1.35; }
.picture img { display: block; width: 100%; image-rendering: pixelated; }
.picture div { padding: .1rem .55rem; overflow-wrap: anywhere; }
.picture div:last-child { padding-bottom: .5rem; }
.right { color: var(--right); } .wrong { color: var(--wrong); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: .8rem 1rem; overflow-x: auto; }
"""


def page(title: str, body: Sequence[str]) -> str:
    """A whole document; `body` are HTML fragments."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def text(tag: str, content: str, kind: str = "") -> str:
    """An element around escaped text."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<{tag}{attribute}>{html.escape(content)}</{tag}>"


def row(*fragments: str) -> str:
    """Fragments side by side where there is room."""
    return f'<div class="row">{"".join(fragments)}</div>'


def figure(svg: str, caption: str) -> str:
    """A drawing with what it shows."""
    return f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"


def number(value: str, meaning: str) -> str:
    """One number to be seen first."""
    return f'<div class="number"><b>{html.escape(value)}</b>{html.escape(meaning)}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table; the first column is text, the others numbers."""
    top = "".join(f"<th>{html.escape(c)}</th>" for c in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>" for cells in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def picture(image: Image.Image, lines: Sequence[tuple[str, str]]) -> str:
    """A picture with lines of (text, class) below; classes `right` and `wrong` have colours."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    data = base64.b64encode(buffer.getvalue()).decode()
    below = "".join(text("div", line, kind) for line, kind in lines)
    alt = html.escape("; ".join(line for line, _ in lines), quote=True)
    return f'<div class="picture"><img alt="{alt}" src="data:image/png;base64,{data}">{below}</div>'
