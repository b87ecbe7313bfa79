"""The OpenAPI description."""

from __future__ import annotations

from starlette.testclient import TestClient


def test_every_error_in_the_description_has_the_same_form(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    for methods in schema["paths"].values():
        for operation in methods.values():
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"]
                    reference = answer["content"]["application/problem+json"]["schema"]["$ref"]
                    assert reference.rsplit("/", 1)[-1] in schema["components"]["schemas"]
