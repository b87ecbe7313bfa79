"""`cprompt serve` under load on loopback, while it learns: throughput, latency, right answers.

    python -m benchmarks.serve_load
    python -m benchmarks.serve_load --precision auto
    python -m benchmarks.serve_load --clients 300 --seconds 20 --limits.max_waiting 100
    python -m benchmarks.serve_load --slow 400

Each client sends one photo at a time, again and again; meanwhile one learning job after another
teaches a new class. Every answer is compared with the library's for that photo and that version of
the model. Options that the benchmark does not know go to `cprompt serve`. It ends with an error if
an answer was wrong or missing, a job was lost, or a status was neither 200 nor 503.

With `--precision`, service and library both answer in that one, and the result is called
serve_load_PRECISION.

With `--slow N`, N more clients, from other addresses, send a byte per second: half of them of their
headers, half of a photo. Then it also ends with an error if the service wrote more than 1 MB of
log. The result is called serve_slow.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks import common
from benchmarks.images import draw_jpegs
from cprompt import UNKNOWN, ContinualClassifier
from cprompt.device import pick_device

PER_CLASS = 12
ASKED_PER_CLASS = 4
KNOWN = 5
TOLERANCE = 1e-4
BOUNDARY = "photo-after-photo"
MOST_LOG = 1_000_000
SLOW_FROM = [f"127.0.0.{last}" for last in range(2, 6)]
"""Addresses of slow clients: a service limits the connections from each."""


Answer = tuple[int, str, str, float]
"""Number of the photo, version of the model, label, probability."""


@dataclass
class Received:
    """What clients received, and how long it took."""

    answers: list[Answer] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    cut: int = 0
    """Connections of slow clients that the service ended."""


def main(argv: Sequence[str] | None = None) -> None:
    options = common.parser(__doc__)
    options.add_argument("--clients", type=int, default=200)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--slow", type=int, default=0, help="clients that send a byte per second")
    options.add_argument("--precision", default="fp32", help="of the service: fp32, bf16 or auto")
    given, for_service = options.parse_known_args(argv)
    if given.quick:
        given.clients, given.seconds = min(given.clients, 20), min(given.seconds, 5.0)
        given.slow = min(given.slow, 20)
    device = pick_device(given.device)
    hardware = common.hardware(device)
    name = "serve_slow" if given.slow else "serve_load"
    name += "" if given.precision == "fp32" else f"_{given.precision}"
    out = common.output(name, hardware, given.out)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(
            Path(folder),
            Taught(Path(folder) / "model", str(device), given.precision),
            given.clients,
            given.seconds,
            given.slow,
            for_service,
        )
    latency, statuses = result["latency_seconds"], result["statuses"]
    rows = [
        {
            "clients": str(given.clients),
            "answers per second": f"{result['answers_a_second']:.0f}",
            "p50": f"{1000 * latency['p50']:.0f} ms",
            "p99": f"{1000 * latency['p99']:.0f} ms",
            "images per pass": f"{result['photos_a_pass']:.1f}",
            "statuses": ", ".join(f"{n} x {s}" for s, n in statuses.items()),
            "wrong": str(result["wrong"]),
            "jobs done": f"{result['jobs_done']} of {result['jobs']}",
            "slow clients": str(given.slow),
            "cut off": str(result["slow_cut"]),
            "log": f"{result['log_bytes']:,} bytes",
        }
    ]
    common.show(f"cprompt serve while it learns, {given.seconds:g} s", rows, hardware)
    common.save(name, hardware, result, out)
    faults = [status for status in statuses if status not in ("200", "503")]
    too_long = result["log_bytes"] > MOST_LOG
    if result["wrong"] or faults or too_long or result["jobs_done"] < result["jobs"]:
        raise SystemExit(
            f"{result['wrong']} wrong answers, statuses {dict(statuses)}, "
            f"{result['jobs_done']} of {result['jobs']} jobs done, "
            f"{result['log_bytes']} bytes of log"
        )


@dataclass(frozen=True)
class Taught:
    """A model's folder, and how it is served and asked."""

    folder: Path
    device: str
    precision: str

    def load(self) -> ContinualClassifier:
        return ContinualClassifier.load(self.folder, device=self.device, precision=self.precision)


