"""`cprompt predict` on one photo, from the command to the answer: seconds and peak memory; and how
long `cprompt serve` takes until it is ready, and from then to its first answer.

    python -m benchmarks.predict_process
    python -m benchmarks.predict_process --weights FILE

Each row is a process of its own, run in turn with the others. The first rows are what importing
torch, and timm with it, takes alone. The model has learnt 20 drawn classes with the embedded
backbone, or with the weights given.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import common
from benchmarks.images import draw_jpegs
from benchmarks.serve_load import post, request, serving
from cprompt import ContinualClassifier
from cprompt.device import pick_device

CLASSES, PER_CLASS = 20, 4
COMMAND = "from cprompt.cli import main; main()"
LAUNCH = """
import resource, subprocess, sys, time
began = time.perf_counter()
ended = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(ended)
"""  # a small process: a new one counts the size of the one that it was started from


def main(argv: Sequence[str] | None = None) -> None:
    options = common.parser(__doc__)
    options.add_argument("--weights", help="a file with a backbone's weights")
    options.add_argument("--times", type=int, default=5, help="runs of each process")
    given = options.parse_args(argv)
    times = 1 if given.quick else given.times
    seen = common.hardware(pick_device("cpu"))
    out = common.output("predict_process", seen, given.out)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), given.weights, times)
    rows = [
        {"process": name, "seconds": f"{row['seconds']:.2f}", "MB": f"{row['bytes'] / 1e6:.0f}"}
        for name, row in result["processes"].items()
    ]
    rows += [
        {"process": f"cprompt serve, {name}", "seconds": f"{seconds:.2f}", "MB": ""}
        for name, seconds in result["service"].items()
    ]
    common.show(f"cprompt predict, one photo, {result['backbone']}", rows, seen)
    common.save("predict_process", seen, result, out)


def measure(folder: Path, weights: str | None, times: int) -> dict[str, Any]:
    """Make a model and a photo, then run each process."""
    draw_jpegs(folder / "photos", CLASSES, PER_CLASS)
    classifier = ContinualClassifier(weights=weights, device="cpu").learn(folder / "photos")
    classifier.save(folder / "model")
    photo = next((folder / "photos").rglob("*.jpg"))
    processes = {
        "import torch": ["-c", "import torch"],
        "import torch, timm": ["-c", "import torch, timm"],
        "cprompt --help": ["-c", COMMAND, "--help"],
        "cprompt predict": ["-c", COMMAND, "predict", str(folder / "model"), str(photo)],
    }
    return {
        "backbone": classifier._load().name,
        "classes": CLASSES,
        "times": times,
        "processes": _measured(processes, times),
        "service": _service(folder / "model", photo, folder / "log", times),
    }


def _measured(processes: Mapping[str, Sequence[str]], times: int) -> dict[str, dict[str, float]]:
    """Median seconds and largest resident size of each, in turn, after one run to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in processes}
    peaks: dict[str, list[int]] = {name: [] for name in processes}
    for _ in range(times + 1):
        for name, arguments in processes.items():
            command = [sys.executable, "-S", "-c", LAUNCH, sys.executable, *arguments]
            told = subprocess.run(command, capture_output=True, text=True, check=False)
            if told.returncode:
                raise SystemExit(f"{' '.join(arguments)} failed: {told.stderr}")
            took, size = told.stdout.splitlines()[-1].split()
            seconds[name].append(float(took))
            peaks[name].append(int(size) * (1 if sys.platform == "darwin" else 1024))
    return {
        name: {"seconds": median(seconds[name][1:]), "bytes": max(peaks[name])}
        for name in processes
    }


def _service(model: Path, photo: Path, log: Path, times: int) -> dict[str, float]:
    """Median seconds until the service is ready, and from then to its first and second answer."""
    ask = post("/v1/predict", "image/jpeg", photo.read_bytes())
    seconds: dict[str, list[float]] = {"until ready": [], "first answer": [], "second answer": []}
    for _ in range(times + 1):
        last = time.perf_counter()
        with serving(model, "cpu", [], log) as url:
            for name, each in seconds.items():
                if name != "until ready":
                    status, body = request(url, ask)
                    if status != 200:
                        raise SystemExit(f"the service answered {status}: {body.decode()}")
                now = time.perf_counter()
                each.append(now - last)
                last = now
    return {name: median(each[1:]) for name, each in seconds.items()}


if __name__ == "__main__":
    main()
