"""From a request's body to files: multipart forms, and single images as the whole body."""

from __future__ import annotations

import base64
import io
import json
import math
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

import anyio.to_thread
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from cprompt.serve.config import Limits
from cprompt.serve.deadlines import Deadline
from cprompt.serve.errors import RequestError
from cprompt.serve.names import NAMELESS, shown_name
from cprompt.serve.openapi import JSON, MULTIPART
from cprompt.serve.uploads import Upload, store_labelled
from cprompt.serve.zips import ClassFolder, store_zip

NamedFile: TypeAlias = tuple[BinaryIO, str]
"""An open file and the name that its sender gave it."""

_IN_MEMORY = 1_000_000
_OTHER_FIELDS = 8  # form fields that are allowed besides one label per file
_BYTES_PER_CHARACTER = 8


@asynccontextmanager
async def received_images(request: Request, limits: Limits) -> AsyncIterator[list[NamedFile]]:
    """The images of a prediction request, open, with their names."""
    kind = _content_type(request)
    if kind == MULTIPART:
        async with _form(request, limits.max_images, limits) as form:
            found = _files(form, "images")
            if not found:
                raise RequestError(422, "no_images", "the form has no files named `images`")
            yield found
    elif kind == JSON or kind.startswith("image/"):
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
            async for chunk in request.stream():
                file.write(chunk)
            file.seek(0)
            if kind == JSON:
                yield _images_in_json(file.read(), limits)
            else:
                yield [(cast(BinaryIO, file), NAMELESS)]
    else:
        raise _wrong_type(
            kind,
            f"{MULTIPART} with files named `images`, image/… with one, or {JSON} with `images` in "
            "base64",
        )


async def store_photos(
    request: Request,
    folder: Path,
    limits: Limits,
    deadline: Deadline,
    class_folder: ClassFolder | None,
) -> Upload:
    """The labelled photos of a request, checked and copied into `folder`."""
    kind = _content_type(request)
    if kind != MULTIPART:
        raise _wrong_type(kind, f"{MULTIPART} with a zip named `archive`, or `images` and `label`")
    async with _form(request, limits.max_labelled, limits) as form:
        archives, images = _files(form, "archive"), _files(form, "images")
        labels = [value for value in form.getlist("label") if isinstance(value, str)]
        if len(archives) + bool(images) != 1:
            raise RequestError(
                422,
                "no_images" if not archives and not images else "ambiguous",
                "send either one zip named `archive`, or files named `images` with their `label`",
            )
        if archives and labels:
            raise RequestError(
                422,
                "ambiguous",
                "the folders of `archive` name the classes; send it without a `label`, or files "
                "named `images` with one",
            )
        if images:
            return await anyio.to_thread.run_sync(
                store_labelled, images, labels, folder, limits, deadline
            )
        file, name = archives[0]
        return await anyio.to_thread.run_sync(
            store_zip, file, name, folder, limits, deadline, class_folder
        )


def _images_in_json(body: bytes, limits: Limits) -> list[NamedFile]:
    """The images of {"images": [base64, …]}; each may be a data URL."""
    try:
        sent = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, "bad_json", "the body is not JSON") from error
    images = sent.get("images") if isinstance(sent, dict) else None
    if not isinstance(images, list) or not images:
        raise RequestError(422, "no_images", 'send {"images": [BASE64, …]}')
    if len(images) > limits.max_images:
        raise RequestError(
            413,
            "too_many_files",
            f"there are more than {limits.max_images} images; send them in parts",
            rule=f"at most {limits.max_images} images",
        )
    return [_from_base64(image, f"image {at}") for at, image in enumerate(images, start=1)]


def _from_base64(text: object, name: str) -> NamedFile:
    try:
        if not isinstance(text, str):
            raise ValueError
        data = text.partition(",")[2] if text.startswith("data:") else text
        return io.BytesIO(base64.b64decode(data, validate=True)), name
    except ValueError as error:
        message = f"{name} is not a string in base64"
        raise RequestError(422, "not_base64", message, file=name, rule="base64") from error


class _CountingParser(MultiPartParser):
    """Starlette's parser, which refuses too many parts with an error of ours."""

    def __init__(
        self,
        headers: Headers,
        stream: AsyncGenerator[bytes, None],
        *,
        max_files: int,
        max_part_size: int,
    ) -> None:
        super().__init__(
            headers,
            stream,
            max_files=math.inf,
            max_fields=math.inf,
            max_part_size=max_part_size,
        )
        self._most_files = max_files
        self._files = 0

    def on_part_end(self) -> None:
        """Count the part that has just been added to `items`."""
        super().on_part_end()
        self._files += isinstance(self.items[-1][1], UploadFile)
        fields = len(self.items) - self._files
        if self._files > self._most_files or fields > self._most_files + _OTHER_FIELDS:
            raise RequestError(
                413,
                "too_many_files",
                f"the form has more than {self._most_files} files or fields; send them in parts",
                rule=f"at most {self._most_files} files",
            )


@asynccontextmanager
async def _form(request: Request, max_files: int, limits: Limits) -> AsyncIterator[FormData]:
    """The form in a request's body; its files are closed after the block."""
    try:
        async with aclosing(request.stream()) as stream:
            form = await _CountingParser(
                request.headers,
                stream,
                max_files=max_files,
                max_part_size=_BYTES_PER_CHARACTER * limits.max_label,
            ).parse()
    except (RequestError, ClientDisconnect, MemoryError, OSError):
        raise
    except MultiPartException as error:
        raise _bad_form(f": {error.message}") from error
    except Exception as error:  # a broken form meets the parser with several exceptions
        raise _bad_form() from error
    try:
        yield form
    finally:
        await form.close()


def _files(form: FormData, field: str) -> list[NamedFile]:
    """The files of a field; a value that is not a file is refused, as it was meant to be one."""
    found: list[NamedFile] = []
    for value in form.getlist(field):
        if not isinstance(value, UploadFile):
            raise RequestError(422, "not_a_file", f"`{field}` must be a file, with a file name")
        found.append((value.file, shown_name(value.filename)))
    return found


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _wrong_type(kind: str, expected: str) -> RequestError:
    message = f"Content-Type {kind!r} is not accepted here; send {expected}"
    return RequestError(415, "unsupported_media_type", message, rule=expected)


def _bad_form(why: str = "") -> RequestError:
    return RequestError(400, "bad_form", f"the form cannot be read{why}")
