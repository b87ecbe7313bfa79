"""Training steps of several runs in one process, each on a stream of its own: time per step.

    python -m benchmarks.together
    python -m benchmarks.together --quick --device cpu

As `cprompt table --together N` takes them: in turn, one step of each. The images are noise that
stays on the device.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict

import torch

from benchmarks import common, train_step
from benchmarks.common import Call, Timing
from benchmarks.train_step import Step
from cprompt.device import pick_device
from cprompt.research.together import ENOUGH_QUEUES, own_stream

COUNTS = (1, 2, 4, 8)
STEPS = 20
"""Of each run in a timed call, as a queue must be full before streams overlap."""


def steps_of(runs: int, step: Step, device: torch.device) -> Call:
    """`STEPS` steps of each of so many runs, in turn; returns when the device has taken them."""
    lanes = []
    for _ in range(runs):
        stream = own_stream(device)
        with stream:
            take = train_step.ours(step, "bf16" if device.type == "cuda" else "fp32", "auto")
            take()
        lanes.append((stream, take))

    def call() -> None:
        for _ in range(STEPS if device.type == "cuda" else 1):
            for stream, take in lanes:
                with stream:
                    take()
        common.synchronize(device)

    return call


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    given = train_step.parser(__doc__).parse_args(argv)
    os.environ.setdefault(*ENOUGH_QUEUES)
    device = pick_device(given.device)
    seen = common.hardware(device)
    out = common.output("together", seen, given.out)
    step = train_step.chosen_step(given, device, small=True)
    counts = COUNTS[:2] if given.quick else COUNTS
    rounds = common.Rounds(2, 5, 1) if device.type == "cuda" else common.Rounds(0, 1, 1)
    calls = {str(runs): steps_of(runs, step, device) for runs in counts}
    timings = {
        runs: _per_step(timing, int(runs) * (STEPS if device.type == "cuda" else 1))
        for runs, timing in common.interleave(calls, device, rounds).items()
    }
    alone = timings["1"].median
    rows = [
        {
            "runs": runs,
            "ms per step": f"{1e3 * timing.median:.2f}",
            "spread": common.spread(timing),
            "faster": f"{alone / timing.median:.2f}×",
        }
        for runs, timing in timings.items()
    ]
    title = f"Steps of runs that take turns: {step.backbone}, batch {step.batch}, task {step.tasks}"
    common.show(title, rows, seen, ["faster: than steps of one run."])
    result = {
        "settings": asdict(step),
        "rounds": asdict(rounds),
        "steps": {
            runs: {"seconds": asdict(timing), "times_alone": alone / timing.median}
            for runs, timing in timings.items()
        },
    }
    print(f"Written: {common.save('together', seen, result, out)}")


def _per_step(timing: Timing, steps: int) -> Timing:
    return Timing(timing.median / steps, timing.low / steps, timing.high / steps)


if __name__ == "__main__":
    main()
