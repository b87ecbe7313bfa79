"""The service with a real classifier behind it."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from cprompt import ContinualClassifier
from cprompt.classifier.explanation import Explanation
from cprompt.serve.app import create_app
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
from tests.serve.fake import FakeClassifier
from tests.serve.live import make_model, running

EXIF_ORIENTATION = 0x0112


def lopsided() -> Image.Image:
    """A photo with no symmetry, larger than what the service keeps in memory."""
    y, x = np.mgrid[0:160, 0:210]
    return Image.fromarray(np.stack([x, y, 255 - x * y // 160], axis=-1).astype(np.uint8))


@pytest.fixture(scope="module")
def unsure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose probabilities are near 1/2, so that every change of an image shows in them."""
    folder = tmp_path_factory.mktemp("unsure") / "model"
    make_model(folder, method="l2p")
    return folder


@pytest.fixture(scope="module")
def library(unsure: Path) -> ContinualClassifier:
    return ContinualClassifier.load(unsure, device="cpu")


@pytest.fixture(scope="module")
def unsure_client(unsure: Path) -> Iterator[TestClient]:
    app = create_app(unsure, load=partial(ContinualClassifier.load, device="cpu"))
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        yield client


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_photo_gets_the_librarys_answer(
    unsure_client: TestClient, library: ContinualClassifier, tmp_path: Path, orientation: int
) -> None:
    """For each EXIF orientation: a photo that is turned twice would get another answer."""
    path = tmp_path / "phone.jpg"
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    lopsided().save(path, exif=exif)
    (expected,) = library.explain([path])
    (answer,) = ask(unsure_client, path.read_bytes()).json()["predictions"]
    assert answer["label"] == expected.label
    assert answer["probability"] == pytest.approx(expected.probability, abs=1e-9)
    ranking = {r["label"]: r["probability"] for r in answer["ranking"]}
    assert ranking == pytest.approx(dict(expected.ranking), abs=1e-9)


def test_turned_photos_get_different_answers(library: ContinualClassifier) -> None:
    """Otherwise the test above could not tell whether a photo was turned."""
    turned = [lopsided(), *(lopsided().transpose(turn) for turn in Image.Transpose)]
    probabilities = [found.probability for found in library.explain(turned)]
    assert np.diff(sorted(probabilities)).min() > 1e-6


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
        rounds = [threads.submit(ask, client, p) for _ in range(5) for p in images]
        assert finished(client, job)["state"] == "done"
        rounds += [threads.submit(ask, client, p) for p in images]
        answers = [future.result() for future in rounds]
    new = ContinualClassifier.load(real_model, device="cpu")
    assert new.classes_ == ["red", "blue", "green"]
    decoded = [Image.open(io.BytesIO(p)) for p in images]
    expected = {c.model_id: c.explain(decoded) for c in (old, new)}
    for i, answer in enumerate(answers):
        assert answer.status_code == 200, answer.text
        (found,) = answer.json()["predictions"]
        right = expected[answer.json()["model"]][i % len(images)]
        assert (found["label"], found["prompt"]) == (right.label, right.prompt)
        assert found["probability"] == pytest.approx(right.probability, abs=1e-4)
        assert found["familiarity"] == pytest.approx(right.familiarity, abs=1e-4)
    assert {a.json()["model"] for a in answers[-len(images) :]} == {new.model_id}


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


def test_services_leave_nothing_in_the_temporary_folder(
    real_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with running(real_model) as url, httpx.Client(base_url=url, timeout=30) as client:
        teach(client, "green", *(photo(GREEN, i) for i in range(6)))
    assert list(temporary.iterdir()) == []


def test_a_job_tells_of_repeated_photos_by_the_names_they_were_sent_with(
    real_model: Path,
) -> None:
    app = create_app(real_model, load=partial(ContinualClassifier.load, device="cpu"))
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        twice = photo(GREEN, 3)
        job = finished(client, teach(client, "green", twice, photo(GREEN, 4), twice))
        assert job["state"] == "done"
        (told,) = job["warnings"]
        assert "0.png = 2.png" in told
        assert "/" not in told
        plain = finished(client, teach(client, "green", photo(GREEN, 5), photo(GREEN, 6)))
        assert plain["warnings"] == []
    with TestClient(create_app(real_model), base_url="http://127.0.0.1:8000") as client:
        assert client.get(f"/v1/jobs/{job['id']}").json()["warnings"] == [told]


def test_parts_of_a_photo_come_on_demand(real_model: Path) -> None:
    app = create_app(real_model, load=partial(ContinualClassifier.load, device="cpu"))
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        (plain,) = ask(client, photo(RED, 3)).json()["predictions"]
        assert plain["parts"] is None
        both = ask(client, photo(RED, 3), photo(BLUE, 4), params={"parts": True}).json()
        library = ContinualClassifier.load(real_model, device="cpu")
        for answer, image in zip(both["predictions"], (photo(RED, 3), photo(BLUE, 4)), strict=True):
            (expected,) = library.explain([image], parts=True)
            assert expected.parts is not None
            assert answer["parts"]["label"] == expected.parts.label
            np.testing.assert_allclose(answer["parts"]["shares"], expected.parts.shares, atol=1e-4)
            assert answer["parts"]["window"] == pytest.approx(expected.parts.window)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priorities")
def test_a_job_steps_back_for_predictions(model: Path) -> None:
    found: dict[str, int] = {}

    class Watched(FakeClassifier):
        def learn(self, *args: Any, **options: Any) -> FakeClassifier:
            found["learning"] = priority()
            return super().learn(*args, **options)

        def explain(self, *args: Any, **options: Any) -> list[Explanation]:
            found["answering"] = priority()
            return super().explain(*args, **options)

    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    usual = priority()
    app = create_app(model, load=Watched.load)
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        finished(client, teach(client, "green", photo(GREEN)))
        assert ask(client, photo(RED)).status_code == 200
    assert found == {"learning": min(usual + 10, 19), "answering": usual}
