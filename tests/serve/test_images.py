"""Uploaded images: bad ones are refused by name, good ones of every format are read."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from cprompt.classifier.photos import load_photo
from cprompt.data.image_files import formats
from cprompt.data.pipeline.reduced import MAX_ASPECT
from cprompt.serve.images import decode_upload
from tests.serve.common import (
    RED,
    ask,
    encoded,
    error,
    image,
    labels,
    photo,
    send_zip,
    teach,
    zipped,
)


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
    "nothing": (b"", 422, "not_an_image", "empty"),
    "text": (b"hello, world", 422, "not_an_image", "not an image"),
    "script": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 422, "not_an_image", "not an image"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n", 422, "not_an_image", "not an image"),
    "cut short": (photo(RED)[:-300], 422, "not_an_image", "damaged or cut short"),
    "header alone": (photo(RED)[:24], 422, "not_an_image", ""),
    "no pixels": (png(0, 0), 422, "not_an_image", ""),
    "no height": (png(5, 0), 422, "not_an_image", ""),
    "bomb": (png(40_000, 40_000), 413, "too_many_pixels", "more than 1,000,000 pixels"),
    "larger bomb": (png(2**31 - 1, 2**31 - 1), 413, "too_many_pixels", ""),
    "too many pixels": (encoded(image(RED, (1001, 1000))), 413, "too_many_pixels", ""),
    "a line": (encoded(image(RED, (50_000, 1))), 422, "image_too_long", "50000 x 1"),
    "a column": (encoded(image(RED, (1, MAX_ASPECT + 1))), 422, "image_too_long", "1 x 51"),
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_a_bad_image_is_refused_by_name(hardy: TestClient, name: str) -> None:
    data, status, code, words = BAD_IMAGES[name]
    detail = error(ask(hardy, photo(RED), data), status, code)
    assert detail["file"] == "1.png"
    assert detail["message"].startswith("1.png")
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
    detail = error(ask(hardy, photo(RED)[:-300]), 422, "not_an_image")
    assert "doctor" not in detail["message"]


def test_every_format_that_is_promised_is_read(client: TestClient) -> None:
    kinds = [kind for kind in formats() if kind != "JPEG2000"]
    images = [encoded(image(RED, (32, 32)), kind) for kind in kinds]
    assert labels(ask(client, *images)) == ["red"] * len(kinds)


def test_twelve_bit_uploads_are_read_as_files_and_pil_images_are() -> None:
    values = np.array([[0, 16, 2048, 4095]], dtype=np.uint16)
    stored = encoded(Image.fromarray(values), "PNG")
    expected = [round(255 * v / 4095) for v in values[0].tolist()]
    assert np.asarray(decode_upload(io.BytesIO(stored), "x.png"))[0, :, 0].tolist() == expected
    with Image.open(io.BytesIO(stored)) as opened:
        assert np.asarray(load_photo(opened, "item 0"))[0, :, 0].tolist() == expected
