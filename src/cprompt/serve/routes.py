"""What the service answers, path by path."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.responses import HTMLResponse

from cprompt.serve import bodies, openapi
from cprompt.serve.access import Access, role_of
from cprompt.serve.deadlines import Deadline, time_limit
from cprompt.serve.docs_page import docs_page
from cprompt.serve.errors import RequestError, busy
from cprompt.serve.job import Job, Kind
from cprompt.serve.metrics import MEDIA_TYPE as METRICS_MEDIA_TYPE
from cprompt.serve.names import check_unicode, clean_label
from cprompt.serve.page import main_page
from cprompt.serve.predicting import answer_images, to_schema
from cprompt.serve.schemas import (
    Forget,
    Health,
    JobInfo,
    Merge,
    ModelInfo,
    Predictions,
    Rename,
    job_info,
)
from cprompt.serve.service import TOP, Service
from cprompt.serve.zips import ClassFolder

WhichFolder = Annotated[
    ClassFolder | None,
    Query(
        description="which folder names the class, if all photos of a zip are in folders inside "
        "one folder"
    ),
]


async def named_version(
    model: Annotated[
        str | None,
        Query(description="the version that this is meant for; 409 if the model is another"),
    ] = None,
    if_match: Annotated[
        str | None, Header(description="the same, as the ETag of GET /v1/model")
    ] = None,
) -> str | None:
    """The version of the model that a request is meant for; None if it names none."""
    if model is not None or if_match is None or if_match.strip() == "*":
        return model
    return if_match.strip().removeprefix("W/").strip('"')


Expects = Annotated[str | None, Depends(named_version)]


def add_open_routes(app: FastAPI, service: Service) -> None:
    """The pages and the health checks, which need no token."""

    @app.get("/", include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return main_page()

    @app.get("/docs", include_in_schema=False)
    async def show_docs() -> HTMLResponse:
        return docs_page(app.openapi())

    @app.get("/healthz", tags=["health"])
    async def healthz() -> Health:
        """Whether the process is up."""
        return Health(status="ok")

    @app.get("/readyz", tags=["health"], responses=openapi.errors(503))
    async def readyz() -> Health:
        """Whether the service answers predictions."""
        if not service.predictions.running:
            raise busy("the service is starting or stopping")
        return Health(status="ready")


def guarded_routes(service: Service, access: Access) -> APIRouter:
    """Everything that needs the token, if there is one."""
    router = APIRouter(dependencies=[Depends(access.authorize)], responses=openapi.errors(401, 403))
    _add_prediction_routes(router, service)
    _add_learning_routes(router, service, access)
    _add_change_routes(router, service, access)
    _add_job_routes(router, service, access)
    _add_model_routes(router, service, access)
    return router


def _add_prediction_routes(router: APIRouter, service: Service) -> None:
    limits = service.config.limits

    @router.post(
        "/v1/predict",
        tags=["predict"],
        openapi_extra=openapi.IMAGES_BODY,
        responses=openapi.errors(400, 409, 413, 415, 422, 503),
    )
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=1, le=TOP, description="classes in the ranking")] = 5,
        explain: Annotated[
            bool, Query(description="add the nearest class keys and the score")
        ] = False,
        parts: Annotated[
            bool, Query(description="add which parts of the image spoke for the best class")
        ] = False,
    ) -> Predictions:
        """Classify one or many images."""
        if not service.current.classes_:
            raise RequestError(409, "no_classes", "the model has not learnt anything yet")
        service.predictions.check_room()  # so that nothing is received in vain
        with time_limit(limits.request_seconds):
            async with bodies.received_images(request, limits) as files:
                names = [name for _, name in files]
                with service.predictions.admission():
                    answered = await answer_images(service, files, parts=parts)
        return to_schema(names, answered, top=top, explain=explain)


def _add_learning_routes(router: APIRouter, service: Service, access: Access) -> None:
    limits = service.config.limits
    refusals = openapi.errors(400, 409, 413, 415, 422, 503, 507)

    async def start(
        kind: Kind,
        request: Request,
        response: Response,
        class_folder: ClassFolder | None,
        expects: str | None = None,
    ) -> JobInfo:
        seconds = limits.upload_seconds
        service.model.refuse_stale(expects)
        with service.jobs.slot() as slot, time_limit(seconds):
            upload = await bodies.store_photos(
                request, slot.make_folder(), limits, Deadline(seconds), class_folder
            )
            return _accepted(
                service.jobs.add(slot, kind, upload, expects=expects, role=role_of(request)),
                response,
            )

    @router.post(
        "/v1/learn",
        tags=["learn"],
        status_code=202,
        openapi_extra=openapi.PHOTOS_BODY,
        responses=refusals,
    )
    async def learn(
        request: Request,
        response: Response,
        expects: Expects,
        class_folder: WhichFolder = None,
    ) -> JobInfo:
        """Learn photos as one batch, in the background. Predictions go on and then switch."""
        access.require_learning(request)
        return await start("learn", request, response, class_folder, expects)

    @router.post(
        "/v1/evaluate",
        tags=["learn"],
        status_code=202,
        openapi_extra=openapi.PHOTOS_BODY,
        responses=refusals,
    )
    async def evaluate(
        request: Request, response: Response, class_folder: WhichFolder = None
    ) -> JobInfo:
        """Measure accuracy, overall and per class, on photos whose classes are known."""
        access.require_evaluating(request)
        return await start("evaluate", request, response, class_folder)


def _add_change_routes(router: APIRouter, service: Service, access: Access) -> None:
    limits = service.config.limits
    refusals = openapi.errors(400, 409, 413, 422, 503)

    def start(
        request: Request, response: Response, kind: Kind, expects: str | None, **arguments: str
    ) -> JobInfo:
        access.require_learning(request)
        for label in arguments.values():
            check_unicode(label)
        service.model.refuse_stale(expects)
        with service.jobs.slot() as slot:
            return _accepted(
                service.jobs.add(
                    slot, kind, arguments=arguments, expects=expects, role=role_of(request)
                ),
                response,
            )

    @router.post("/v1/rename", tags=["change"], status_code=202, responses=refusals)
    async def rename(
        change: Rename, request: Request, response: Response, expects: Expects
    ) -> JobInfo:
        """Call a class by another name, which no class has."""
        new = clean_label(change.new, limits)
        return start(request, response, "rename", expects, label=change.label, new=new)

    @router.post("/v1/forget", tags=["change"], status_code=202, responses=refusals)
    async def forget(
        change: Forget, request: Request, response: Response, expects: Expects
    ) -> JobInfo:
        """Remove a class; the others stay as they are."""
        return start(request, response, "forget", expects, label=change.label)

    @router.post("/v1/merge", tags=["change"], status_code=202, responses=refusals)
    async def merge(
        change: Merge, request: Request, response: Response, expects: Expects
    ) -> JobInfo:
        """Make two classes one, as if all their photos had been learnt under one name."""
        return start(request, response, "merge", expects, label=change.label, into=change.into)

    @router.post(
        "/v1/undo", tags=["change"], status_code=202, responses=openapi.errors(409, 422, 503)
    )
    async def undo(request: Request, response: Response, expects: Expects) -> JobInfo:
        """Go back to before the last change; possible once."""
        return start(request, response, "undo", expects)


def _accepted(job: Job, response: Response) -> JobInfo:
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job_info(job)


def _add_job_routes(router: APIRouter, service: Service, access: Access) -> None:
    @router.get("/v1/jobs", tags=["jobs"])
    async def list_jobs() -> list[JobInfo]:
        """All jobs under way and the last ones that ended, oldest first."""
        return [job_info(job) for job in service.jobs.all()]

    @router.get("/v1/jobs/{id}", tags=["jobs"], responses=openapi.errors(404))
    async def show_job(id: str) -> JobInfo:
        """The state and progress of a job."""
        return job_info(service.jobs.get(id))

    @router.delete(
        "/v1/jobs/{id}", tags=["jobs"], status_code=202, responses=openapi.errors(404, 409)
    )
    async def cancel_job(id: str, request: Request) -> JobInfo:
        """End a queued job, or stop a running one before its next step."""
        access.require_teacher(request)
        return job_info(service.jobs.cancel(id))


def _add_model_routes(router: APIRouter, service: Service, access: Access) -> None:
    @router.get("/v1/model", tags=["model"])
    async def show_model(request: Request, response: Response) -> ModelInfo:
        """What the model knows, when it learnt it, and what this service allows."""
        response.headers["ETag"] = f'"{service.current.model_id}"'
        return ModelInfo(
            **service.describe(),
            learning=access.may_learn(request),
            evaluating=access.may_evaluate(request),
            limits=asdict(service.config.limits),
        )

    @router.get("/metrics", tags=["health"], response_class=Response)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.text(), media_type=METRICS_MEDIA_TYPE)
