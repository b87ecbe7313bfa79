"""Bad input, each kind of it: a 4xx that names file and rule, and a service that stays up."""

from __future__ import annotations

import errno
import io
import stat
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from PIL import Image
from starlette.testclient import TestClient

from cprompt.classifier.photos import MAX_ASPECT
from cprompt.data.image_files import FORMATS
from cprompt.serve import uploads as uploads_module
from tests.serve.common import (
    BLUE,
    GREEN,
    RED,
    ask,
    encoded,
    error,
    files_below,
    image,
    labels,
    photo,
    send_zip,
    teach,
    zipped,
)
from tests.serve.conftest import Serve
from tests.serve.fake import FakeClassifier


@pytest.fixture
def hardy(serve: Serve, uploads: Path) -> Iterator[TestClient]:
    """A service that must have learnt and kept nothing by the end, and still answer."""
    client = serve(
        limits={
            "max_body": 100_000,
            "max_upload": 300_000,
            "max_images": 3,
            "max_pixels": 1_000_000,
            "max_labelled": 4,
            "max_files": 50,
            "max_unpacked": 150_000,
            "max_label": 30,
        }
    )
    before = client.get("/v1/model").json()
    yield client
    assert client.get("/readyz").status_code == 200
    assert labels(ask(client, photo(RED), photo(BLUE))) == ["red", "blue"]
    assert client.get("/v1/model").json() == before
    assert client.get("/v1/jobs").json() == []
    (folder,) = uploads.iterdir()
    assert files_below(folder) == [".lock"]


# --- images -----------------------------------------------------------------------------------


