"""Requests and uploads that take too long."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from cprompt.serve import uploads as uploads_module
from cprompt.serve import zips as zips_module
from cprompt.serve.deadlines import Deadline, time_limit
from cprompt.serve.errors import RequestError
from tests.serve.common import (
    GREEN,
    RED,
    ask,
    error,
    files_below,
    labels,
    photo,
    send_zip,
    teach,
    zipped,
)
from tests.serve.conftest import Serve
from tests.serve.fake import FakeClassifier


def test_a_request_that_takes_too_long_is_503(serve: Serve) -> None:
    client = serve(limits={"request_seconds": 0.2})
    FakeClassifier.answering.close()
    response = ask(client, photo(RED))
    error(response, 503, "timeout")
    assert response.headers["retry-after"] == "1"
    FakeClassifier.answering.open()
    assert labels(ask(client, photo(RED))) == ["red"]


def test_an_upload_that_takes_too_long_is_503(
    serve: Serve, uploads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(limits={"upload_seconds": 0.05})
    check = uploads_module.check_image

    def slow(*args: Any) -> Any:
        time.sleep(0.1)
        return check(*args)

    for module in (uploads_module, zips_module):
        monkeypatch.setattr(module, "check_image", slow)
    error(teach(client, "green", photo(GREEN), photo(GREEN, 1)), 503, "timeout")
    error(send_zip(client, zipped({"a/1.png": photo(RED), "a/2.png": photo(RED)})), 503, "timeout")
    assert files_below(uploads) == []


def test_a_deadline_passes() -> None:
    Deadline(60).check()
    with pytest.raises(RequestError) as refused:
        Deadline(-1).check()
    assert (refused.value.status, refused.value.code) == (503, "timeout")


def test_a_time_limit_cancels_the_block() -> None:
    async def sleep() -> None:
        with time_limit(0.01):
            await anyio.sleep(60)

    with pytest.raises(RequestError) as refused:
        anyio.run(sleep)
    assert refused.value.rule == "at most 0.01 seconds"
