"""`cprompt serve` on the command line."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from cprompt.cli import app
from cprompt.errors import ConfigError, CPromptError
from tests.serve.common import (
    RED,
    TOKEN,
    ask,
    error,
    photo,
)
from tests.serve.live import running


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def use(url: str, uploads: Path) -> None:
    """Wait for the service at `url`, use it, and interrupt it as Ctrl-C would."""
    end = time.monotonic() + 20
    with httpx.Client(base_url=url, timeout=30) as client:
        ready = False
        while not ready:
            assert time.monotonic() < end, "the service did not start"
            with suppress(httpx.ConnectError):
                ready = client.get("/readyz").status_code == 200
            time.sleep(0.02)
        try:
            error(client.get("/v1/model"), 401, "unauthorized")
            client.headers["Authorization"] = f"Bearer {TOKEN}"
            assert ask(client, photo(RED)).json()["predictions"][0]["label"] == "red"
            assert uploads.is_dir()
        finally:  # the service that answers is in this process, and catches it
            os.kill(os.getpid(), signal.SIGINT)


def test_the_command_serves_until_it_is_interrupted(
    real_model: Path, uploads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPROMPT_TOKEN", TOKEN)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with ThreadPoolExecutor(1) as threads:
        used = threads.submit(use, url, uploads)
        result = CliRunner().invoke(
            app, ["serve", str(real_model), "--port", str(port), "--device", "cpu"]
        )
        used.result(20)
    assert result.exit_code in (0, 130)
    assert result.stderr == ""
    assert result.stdout.startswith(f"serving {real_model} at {url}\n")
    assert "token: needed; learning: on" in result.stdout
    assert list(uploads.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "learning needs a token"),
        (["--host", "0.0.0.0", "--token", "short"], "at least 16"),
        (
            ["--token", ""],
            "the token must have at least 16 printable ASCII characters, but it is empty",
        ),
        (["--ask-token", "0123456789abcdef"], "nobody could teach"),
        (["--limits.max_pixel", "5"], "no setting 'max_pixel'; did you mean 'max_pixels'?"),
        (["--limits.max_pixels", "many"], "'many' is not a whole number"),
        (["--limits.max_pixels", "0"], "must be at least 1"),
        (["--training.epochs", "5"], "no setting 'training.epochs'"),
        (["--port", "1", "--host", "127.0.0.1.example.invalid", "--read-only"], "cannot listen on"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(
    real_model: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CPROMPT_TOKEN", raising=False)
    result = CliRunner().invoke(app, ["serve", str(real_model), "--device", "cpu", *arguments])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_the_command_says_when_there_is_no_model(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["serve", str(tmp_path / "none")])
    assert isinstance(result.exception, CPromptError)
    assert "holds no model" in str(result.exception)


def test_a_port_that_is_taken_is_named(
    real_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with running(real_model) as url:
        port = url.rsplit(":", 1)[1]
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        result = CliRunner().invoke(
            app, ["serve", str(real_model), "--port", port, "--device", "cpu"]
        )
    assert list(temporary.iterdir()) == []
    assert f"cannot listen on 127.0.0.1 port {port}" in str(result.exception)


def test_without_the_extra_the_command_says_what_to_install(
    real_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = CliRunner().invoke(app, ["serve", str(real_model)])
    assert isinstance(result.exception, ConfigError)
    assert "pip install 'cprompt[serve]'" in str(result.exception)
