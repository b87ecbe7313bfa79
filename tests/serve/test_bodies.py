"""Request bodies: forms, whole images, and what is neither."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.serve.common import (
    RED,
    ask,
    error,
    labels,
    photo,
    teach,
    zipped,
)


def test_too_many_images_are_refused(hardy: TestClient) -> None:
    detail = error(ask(hardy, *[photo(RED)] * 4), 413, "too_many_files")
    assert detail["rule"] == "at most 3 files"
    error(teach(hardy, "red", *[photo(RED)] * 5), 413, "too_many_files")
    assert labels(ask(hardy, *[photo(RED)] * 3)) == ["red"] * 3


def test_too_many_fields_are_refused(hardy: TestClient) -> None:
    files = {"images": ("a.png", photo(RED))}
    few, many = {"other": ["x"] * 11}, {"other": ["x"] * 12}
    assert labels(hardy.post("/v1/predict", files=files, data=few)) == ["red"]
    error(hardy.post("/v1/predict", files=files, data=many), 413, "too_many_files")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (None, b"{}"),
        ("application/xml", b'{"images": []}'),
        ("text/plain", b"hello"),
        ("application/x-www-form-urlencoded", b"images=a"),
        ("application/zip", zipped({"red/a.png": photo(RED)})),
        ("multipart/mixed; boundary=x", b"--x--"),
        ("nonsense", b""),
    ],
)
def test_a_wrong_content_type_is_415(hardy: TestClient, kind: str | None, body: bytes) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    for path in ("/v1/predict", "/v1/learn", "/v1/evaluate"):
        detail = error(
            hardy.post(path, content=body, headers=headers), 415, "unsupported_media_type"
        )
        assert "multipart/form-data" in detail["message"]


BAD_FORMS = {
    "no boundary": ("multipart/form-data", b"--x--"),
    "empty boundary": ("multipart/form-data; boundary=", b"----"),
    "long boundary": ("multipart/form-data; boundary=" + "x" * 5000, b"--" + b"x" * 5000),
    "garbage": ("multipart/form-data; boundary=x", b"garbage"),
    "no name": ("multipart/form-data; boundary=x", b"--x\r\nA: b\r\n\r\nhi\r\n--x--"),
    "endless field": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="label"\r\n\r\n' + b"a" * 50_000,
    ),
    "strange charset": (
        "multipart/form-data; boundary=x; charset=\xff\xfe".encode("latin-1"),
        b'--x\r\nContent-Disposition: form-data; name="\xff\xfe"\r\n\r\nhi\r\n--x--\r\n',
    ),
}


@pytest.mark.parametrize("name", BAD_FORMS)
@pytest.mark.parametrize("path", ["/v1/predict", "/v1/learn"])
def test_a_broken_form_is_refused(hardy: TestClient, name: str, path: str) -> None:
    kind, body = BAD_FORMS[name]
    response = hardy.post(path, content=body, headers={"Content-Type": kind})
    assert response.status_code in (400, 422), response.text
    assert response.json()["error"]["message"]


def test_a_form_without_images_is_refused(hardy: TestClient) -> None:
    for path in ("/v1/predict", "/v1/learn"):
        error(hardy.post(path, files={"other": ("a.png", photo(RED))}), 422, "no_images")
    error(hardy.post("/v1/predict", data={"images": "text"}, files={"x": b"y"}), 422, "not_a_file")


def test_a_label_for_a_zip_is_refused(hardy: TestClient) -> None:
    files = {"archive": ("a.zip", zipped({"red/a.png": photo(RED)}))}
    for path in ("/v1/learn", "/v1/evaluate"):
        error(hardy.post(path, files=files, data={"label": "blue"}), 422, "ambiguous")


def test_a_zip_and_images_in_one_form_are_refused(hardy: TestClient) -> None:
    files = [("archive", ("a.zip", zipped({}))), ("images", ("a.png", photo(RED)))]
    error(hardy.post("/v1/learn", files=files, data={"label": "red"}), 422, "ambiguous")
    two = [("archive", ("a.zip", zipped({}))), ("archive", ("b.zip", zipped({})))]
    error(hardy.post("/v1/learn", files=two), 422, "ambiguous")