def measure(
    folder: Path,
    model: Taught,
    clients: int,
    seconds: float,
    slow: int,
    for_service: Sequence[str],
) -> dict[str, Any]:
    """Make photos and a model, serve it, load it, and check what came back."""
    draw_jpegs(folder / "photos", KNOWN + 20, PER_CLASS + ASKED_PER_CLASS)
    classes = sorted(p for p in (folder / "photos").iterdir())
    photos = {c.name: sorted(c.iterdir()) for c in classes}
    names = list(photos)
    asked = [p for name in names[: KNOWN + 3] for p in photos[name][PER_CLASS:]]
    first = ContinualClassifier(device=model.device)
    first.learn([(p, name) for name in names[:KNOWN] for p in photos[name][:PER_CLASS]])
    first.save(model.folder)
    expected = {first.model_id: right_answers(model.load(), asked)}
    lessons = [zipped(name, photos[name][:PER_CLASS]) for name in names[KNOWN:]]
    log = folder / "log"
    options = ["--precision", model.precision, *for_service]
    with serving(model.folder, model.device, options, log) as url:
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        at = where.hostname, where.port
        received, jobs = asyncio.run(
            load(at, asked, lessons, clients, seconds, slow, model, expected)
        )
        passes = metric(url, "cprompt_pass_images_count")
        images = metric(url, "cprompt_pass_images_sum")
    return {
        "clients": clients,
        "seconds": seconds,
        "answers_a_second": received.statuses["200"] / seconds,
        "latency_seconds": {
            f"p{q}": float(np.percentile(received.seconds, q)) for q in (50, 90, 99, 100)
        },
        "statuses": dict(sorted(received.statuses.items())),
        "answers": len(received.answers),
        "wrong": sum(not is_right(answer, expected) for answer in received.answers),
        "versions": len(expected),
        "photos_a_pass": images / passes,
        "jobs": len(jobs),
        "jobs_done": sum(job["state"] == "done" for job in jobs),
        "slow_clients": slow,
        "slow_cut": received.cut,
        "log_bytes": log.stat().st_size,
        "photo": "JPEG, 500 x 375 pixels, about 90 kB",
    }


@dataclass(frozen=True)
class Right:
    """The library's answer for a photo; more than one label if rounding decides."""

    labels: set[str]
    probability: float


def right_answers(classifier: ContinualClassifier, photos: Sequence[Path]) -> list[Right]:
    answers = []
    for found in classifier.explain(list(photos)):
        best = {n for n, p in found.ranking if found.probability - p < TOLERANCE}
        margin = found.familiarity - classifier.threshold_
        labels = (best if margin > -TOLERANCE else set()) | (
            {UNKNOWN} if margin < TOLERANCE else set()
        )
        answers.append(Right(labels, found.probability))
    return answers


def is_right(answer: Answer, expected: Mapping[str, Sequence[Right]]) -> bool:
    photo, version, label, probability = answer
    if version not in expected:
        return False
    right = expected[version][photo]
    return label in right.labels and abs(probability - right.probability) < TOLERANCE


# --- the service --------------------------------------------------------------------------------


@contextmanager
def serving(model: Path, device: str, options: Sequence[str], log: Path) -> Iterator[str]:
    """The address of `cprompt serve` in a process of its own, whose log goes to a file."""
    code = "from cprompt.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", str(model), "--port", "0", "--device", device]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("serving"):
            raise SystemExit("the service did not start")
        try:
            yield line.split()[-1]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def request(url: str, whole: bytes) -> tuple[int, bytes]:
    """Status and body of the answer to one request, sent over a connection of its own."""
    where = urlsplit(url)

    async def ask() -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            return (await exchange(reader, writer, whole))[:2]
        finally:
            writer.close()

    return asyncio.run(ask())


