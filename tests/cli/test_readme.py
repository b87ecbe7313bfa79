"""The five commands of the README, as they stand there, one after the other."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.cli.common import ok

uvicorn = pytest.importorskip("uvicorn")

README = Path(__file__).parents[2] / "README.md"


def test_the_five_commands_of_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the embedded backbone and few photos; the service answers in this process."""
    text = README.read_text("utf-8")
    block = text.split("## Five commands")[1].split("```sh\n")[1].split("```")[0]
    commands = [shlex.split(line, comments=True)[1:] for line in block.strip().splitlines()]
    assert [words[0] for words in commands] == ["draw", "learn", "learn", "predict", "serve"]
    answers: list[dict[str, Any]] = []

    def answer(server: Any, sockets: Any) -> None:
        photo = next(Path("photos/test").rglob("*.png"))
        with TestClient(server.config.app, base_url="http://127.0.0.1") as client:
            sent = {"content": photo.read_bytes(), "headers": {"Content-Type": "image/png"}}
            answers.append(client.post("/v1/predict", **sent).json())

    monkeypatch.setattr(uvicorn.Server, "run", answer)
    draw, *learns, predict, serve = commands
    ok(*draw, "--classes", "4", "--photos", "4", "--test", "1")
    for words in learns:
        ok(*words)
    photos = list(Path("photos/test").rglob("*.png"))
    lines = ok(*predict).splitlines()
    assert all(any(str(photo) in line for line in lines) for photo in photos)
    ok(*serve, "--port", "0")
    names = [p.name for p in Path("photos/test").iterdir()]
    assert answers[0]["predictions"][0]["ranking"][0]["label"] in names
