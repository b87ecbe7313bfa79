"""The HTTP interface: `create_app` makes a service of a model folder."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import anyio
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import cprompt
from cprompt.classifier.classifier import ContinualClassifier, Explanation
from cprompt.classifier.photos import DETAIL, shrunk
from cprompt.errors import CPromptError, DataError
from cprompt.serve import bodies, page
from cprompt.serve.config import Limits, ServeConfig
from cprompt.serve.errors import (
    MEDIA_TYPE,
    RequestError,
    busy,
    from_os_error,
    from_status,
    timed_out,
)
from cprompt.serve.guard import Guard
from cprompt.serve.jobs import Job, Kind
from cprompt.serve.metrics import MEDIA_TYPE as METRICS_MEDIA_TYPE
from cprompt.serve.schemas import (
    ErrorInfo,
    Health,
    JobInfo,
    ModelInfo,
    Near,
    Prediction,
    Predictions,
    Ranked,
    job_info,
)
from cprompt.serve.service import TOP, Load, Service
from cprompt.serve.uploads import (
    ClassFolder,
    Deadline,
    Upload,
    check_image,
    client_text,
    decode_upload,
)

WhichFolder = Annotated[
    ClassFolder | None,
    Query(
        description="where all photos of a zip are in folders inside one folder: which is the class"
    ),
]

_BEARER = HTTPBearer(auto_error=False, description="The token the service was started with.")

_DESCRIPTION = """
A classifier that keeps learning. Photos are classified by `POST /v1/predict`; new classes, or more
photos of old ones, are taught by `POST /v1/learn`, as a job in the background, while predictions go
on. No photo is kept. Every error is JSON: `{"status": …, "error": {"code", "message", …}}`.
"""


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI: the ways in which a request may be refused."""
    return {
        status: {"description": HTTPStatus(status).phrase, "model": ErrorInfo}
        for status in statuses
    }


def create_app(
    model_path: str | Path,
    *,
    token: str | None = None,
    settings: ServeConfig | None = None,
    load: Load = ContinualClassifier.load,
) -> FastAPI:
    """The service of the model in `model_path`, ready for an ASGI server.

    With a `token`, everything but the page, its description and the health checks needs it as
    `Authorization: Bearer TOKEN`. Without one, learning is open to programs on this machine; a
    service that other machines can reach must then be read-only, or a ConfigError is raised.
    """
    config = settings or ServeConfig()
    config.check_token(token)
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
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.service = service
    app.add_middleware(Guard, config=config, metrics=service.metrics)
    _add_error_handlers(app)
    app.include_router(_routes(service, token))
    _add_open_routes(app, service)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's description, with errors as they are really sent."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        error = {"schema": {"$ref": "#/components/schemas/ErrorInfo"}}
        for operations in schema["paths"].values():
            for operation in operations.values():
                for status, answer in operation["responses"].items():
                    if int(status) >= 400:
                        answer["content"] = {MEDIA_TYPE: error}
        for unused in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(unused, None)
    assert app.openapi_schema is not None
    return app.openapi_schema


# --- without a token ----------------------------------------------------------------------------


