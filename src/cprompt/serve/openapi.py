"""The OpenAPI description: what FastAPI cannot find out by itself."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from cprompt.serve.errors import MEDIA_TYPE
from cprompt.serve.schemas import ErrorInfo

DESCRIPTION = """
A classifier that keeps learning. `POST /v1/predict` classifies photos. `POST /v1/learn` teaches new
classes, or more photos of known ones, as a job in the background, while predictions go on. No photo
is kept. Every error is JSON: `{"status": …, "error": {"code", "message", …}}`.
"""

MULTIPART = "multipart/form-data"
JSON = "application/json"

_FILE = {"type": "string", "format": "binary"}

IMAGES_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            MULTIPART: {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {
                        "images": {
                            "type": "array",
                            "minItems": 1,
                            "items": _FILE,
                            "description": "one image or many",
                        }
                    },
                }
            },
            JSON: {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {
                        "images": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "string"},
                            "description": "images in base64, or as data URLs",
                        }
                    },
                }
            },
            **{
                f"image/{kind}": {"schema": _FILE}
                for kind in ("jpeg", "png", "webp", "gif", "bmp", "tiff", "avif", "heic")
            },
        },
    }
}
"""What `bodies.received_images` takes."""

PHOTOS_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            MULTIPART: {
                "schema": {
                    "type": "object",
                    "properties": {
                        "archive": {
                            **_FILE,
                            "description": "a zip with one folder of photos per class",
                        },
                        "images": {
                            "type": "array",
                            "items": _FILE,
                            "description": "photos, instead of `archive`",
                        },
                        "label": {
                            "type": "array",
                            "items": {"type": "string"},
                            "description": "the class of each photo, or one for all of them",
                        },
                    },
                }
            }
        },
    }
}
"""What `bodies.store_photos` takes."""


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The ways in which a request may be refused, for a route's `responses`."""
    return {
        status: {"description": HTTPStatus(status).phrase, "model": ErrorInfo}
        for status in statuses
    }


def describe(app: FastAPI) -> dict[str, Any]:
    """FastAPI's description of `app`, with errors as they are really sent."""
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
