"""Metrics of the service, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cprompt.serve.job import Job

MEDIA_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_IMAGES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Counters of one service; none of their labels is taken from a client."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "cprompt_requests",
            "Requests answered.",
            ["method", "path", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "cprompt_request_seconds",
            "Seconds from a request's headers to the end of its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._passes = Histogram(
            "cprompt_pass_images",
            "Images answered in one pass of the model.",
            buckets=_IMAGES,
            registry=registry,
        )
        self._jobs = Counter(
            "cprompt_jobs", "Jobs that ended.", ["kind", "state"], registry=registry
        )
        self._learnt = Counter(
            "cprompt_photos_learnt", "Photos learnt by finished jobs.", registry=registry
        )

    def watch(self, name: str, help: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is read whenever the metrics are."""
        Gauge(f"cprompt_{name}", help, registry=self._registry).set_function(value)

    def answered(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request; `path` is the route's pattern, not what the client sent."""
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def passed(self, images: int) -> None:
        """Count a pass of the model over that many images."""
        self._passes.observe(images)

    def job_ended(self, job: Job) -> None:
        """Count a job by how it ended."""
        self._jobs.labels(job.kind, job.state).inc()
        if job.kind == "learn" and job.state == "done":
            self._learnt.inc(sum(job.photos.values()))

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self._registry)
