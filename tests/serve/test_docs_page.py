"""The page that describes the API."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from cprompt.serve.docs_page import EXAMPLES, docs_page, kind_of


def test_the_api_page_names_every_operation(client: TestClient) -> None:
    page = client.get("/docs").text
    paths = client.get("/openapi.json").json()["paths"]
    assert len(paths) > 10
    for path, methods in paths.items():
        for method in methods:
            assert f"{method.upper()} {path}</h2>" in page
            assert methods[method]["operationId"] in EXAMPLES


def test_everything_in_a_description_is_escaped() -> None:
    hostile = "<script>alert('x')</script>"
    schema = {"type": "object", "properties": {hostile: {"type": "string", "description": hostile}}}
    operation = {
        "operationId": '"><b>',
        "description": hostile,
        "parameters": [{"name": hostile, "in": "query", "schema": {"enum": [hostile]}}],
        "responses": {"200": {"description": hostile}},
    }
    page = docs_page(
        {
            "info": {"description": hostile},
            "paths": {hostile: {"get": operation}},
            "components": {"schemas": {hostile: schema}},
        }
    )
    text = bytes(page.body).decode()
    assert "<script" not in text
    assert 'id=""' not in text
    assert text.count("&lt;script&gt;") >= 8
    assert "script-src 'none'" in page.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"$ref": "#/components/schemas/JobInfo"}, "JobInfo"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer or null"),
        ({"enum": ["inner", "outer"]}, '"inner" or "outer"'),
        ({"const": "ok"}, '"ok"'),
        ({"type": "array", "items": {"type": "string", "format": "binary"}}, "list of file"),
        ({}, "any"),
    ],
)
def test_a_schema_in_a_word_or_two(schema: dict[str, Any], kind: str) -> None:
    assert kind_of(schema) == kind
