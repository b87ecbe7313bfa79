"""Every refusal as one kind of JSON: {"status": …, "error": {"code", "message", …}}."""

from __future__ import annotations

import errno
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse

MEDIA_TYPE = "application/problem+json"

_FULL = {errno.ENOSPC, errno.EDQUOT}
_TOO_MANY_OPEN = {errno.EMFILE, errno.ENFILE}


class RequestError(Exception):
    """A request that is not carried out, and why.

    `code` is for programs, `message` for people; `file` is the upload or zip entry at fault and
    `rule` what it would have to keep to.
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
        """What stands under "error"."""
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
    """A refusal that is nobody's fault and passes."""
    return RequestError(503, "busy", message, retry_after=retry_after)


def timed_out(seconds: float) -> RequestError:
    """The request took longer than it may."""
    return RequestError(
        503,
        "timeout",
        f"the request was not done within {seconds:g} seconds; send less at once or try again",
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
