"""deploy/ray_serve.py on Ray Serve itself; tests/deploy has what needs no Ray.

It is here because tests of this folder run alone: to Ray a busy machine looks dead.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cprompt import ContinualClassifier
from tests.serve.common import GREEN, RED, ask, photo
from tests.serve.live import images, make_model

ROOT = Path(__file__).parents[2]

DRIVER = """
import sys
import ray
from ray import serve
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
from deploy.ray_serve import app
serve.run(app)
print("ready", flush=True)
sys.stdin.read()  # until the test is done
serve.shutdown()
ray.shutdown()
"""


@pytest.fixture(autouse=True)
def ray_serve() -> None:
    """Skip without Ray Serve; a process of its own says so, as importing it here takes seconds."""
    tried = subprocess.run(
        [sys.executable, "-c", "import ray.serve"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        why = tried.stderr.strip().splitlines()[-1]
        pytest.skip(f"Ray Serve is not there: {why}; see docs/containers.md")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A model folder and the address of the application that serves it."""
    model = tmp_path / "model"
    make_model(model)
    monkeypatch.setenv("MODEL", str(model))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (tmp_path / "errors.txt").open("w+") as errors:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(port)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert driver.stdin is not None
        assert driver.stdout is not None
        try:
            said = driver.stdout.readline()
            assert said == "ready\n", (tmp_path / "errors.txt").read_text()
            yield model, f"http://127.0.0.1:{port}"
            driver.stdin.close()
            assert driver.wait(60) == 0, (tmp_path / "errors.txt").read_text()
        finally:
            driver.kill()
            driver.wait()


def test_replicas_change_to_a_new_version_without_dropping_a_request(
    served: tuple[Path, str],
) -> None:
    model, address = served
    old = ContinualClassifier.load(model).model_id
    answers: list[tuple[str, list[str]]] = []
    failures: list[str] = []
    stop = threading.Event()

    def keep_asking() -> None:
        with httpx.Client(base_url=address, timeout=30) as client:
            while not stop.is_set() and not failures:
                try:
                    said = ask(client, photo(RED), photo(GREEN)).raise_for_status().json()
                except httpx.HTTPError as error:
                    failures.append(repr(error))
                    return
                answers.append((said["model"], [p["label"] for p in said["predictions"]]))

    def wait_for(model_id: str, count: int) -> None:
        """Until the last answers were all of this version: those of both replicas."""
        end = time.monotonic() + 60
        while [version for version, _ in answers[-count:]] != [model_id] * count:
            assert not failures, failures
            assert time.monotonic() < end, answers[-count:]
            time.sleep(0.05)

    askers = [threading.Thread(target=keep_asking) for _ in range(3)]
    for each in askers:
        each.start()
    try:
        wait_for(old, 20)
        classifier = ContinualClassifier.load(model)
        classifier.learn(images(GREEN, 6), ["green"] * 6)
        classifier.save(model)
        wait_for(classifier.model_id, 40)
    finally:
        stop.set()
        for each in askers:
            each.join()
    assert not failures
    assert {version for version, _ in answers} == {old, classifier.model_id}
    for version, (red, green) in answers:
        assert red == "red"
        assert (green == "green") is (version == classifier.model_id)
    assert httpx.get(f"{address}/readyz").status_code == 200
    assert httpx.post(f"{address}/v1/undo", json={}).status_code == 403
