"""Refusals, and what a client is told of errors inside the package."""

from __future__ import annotations

import errno
import json
import logging

import pytest

from cprompt.data.image_files import REMEDY
from cprompt.errors import BackboneError, CPromptError, DataError, ModelError
from cprompt.serve.errors import RequestError, explain, from_os_error, timed_out


def test_a_refusal_has_only_the_fields_that_it_knows() -> None:
    response = RequestError(413, "too_large", "too large", rule="small", retry_after=7).response()
    assert response.status_code == 413
    assert response.headers["retry-after"] == "7"
    assert json.loads(bytes(response.body)) == {
        "status": 413,
        "error": {"code": "too_large", "message": "too large", "rule": "small"},
    }


def test_only_faults_of_the_machine_are_known_by_their_number() -> None:
    full = from_os_error(OSError(errno.ENOSPC, "full"))
    assert full is not None
    assert (full.status, full.code) == (507, "disk_full")
    assert from_os_error(OSError(errno.EINVAL, "bad")) is None


def test_a_timeout_can_be_tried_again() -> None:
    refusal = timed_out(30)
    assert (refusal.status, refusal.rule) == (503, "at most 30 seconds")
    assert refusal.headers == {"Retry-After": "1"}


def test_an_uploaded_file_has_its_senders_name_and_no_hint() -> None:
    error = DataError("is damaged", file="/private/000003", hint=REMEDY)
    told = explain(error, private=["/private"], names={"/private/000003": "cat/4.jpg"})
    assert told == ("cat/4.jpg: is damaged", "cat/4.jpg")


def test_other_uploaded_files_in_the_message_have_their_senders_names() -> None:
    names = {"/private/1": "cat/4.jpg", "/private/12": "dog/5.jpg"}
    error = DataError("is the same photo as /private/12", file="/private/1")
    told = explain(error, private=["/private"], names=names)
    assert told == ("cat/4.jpg: is the same photo as dog/5.jpg", "cat/4.jpg")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("/models/m", "the model is being changed"),
        ("/models/m.v2", "the model is being changed"),
        ("/models/m/model.json", "a file of the model is being changed"),
    ],
)
def test_a_file_of_the_service_is_not_named_but_logged(
    file: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = ModelError("is being changed", file=file, hint="wait")
    assert explain(error, private=["/models/m"]) == (said, None)
    assert f"{file}: is being changed; wait" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        DataError("/private/000003 cannot be listed"),
        ModelError("there is no model in /private"),
        BackboneError("the weights are not at /somewhere/else.pt"),
        CPromptError("anything"),
    ],
)
def test_what_names_a_private_place_is_logged_and_not_told(
    error: CPromptError, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        told = explain(error, private=["/private"])
    assert error.message not in told.message
    assert "/" not in told.message
    assert str(error) in caplog.text
