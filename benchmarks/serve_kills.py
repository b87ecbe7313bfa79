"""`cprompt serve` killed again and again while it learns: is a job lost, or done twice?

    python -m benchmarks.serve_kills
    python -m benchmarks.serve_kills --kills 20 --seconds 120

Each round starts the service, sends it a new class to learn, and kills it at a random moment. The
last round lets it finish. After each kill the model must be there, the old or the new one. In the
end every job that was accepted must be done, under its id, and each class must have been learnt
from its photos exactly once. It ends with an error if not.

A service lives for up to twice as long as its first job took, undisturbed. If that were less than
a job takes, the same job would be killed until the service gives it up (`job_queue.MOST_STARTS`),
which counts as a failure here.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.images import draw_jpegs
from benchmarks.serve_load import BOUNDARY
from cprompt import ContinualClassifier
from cprompt.device import pick_device
from cprompt.errors import CPromptError

PER_CLASS = 4
FINISH_JOBS = 3.0  # how many times longer than the first job each may take in the last round
FIRST = ["known-a", "known-b"]
SHORTEST = 6.0  # seconds that a service lives at most, at least
MOST_DRAWN = 20  # classes; after that, the same photos are learnt under other names


@dataclass
class Seen:
    """What the service has said: the class of each accepted job, and jobs that have ended."""

    accepted: dict[str, str] = field(default_factory=dict)
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> None:
    options = common.parser(__doc__)
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--seconds", type=float, default=3600.0, help="no more kills after that")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args(argv)
    if given.quick:
        given.kills = min(given.kills, 3)
    hardware = common.hardware(pick_device("cpu"))
    out = common.output("serve_kills", hardware, given.out)
    with tempfile.TemporaryDirectory() as folder:
        empty = ContinualClassifier(device="cpu")
        result = measure(Path(folder), empty, given.kills, given.seconds, given.seed)
    rows = [{name.replace("_", " "): str(value) for name, value in result.items()}]
    common.show("cprompt serve, killed while it learns", rows, hardware)
    common.save("serve_kills", hardware, result, out)
    wrong = ("wrong_classes", "photos_left", "models_neither")
    if result["jobs_done"] != result["jobs"] or any(result[name] for name in wrong):
        raise SystemExit("jobs were lost, done twice or failed, or the model or photos are amiss")


def measure(
    folder: Path, first: ContinualClassifier, kills: int, seconds: float, seed: int
) -> dict[str, Any]:
    """Kill the service `kills` times, or until the time is up, then look at what it made.

    `first` has learnt nothing yet.
    """
    draw_jpegs(folder / "photos", len(FIRST) + min(kills, MOST_DRAWN), PER_CLASS)
    photos = [sorted(each.iterdir()) for each in sorted((folder / "photos").iterdir())]
    model = folder / "model"
    first.learn([(p, name) for name, own in zip(FIRST, photos, strict=False) for p in own])
    first.save(model)
    lessons = photos[len(FIRST) :]
    rng, seen, done = random.Random(seed), Seen(), 0
    after = [version(model)]
    took = first_job(model, lessons[-1], seen)
    longest = max(SHORTEST, 2 * took)
    end = time.monotonic() + seconds
    while done < kills and time.monotonic() < end:
        name = f"class-{done:04d}"
        process, url = start(model)
        try:
            look(url, seen)
            teach(url, name, lessons[done % len(lessons)], seen)
            time.sleep(rng.uniform(0, longest))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        done += 1
        after.append(version(model))
    process, url = start(model)
    try:
        finish = time.monotonic() + 60 + FINISH_JOBS * took * len(seen.accepted)
        while len(seen.ended) + len(seen.lost) < len(seen.accepted) and time.monotonic() < finish:
            look(url, seen)
            time.sleep(0.2)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    learnt = ContinualClassifier.load(model, device="cpu")
    wrong = [name for name in seen.accepted.values() if not learnt_once(learnt, name)]
    uploads = model.with_name("model.service") / "uploads"
    return {
        "kills": done,
        "seconds_of_a_job": round(took, 2),
        "jobs": len(seen.accepted),
        "jobs_done": sum(job["state"] == "done" for job in seen.ended.values()),
        "jobs_lost": len(seen.lost),
        "errors": [job["error"] for job in seen.ended.values() if job["error"]],
        "models_new": sum(a != b for a, b in itertools.pairwise(after)),
        "models_old": sum(a == b is not None for a, b in itertools.pairwise(after)),
        "models_neither": after.count(None),
        "jobs_begun_again": sum(job["starts"] > 1 for job in seen.ended.values()),
        "wrong_classes": len(wrong),
        "photos_left": sum(path.is_file() for path in uploads.rglob("*")),
    }


def first_job(model: Path, photos: Sequence[Path], seen: Seen) -> float:
    """Let the service do one job undisturbed; the seconds that it took."""
    process, url = start(model)
    try:
        began = time.monotonic()
        teach(url, "class-first", photos, seen)
        while not seen.ended:
            look(url, seen)
            time.sleep(0.05)
        return time.monotonic() - began
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def version(model: Path) -> str | None:
    """The model that is there, if it can be read."""
    try:
        return ContinualClassifier.load(model, device="cpu").model_id
    except CPromptError:
        return None


def learnt_once(classifier: ContinualClassifier, name: str) -> bool:
    """Whether a class came from one batch, with all of its photos."""
    return [batch.photos[name] for batch in classifier.history_ if name in batch.photos] == [
        PER_CLASS
    ]


def start(model: Path) -> tuple[subprocess.Popen[str], str]:
    """`cprompt serve` in a process of its own, once it is ready, and its address."""
    code = "from cprompt.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", str(model), "--port", "0", "--device", "cpu"]
    options = ["--limits.max_jobs", "100000"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("serving"):
        raise SystemExit("the service did not start")
    url = line.split()[-1]
    while True:
        with suppress(OSError):
            call(f"{url}/readyz")
            return process, url
        time.sleep(0.02)


def look(url: str, seen: Seen) -> None:
    """Ask for every job that has not ended."""
    for id in seen.accepted:
        if id in seen.ended or id in seen.lost:
            continue
        try:
            job = call(f"{url}/v1/jobs/{id}")
        except urllib.error.HTTPError:
            seen.lost.append(id)
            continue
        if job["finished"]:
            seen.ended[id] = job


def teach(url: str, name: str, photos: Sequence[Path], seen: Seen) -> None:
    """Send a class to learn; it counts as accepted once the service has answered."""
    parts = [f'Content-Disposition: form-data; name="label"\r\n\r\n{name}'.encode()]
    for photo in photos:
        head = f'Content-Disposition: form-data; name="images"; filename="{photo.name}"\r\n\r\n'
        parts.append(head.encode() + photo.read_bytes())
    edge = f"--{BOUNDARY}".encode()
    body = b"".join(edge + b"\r\n" + part + b"\r\n" for part in parts) + edge + b"--\r\n"
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    job = call(urllib.request.Request(f"{url}/v1/learn", body, headers))
    seen.accepted[job["id"]] = name


def call(request: str | urllib.request.Request) -> Any:
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


if __name__ == "__main__":
    main()
