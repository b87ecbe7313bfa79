"""The page for people, and the API's description for people: nothing in them comes from outside."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib import resources
from typing import Any

from fastapi.responses import HTMLResponse

from cprompt.report.html import page, table, text

_INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


@cache
def _main() -> tuple[str, dict[str, str]]:
    content = resources.files("cprompt.serve").joinpath("page.html").read_text(encoding="utf-8")
    return content, _headers(content)


def main_page() -> HTMLResponse:
    """The page on which a person asks, teaches and measures."""
    content, headers = _main()
    return HTMLResponse(content, headers=headers)


def docs_page(openapi: dict[str, Any]) -> HTMLResponse:
    """The OpenAPI description as a page to read, without a script."""
    body = [
        "<style>table { margin: .8rem 0; } th, td { text-align: left; }</style>",
        text("h1", "The API"),
        text("p", " ".join(openapi["info"]["description"].split()).replace("`", "")),
        '<p>For programs: <a href="/openapi.json">openapi.json</a>. '
        'For people: <a href="/">the page</a>.</p>',
    ]
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            body += _operation(method.upper(), path, operation)
    body.append(text("h2", "What is answered"))
    for name, schema in openapi["components"]["schemas"].items():
        body += _schema(name, schema)
    content = page("cprompt API", body)
    return HTMLResponse(content, headers=_headers(content))


def _operation(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    lines = [
        f'<h2 id="{html.escape(operation["operationId"])}">{method} {html.escape(path)}</h2>',
        text("p", operation.get("description", "")),
    ]
    rows = [
        [p["name"], f"in the {p['in']}", _kind(p["schema"]), p.get("description", "")]
        for p in operation.get("parameters", [])
    ]
    whole_bodies = []
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        fields = body["schema"].get("properties")
        if fields is None:
            whole_bodies.append(media)
        else:
            rows += [[n, media, _kind(f), f.get("description", "")] for n, f in fields.items()]
    if whole_bodies:
        rows.append(["the body", ", ".join(whole_bodies), "file", "one, in place of a form"])
    if rows:
        lines.append(table(["parameter", "where", "type", "meaning"], rows))
    answers = [
        [status, answer["description"], _answer(answer)]
        for status, answer in sorted(operation["responses"].items())
    ]
    lines.append(table(["status", "", "answer"], answers))
    return lines


def _answer(answer: dict[str, Any]) -> str:
    return ", ".join(
        _kind(c["schema"]) for c in answer.get("content", {}).values() if "schema" in c
    )


def _schema(name: str, schema: dict[str, Any]) -> list[str]:
    rows = [
        [field, _kind(about), about.get("description", "")]
        for field, about in schema.get("properties", {}).items()
    ]
    lines = [f'<h3 id="schema-{html.escape(name)}">{html.escape(name)}</h3>']
    if schema.get("description"):
        lines.append(text("p", schema["description"]))
    return [*lines, table(["field", "type", "meaning"], rows)]


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a word or two."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in schema:
        return " or ".join(_kind(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    if schema.get("format") == "binary":
        return "file"
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    return str(schema.get("type", "any"))


def _headers(content: str) -> dict[str, str]:
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
