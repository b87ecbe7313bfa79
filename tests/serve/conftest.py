"""Services of a fake classifier, each with a temporary folder of its own."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from cprompt.serve.app import create_app
from cprompt.serve.config import Limits, ServeConfig
from cprompt.serve.sparing_log import LOGGERS, Sparing
from tests.serve.common import BLUE, RED, ask, files_below, image, labels, photo
from tests.serve.fake import FakeClassifier
from tests.serve.live import make_model

Serve = Callable[..., TestClient]


@pytest.fixture(autouse=True)
def fresh_log() -> Iterator[None]:
    """A line that one test has logged is logged again in the next."""
    yield
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.filters = [each for each in logger.filters if not isinstance(each, Sparing)]


@pytest.fixture
def uploads(tmp_path: Path) -> Path:
    """Where the tests' services keep uploads."""
    return tmp_path / "model.service" / "uploads"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a model that knows red and blue."""
    folder = tmp_path / "model"
    fake = FakeClassifier()
    fake.learn([(image(RED), "red"), (image(BLUE), "blue")])
    fake.save(folder)
    return folder


@pytest.fixture(scope="session")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny real model that knows red and blue, shared by all tests: not to be changed."""
    folder = tmp_path_factory.mktemp("learnt") / "model"
    make_model(folder)
    return folder


@pytest.fixture
def real_model(learnt: Path, tmp_path: Path) -> Path:
    """A copy of `learnt` that a test may change."""
    return shutil.copytree(learnt, tmp_path / "model")


@pytest.fixture
def serve(model: Path, uploads: Path) -> Iterator[Serve]:
    """Start services: `serve(token=…, host=…, limits={…})` gives a client of a new one."""
    with ExitStack() as stack:

        def start(
            *,
            token: str | None = None,
            tokens: dict[str, str] | None = None,
            limits: dict[str, Any] | None = None,
            **settings: Any,
        ) -> TestClient:
            config = ServeConfig(**settings, limits=Limits(**(limits or {})))
            app = create_app(
                model,
                token=token,
                **(tokens or {}),
                settings=config,
                load=FakeClassifier.load,  # type: ignore[arg-type]
            )
            client = TestClient(
                app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False
            )
            return stack.enter_context(client)

        yield start
        FakeClassifier.answering.open()
        FakeClassifier.learning.open()


@pytest.fixture
def client(serve: Serve) -> TestClient:
    return serve()


@pytest.fixture
def hardy(serve: Serve, uploads: Path) -> Iterator[TestClient]:
    """A service with small limits that must have learnt and kept nothing by the end."""
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
    assert files_below(uploads) == []
