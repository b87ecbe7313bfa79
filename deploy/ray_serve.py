"""The same service as a Ray Serve application: two replicas of one model folder.

    MODEL=./model serve run deploy.ray_serve:app

Every replica is the whole of `cprompt serve --read-only`: its limits, its pages, its probes. Ray
starts replicas again, asks each whether it is well, and shares requests among them. A replica
follows the model folder by itself, so the folder must be one that all machines see.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import Response

REPLICAS = int(os.environ.get("REPLICAS", "2"))


@serve.deployment(
    num_replicas=REPLICAS,
    max_ongoing_requests=256,
    health_check_period_s=10,
    graceful_shutdown_timeout_s=40,  # a request may take 30 s
)
class Replica:
    """One process with one copy of the model."""

    def __init__(self, model: str, ask_token: str | None = None) -> None:
        from cprompt.serve.app import create_app
        from cprompt.serve.config import ServeConfig

        # Anyone who reaches Ray's proxy reaches this, so the model cannot be changed here.
        config = ServeConfig(host="0.0.0.0", read_only=True)
        self._app = create_app(model, ask_token=ask_token, settings=config)
        self._running: AsyncExitStack | None = None

    async def _start(self) -> None:
        if self._running is None:  # the service belongs to the event loop of the replica
            self._running = AsyncExitStack()
            await self._running.enter_async_context(self._app.router.lifespan_context(self._app))

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        await self._start()
        body = await request.body()
        status, headers, parts = 500, [], []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], message["headers"]
            else:
                parts.append(message.get("body", b""))

        await self._app(request.scope, receive, send)
        response = Response(b"".join(parts), status)
        response.raw_headers = list(headers)
        return response

    async def check_health(self) -> None:
        """Raise if predictions are not answered; Ray then starts the replica again."""
        await self._start()
        if not self._app.state.service.predictions.running:
            raise RuntimeError("predictions have stopped")


app = Replica.bind(os.environ.get("MODEL", "model"), os.environ.get("CPROMPT_ASK_TOKEN"))
