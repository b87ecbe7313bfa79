"""Images, zips and clients for the tests of the service."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

RED, GREEN, BLUE, GREY = (220, 30, 30), (30, 200, 40), (40, 50, 210), (128, 128, 128)
TOKEN = "correct-horse-battery"

EVERYTHING = [
    ("POST", "/v1/predict"),
    ("POST", "/v1/learn"),
    ("POST", "/v1/evaluate"),
    ("POST", "/v1/undo"),
    ("POST", "/v1/rename"),
    ("POST", "/v1/forget"),
    ("POST", "/v1/merge"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/1"),
    ("DELETE", "/v1/jobs/1"),
    ("GET", "/v1/model"),
    ("GET", "/metrics"),
]
"""Every request that needs the token, if there is one."""


def image(colour: tuple[int, int, int], size: tuple[int, int] = (20, 20)) -> Image.Image:
    return Image.new("RGB", size, colour)


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def photo(colour: tuple[int, int, int], seed: int = 0) -> bytes:
    """About that colour, and no two the same."""
    rng = np.random.default_rng(seed)
    noisy = np.clip(np.array(colour) + rng.integers(-8, 9, (20, 20, 3)), 0, 255)
    return encoded(Image.fromarray(noisy.astype(np.uint8)))


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def ask(client: Any, *images: bytes, **options: Any) -> httpx.Response:
    """POST /v1/predict with these images."""
    files = [("images", (f"{i}.png", data, "image/png")) for i, data in enumerate(images)]
    response: httpx.Response = client.post("/v1/predict", files=files, **options)
    return response


def labels(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [p["label"] for p in response.json()["predictions"]]


def teach(client: Any, label: str, *images: bytes, path: str = "/v1/learn") -> httpx.Response:
    """POST labelled files, one label for all."""
    files = [("images", (f"{i}.png", data, "image/png")) for i, data in enumerate(images)]
    response: httpx.Response = client.post(path, files=files, data={"label": label})
    return response


def send_zip(
    client: Any, data: bytes, path: str = "/v1/learn", name: str = "photos.zip"
) -> httpx.Response:
    files = {"archive": (name, data, "application/zip")}
    response: httpx.Response = client.post(path, files=files)
    return response


def finished(client: Any, response: httpx.Response, seconds: float = 20) -> dict[str, Any]:
    """The job that `response` started, once it has ended."""
    assert response.status_code == 202, response.text
    return ended(client, response.json()["id"], seconds)


def ended(client: Any, id: str, seconds: float = 20) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        job: dict[str, Any] = client.get(f"/v1/jobs/{id}").json()
        if job["finished"]:
            return job
        time.sleep(0.01)
    raise AssertionError(f"job {job} did not end within {seconds} s")


def error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error's body, which must be of that kind."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["error"]["code"] == code, body
    detail: dict[str, Any] = body["error"]
    return detail


def files_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def photos_below(uploads: Path) -> list[str]:
    """What is left of uploads."""
    return [name for name in files_below(uploads) if (uploads / name).is_file()]
