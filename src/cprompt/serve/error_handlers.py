"""Every exception that leaves a route, as a refusal in the service's own form."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from cprompt.errors import CPromptError, DataError
from cprompt.serve.errors import RequestError, busy, explain, from_os_error, from_status


def add_error_handlers(app: FastAPI, private: Collection[str]) -> None:
    """Register a handler per kind of exception; `private` folders are never mentioned."""

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def by_framework(request: Request, error: HTTPException) -> Response:
        return from_status(
            error.status_code, str(error.detail), dict(error.headers or {})
        ).response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        found = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        return RequestError(422, "invalid", "; ".join(found)).response()

    @app.exception_handler(CPromptError)
    async def by_cprompt(request: Request, error: CPromptError) -> Response:
        status, code = (422, "bad_data") if isinstance(error, DataError) else (409, "model")
        return RequestError(status, code, explain(error, private=private).message).response()

    @app.exception_handler(OSError)
    async def by_system(request: Request, error: OSError) -> Response:
        known = from_os_error(error)
        if known is None:
            raise error
        return known.response()

    @app.exception_handler(MemoryError)
    async def no_memory(request: Request, error: MemoryError) -> Response:
        return busy("the service is short of memory; send less at once", 5).response()

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return RequestError(400, "disconnected", "the client went away").response()

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> Response:
        return RequestError(
            500, "internal", "an unexpected error; see the service's log"
        ).response()
