"""`create_app` builds the HTTP service of a model folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

import cprompt
from cprompt.classifier.classifier import ContinualClassifier
from cprompt.serve import openapi
from cprompt.serve.access import Access, Tokens
from cprompt.serve.config import ServeConfig
from cprompt.serve.error_handlers import add_error_handlers
from cprompt.serve.guard import Guard
from cprompt.serve.routes import add_open_routes, guarded_routes
from cprompt.serve.served_model import Load
from cprompt.serve.service import Service
from cprompt.settings import check


def create_app(
    model_path: str | Path,
    *,
    token: str | None = None,
    ask_token: str | None = None,
    teach_token: str | None = None,
    settings: ServeConfig | None = None,
    load: Load = ContinualClassifier.load,
) -> FastAPI:
    """The service of the model in `model_path`, ready for an ASGI server.

    With a `token`, every request but those for the pages and the health checks must send
    `Authorization: Bearer TOKEN`. Instead of one for everything there can be two: `ask_token` may
    look and predict, `teach_token` may change the model too. Without any, every
    program on this machine may learn; a service that other machines can reach must then be
    read-only, or a ConfigError is raised.
    """
    config = settings or ServeConfig()
    check(
        token is None or (ask_token is None and teach_token is None),
        "give one token for everything, or one for asking and one for teaching, not both",
    )
    tokens = Tokens(ask_token, token if teach_token is None else teach_token)
    tokens.check(config)
    service = Service(Path(model_path), config, load)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await service.close()

    app = FastAPI(
        title="cprompt",
        version=cprompt.__version__,
        description=openapi.DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own pages load scripts from another site
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.service = service
    app.add_middleware(Guard, config=config, metrics=service.metrics)
    add_error_handlers(app, service.private)
    app.include_router(guarded_routes(service, Access(config, tokens)))
    add_open_routes(app, service)
    app.openapi = lambda: openapi.describe(app)  # type: ignore[method-assign]
    return app
