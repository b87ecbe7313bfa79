"""Self-contained HTML pages: no script, no request, light and dark by the reader's setting."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence

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
h3 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
h2, h3, dt { scroll-margin-top: 1rem; }
a { color: var(--right); }
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
th:first-child, td:first-child, .left { text-align: left; }
td { white-space: nowrap; }
.wide { overflow-x: auto; margin: .6rem 0 1rem; border: 1px solid var(--line);
  border-radius: .6rem; background: var(--card); padding: .3rem .2rem; width: fit-content;
  max-width: 100%; font-size: .88rem; }
.wide th { vertical-align: bottom; } .wide th, .wide td { padding: .3rem .55rem; }
.wide tbody tr:last-child td { border-bottom: 0; }
.names td { white-space: normal; min-width: 5rem; vertical-align: top; }
.source { display: block; margin-top: .35rem; font-size: .82rem; }
nav { border: 1px solid var(--line); border-radius: .6rem; background: var(--card);
  padding: .8rem 1.2rem; margin: 1rem 0; font-size: .92rem; }
nav ul { margin: .2rem 0 .5rem; padding-left: 1.2rem; }
nav ul ul { columns: 16rem 3; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; font-size: .88rem;
  margin: .6rem 0 1rem; max-width: 58rem; }
dt { font-weight: 600; } dd { margin: 0; }
code { font-size: .92em; }
details { margin: .6rem 0 1rem; }
summary { cursor: pointer; color: var(--soft); font-size: .92rem; }
@media (max-width: 40rem) { body { padding: 1rem .8rem 3rem; } dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .5rem; } figure { padding: .6rem; overflow-x: auto; }
  figure svg { max-width: 44rem; } }
@media print { nav { display: none; } figure { break-inside: avoid; } }
.strip { display: grid; grid-auto-flow: column; gap: .8rem; overflow-x: auto; }
.image { border: 1px solid var(--line); border-radius: .5rem; overflow: hidden;
  background: var(--card); font-size: .82rem; line-height: 1.35; }
.image img { display: block; width: 100%; image-rendering: pixelated; }
.image div { padding: .1rem .55rem; overflow-wrap: anywhere; }
.image div:last-child { padding-bottom: .5rem; }
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


def text(tag: str, content: str, kind: str = "", ident: str = "") -> str:
    """An element around escaped text, with a class and an id."""
    attributes = (f' class="{kind}"' if kind else "") + (f' id="{ident}"' if ident else "")
    return f"<{tag}{attributes}>{html.escape(content)}</{tag}>"


def row(*fragments: str) -> str:
    """Fragments side by side where there is room."""
    return f'<div class="row">{"".join(fragments)}</div>'


def figure(svg: str, caption: str, source: str = "", label: str = "") -> str:
    """A drawing with what it shows, what it was made from, and a description for who cannot see."""
    if label:
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)}" ', 1)
    below = html.escape(caption) + (text("span", source, "source") if source else "")
    return f"<figure>{svg}<figcaption>{below}</figcaption></figure>"


def number(value: str, meaning: str) -> str:
    """One number to be seen first."""
    return f'<div class="number"><b>{html.escape(value)}</b>{html.escape(meaning)}</div>'


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    texts: int = 1,
    links: Mapping[str, str] | None = None,
) -> str:
    """A plain table; the first `texts` columns are text, the others numbers.

    links: ids in the page that headings lead to.
    """
    kinds = [' class="left"' if 0 < i < texts else "" for i in range(len(head))]
    links = links or {}
    names = [link(links[name], name) if name in links else html.escape(name) for name in head]
    top = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(kinds, names, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{k}>{html.escape(c)}</td>" for k, c in zip(kinds, cells, strict=True))
        + "</tr>"
        for cells in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def link(ident: str, content: str) -> str:
    """A link to an element of the same page."""
    return f'<a href="#{ident}">{html.escape(content)}</a>'


def wide(fragment: str, label: str, kind: str = "") -> str:
    """A box that scrolls by itself where its content is wider than the page.

    kind `names`: cells hold names that may be broken into lines.
    """
    kinds, named = f"wide {kind}".strip(), html.escape(label)
    box = f'<div class="{kinds}" role="region" tabindex="0" aria-label="{named}">'
    return f"{box}{fragment}</div>"


def details(summary: str, *fragments: str) -> str:
    """Fragments that are there when asked for."""
    return f"<details><summary>{html.escape(summary)}</summary>{''.join(fragments)}</details>"


def definitions(entries: Sequence[tuple[str, str, str]]) -> str:
    """A list of (id, term, meaning)."""
    inside = "".join(text("dt", term, "", i) + text("dd", meaning) for i, term, meaning in entries)
    return f"<dl>{inside}</dl>"


def contents(entries: Sequence[tuple[str, str, Sequence[tuple[str, str]]]]) -> str:
    """A table of contents: (id, heading, [(id, heading)]) a section."""
    items = "".join(
        f"<li>{link(ident, heading)}<ul>"
        + "".join(f"<li>{link(i, h)}</li>" for i, h in inner)
        + "</ul></li>"
        for ident, heading, inner in entries
    )
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def image(image: Image.Image, lines: Sequence[tuple[str, str]]) -> str:
    """An image with lines of (text, class) below; classes `right` and `wrong` have colours."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    data = base64.b64encode(buffer.getvalue()).decode()
    below = "".join(text("div", line, kind) for line, kind in lines)
    alt = html.escape("; ".join(line for line, _ in lines), quote=True)
    return f'<div class="image"><img alt="{alt}" src="data:image/png;base64,{data}">{below}</div>'
