"""The JSON that the service answers with, as OpenAPI describes it."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field

from cprompt.serve.job import Job, Kind, State

T = TypeVar("T")


class Ranked(BaseModel):
    """A class and its probability."""

    label: str
    probability: float


class Near(BaseModel):
    """A class key and its cosine with the image's query."""

    label: str
    cosine: float


class PhotoParts(BaseModel):
    """How much each part of an image speaks for its most probable class."""

    label: str = Field(description="the class")
    window: list[float] = Field(
        description="left, top, width, height of what the model looks at, in parts of the image"
    )
    shares: list[list[float]] = Field(
        description="row by row: what each part of the window adds to the score of the class, "
        "beyond what it adds to classes on average"
    )
    rest: float = Field(description="what no single part adds; with all shares it is the score")


class Prediction(BaseModel):
    """The answer to one image."""

    file: str = Field(description="name of the image, as it was sent")
    label: str = Field(description='the class, or "unknown"')
    known: bool = Field(description="false if the familiarity is below the model's threshold")
    probability: float = Field(description="of the most probable class, calibrated")
    familiarity: float = Field(
        description="0 to 1: how much the image looks like what the model has learnt"
    )
    ranking: list[Ranked] = Field(description="the most probable classes, best first")
    prompt: int | None = Field(description="the batch, from 1, whose prompt answered")
    nearest_keys: list[Near] | None = Field(None, description="with explain=true")
    score: float | None = Field(
        None, description="with explain=true: the largest logit, before calibration"
    )
    parts: PhotoParts | None = Field(
        None, description="with parts=true: which parts of the image spoke for the best class"
    )


class Predictions(BaseModel):
    """Answers to all images of a request, by one version of the model."""

    model: str = Field(description="the version that answered; it changes with every batch")
    predictions: list[Prediction]


class JobProgress(BaseModel):
    """How far the present phase of a job is."""

    phase: str
    done: int
    total: int = Field(description="0 if it is not known")


class JobInfo(BaseModel):
    """A job in the background."""

    id: str
    kind: Kind
    state: State
    created: str
    started: str | None
    starts: int = Field(description="how often it was begun: again if the service was killed")
    finished: str | None
    photos: dict[str, int] = Field(description="photos per class")
    arguments: dict[str, str] = Field(description="rename, forget, merge: the classes meant")
    skipped: list[str] = Field(description="files of a zip that are not images")
    progress: JobProgress
    warnings: list[str] = Field(description="what is odd about its photos; they were learnt")
    error: dict[str, Any] | None = Field(description="why it failed; the model has not changed")
    result: dict[str, Any] | None = Field(
        description="a change: the new version, of learn its batch too; evaluate: accuracy"
    )


def job_info(job: Job) -> JobInfo:
    """A job as it is sent to a client."""
    return JobInfo(
        id=job.id,
        kind=job.kind,
        state=job.state,
        created=job.created,
        started=job.started,
        starts=job.starts,
        finished=job.finished,
        photos=_valid_unicode(job.photos),
        arguments=_valid_unicode(job.arguments),
        skipped=_valid_unicode(job.upload.skipped),
        progress=JobProgress(
            phase=job.progress.phase, done=job.progress.done, total=job.progress.total
        ),
        warnings=_valid_unicode(job.warnings),
        error=_valid_unicode(job.error),
        result=_valid_unicode(job.result),
    )


def _valid_unicode(value: T) -> T:
    """Plain JSON in which each lone surrogate, which UTF-8 cannot encode, has become U+FFFD.

    Requests with lone surrogates are refused; one such job would make the list of jobs unreadable.
    """
    text = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
    valid: T = json.loads(text.decode("utf-16", "replace"))
    return valid


_NAME = "a class of the model"


class Rename(BaseModel):
    """A class and its new name."""

    label: str = Field(description=_NAME)
    new: str = Field(description="its new name, which no class has")


class Forget(BaseModel):
    """A class to remove."""

    label: str = Field(description=_NAME)


class Merge(BaseModel):
    """Two classes to make one."""

    label: str = Field(description=_NAME)
    into: str = Field(description="the class that it becomes a part of")


class ClassInfo(BaseModel):
    """A class the model knows."""

    label: str
    photos: int = Field(description="photos learnt, in all batches together")
    batches: list[int] = Field(description="the batches it came with, from 1")


class ModelInfo(BaseModel):
    """The model that is served, and what the service allows."""

    model: str
    before: str | None = Field(description="the version that undo goes back to, if there is one")
    classes: list[ClassInfo]
    history: list[dict[str, Any]] = Field(description="one entry per batch, oldest first")
    about: dict[str, Any] = Field(description="backbone, method and calibration")
    learning: bool = Field(description="whether this service learns")
    evaluating: bool = Field(description="whether this service evaluates")
    limits: dict[str, float]


class Health(BaseModel):
    """Whether the service works."""

    status: Literal["ok", "ready"]


class ErrorDetail(BaseModel):
    """Why a request was refused."""

    code: str
    message: str
    file: str | None = None
    rule: str | None = None


class ErrorInfo(BaseModel):
    """The body of every error."""

    status: int
    error: ErrorDetail
