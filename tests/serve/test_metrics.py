"""What /metrics counts."""

from __future__ import annotations

from starlette.testclient import TestClient

from tests.serve.common import (
    BLUE,
    GREEN,
    RED,
    ask,
    finished,
    photo,
    teach,
)


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
        "cprompt_pass_images_sum 2.0",
        "cprompt_pass_images_count 1.0",
        'cprompt_jobs_total{kind="learn",state="done"} 1.0',
        "cprompt_photos_learnt_total 2.0",
        "cprompt_waiting 0.0",
        "cprompt_jobs_waiting 0.0",
        "cprompt_classes 3.0",
        "cprompt_batches 2.0",
    ):
        assert line in text.splitlines(), f"{line} is missing in\n{text}"