def metric(url: str, name: str) -> float:
    """A number from /metrics."""
    _, text = request(url, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    found = re.search(rf"^{name} (\S+)$", text.decode(), re.MULTILINE)
    assert found, f"{name} is not in /metrics"
    return float(found[1])


# --- the clients --------------------------------------------------------------------------------


async def load(
    where: tuple[str, int],
    asked: Sequence[Path],
    lessons: Sequence[bytes],
    clients: int,
    seconds: float,
    slow: int,
    model: Taught,
    expected: dict[str, list[Right]],
) -> tuple[Received, list[dict[str, Any]]]:
    """Predict and teach until the time is up; adds every new version's answers to `expected`."""
    received = Received()
    requests = [post("/v1/predict?top=2", "image/jpeg", photo.read_bytes()) for photo in asked]
    end = time.monotonic() + seconds
    asking = [
        asyncio.create_task(ask(where, requests, start, end, received)) for start in range(clients)
    ]
    asking += [
        asyncio.create_task(dawdle(where, requests[0], number, end, received))
        for number in range(slow)
    ]
    jobs = await teach(where, lessons, end, model, asked, expected)
    await asyncio.gather(*asking)
    return received, jobs


async def dawdle(
    where: tuple[str, int], request: bytes, number: int, end: float, received: Received
) -> None:
    """A client that sends a byte per second, of its headers or of its photo, again and again."""
    address = SLOW_FROM[number % len(SLOW_FROM)]
    at_once = 20 if number % 2 else request.index(b"\r\n\r\n") + 100
    while time.monotonic() < end:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(*where, local_addr=(address, 0))
            told = asyncio.create_task(reader.read())  # until the service ends the connection
            writer.write(request[:at_once])
            for byte in request[at_once:]:
                done, _ = await asyncio.wait([told], timeout=1)
                if done or time.monotonic() > end:
                    break
                writer.write(bytes([byte]))
            received.cut += told.done()
            told.cancel()
            writer.close()
        await asyncio.sleep(0.1)


async def ask(
    where: tuple[str, int], requests: Sequence[bytes], start: int, end: float, received: Received
) -> None:
    """One client, which keeps its connection as long as the service does."""
    at = start
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    while time.monotonic() < end:
        at = (at + 1) % len(requests)
        began = time.perf_counter()
        try:
            connection = connection or await asyncio.open_connection(*where)
            status, body, stays = await exchange(*connection, requests[at])
        except (OSError, asyncio.IncompleteReadError) as error:
            received.statuses[type(error).__name__] += 1
            connection = None
            continue
        received.statuses[str(status)] += 1
        if not stays:
            connection[1].close()
            connection = None
        if status == 200:
            received.seconds.append(time.perf_counter() - began)
            answer = json.loads(body)
            (found,) = answer["predictions"]
            received.answers.append((at, answer["model"], found["label"], found["probability"]))
        else:
            await asyncio.sleep(0.2)
    if connection:
        connection[1].close()


async def teach(
    where: tuple[str, int],
    lessons: Sequence[bytes],
    end: float,
    model: Taught,
    asked: Sequence[Path],
    expected: dict[str, list[Right]],
) -> list[dict[str, Any]]:
    """One learning job after another; the last may end after the time is up."""
    jobs: list[dict[str, Any]] = []
    reader, writer = await asyncio.open_connection(*where)
    for lesson in lessons:
        if time.monotonic() > end:
            break
        status, body, _ = await exchange(reader, writer, lesson)
        assert status == 202, body
        job = json.loads(body)
        while not job["finished"]:
            await asyncio.sleep(0.2)
            request = f"GET /v1/jobs/{job['id']} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            job = json.loads((await exchange(reader, writer, request.encode()))[1])
        jobs.append(job)
        learnt = await asyncio.to_thread(model.load)
        expected[learnt.model_id] = await asyncio.to_thread(right_answers, learnt, asked)
    writer.close()
    return jobs


def post(path: str, kind: str, body: bytes) -> bytes:
    """A whole request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def zipped(name: str, photos: Sequence[Path]) -> bytes:
    """A request to learn these photos as one class."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for photo in photos:
            archive.write(photo, f"{name}/{photo.name}")
    head = (
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; name=archive; filename=photos.zip\r\n\r\n"
    )
    body = head.encode() + buffer.getvalue() + f"\r\n--{BOUNDARY}--\r\n".encode()
    return post("/v1/learn", f"multipart/form-data; boundary={BOUNDARY}", body)


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes, bool]:
    """Status, body, and whether the connection can be used again."""
    writer.write(request)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = re.search(r"\ncontent-length: (\d+)", head)
    assert length, head
    body = await reader.readexactly(int(length[1]))
    return int(head.split(" ", 2)[1]), body, "\nconnection: close" not in head


if __name__ == "__main__":
    main()