def _add_open_routes(app: FastAPI, service: Service) -> None:
    @app.get("/", include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return page.main_page()

    @app.get("/docs", include_in_schema=False)
    async def show_docs() -> HTMLResponse:
        return page.docs_page(app.openapi())

    @app.get("/healthz", tags=["health"])
    async def healthz() -> Health:
        """Whether the process answers at all."""
        return Health(status="ok")

    @app.get("/readyz", tags=["health"], responses=_errors(503))
    async def readyz() -> Health:
        """Whether predictions are answered."""
        if not service.batcher.running:
            raise busy("the service is starting or stopping")
        return Health(status="ready")


# --- with a token, if there is one --------------------------------------------------------------


def _routes(service: Service, token: str | None) -> APIRouter:
    limits = service.config.limits
    may_learn = not service.config.read_only
    may_evaluate = token is not None or service.config.on_loopback

    async def authorize(
        given: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
    ) -> None:
        if token is None:
            return
        if given is None or not hmac.compare_digest(given.credentials.encode(), token.encode()):
            raise RequestError(
                401,
                "unauthorized",
                "this needs the service's token, as the header Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": "Bearer"},
            )

    router = APIRouter(dependencies=[Depends(authorize)], responses=_errors(401, 403))

    @router.post(
        "/v1/predict",
        tags=["predict"],
        openapi_extra=bodies.IMAGES,
        responses=_errors(400, 409, 413, 415, 422, 503),
    )
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=1, le=TOP, description="classes in the ranking")] = 5,
        explain: Annotated[
            bool, Query(description="add the nearest class keys and the score")
        ] = False,
    ) -> Predictions:
        """Classify one or many images."""
        if not service.current.classes_:
            raise RequestError(409, "no_classes", "the model has learnt nothing yet")
        with service.batcher.admission(), _time_limit(limits.request_seconds):
            async with bodies.sent_images(request, limits) as files:
                names = [name for _, name in files]
                side = DETAIL * service.input_side
                size = await service.in_decoder(_size_in_memory, files, side, limits)
                async with service.decoded.taking(min(size, limits.max_decoded)):
                    images = await asyncio.gather(
                        *(service.in_decoder(_decode, f, name, side) for f, name in files)
                    )
                    answered = await service.batcher.submit(images)
        return Predictions(
            model=answered.model,
            predictions=[
                _prediction(name, answer, top, explain)
                for name, answer in zip(names, answered.answers, strict=True)
            ],
        )

    async def start(kind: Kind, request: Request, class_folder: ClassFolder | None) -> Job:
        work = service.learn if kind == "learn" else service.evaluate
        seconds = limits.upload_seconds
        with service.jobs.slot() as slot, _time_limit(seconds):
            upload = await bodies.photos(
                request, slot.make_folder(), limits, Deadline(seconds), class_folder
            )
            return service.jobs.add(slot, kind, upload, work)

    def accepted(job: Job, response: Response) -> JobInfo:
        response.headers["Location"] = f"/v1/jobs/{job.id}"
        return job_info(job)

    def check_learning() -> None:
        if not may_learn:
            raise RequestError(403, "read_only", "this service only predicts")

    @router.post(
        "/v1/learn",
        tags=["learn"],
        status_code=202,
        openapi_extra=bodies.PHOTOS,
        responses=_errors(400, 413, 415, 422, 503, 507),
    )
    async def learn(
        request: Request,
        response: Response,
        class_folder: WhichFolder = None,
    ) -> JobInfo:
        """Learn photos as one batch, in the background. Predictions go on and then switch."""
        check_learning()
        return accepted(await start("learn", request, class_folder), response)

    @router.post(
        "/v1/evaluate",
        tags=["learn"],
        status_code=202,
        openapi_extra=bodies.PHOTOS,
        responses=_errors(400, 413, 415, 422, 503, 507),
    )
    async def evaluate(
        request: Request,
        response: Response,
        class_folder: WhichFolder = None,
    ) -> JobInfo:
        """Measure accuracy, of each class too, on photos whose classes are known."""
        if not may_evaluate:
            raise RequestError(403, "needs_token", "evaluation needs a service with a token")
        return accepted(await start("evaluate", request, class_folder), response)

    @router.post("/v1/undo", tags=["learn"], status_code=202, responses=_errors(503))
    async def undo(response: Response) -> JobInfo:
        """Go back to before the last batch."""
        check_learning()
        with service.jobs.slot() as slot:
            job = service.jobs.add(slot, "undo", Upload([], []), service.undo)
        return accepted(job, response)

    @router.get("/v1/jobs", tags=["jobs"])
    async def list_jobs() -> list[JobInfo]:
        """All jobs under way and the last ones that ended, oldest first."""
        return [job_info(job) for job in service.jobs.all()]

    @router.get("/v1/jobs/{id}", tags=["jobs"], responses=_errors(404))
    async def show_job(id: str) -> JobInfo:
        """How far a job is."""
        return job_info(service.jobs.get(id))

    @router.delete("/v1/jobs/{id}", tags=["jobs"], status_code=202, responses=_errors(404, 409))
    async def cancel_job(id: str) -> JobInfo:
        """End a queued job, or stop a running one before its next step."""
        return job_info(service.jobs.cancel(id))

    @router.get("/v1/model", tags=["model"])
    async def show_model() -> ModelInfo:
        """What the model knows, since when, and what this service allows."""
        return ModelInfo(
            **service.describe(),
            learning=may_learn,
            evaluating=may_evaluate,
            limits=asdict(limits),
        )

    @router.get("/metrics", tags=["health"], response_class=Response)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(service.metrics.text(), media_type=METRICS_MEDIA_TYPE)

    return router


def _decode(file: BinaryIO, name: str, side: int) -> Image.Image:
    """The image as the classifier would shrink it anyway, so that less waits in memory."""
    return shrunk(decode_upload(file, name), side)


def _size_in_memory(files: list[bodies.Named], side: int, limits: Limits) -> int:
    """Check the images' headers; the pixels that they will have once decoded and shrunk."""
    pixels = 0
    for file, name in files:
        size = check_image(file, name, limits)
        scale = min(1.0, side / min(size))
        pixels += round(size[0] * scale) * round(size[1] * scale)
    return pixels


def _prediction(name: str, answer: Explanation, top: int, explain: bool) -> Prediction:
    return Prediction(
        file=name,
        label=answer.label,
        known=answer.known,
        probability=answer.probability,
        ranking=[Ranked(label=n, probability=p) for n, p in answer.ranking[:top]],
        prompt=answer.prompt,
        nearest_keys=[Near(label=n, cosine=c) for n, c in answer.nearest_keys[:top]]
        if explain
        else None,
        score=answer.score if explain else None,
    )


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise timed_out(seconds) from None


# --- errors -------------------------------------------------------------------------------------


def _add_error_handlers(app: FastAPI) -> None:
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
        return RequestError(status, code, client_text(error)).response()

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
