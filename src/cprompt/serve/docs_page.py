"""The OpenAPI description as a page to read, without a script; `docs.html` is its template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from cprompt.serve.page import page_headers

EXAMPLES = {
    "predict": "curl -F images=@a.jpg -F images=@b.jpg HOST/v1/predict\n"
    "curl -H 'Content-Type: image/jpeg' --data-binary @a.jpg HOST/v1/predict\n"
    """curl --json '{"images": ["BASE64"]}' HOST/v1/predict""",
    "learn": "curl -F label=mug -F images=@1.jpg -F images=@2.jpg HOST/v1/learn\n"
    "curl -F archive=@photos.zip HOST/v1/learn",
    "evaluate": "curl -F archive=@test.zip HOST/v1/evaluate",
    "rename": """curl --json '{"label": "mug", "new": "cup"}' HOST/v1/rename""",
    "forget": """curl --json '{"label": "mug"}' HOST/v1/forget""",
    "merge": """curl --json '{"label": "mug", "into": "cup"}' HOST/v1/merge""",
    "undo": "curl -X POST HOST/v1/undo?model=VERSION",
    "list_jobs": "curl HOST/v1/jobs",
    "show_job": "curl HOST/v1/jobs/ID",
    "cancel_job": "curl -X DELETE HOST/v1/jobs/ID",
    "show_model": "curl -H 'Authorization: Bearer TOKEN' HOST/v1/model",
    "metrics": "curl HOST/metrics",
    "healthz": "curl HOST/healthz",
    "readyz": "curl HOST/readyz",
}
"""How to make each request on a command line, by the operation's name."""


class Parameter(NamedTuple):
    """One thing that a request sends; `where` is the query, the path or a media type."""

    name: str
    where: str
    kind: str
    meaning: str


def docs_page(openapi: dict[str, Any]) -> HTMLResponse:
    """The page of an OpenAPI description."""
    content = _template().render(
        description=" ".join(openapi["info"]["description"].split()).replace("`", ""),
        paths=openapi["paths"],
        schemas=openapi["components"]["schemas"],
        examples=EXAMPLES,
    )
    return HTMLResponse(content, headers=page_headers(content))


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("cprompt.serve", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"parameters": parameters, "kind": kind_of, "answers": answers}
    return environment.get_template("docs.html")


def parameters(operation: dict[str, Any]) -> Iterator[Parameter]:
    """What an operation takes: parameters, then the fields of a form, then a file as the body."""
    for p in operation.get("parameters", []):
        meaning = p.get("description", "")
        yield Parameter(p["name"], f"in the {p['in']}", kind_of(p["schema"]), meaning)
    whole_bodies = []
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        fields = body["schema"].get("properties")
        if fields is None:
            whole_bodies.append(media)
            continue
        for name, schema in fields.items():
            yield Parameter(name, media, kind_of(schema), schema.get("description", ""))
    if whole_bodies:
        yield Parameter("the body", ", ".join(whole_bodies), "file", "one, instead of a form")


def answers(response: dict[str, Any]) -> str:
    """The kinds of what comes back with one status."""
    contents = response.get("content", {}).values()
    return ", ".join(kind_of(content["schema"]) for content in contents if "schema" in content)


def kind_of(schema: dict[str, Any]) -> str:
    """A schema in a word or two."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in schema:
        return " or ".join(kind_of(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    if schema.get("format") == "binary":
        return "file"
    if schema.get("type") == "array":
        return f"list of {kind_of(schema['items'])}"
    return str(schema.get("type", "any"))
