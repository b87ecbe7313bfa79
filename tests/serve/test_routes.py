"""The API for those who mean well: predictions, learning, evaluation, undo, jobs."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from starlette.testclient import TestClient

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


def test_images_can_be_base64_in_json(client: TestClient) -> None:
    plain = [base64.b64encode(photo(colour)).decode() for colour in (RED, BLUE)]
    answer = client.post(
        "/v1/predict", json={"images": [plain[0], f"data:image/png;base64,{plain[1]}"]}
    )
    assert labels(answer) == ["red", "blue"]
    assert [p["file"] for p in answer.json()["predictions"]] == ["image 1", "image 2"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "bad_json"),
        (b"[]", 422, "no_images"),
        (b'{"images": []}', 422, "no_images"),
        (b'{"images": ["?"]}', 422, "not_base64"),
        (b'{"images": [7]}', 422, "not_base64"),
        (b'{"images": ["AAAA"]}', 422, "not_an_image"),
        (b'{"images": ["", "", "", ""]}', 413, "too_many_files"),
    ],
)
def test_bad_json_is_refused(hardy: TestClient, body: bytes, status: int, code: str) -> None:
    headers = {"Content-Type": "application/json"}
    error(hardy.post("/v1/predict", content=body, headers=headers), status, code)


def test_an_answer_is_the_classifiers_own(client: TestClient, model: Path) -> None:
    colour = (140, 40, 100)
    expected = FakeClassifier.load(model).explain([image(colour)])[0]
    (answer,) = ask(client, encoded(image(colour)), params={"explain": True}).json()["predictions"]
    assert answer["label"] == expected.label
    assert answer["probability"] == pytest.approx(expected.probability)
    assert answer["familiarity"] == pytest.approx(expected.familiarity)
    assert answer["familiarity"] != pytest.approx(answer["probability"], abs=1e-3)
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
    assert FakeClassifier.load(model).model_id == job["result"]["model"]


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
    assert (again["state"], again["error"]["code"]) == ("failed", "model")
    assert str(model) not in again["error"]["message"]
    assert client.get("/v1/model").json() == before


def known_classes(client: TestClient) -> list[str]:
    return [each["label"] for each in client.get("/v1/model").json()["classes"]]


def test_one_corrected_photo_is_learnt_at_once(client: TestClient) -> None:
    """What the page sends for "Wrong? It is …"."""
    assert labels(ask(client, photo(GREY))) == ["unknown"]
    job = finished(client, teach(client, "grey", photo(GREY)))
    assert (job["state"], job["photos"]) == ("done", {"grey": 1})
    assert labels(ask(client, photo(GREY))) == ["grey"]


def test_classes_are_renamed_removed_and_merged_and_each_can_be_undone(
    client: TestClient,
) -> None:
    finished(client, teach(client, "green", photo(GREEN)))
    for path, change, left in (
        ("rename", {"label": "green", "new": "  leaf "}, ["red", "blue", "leaf"]),
        ("forget", {"label": "blue"}, ["red", "green"]),
        ("merge", {"label": "blue", "into": "green"}, ["red", "green"]),
    ):
        before = client.get("/v1/model").json()
        job = finished(client, client.post(f"/v1/{path}", json=change))
        assert (job["kind"], job["state"]) == (path, "done")
        assert job["arguments"] == {name: value.strip() for name, value in change.items()}
        after = client.get("/v1/model").json()
        assert [each["label"] for each in after["classes"]] == left
        assert job["result"] == {"model": after["model"]}
        assert after["before"] == before["model"]
        finished(client, client.post("/v1/undo"))
        assert known_classes(client) == ["red", "blue", "green"]
        assert client.get("/v1/model").json()["before"] is None


def test_a_change_of_what_is_not_there_is_refused_and_changes_nothing(client: TestClient) -> None:
    before = client.get("/v1/model").json()
    job = finished(client, client.post("/v1/forget", json={"label": "dog"}))
    assert job["state"] == "failed"
    assert job["error"] == {"code": "model", "message": "the model has no class 'dog'"}
    error(client.post("/v1/rename", json={"label": "red", "new": "unknown"}), 422, "bad_label")
    error(client.post("/v1/rename", json={"label": "red"}), 422, "invalid")
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


@pytest.mark.parametrize("query", ["top=0", "top=101", "top=x", "explain=perhaps"])
def test_bad_parameters_are_named(hardy: TestClient, query: str) -> None:
    detail = error(ask(hardy, photo(RED), params=query), 422, "invalid")
    assert detail["message"].startswith(f"query.{query.split('=')[0]}: ")


def test_what_is_not_there_is_404_and_wrong_methods_are_405(hardy: TestClient) -> None:
    error(hardy.get("/v2/predict"), 404, "not_found")
    wrong = hardy.get("/v1/predict")
    error(wrong, 405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"