def png(width: int, height: int, pixels: bytes = b"") -> bytes:
    """A PNG whose header says so, whatever its pixels are."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


BAD_IMAGES = {
    "nothing": (b"", 422, "not_a_picture", "empty"),
    "text": (b"hello, world", 422, "not_a_picture", "not an image"),
    "script": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 422, "not_a_picture", "not an image"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n", 422, "not_a_picture", "not an image"),
    "cut short": (photo(RED)[:-300], 422, "not_a_picture", "damaged or cut short"),
    "header alone": (photo(RED)[:24], 422, "not_a_picture", ""),
    "no pixels": (png(0, 0), 422, "not_a_picture", ""),
    "no height": (png(5, 0), 422, "not_a_picture", ""),
    "bomb": (png(40_000, 40_000), 413, "too_many_pixels", "more than 1,000,000 pixels"),
    "larger bomb": (png(2**31 - 1, 2**31 - 1), 413, "too_many_pixels", ""),
    "too many pixels": (encoded(image(RED, (1001, 1000))), 413, "too_many_pixels", ""),
    "a line": (encoded(image(RED, (50_000, 1))), 422, "picture_too_long", "50000 x 1"),
    "a column": (encoded(image(RED, (1, MAX_ASPECT + 1))), 422, "picture_too_long", "1 x 51"),
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_a_bad_image_is_refused_by_name(hardy: TestClient, name: str) -> None:
    data, status, code, words = BAD_IMAGES[name]
    detail = error(ask(hardy, photo(RED), data), status, code)
    assert detail["file"] == "1.png"
    assert detail["message"].startswith("1.png ")
    assert words in detail["message"]
    raw = hardy.post("/v1/predict", content=data, headers={"Content-Type": "image/png"})
    assert error(raw, status, code)["file"] == "the image"
    if words != "damaged or cut short":  # found by decoding, which learning does in its job
        assert error(teach(hardy, "red", photo(RED), data), status, code)["file"] == "1.png"
        zip_ = zipped({"red/a.png": photo(RED), "red/b.png": data}, zipfile.ZIP_STORED)
        assert error(send_zip(hardy, zip_), status, code)["file"] == "red/b.png"


def test_an_image_just_inside_the_limits_is_answered(hardy: TestClient) -> None:
    assert labels(ask(hardy, encoded(image(RED, (1000, 1000))))) == ["red"]
    assert labels(ask(hardy, encoded(image(RED, (MAX_ASPECT, 1))))) == ["red"]


def test_advice_for_the_services_own_terminal_is_left_out(hardy: TestClient) -> None:
    detail = error(ask(hardy, photo(RED)[:-300]), 422, "not_a_picture")
    assert "doctor" not in detail["message"]


def test_an_image_that_the_model_refuses_is_told_to_its_sender_only(hardy: TestClient) -> None:
    detail = error(ask(hardy, encoded(image((1, 2, 3)))), 422, "bad_data")
    assert detail["message"] == "an image that the model cannot bear"


# --- requests -----------------------------------------------------------------------------------


def test_too_many_images_are_refused(hardy: TestClient) -> None:
    detail = error(ask(hardy, *[photo(RED)] * 4), 413, "too_many_files")
    assert detail["rule"] == "at most 3 files"
    error(teach(hardy, "red", *[photo(RED)] * 5), 413, "too_many_files")


@pytest.mark.parametrize(("path", "most"), [("/v1/predict", 100_000), ("/v1/learn", 300_000)])
def test_a_body_that_says_it_is_too_large_is_not_read(
    hardy: TestClient, path: str, most: int
) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    detail = error(
        hardy.post(path, content=bytes(most + 1), headers=headers), 413, "body_too_large"
    )
    assert detail["rule"] == f"at most {most:,} bytes"


@pytest.mark.parametrize("kind", ["image/png", "multipart/form-data; boundary=x"])
def test_a_body_is_cut_off_where_it_gets_too_large(hardy: TestClient, kind: str) -> None:
    def chunks() -> Iterator[bytes]:
        start = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
        yield start if "multipart" in kind else b""
        for _ in range(100):
            yield bytes(10_000)

    response = hardy.post("/v1/predict", content=chunks(), headers={"Content-Type": kind})
    error(response, 413, "body_too_large")


def test_a_body_that_lies_about_its_length_is_still_counted(serve: Serve) -> None:
    app = serve(limits={"max_body": 1000}).app
    parts = iter([bytes(600)] * 5)
    answers: list[Any] = []

    async def receive() -> dict[str, Any]:
        part = next(parts, None)
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": True}

    async def send(message: Any) -> None:
        answers.append(message)

    headers = {"host": "127.0.0.1", "content-type": "image/png", "content-length": "5"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/predict",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    anyio.run(app, scope, receive, send)
    assert answers[0]["status"] == 413


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (None, b"{}"),
        ("application/json", b'{"images": []}'),
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
        error(hardy.post(path, files={"other": ("a.png", photo(RED))}), 422, "no_pictures")
    error(hardy.post("/v1/predict", data={"images": "text"}, files={"x": b"y"}), 422, "not_a_file")


def test_a_zip_and_images_in_one_form_are_refused(hardy: TestClient) -> None:
    files = [("archive", ("a.zip", zipped({}))), ("images", ("a.png", photo(RED)))]
    error(hardy.post("/v1/learn", files=files, data={"label": "red"}), 422, "ambiguous")
    two = [("archive", ("a.zip", zipped({}))), ("archive", ("b.zip", zipped({})))]
    error(hardy.post("/v1/learn", files=two), 422, "ambiguous")


@pytest.mark.parametrize("labels_", [[], ["a", "b"], ["a", "b", "c", "d"]])
def test_labels_that_do_not_match_the_images_are_refused(
    hardy: TestClient, labels_: list[str]
) -> None:
    files = [("images", ("a.png", photo(RED)))] * 3
    detail = error(
        hardy.post("/v1/learn", files=files, data={"label": labels_}), 422, "labels_do_not_match"
    )
    assert f"3 images came with {len(labels_)} labels" in detail["message"]


@pytest.mark.parametrize(
    "label", ["", "   ", "unknown", "a\nb", "a\0b", "\x1b[31mred", "x" * 31, "safe\u202egnp.exe"]
)
def test_a_bad_class_name_is_refused(hardy: TestClient, label: str) -> None:
    error(teach(hardy, label, photo(RED)), 422, "bad_label")
    if label and "\0" not in label and label.strip():
        zip_ = zipped({f"{label}/a.png": photo(RED)})
        assert error(send_zip(hardy, zip_), 422, "bad_label")["file"]


@pytest.mark.parametrize("query", ["top=0", "top=101", "top=x", "explain=perhaps"])
def test_bad_parameters_are_named(hardy: TestClient, query: str) -> None:
    detail = error(ask(hardy, photo(RED), params=query), 422, "invalid")
    assert detail["message"].startswith(f"query.{query.split('=')[0]}: ")


def test_what_is_not_there_is_404_and_wrong_methods_are_405(hardy: TestClient) -> None:
    error(hardy.get("/v2/predict"), 404, "not_found")
    wrong = hardy.get("/v1/predict")
    error(wrong, 405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


def test_file_names_are_shown_without_folders_or_control_characters(hardy: TestClient) -> None:
    name = "../../etc/\x1b[31mpass\nwd"
    detail = error(hardy.post("/v1/predict", files={"images": (name, b"x")}), 422, "not_a_picture")
    assert "/" not in detail["file"]
    assert detail["file"].isprintable() or "\ufffd" in detail["file"]
    assert uploads_module.shown_name("C:\\photos\\a\x00b.png") == "a\ufffdb.png"
    assert uploads_module.shown_name(None) == "the image"
    assert len(uploads_module.shown_name("x" * 10_000)) == 200


# --- zips ---------------------------------------------------------------------------------------

GOOD = {"red/good.png": photo(RED)}

BAD_PATHS = {
    "../red/a.png": "no .. in paths",
    "red/../../a.png": "no .. in paths",
    "red\\..\\..\\a.png": "no .. in paths",
    "/etc/a.png": "paths inside the zip",
    "\\\\server\\share\\a.png": "paths inside the zip",
    "C:/red/a.png": "no drive letters in paths",
    "c:red/a.png": "no drive letters in paths",
    "red/D:/a.png": "no drive letters in paths",
    "con/a.png": "no names such as CON, NUL, COM1",
    "red/NUL.png": "no names such as CON, NUL, COM1",
    "red/com1 /a.png": "no names such as CON, NUL, COM1",
    "LPT9.txt/a.png": "no names such as CON, NUL, COM1",
}


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_trick_in_a_zip_is_refused(hardy: TestClient, path: str) -> None:
    detail = error(send_zip(hardy, zipped({**GOOD, path: photo(RED)})), 422, "bad_path")
    assert detail["rule"] == BAD_PATHS[path]
    assert detail["file"] == path.replace("\\", "/")


def test_a_nul_in_a_zips_name_is_refused(hardy: TestClient) -> None:
    data = zipped({**GOOD, "red/aXb.png": photo(RED)}).replace(b"aXb", b"a\0b")
    detail = error(send_zip(hardy, data), 422, "bad_path")
    assert detail["rule"] == "no NUL in names"
    assert detail["file"] == "red/a\ufffdb.png"


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_a_link_or_device_in_a_zip_is_refused(hardy: TestClient, mode: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        entry = zipfile.ZipInfo("red/a.png")
        entry.create_system = 3
        entry.external_attr = (mode | 0o777) << 16
        archive.writestr(entry, b"/etc/passwd")
    detail = error(send_zip(hardy, buffer.getvalue()), 422, "bad_entry")
    assert detail["rule"] == "files and folders only"


@pytest.mark.parametrize("flag", [0x1, 0x41, 0x2000])
def test_an_encrypted_zip_is_refused(hardy: TestClient, flag: int) -> None:
    data = bytearray(zipped(GOOD))
    for at in (6, data.index(b"PK\x01\x02") + 8):
        data[at : at + 2] = struct.pack("<H", flag)
    assert error(send_zip(hardy, bytes(data)), 422, "encrypted")["file"] == "red/good.png"


@pytest.mark.parametrize("second", ["red/GOOD.png", "red/./good.png", "red//good.png"])
def test_a_name_that_is_twice_in_a_zip_is_refused(hardy: TestClient, second: str) -> None:
    detail = error(send_zip(hardy, zipped({**GOOD, second: photo(RED)})), 422, "duplicate_name")
    assert "is twice in photos.zip" in detail["message"]


@pytest.mark.parametrize("name", ["red/inner.zip", "red/inner.tar", "red/inner.png"])
def test_a_zip_in_a_zip_is_refused_whatever_it_is_called(hardy: TestClient, name: str) -> None:
    inner = zipped({"red/a.png": photo(RED)})
    detail = error(send_zip(hardy, zipped({**GOOD, name: inner})), 422, "nested_archive")
    assert detail["file"] == name


def test_a_zip_bomb_is_refused_by_its_ratio(serve: Serve) -> None:
    client = serve()
    bomb = zipped({"red/a.bmp": encoded(image(RED, (3000, 3000)), "BMP")})
    assert len(bomb) < 300_000
    detail = error(send_zip(client, bomb), 413, "zip_bomb")
    assert detail["rule"] == "at most 100 times its packed size"


def test_a_zip_that_unpacks_to_too_much_is_refused(hardy: TestClient) -> None:
    many = {f"red/{i}.bmp": encoded(image(RED, (100, 100)), "BMP") for i in range(6)}
    assert error(send_zip(hardy, zipped(many)), 413, "zip_too_large")["file"] == "photos.zip"
    one = zipped({"red/0.bmp": encoded(image(RED, (200, 200)), "BMP")})
    assert error(send_zip(hardy, one), 413, "file_too_large")["file"] == "red/0.bmp"


def test_a_zip_that_lies_about_sizes_is_found_out(hardy: TestClient) -> None:
    data = bytearray(zipped({"red/0.bmp": encoded(image(RED, (200, 200)), "BMP")}))
    for at in (22, data.index(b"PK\x01\x02") + 24):  # the unpacked size, in both places
        data[at : at + 4] = struct.pack("<I", 1000)
    error(send_zip(hardy, bytes(data)), 422, "bad_zip")


def test_a_zip_with_too_many_files_is_refused(hardy: TestClient) -> None:
    many = {f"red/{i}.png": b"" for i in range(51)}
    assert (
        error(send_zip(hardy, zipped(many)), 413, "too_many_files")["rule"] == "at most 50 entries"
    )


def test_a_huge_table_of_contents_is_refused_before_it_is_read(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(limits={"max_files": 50})
    many = zipped({f"red/{i}.txt": b"" for i in range(3000)})

    def reading(*args: object) -> None:
        raise AssertionError("the table of contents was read")

    monkeypatch.setattr(uploads_module, "_members", reading)
    assert error(send_zip(client, many), 413, "too_many_files")["rule"] == "at most 50 entries"


def test_unusual_compression_is_refused(hardy: TestClient) -> None:
    for method in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        detail = error(send_zip(hardy, zipped(GOOD, method)), 422, "bad_entry")
        assert detail["rule"].startswith("stored or deflated")


def test_photos_outside_class_folders_are_refused(hardy: TestClient) -> None:
    detail = error(send_zip(hardy, zipped({**GOOD, "a.png": photo(RED)})), 422, "no_class_folder")
    assert detail["file"] == "a.png"
    error(send_zip(hardy, zipped({})), 422, "no_pictures")
    error(send_zip(hardy, zipped({"red/readme.txt": b"hi", "blue/": b""})), 422, "no_pictures")
    inner = send_zip(hardy, zipped(GOOD), "/v1/learn?class_folder=inner")
    error(inner, 422, "no_class_folder")


def test_what_is_no_zip_is_refused(hardy: TestClient) -> None:
    whole = zipped(GOOD)
    for data in (
        b"",
        b"PK\x03\x04",
        b"PK\x05\x06" + bytes(18),
        photo(RED),
        whole[:-30],
        whole[100:],
    ):
        response = send_zip(hardy, data)
        assert response.status_code == 422, response.text
        assert response.json()["error"]["code"] in ("bad_zip", "no_pictures")


def test_a_zip_with_any_byte_changed_is_no_500(hardy: TestClient) -> None:
    whole = zipped({"red/a.txt": b"hello", "blue/b.txt": b"world"})
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 0xFF
        response = send_zip(hardy, bytes(data))
        assert 400 <= response.status_code < 500, (at, response.text)


# --- the machine --------------------------------------------------------------------------------


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

    monkeypatch.setattr(uploads_module, "check_picture", slow)
    error(teach(client, "green", photo(GREEN), photo(GREEN, 1)), 503, "timeout")
    error(send_zip(client, zipped({"a/1.png": photo(RED), "a/2.png": photo(RED)})), 503, "timeout")
    (folder,) = uploads.iterdir()
    assert files_below(folder) == [".lock"]


def test_every_format_that_is_promised_is_read(client: TestClient) -> None:
    kinds = [kind for kind in FORMATS if kind != "JPEG2000"]
    images = [encoded(image(RED, (32, 32)), kind) for kind in kinds]
    assert labels(ask(client, *images)) == ["red"] * len(kinds)
