"""Every refusal as one kind of JSON: {"status": …, "error": {"code", "message", …}}."""

from __future__ import annotations

import errno
import logging
from collections.abc import Collection, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from starlette.responses import JSONResponse

from cprompt.errors import CPromptError, DataError, ModelError

MEDIA_TYPE = "application/problem+json"

_FULL = {errno.ENOSPC, errno.EDQUOT}
_TOO_MANY_OPEN = {errno.EMFILE, errno.ENFILE}
_log = logging.getLogger(__name__)


class RequestError(Exception):
    """A request that is refused, and why.

    `code` is for programs, `message` for people; `file` is the upload or zip entry at fault and
    `rule` is the rule that it breaks.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        file: str | None = None,
        rule: str | None = None,
        retry_after: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.file = file
        self.rule = rule
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def detail(self) -> dict[str, Any]:
        """The fields of the answer's "error"."""
        detail = {"code": self.code, "message": self.message, "file": self.file, "rule": self.rule}
        return {name: value for name, value in detail.items() if value is not None}

    def response(self) -> JSONResponse:
        """The answer to send."""
        return JSONResponse(
            {"status": self.status, "error": self.detail()},
            status_code=self.status,
            headers=self.headers,
            media_type=MEDIA_TYPE,
        )


def busy(message: str, retry_after: int = 1) -> RequestError:
    """The refusal of a request that can be sent again later."""
    return RequestError(503, "busy", message, retry_after=retry_after)


def timed_out(seconds: float) -> RequestError:
    """The refusal of a request that took too long."""
    return RequestError(
        503,
        "timeout",
        f"the request took more than {seconds:g} seconds; send less at once or try again",
        rule=f"at most {seconds:g} seconds",
        retry_after=1,
    )


def from_status(status: int, message: str, headers: dict[str, str] | None = None) -> RequestError:
    """A refusal by the framework, such as 404 or 405."""
    code = HTTPStatus(status).phrase.lower().replace(" ", "_")
    return RequestError(status, code, message, headers=headers)


def from_os_error(error: OSError) -> RequestError | None:
    """A full disk or too many open files as a refusal; None for any other error."""
    if error.errno in _FULL:
        return RequestError(507, "disk_full", "the service has no room on its disk for this upload")
    if error.errno in _TOO_MANY_OPEN:
        return busy("the service has too many files open; try again later", retry_after=5)
    return None


def in_senders_words(text: str, names: Mapping[str, str]) -> str:
    """A text in which uploaded files are called as their sender calls them; see `explain`."""
    for path in sorted(names, key=len, reverse=True):  # one path may begin with another
        text = text.replace(path, names[path])
    return text


class Told(NamedTuple):
    """What a client is told about an error inside the package."""

    message: str
    file: str | None


def explain(
    error: CPromptError,
    *,
    private: Collection[str] = (),
    names: Mapping[str, str] | None = None,
) -> Told:
    """An error of the package as a client may see it.

    `names` maps the paths of uploaded files to what their sender calls them, also in the message;
    any other file is the service's own and not named. Nor is the hint told, which is for whoever
    runs the service: the log has both. Errors that are not about photos or the model, and messages
    that mention one of the `private` folders, are logged and not told.
    """
    file = None if error.file is None else (names or {}).get(error.file)
    speaks = isinstance(error, (DataError, ModelError))
    message = in_senders_words(error.message, names or {})
    if not speaks or any(folder in message for folder in private):
        _log.error("not shown to the client: %s", error)
        return Told("the service cannot do this with its model; its log says why", file)
    if isinstance(error, ModelError) and error.file is not None and file is None:
        _log.error("told to the client in part: %s", error)
        part = Path(error.file).suffix in (".json", ".safetensors")
        return Told(f"{'a file of the model' if part else 'the model'} {message}", None)
    return Told(str(CPromptError(message, file=file)), file)
