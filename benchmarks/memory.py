"""Peak memory of one training step and of one prediction: the released way compared with ours.

    python -m benchmarks.memory
    python -m benchmarks.memory --quick --device cpu

Each contender builds its model, so the weights count: twice for ours in bf16, which keeps the
matrices in both precisions. On a CPU each is measured in a separate process. Compiled steps are
left out, because starting them takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import torch

from benchmarks import common, predict, train_step
from benchmarks.train_step import Step
from cprompt.device import pick_device


def few_steps(contender: str, step: Step) -> None:
    """Build a contender and take its first steps; the first one allocates momentum and graphs."""
    take = train_step.contenders(torch.device(step.device), compiled=False)[contender](step)
    for _ in range(1 if step.device == "cpu" else 5):
        take()


def one_prediction(contender: str, step: Step) -> None:
    """Build a contender and answer one batch."""
    predict.contenders(torch.device(step.device), compiled=False)[contender](step)()


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    given = train_step.parser(__doc__).parse_args(argv)
    device = pick_device(given.device)
    seen = common.hardware(device)
    out = common.output("memory", seen, given.out)
    step = train_step.chosen_step(given, device)

    steps = list(train_step.contenders(device, compiled=False))
    answers = [n for n in predict.contenders(device, compiled=False) if n not in predict.PLAIN]
    peaks = {
        "training step": _peaks(few_steps, steps, step, device),
        "prediction": _peaks(one_prediction, answers, step, device),
    }
    rows = [
        {
            "peak memory": f"{what}: {name}",
            "MB": f"{peak['bytes'] / 1e6:.0f}" if peak["bytes"] else "unknown",
            "of released": f"{peak['of_released']:.2f}×" if peak["of_released"] else "",
        }
        for what, of_contenders in peaks.items()
        for name, peak in of_contenders.items()
    ]
    kind = "what PyTorch allocated" if device.type == "cuda" else "how far the process grew"
    title = f"Peak memory: {step.backbone}, batch {step.batch}, task {step.tasks}"
    common.show(title, rows, seen, [f"MB: {kind}, model weights included."])
    result = {"settings": asdict(step), "peaks": peaks}
    print(f"Written: {common.save('memory', seen, result, out)}")


def _peaks(
    call: Callable[[str, Step], None], names: Sequence[str], step: Step, device: torch.device
) -> dict[str, dict[str, float | None]]:
    """Peak `bytes` per contender, and their ratio to the released one's; None where unknown."""
    peaks = [common.peak_memory(partial(call, name, step), device) for name in names]
    base = peaks[0]
    return {
        name: {"bytes": peak, "of_released": peak / base if peak and base else None}
        for name, peak in zip(names, peaks, strict=True)
    }


if __name__ == "__main__":
    main()
