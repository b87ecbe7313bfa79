"""What the service does for those who mean well."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cprompt.classifier import model_folder
from tests.serve.common import (
    BLUE,
    GREEN,
    GREY,
    RED,
    ask,
    encoded,
    finished,
    image,
    labels,
    photo,
    send_zip,
    teach,
    zipped,
)
from tests.serve.conftest import Serve
from tests.serve.fake import STEPS, FakeClassifier


def test_many_images_are_answered_in_their_order(client: TestClient) -> None:
    answer = ask(client, photo(BLUE), photo(RED), photo(BLUE, 1))
    assert labels(answer) == ["blue", "red", "blue"]
    body = answer.json()
    assert [p["file"] for p in body["predictions"]] == ["0.png", "1.png", "2.png"]
    assert all(p["known"] and p["prompt"] == 1 for p in body["predictions"])
    assert body["model"] == client.get("/v1/model").json()["model"]


def test_an_image_can_be_the_whole_body(client: TestClient) -> None:
    jpeg = encoded(image(RED), "JPEG")
    answer = client.post("/v1/predict", content=jpeg, headers={"Content-Type": "image/jpeg"})
    assert labels(answer) == ["red"]


def test_an_answer_is_the_classifiers_own(client: TestClient, model: Path) -> None:
    colour = (140, 40, 100)
    expected = FakeClassifier.load(model).explain([image(colour)])[0]
    (answer,) = ask(client, encoded(image(colour)), params={"explain": True}).json()["predictions"]
    assert answer["label"] == expected.label
    assert answer["probability"] == pytest.approx(expected.probability)
    assert answer["score"] == pytest.approx(expected.score)
    assert [(r["label"], r["probability"]) for r in answer["ranking"]] == expected.ranking
    assert [(k["label"], k["cosine"]) for k in answer["nearest_keys"]] == expected.nearest_keys


def test_what_it_does_not_know_is_unknown_with_its_best_guesses(client: TestClient) -> None:
    (answer,) = ask(client, encoded(image((130, 40, 120)))).json()["predictions"]
    assert (answer["label"], answer["known"]) == ("unknown", False)
    assert {r["label"] for r in answer["ranking"]} == {"red", "blue"}


def test_top_cuts_the_ranking_and_keys_come_only_when_asked_for(client: TestClient) -> None:
    (answer,) = ask(client, photo(RED), params={"top": 1}).json()["predictions"]
    assert [r["label"] for r in answer["ranking"]] == ["red"]
    assert answer["nearest_keys"] is None
    assert answer["score"] is None


def test_a_new_class_is_learnt_saved_and_served(client: TestClient, model: Path) -> None:
    assert labels(ask(client, photo(GREEN))) == ["unknown"]
    response = teach(client, "green", *(photo(GREEN, i) for i in range(3)))
    assert response.headers["location"] == f"/v1/jobs/{response.json()['id']}"
    job = finished(client, response)
    assert (job["kind"], job["state"], job["photos"]) == ("learn", "done", {"green": 3})
    assert job["result"]["batch"]["new"] == ["green"]
    assert labels(ask(client, photo(GREEN, 7), photo(RED))) == ["green", "red"]
    assert FakeClassifier.load(model).classes_ == ["red", "blue", "green"]
    assert FakeClassifier.load(model).model == job["result"]["model"]


def test_predictions_go_on_from_the_old_version_until_the_new_one_is_saved(
    client: TestClient,
) -> None:
    old = client.get("/v1/model").json()["model"]
    FakeClassifier.learning.close()
    job = teach(client, "green", photo(GREEN))
    assert FakeClassifier.learning.reached.wait(10)
    during = ask(client, photo(GREEN))
    assert (labels(during), during.json()["model"]) == (["unknown"], old)
    progress = client.get(f"/v1/jobs/{job.json()['id']}").json()["progress"]
    assert progress == {"phase": "learning", "done": 0, "total": STEPS}
    FakeClassifier.learning.open()
    new = finished(client, job)["result"]["model"]
    after = ask(client, photo(GREEN))
    assert (labels(after), after.json()["model"]) == (["green"], new)
    assert new != old


def test_each_file_can_have_its_own_label(client: TestClient) -> None:
    files = [("images", (f"{i}.png", photo(c), "image/png")) for i, c in enumerate((GREEN, GREY))]
    job = finished(
        client, client.post("/v1/learn", files=files, data={"label": ["green", " grey "]})
    )
    assert job["photos"] == {"green": 1, "grey": 1}
    assert labels(ask(client, photo(GREY))) == ["grey"]


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


def test_evaluation_counts_right_answers_of_each_class(client: TestClient) -> None:
    data = zipped(
        {
            "red/1.png": photo(RED),
            "red/2.png": photo(RED, 1),
            "red/3.png": photo(BLUE),
            "blue/1.png": encoded(image((130, 40, 120))),
        }
    )
    result = finished(client, send_zip(client, data, "/v1/evaluate"))["result"]
    assert result["per_class"]["red"] == {"photos": 3, "right": 2, "unknown": 0}
    assert result["per_class"]["blue"] == {"photos": 1, "right": 0, "unknown": 1}
    assert result["accuracy"] == 0.5
    assert result["model"] == client.get("/v1/model").json()["model"]


def test_undo_goes_back_to_before_the_last_batch_and_only_once(
    client: TestClient, model: Path
) -> None:
    before = client.get("/v1/model").json()
    finished(client, teach(client, "green", photo(GREEN)))
    assert len(client.get("/v1/model").json()["history"]) == 2
    assert finished(client, client.post("/v1/undo"))["state"] == "done"
    assert client.get("/v1/model").json() == before
    assert FakeClassifier.load(model).classes_ == ["red", "blue"]
    again = finished(client, client.post("/v1/undo"))
    assert again["state"] == "failed"
    assert "keeps no version from before" in again["error"]["message"]
    assert client.get("/v1/model").json() == before


def test_the_model_is_described_class_by_class(client: TestClient) -> None:
    finished(client, teach(client, "red", photo(RED), photo(RED, 1)))
    model = client.get("/v1/model").json()
    assert model["classes"] == [
        {"label": "red", "photos": 3, "batches": [1, 2]},
        {"label": "blue", "photos": 1, "batches": [1]},
    ]
    assert [b["returning"] for b in model["history"]] == [[], ["red"]]
    assert model["about"]["threshold"] == 0.6
    assert (model["learning"], model["evaluating"]) == (True, True)
    assert model["limits"]["max_images"] == 32


def test_jobs_are_listed_oldest_first(client: TestClient) -> None:
    ids = [
        finished(client, teach(client, name, photo(GREEN, i)))["id"] for i, name in enumerate("ab")
    ]
    assert [job["id"] for job in client.get("/v1/jobs").json()] == ids


def test_health_and_readiness(serve: Serve) -> None:
    client = serve(token="0123456789abcdef")
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}


def test_metrics_count_what_happened(client: TestClient) -> None:
    ask(client, photo(RED), photo(BLUE))
    ask(client, b"no image")
    finished(client, teach(client, "green", photo(GREEN), photo(GREEN, 1)))
    client.get("/v1/jobs/nonsense")
    client.get("/nonsense/1")
    text = client.get("/metrics").text
    for line in (
        'cprompt_requests_total{method="POST",path="/v1/predict",status="200"} 1.0',
        'cprompt_requests_total{method="POST",path="/v1/predict",status="422"} 1.0',
        'cprompt_requests_total{method="GET",path="/v1/jobs/{id}",status="404"} 1.0',
        'cprompt_requests_total{method="GET",path="other",status="404"} 1.0',
        'cprompt_request_seconds_count{path="/v1/predict"} 2.0',
        "cprompt_batch_pictures_sum 2.0",
        "cprompt_batch_pictures_count 1.0",
        'cprompt_jobs_total{kind="learn",state="done"} 1.0',
        "cprompt_photos_learnt_total 2.0",
        "cprompt_waiting 0.0",
        "cprompt_jobs_waiting 0.0",
        "cprompt_classes 3.0",
        "cprompt_batches 2.0",
    ):
        assert line in text.splitlines(), f"{line} is missing in\n{text}"


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_are_self_contained_and_allow_only_their_own_code(
    client: TestClient, path: str
) -> None:
    page = client.get(path)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    for inline in re.findall(r"<(?:style|script)>(.*?)</(?:style|script)>", page.text, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    outside = re.findall(r"(?:src|href)\s*=\s*[\"'](?!/|data:)([^\"']*)", page.text)
    assert outside == []
    assert not re.search(r"@import|url\(|\son\w+=|\sstyle=", page.text)


def test_the_api_page_names_every_operation(client: TestClient) -> None:
    page = client.get("/docs").text
    paths = client.get("/openapi.json").json()["paths"]
    assert len(paths) == 10
    for path, methods in paths.items():
        for method in methods:
            assert f"{method.upper()} {path}</h2>" in page


def test_every_error_in_the_description_has_the_same_form(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    for methods in schema["paths"].values():
        for operation in methods.values():
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"]
                    reference = answer["content"]["application/problem+json"]["schema"]["$ref"]
                    assert reference.rsplit("/", 1)[-1] in schema["components"]["schemas"]


def test_a_model_that_another_process_is_changing_is_left_alone(
    client: TestClient, model: Path
) -> None:
    code = (
        "import sys; from filelock import FileLock\n"
        "with FileLock(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(model / model_folder.LOCK)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        before = model_folder.read_about(model)
        job = finished(client, teach(client, "green", photo(GREEN)))
        assert (job["state"], job["error"]["code"]) == ("failed", "model")
        assert "another process is changing" in job["error"]["message"]
        assert model_folder.read_about(model) == before
        assert other.stdin is not None
        other.stdin.close()
