"""Names that clients send."""

from __future__ import annotations

import json

import httpx
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


SURROGATE = r"\ud800"


@pytest.mark.parametrize(
    ("change", "body"),
    [
        ("forget", {"label": SURROGATE}),
        ("rename", {"label": SURROGATE, "new": "rose"}),
        ("rename", {"label": "red", "new": SURROGATE}),
        ("merge", {"label": SURROGATE, "into": "red"}),
        ("merge", {"label": "red", "into": f"a{SURROGATE}b"}),
    ],
)
def test_half_a_character_in_json_is_refused(
    hardy: TestClient, change: str, body: dict[str, str]
) -> None:
    """JSON can name a lone surrogate, but no answer could: UTF-8 has none."""
    sent = json.dumps(body).replace("\\\\", "\\")
    json_type = {"Content-Type": "application/json"}
    error(hardy.post(f"/v1/{change}", content=sent, headers=json_type), 422, "bad_label")
    assert hardy.get("/v1/jobs").json() == []


def test_half_a_character_in_a_form_is_refused_or_replaced(hardy: TestClient) -> None:
    """A form may say how its texts are encoded, and UTF-7 has lone surrogates."""
    half = "+2AA-"
    form = "multipart/form-data; charset=utf-7; boundary=b"

    def post(path: str, file: str, data: bytes) -> httpx.Response:
        part = '--b\r\nContent-Disposition: form-data; name="{}"{}\r\n\r\n'
        image = part.format("images", f'; filename="{file}"')
        label = part.format("label", "") + half
        body = image.encode() + data + b"\r\n" + label.encode() + b"\r\n--b--\r\n"
        answer: httpx.Response = hardy.post(path, content=body, headers={"Content-Type": form})
        return answer

    error(post("/v1/learn", "a.png", photo(RED)), 422, "bad_label")
    answer = post("/v1/predict", f"{half}.png", photo(RED))
    assert [each["file"] for each in answer.json()["predictions"]] == ["\ufffd.png"]


def test_file_names_are_shown_without_folders_or_control_characters(hardy: TestClient) -> None:
    name = "../../etc/\x1b[31mpass\nwd"
    detail = error(hardy.post("/v1/predict", files={"images": (name, b"x")}), 422, "not_an_image")
    assert "/" not in detail["file"]
    assert detail["file"].isprintable() or "\ufffd" in detail["file"]
    assert shown_name("C:\\photos\\a\x00b.png") == "a\ufffdb.png"
    assert shown_name(None) == "the image"
    assert len(shown_name("x" * 10_000)) == 200
