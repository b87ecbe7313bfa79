"""A training step alone and as the only rank of torchrun: what joining NCCL costs.

    python -m benchmarks.one_rank
    python -m benchmarks.one_rank --quick --device cpu

Both steps are those of a run; they are timed in turn, and the process joins and leaves the group of
ranks in between. On a CPU the group exchanges through Gloo.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import median
from unittest.mock import patch

import torch

from benchmarks import common, train_step
from cprompt.device import pick_device
from cprompt.ranks import join, leave

ALONE, ONE_RANK = "alone", "one rank"


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """As torchrun starts a single process, joined to its group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    as_started = {
        "TORCHELASTIC_RUN_ID": "benchmark",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **dict.fromkeys(("RANK", "LOCAL_RANK"), "0"),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"),
    }
    with patch.dict(os.environ, as_started):
        join(device)
        try:
            yield
        finally:
            leave()


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    given = train_step.parser(__doc__).parse_args(argv)
    device = pick_device(given.device)
    seen = common.hardware(device)
    out = common.output("one_rank", seen, given.out)
    step = train_step.chosen_step(given, device, small=True)
    rounds = common.rounds(device, given.quick)
    once = common.Rounds(rounds.warmup, 1, rounds.calls)

    alone = train_step.ours(step, "bf16" if device.type == "cuda" else "fp32", "graphs")
    with joined(device):
        ranked = train_step.ours(step, "bf16" if device.type == "cuda" else "fp32", "graphs")
    seconds: dict[str, list[float]] = {ALONE: [], ONE_RANK: []}
    for _ in range(rounds.repeats):
        seconds[ALONE].append(common.time_it(alone, device, once).median)
        with joined(device):
            seconds[ONE_RANK].append(common.time_it(ranked, device, once).median)
    timings = {
        name: common.Timing(median(times), min(times), max(times))
        for name, times in seconds.items()
    }
    speed = timings[ALONE].median / timings[ONE_RANK].median
    rows = [
        {"step": name, "ms": f"{1e3 * timing.median:.2f}", "spread": common.spread(timing)}
        for name, timing in timings.items()
    ]
    notes = [f"One rank has {100 * speed:.1f} % of the speed alone."]
    common.show(f"One rank: {step.backbone}, batch {step.batch}", rows, seen, notes)
    result = {
        "settings": asdict(step),
        "contenders": {name: asdict(timing) for name, timing in timings.items()},
        "of_the_speed_alone": speed,
    }
    print(f"Written: {common.save('one_rank', seen, result, out)}")


if __name__ == "__main__":
    main()
