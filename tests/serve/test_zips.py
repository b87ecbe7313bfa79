"""Zips of class folders: what is read as which class, and broken zips."""

from __future__ import annotations

import io
import struct
import unicodedata
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cprompt.serve import zips
from cprompt.serve.config import Limits
from cprompt.serve.deadlines import Deadline
from cprompt.serve.errors import RequestError
from tests.serve.common import (
    BLUE,
    GREEN,
    GREY,
    RED,
    ask,
    encoded,
    error,
    finished,
    image,
    labels,
    photo,
    send_zip,
    zipped,
)
from tests.serve.conftest import Serve


def test_a_zip_is_learnt_by_its_first_folders(client: TestClient) -> None:
    decomposed = unicodedata.normalize("NFD", "Grün")
    data = zipped(
        {
            f"{decomposed}/a.png": photo(GREEN),
            f"{decomposed}/more/b.PNG": photo(GREEN, 1),
            "灰色/": b"",
            "灰色/c.png": photo(GREY),
            "灰色/notes.txt": b"skipped",
            "__MACOSX/灰色/._c.png": b"what a packer left",
            "灰色/.DS_Store": b"what a desktop left",
        }
    )
    job = finished(client, send_zip(client, data))
    assert job["photos"] == {"Grün": 2, "灰色": 1}
    assert job["skipped"] == ["灰色/notes.txt"]
    assert labels(ask(client, photo(GREY), photo(GREEN, 5))) == ["灰色", "Grün"]


def test_names_in_utf8_are_read_even_if_the_zip_does_not_say_so(client: TestClient) -> None:
    data = bytearray(zipped({"näme/a.png": photo(GREEN)}))
    for at in (6, data.index(b"PK\x01\x02") + 8):  # the flags, in the file's head and the table
        data[at : at + 2] = b"\0\0"
    assert finished(client, send_zip(client, bytes(data)))["photos"] == {"näme": 1}


def test_a_zip_of_one_packed_folder_is_asked_about(client: TestClient) -> None:
    data = zipped({"all/red/a.png": photo(RED), "all/blue/b.png": photo(BLUE)})
    refused = send_zip(client, data, "/v1/evaluate")
    assert refused.json()["error"]["code"] == "which_folder"
    inner = finished(client, send_zip(client, data, "/v1/evaluate?class_folder=inner"))
    assert inner["photos"] == {"red": 1, "blue": 1}
    outer = finished(client, send_zip(client, data, "/v1/evaluate?class_folder=outer"))
    assert outer["photos"] == {"all": 2}


GOOD = {"red/good.png": photo(RED)}


def test_a_zip_that_lies_about_sizes_is_found_out(hardy: TestClient) -> None:
    data = bytearray(zipped({"red/0.bmp": encoded(image(RED, (200, 200)), "BMP")}))
    for at in (22, data.index(b"PK\x01\x02") + 24):  # the unpacked size, in both places
        data[at : at + 4] = struct.pack("<I", 1000)
    error(send_zip(hardy, bytes(data)), 422, "bad_zip")


def test_a_huge_table_of_contents_is_refused_before_it_is_read(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(limits={"max_files": 50})
    many = zipped({f"red/{i}.txt": b"" for i in range(3000)})

    def reading(*args: object) -> None:
        raise AssertionError("the table of contents was read")

    monkeypatch.setattr(zips, "photo_entries", reading)
    assert error(send_zip(client, many), 413, "too_many_files")["rule"] == "at most 50 entries"


def test_photos_outside_class_folders_are_refused(hardy: TestClient) -> None:
    detail = error(send_zip(hardy, zipped({**GOOD, "a.png": photo(RED)})), 422, "no_class_folder")
    assert detail["file"] == "a.png"
    error(send_zip(hardy, zipped({})), 422, "no_images")
    error(send_zip(hardy, zipped({"red/readme.txt": b"hi", "blue/": b""})), 422, "no_images")
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
        assert response.json()["error"]["code"] in ("bad_zip", "no_images")


def test_a_zip_with_any_byte_changed_is_refused_as_the_senders_fault(tmp_path: Path) -> None:
    whole = zipped({"red/a.txt": b"hello", "blue/b.txt": b"world"})
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 0xFF
        with pytest.raises(RequestError) as refused:
            zips.store_zip(io.BytesIO(data), "photos.zip", tmp_path, Limits(), Deadline(60))
        assert 400 <= refused.value.status < 500, (at, refused.value)
        assert str(tmp_path) not in refused.value.message


def test_a_fault_of_the_services_own_folder_is_not_the_zips(tmp_path: Path) -> None:
    data = io.BytesIO(zipped(GOOD))
    with pytest.raises(FileNotFoundError):
        zips.store_zip(data, "photos.zip", tmp_path / "gone", Limits(), Deadline(60))
