"""Prediction with CPrompt: images per second, the released way and a plain forward beside ours.

    python -m benchmarks.predict
    python -m benchmarks.predict --quick --device cpu

An answer takes two passes (a query, then one with the chosen prompt, which makes the sequence
longer), so it cannot be as fast as timm's forward of the same backbone: `GFLOP/image` says how much
more work it is. The images are noise that stays on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import torch

from benchmarks import common, train_step
from benchmarks.common import Call, Rounds
from benchmarks.train_step import RELEASED, Step, our_method, released_model
from benchmarks.work import Work
from cprompt.device import pick_device
from cprompt.vit.promptable import Precision

PLAIN = ("timm forward, fp32", "timm forward, bf16")


def released(step: Step) -> Call:
    """The released prediction."""
    backbone = step.load()
    images, _ = step.images(backbone)
    return partial(released_model(step, backbone).predict, images)


def ours(step: Step, precision: Precision, compiled: bool = False) -> Call:
    """Our prediction: query, choice, prompted pass, heads."""
    method = our_method(step)
    method.close_task()
    if compiled:
        method.backbone.compile()
    images, _ = step.images(method.backbone)

    @torch.inference_mode()
    def answer() -> torch.Tensor:
        return method.respond(images, precision=precision).logits

    return answer


def plain(step: Step, precision: Precision) -> Call:
    """timm's forward of the same backbone on the same images, without prompts and heads."""
    backbone = step.load()
    images, _ = step.images(backbone)
    low = precision == "bf16"

    @torch.inference_mode()
    def forward() -> torch.Tensor:
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=low):
            features: torch.Tensor = backbone.vit(images)
        return features

    return forward


def contenders(device: torch.device, compiled: bool = True) -> dict[str, Callable[[Step], Call]]:
    """All ways to answer on this kind of device; not the compiled one unless `compiled`."""
    found: dict[str, Callable[[Step], Call]] = {
        RELEASED: released,
        "ours, fp32": partial(ours, precision="fp32"),
        "ours, bf16": partial(ours, precision="bf16"),
    }
    if device.type == "cuda" and compiled:
        found["ours, bf16, compile"] = partial(ours, precision="bf16", compiled=True)
    found[PLAIN[0]] = partial(plain, precision="fp32")
    found[PLAIN[1]] = partial(plain, precision="bf16")
    return found


def flop_per_image(name: str, work: Work) -> int:
    """FLOP of one answer."""
    if name in PLAIN:
        return work.embedding + work.plain.forward
    if name == RELEASED:
        return 2 * work.embedding + work.plain.forward + work.prompted.forward
    return work.embedding + work.plain.read_forward + work.prompted.read_forward


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    given = train_step.parser(__doc__).parse_args(argv)
    device = pick_device(given.device)
    seen = common.hardware(device)
    out = common.output("predict", seen, given.out)
    step = train_step.chosen_step(given, device, batch=16 if device.type == "cpu" else 256)

    answers = {name: build(step) for name, build in contenders(device).items()}
    rounds = common.rounds(device, given.quick) if device.type == "cpu" else Rounds(3, 7, 2)
    timings = common.interleave(answers, device, rounds)
    work = step.work()

    rows, results = [], {}
    for name, timing in timings.items():
        rate, flop = step.batch / timing.median, flop_per_image(name, work)
        faster = timings[RELEASED].median / timing.median
        of_plain = timings[PLAIN[0]].median / timing.median
        results[name] = {
            "seconds": asdict(timing),
            "images_per_second": rate,
            "times_released": faster,
            "times_timm_fp32": of_plain,
            "flop_per_image": flop,
        }
        rows.append(
            {
                "prediction": name,
                "images/s": f"{rate:.1f}",
                "spread": common.spread(timing),
                "of released": f"{faster:.2f}×",
                "of timm fp32": f"{of_plain:.2f}×",
                "GFLOP/image": f"{flop / 1e9:.1f}",
                "TFLOP/s": f"{flop * rate / 1e12:.2f}",
            }
        )
    title = (
        f"Prediction: {step.backbone}, batch {step.batch}, after {step.tasks} tasks of "
        f"{step.classes} classes each"
    )
    notes = ["of …: speed relative to the released prediction, and to timm's plain forward."]
    common.show(title, rows, seen, notes)
    result = {"settings": asdict(step), "rounds": asdict(rounds), "contenders": results}
    print(f"Written: {common.save('predict', seen, result, out)}")


if __name__ == "__main__":
    main()
