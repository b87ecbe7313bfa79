"""`cprompt demo` beside other busy processes: how much longer it takes than alone.

    python -m benchmarks.neighbours
    python -m benchmarks.neighbours --processes 1 2 4

Each neighbour keeps one core busy without rest. With as many neighbours as cores, half of each core
is left, so twice the time is what arithmetic asks for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import common
from cprompt.device import pick_device

COMMAND = "from cprompt.cli import main; main()"


def main(argv: Sequence[str] | None = None) -> None:
    options = common.parser(__doc__)
    options.add_argument("--processes", type=int, nargs="+", default=[1, 2], metavar="N")
    given = options.parse_args(argv)
    seen = common.hardware(pick_device("cpu"))
    out = common.output("neighbours", seen, given.out)
    counts = [0, *given.processes]
    seconds = {str(count): demo_beside(count, given.quick) for count in counts}
    rows = [
        {"neighbours": count, "seconds": f"{took:.1f}", "× alone": f"{took / seconds['0']:.2f}"}
        for count, took in seconds.items()
    ]
    common.show("cprompt demo beside busy processes", rows, seen)
    common.save("neighbours", seen, {"cores": os.cpu_count(), "seconds": seconds}, out)


def demo_beside(neighbours: int, quick: bool) -> float:
    """Seconds that the demo takes, its start included."""
    with tempfile.TemporaryDirectory() as folder, busy(neighbours):
        command = [sys.executable, "-c", COMMAND, "demo", "--out", str(Path(folder) / "demo")]
        began = time.perf_counter()
        subprocess.run(
            command + ["--quick"] * quick, check=True, stdout=subprocess.DEVNULL, timeout=3600
        )
        return time.perf_counter() - began


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """That many processes that do nothing, all the time."""
    started = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
