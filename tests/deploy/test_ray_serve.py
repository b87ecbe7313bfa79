"""deploy/ray_serve.py, with Ray Serve itself replaced: what a replica answers."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from starlette.requests import Request

from tests.serve.common import RED, photo
from tests.serve.conftest import learnt  # noqa: F401

FILE = Path(__file__).parents[2] / "deploy" / "ray_serve.py"


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, dict[str, Any]]:
    """The module, and what it asks of Ray."""
    asked: dict[str, Any] = {}

    def deployment(**options: Any) -> Any:
        asked.update(options)

        def decorate(kind: Any) -> Any:
            kind.bind = lambda *args: (kind, *args)
            return kind

        return decorate

    ray, serve = ModuleType("ray"), ModuleType("ray.serve")
    ray.serve, serve.deployment = serve, deployment  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    monkeypatch.setenv("MODEL", "a folder")
    monkeypatch.setenv("CPROMPT_ASK_TOKEN", "asking-asking-asking")
    spec = importlib.util.spec_from_file_location("ray_serve", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, asked


def request(path: str, body: bytes = b"", **headers: str) -> Request:
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST" if body else "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(n.replace("_", "-").encode(), v.encode()) for n, v in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    sent = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return sent.pop()

    return Request(scope, receive)


def test_a_replica_is_the_service(
    deployed: tuple[ModuleType, dict[str, Any]],
    learnt: Path,  # noqa: F811
) -> None:
    module, asked = deployed
    assert asked["num_replicas"] == 2
    assert module.app == (module.Replica, "a folder", "asking-asking-asking")
    token = {"authorization": "Bearer asking-asking-asking"}
    body = photo(RED)
    kind = {"content_type": "image/png", "content_length": str(len(body))}

    async def ask() -> list[Any]:
        replica = module.Replica(str(learnt), "asking-asking-asking")
        await replica.check_health()
        answers = [
            await replica(request("/readyz")),
            await replica(request("/v1/model")),
            await replica(request("/v1/predict", body, **token, **kind)),
            await replica(request("/v1/undo", b"{}", **token, content_length="2")),
        ]
        await replica._app.state.service.predictions.close()
        with pytest.raises(RuntimeError, match="have stopped"):
            await replica.check_health()
        await replica._running.aclose()
        return answers

    ready, without_token, predicted, undone = asyncio.run(ask())
    assert ready.status_code == 200
    assert without_token.status_code == 401
    assert predicted.status_code == 200, predicted.body
    assert b'"red"' in predicted.body
    assert dict(predicted.raw_headers)[b"content-type"] == b"application/json"
    assert undone.status_code == 403
