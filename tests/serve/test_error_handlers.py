"""Whatever goes wrong inside is an error in the same form, and passes."""

from __future__ import annotations

import errno
import tempfile

import pytest
from PIL import Image
from starlette.testclient import TestClient

from cprompt.serve import uploads as uploads_module
from tests.serve.common import (
    GREEN,
    RED,
    ask,
    encoded,
    error,
    image,
    photo,
    teach,
)
from tests.serve.fake import FakeClassifier


def test_an_image_that_the_model_refuses_is_told_to_its_sender_only(hardy: TestClient) -> None:
    detail = error(ask(hardy, encoded(image((1, 2, 3)))), 422, "bad_data")
    assert detail["message"] == "an image that the model cannot bear"


def test_a_full_disk_is_507_and_passes(hardy: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(uploads_module.shutil, "copyfileobj", full)
        error(teach(hardy, "green", photo(GREEN)), 507, "disk_full")
    with monkeypatch.context() as patch:
        patch.setattr(tempfile.SpooledTemporaryFile, "write", full)
        error(teach(hardy, "green", photo(GREEN)), 507, "disk_full")
        error(ask(hardy, photo(GREEN)), 507, "disk_full")
        raw = {"Content-Type": "image/png"}
        error(hardy.post("/v1/predict", content=photo(RED), headers=raw), 507, "disk_full")


def test_too_many_open_files_are_503(hardy: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", exhausted)
        error(teach(hardy, "green", photo(GREEN)), 503, "busy")


def test_no_memory_is_503(hardy: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(*args: object, **kwargs: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(FakeClassifier, "explain", hungry)
        error(ask(hardy, photo(RED)), 503, "busy")
    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", hungry)
        error(ask(hardy, photo(RED)), 503, "busy")
        error(teach(hardy, "red", photo(RED)), 503, "busy")


def test_a_defect_is_500_in_the_same_form(
    hardy: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("a secret")

    with monkeypatch.context() as patch:
        patch.setattr(FakeClassifier, "explain", broken)
        assert "a secret" not in str(error(ask(hardy, photo(RED)), 500, "internal"))
