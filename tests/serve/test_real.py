"""The service with a real classifier behind a real port."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from PIL import Image
from typer.testing import CliRunner

from cprompt import ContinualClassifier
from cprompt.cli import app
from cprompt.errors import ConfigError, CPromptError
from cprompt.serve.config import Limits
from tests.serve.common import (
    BLUE,
    GREEN,
    RED,
    ask,
    error,
    finished,
    photo,
    send_zip,
    teach,
    zipped,
)
from tests.serve.live import running


def test_answers_are_the_librarys_under_concurrency_and_while_learning(real_model: Path) -> None:
    """Large images too, which the service shrinks before they wait."""
    images = [photo(colour, seed) for seed in range(4) for colour in (RED, BLUE, GREEN)]
    large = io.BytesIO()
    Image.open(io.BytesIO(images[0])).resize((501, 340)).save(large, "PNG")
    images.append(large.getvalue())
    old = ContinualClassifier.load(real_model, device="cpu")
    with (
        running(real_model) as url,
        httpx.Client(base_url=url, timeout=30) as client,
        ThreadPoolExecutor(8) as threads,
    ):
        job = teach(client, "green", *(photo(GREEN, 50 + i) for i in range(6)))
        rounds = [threads.submit(ask, client, p) for _ in range(12) for p in images]
        assert finished(client, job)["state"] == "done"
        rounds += [threads.submit(ask, client, p) for p in images]
        answers = [future.result() for future in rounds]
    new = ContinualClassifier.load(real_model, device="cpu")
    assert new.classes_ == ["red", "blue", "green"]
    decoded = [Image.open(io.BytesIO(p)) for p in images]
    expected = {c.model: c.explain(decoded) for c in (old, new)}
    for i, answer in enumerate(answers):
        assert answer.status_code == 200, answer.text
        (found,) = answer.json()["predictions"]
        right = expected[answer.json()["model"]][i % len(images)]
        assert (found["label"], found["prompt"]) == (right.label, right.prompt)
        assert found["probability"] == pytest.approx(right.probability, abs=1e-4)
    assert {a.json()["model"] for a in answers[-len(images) :]} == {new.model}


def test_zips_evaluation_and_undo_work_on_a_real_model(real_model: Path) -> None:
    test = zipped(
        {
            f"{n}/{i}.png": photo(c, 90 + i)
            for n, c in (("red", RED), ("blue", BLUE))
            for i in (1, 2)
        }
    )
    with running(real_model) as url, httpx.Client(base_url=url, timeout=30) as client:
        before = finished(client, send_zip(client, test, "/v1/evaluate"))["result"]
        assert before["photos"] == 4
        assert before["per_class"]["red"]["photos"] == 2
        learnt = finished(
            client, send_zip(client, zipped({f"green/{i}.png": photo(GREEN, i) for i in range(6)}))
        )
        assert learnt["result"]["batch"]["photos"] == {"green": 6}
        assert finished(client, client.post("/v1/undo"))["state"] == "done"
        after = finished(client, send_zip(client, test, "/v1/evaluate"))["result"]
        assert after == before


def test_a_refused_upload_over_a_real_connection_gets_its_answer(real_model: Path) -> None:
    """The refusal comes before the body is read, yet the client must not find a broken pipe."""
    limits = Limits(max_upload=1_000_000)
    with (
        running(real_model, settings={"limits": limits}) as url,
        httpx.Client(base_url=url, timeout=30) as client,
    ):
        for _ in range(3):
            error(send_zip(client, bytes(20_000_000)), 413, "body_too_large")
        assert client.get("/readyz").status_code == 200


def test_the_command_serves_until_it_is_interrupted(real_model: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    code = "from cprompt.cli import main; main()"
    environment = {**os.environ, "TMPDIR": str(temporary), "CPROMPT_TOKEN": "correct-horse-battery"}
    command = [
        sys.executable,
        "-c",
        code,
        "serve",
        str(real_model),
        "--port",
        "0",
        "--device",
        "cpu",
    ]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            assert line.startswith(f"serving {real_model} at http://127.0.0.1:"), (
                process.stderr.read()
            )
            url = line.split()[-1]
            assert "token: needed; learning: on" in process.stdout.readline()
            with httpx.Client(base_url=url, timeout=30) as client:
                error(client.get("/v1/model"), 401, "unauthorized")
                client.headers["Authorization"] = "Bearer correct-horse-battery"
                assert ask(client, photo(RED)).json()["predictions"][0]["label"] == "red"
            assert len(list(temporary.glob("cprompt-*"))) == 1
            process.send_signal(signal.SIGINT)
            assert process.wait(20) in (0, 130, -signal.SIGINT)
            assert process.stderr.read() == ""
        finally:  # where something above failed, do not wait for ever
            process.kill()
    assert list(temporary.glob("cprompt-*")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "learning needs a token"),
        (["--host", "0.0.0.0", "--token", "short"], "at least 16"),
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
    assert "there is no model in" in str(result.exception)


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


def test_services_leave_nothing_in_the_temporary_folder(
    real_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with running(real_model) as url, httpx.Client(base_url=url, timeout=30) as client:
        teach(client, "green", *(photo(GREEN, i) for i in range(6)))
    assert list(temporary.iterdir()) == []
