"""Tricks in a zip's entries: each is refused by name and rule."""

from __future__ import annotations

import io
import stat
import struct
import zipfile

import pytest
from starlette.testclient import TestClient

from tests.serve.common import (
    RED,
    encoded,
    error,
    image,
    photo,
    send_zip,
    zipped,
)
from tests.serve.conftest import Serve

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
    assert detail["file"].lower() == "red/good.png"


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


def test_a_zip_with_too_many_files_is_refused(hardy: TestClient) -> None:
    many = {f"red/{i}.png": b"" for i in range(51)}
    assert (
        error(send_zip(hardy, zipped(many)), 413, "too_many_files")["rule"] == "at most 50 entries"
    )


def test_unusual_compression_is_refused(hardy: TestClient) -> None:
    for method in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        detail = error(send_zip(hardy, zipped(GOOD, method)), 422, "bad_entry")
        assert detail["rule"].startswith("stored or deflated")
