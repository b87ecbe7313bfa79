"""From a request's body to files: multipart forms and images sent as they are."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import anyio.to_thread
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from cprompt.serve.config import Limits
from cprompt.serve.errors import RequestError, from_os_error
from cprompt.serve.uploads import (
    ClassFolder,
    Deadline,
    Upload,
    shown_name,
    store_labelled,
    store_zip,
)

Named = tuple[BinaryIO, str]

_MULTIPART = "multipart/form-data"
_IN_MEMORY = 1_000_000

IMAGES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            _MULTIPART: {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {
                        "images": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "string", "format": "binary"},
                            "description": "one image or many",
                        }
                    },
                }
            },
            **{
                f"image/{kind}": {"schema": {"type": "string", "format": "binary"}}
                for kind in ("jpeg", "png", "webp", "gif", "bmp", "tiff")
            },
        },
    }
}
"""OpenAPI: what `pictures` takes."""

PHOTOS: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            _MULTIPART: {
                "schema": {
                    "type": "object",
                    "properties": {
                        "archive": {
                            "type": "string",
                            "format": "binary",
                            "description": "a zip with a folder of photos for each class",
                        },
                        "images": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "photos, in place of `archive`",
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
"""OpenAPI: what `photos` takes."""


@asynccontextmanager
async def sent_images(request: Request, limits: Limits) -> AsyncIterator[list[Named]]:
    """The images of a prediction request, open, with their names."""
    kind = _content_type(request)
    if kind == _MULTIPART:
        async with _form(request, limits.max_images, limits) as form:
            found = _files(form, "images")
            if not found:
                raise RequestError(422, "no_pictures", "the form has no files named `images`")
            yield found
    elif kind.startswith("image/"):
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
            async for chunk in request.stream():
                file.write(chunk)
            file.seek(0)
            yield [(cast(BinaryIO, file), "the image")]
    else:
        raise _wrong_type(kind, f"{_MULTIPART} with files named `images`, or image/… with one")


async def photos(
    request: Request,
    folder: Path,
    limits: Limits,
    deadline: Deadline,
    class_folder: ClassFolder | None,
) -> Upload:
    """The labelled photos of a request, checked and copied into `folder`."""
    kind = _content_type(request)
    if kind != _MULTIPART:
        raise _wrong_type(kind, f"{_MULTIPART} with a zip named `archive`, or `images` and `label`")
    async with _form(request, limits.max_labelled, limits) as form:
        archives, images = _files(form, "archive"), _files(form, "images")
        labels = [value for value in form.getlist("label") if isinstance(value, str)]
        if len(archives) + bool(images) != 1:
            raise RequestError(
                422,
                "no_pictures" if not archives and not images else "ambiguous",
                "send either one zip named `archive`, or files named `images` with their `label`",
            )
        if images:
            return await anyio.to_thread.run_sync(
                store_labelled, images, labels, folder, limits, deadline
            )
        file, name = archives[0]
        return await anyio.to_thread.run_sync(
            store_zip, file, name, folder, limits, deadline, class_folder
        )


@asynccontextmanager
async def _form(request: Request, most: int, limits: Limits) -> AsyncIterator[FormData]:
    try:
        form = await request.form(
            max_files=most, max_fields=most + 8, max_part_size=8 * limits.max_label
        )
    except (RequestError, ClientDisconnect, MemoryError):
        raise
    except HTTPException as error:
        if "Too many" in error.detail:
            raise RequestError(
                413,
                "too_many_files",
                f"the form has more than {most} files or fields; send them in parts",
                rule=f"at most {most} files",
            ) from None
        raise _bad_form(error.detail) from None
    except OSError as error:
        if from_os_error(error) is not None:
            raise
        raise _bad_form(str(error)) from error
    except Exception as error:  # a broken form meets the parser with several exceptions
        raise _bad_form(str(error)) from error
    try:
        yield form
    finally:
        await form.close()


def _files(form: FormData, field: str) -> list[Named]:
    """The files of that field; a value that is no file is refused, as it was meant to be one."""
    found: list[Named] = []
    for value in form.getlist(field):
        if not isinstance(value, UploadFile):
            raise RequestError(422, "not_a_file", f"`{field}` must be a file, with a file name")
        found.append((value.file, shown_name(value.filename)))
    return found


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _wrong_type(kind: str, wanted: str) -> RequestError:
    message = f"Content-Type {kind!r} is not taken here; send {wanted}"
    return RequestError(415, "unsupported_media_type", message, rule=wanted)


def _bad_form(detail: str) -> RequestError:
    return RequestError(400, "bad_form", f"the form cannot be read: {detail}")
