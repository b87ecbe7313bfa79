"""The closed-form classifier's pass beside timm's forward: inputs a second, learnt and answered.

    python -m benchmarks.closed_form
    python -m benchmarks.closed_form --quick --device cpu

`strata` reads every layer and counts, so it cannot be faster than a forward of the same backbone
in the same precision; "of timm" says how near it comes. The images are noise that stays on the
device. An input is one view of an image. Working out the head, once per batch of photos that is
learnt, is timed by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import get_args

import torch

from benchmarks import common, train_step
from benchmarks.common import Call, Rounds
from benchmarks.predict import plain
from benchmarks.train_step import Step
from cprompt.device import pick_device
from cprompt.methods.base import create_method
from cprompt.methods.strata import Strata
from cprompt.seeds import generator
from cprompt.vit.promptable import FrozenViT, Precision

SETTINGS = {"width": 2048, "views": 1}
"""The photo classifier's width; one view, so that an input is an image."""


def learnt(step: Step) -> tuple[Strata, torch.Tensor, torch.Tensor]:
    """A model that has learnt one batch, that batch and its targets."""
    backbone = step.load()
    method = create_method("strata", backbone, SETTINGS)
    assert isinstance(method, Strata)
    method.begin_task(step.classes, generator(0))
    method.to(step.device)
    images, _ = step.images(backbone)
    targets = (torch.arange(step.batch) % step.classes).to(step.device)
    method.count_images(method.embed(images), targets)
    method.solve()
    return method, images, targets


def learn(step: Step, precision: Precision, compiled: bool = False) -> Call:
    """Count a batch: pass, projection, moments, and the images that are kept."""
    method, images, targets = learnt(step)
    _compile(method, compiled)
    keys = torch.arange(step.batch, device=step.device)

    @torch.no_grad()
    def count() -> None:
        embedded = method.embed(images, precision)
        method.count_images(dataclasses.replace(embedded, keys=keys), targets)

    return count


def answer(step: Step, precision: Precision, compiled: bool = False) -> Call:
    """Logits and familiarity of a batch."""
    method, images, _ = learnt(step)
    _compile(method, compiled)

    @torch.inference_mode()
    def respond() -> torch.Tensor:
        return method.respond(images, precision=precision).logits

    return respond


def _compile(method: Strata, compiled: bool) -> None:
    if compiled:
        assert isinstance(method.backbone, FrozenViT)
        method.backbone.compile()


def solve(step: Step) -> Call:
    """Work out the head of a batch."""
    return learnt(step)[0].solve


def contenders(device: torch.device) -> dict[str, Callable[[Step], Call]]:
    """timm's forward, learning and answering, in both precisions."""
    found: dict[str, Callable[[Step], Call]] = {}
    for precision in get_args(Precision):
        found[f"timm forward, {precision}"] = partial(plain, precision=precision)
        for name, build in (("learn", learn), ("predict", answer)):
            found[f"{name}, {precision}"] = partial(build, precision=precision)
            if device.type == "cuda" and precision == "bf16":
                found[f"{name}, bf16, compile"] = partial(build, precision="bf16", compiled=True)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    given = train_step.parser(__doc__).parse_args(argv)
    device = pick_device(given.device)
    seen = common.hardware(device)
    out = common.output("closed_form", seen, given.out)
    step = train_step.chosen_step(given, device, batch=16 if device.type == "cpu" else 256)

    calls = {name: build(step) for name, build in contenders(device).items()}
    if given.quick:
        rounds = common.rounds(device, quick=True)
    else:
        rounds = Rounds(2, 7, 2) if device.type == "cpu" else Rounds(5, 7, 3)
    timings = common.interleave(calls, device, rounds)
    head = common.time_it(solve(step), device, Rounds(1, 3, 1))

    rows, results = [], {}
    for name, timing in timings.items():
        precision = name.split(", ")[1]
        of_timm = timings[f"timm forward, {precision}"].median / timing.median
        rate = step.batch / timing.median
        results[name] = {
            "seconds": asdict(timing),
            "inputs_per_second": rate,
            "times_timm": of_timm,
        }
        rows.append(
            {
                "pass": name,
                "inputs/s": f"{rate:.1f}",
                "spread": common.spread(timing),
                "of timm": f"{of_timm:.2f}×",
            }
        )
    title = f"Closed form: {step.backbone}, batch {step.batch}, {step.classes} classes"
    notes = [
        "of timm: speed relative to timm's forward in the same precision.",
        f"The head takes {head.median:.2f} s, once per batch of photos.",
    ]
    common.show(title, rows, seen, notes)
    result = {
        "settings": asdict(step),
        "rounds": asdict(rounds),
        "contenders": results,
        "head_seconds": asdict(head),
    }
    print(f"Written: {common.save('closed_form', seen, result, out)}")


if __name__ == "__main__":
    main()
