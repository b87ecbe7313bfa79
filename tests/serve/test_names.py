"""Names that clients send."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from cprompt.serve.names import shown_name
from tests.serve.common import (
    RED,
    error,
    photo,
    send_zip,
    teach,
    zipped,
)


@pytest.mark.parametrize(
    "label", ["", "   ", "unknown", "a\nb", "a\0b", "\x1b[31mred", "x" * 31, "safe\u202egnp.exe"]
)
def test_a_bad_class_name_is_refused(hardy: TestClient, label: str) -> None:
    error(teach(hardy, label, photo(RED)), 422, "bad_label")
    if label and "\0" not in label and label.strip():
        zip_ = zipped({f"{label}/a.png": photo(RED)})
        assert error(send_zip(hardy, zip_), 422, "bad_label")["file"]


def test_file_names_are_shown_without_folders_or_control_characters(hardy: TestClient) -> None:
    name = "../../etc/\x1b[31mpass\nwd"
    detail = error(hardy.post("/v1/predict", files={"images": (name, b"x")}), 422, "not_an_image")
    assert "/" not in detail["file"]
    assert detail["file"].isprintable() or "\ufffd" in detail["file"]
    assert shown_name("C:\\photos\\a\x00b.png") == "a\ufffdb.png"
    assert shown_name(None) == "the image"
    assert len(shown_name("x" * 10_000)) == 200
