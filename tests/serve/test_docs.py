"""docs/serving.md says what is so."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from starlette.testclient import TestClient

from cprompt.serve.config import Limits

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text("utf-8")


def limits_table() -> str:
    """What stands in the page, as it follows from the code."""
    return "".join(
        f"| `{limit.name}` | {limit.default:,} | {limit.metadata['help']} |\n"
        for limit in fields(Limits)
    )


def test_every_limit_is_listed_with_its_default() -> None:
    assert limits_table() in PAGE


def test_every_path_in_the_table_of_requests_is_there(client: TestClient) -> None:
    described = {
        (method.upper(), path.replace("{id}", "ID"))
        for path, methods in client.get("/openapi.json").json()["paths"].items()
        for method in methods
    }
    assert set(re.findall(r"`(GET|POST|DELETE) (/[\w/]+)", PAGE)) == described
