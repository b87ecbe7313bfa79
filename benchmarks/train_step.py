"""One training step of CPrompt: the released way compared with ours.

    python -m benchmarks.train_step
    python -m benchmarks.train_step --quick --device cpu

The images are noise that stays on the device, because only arithmetic is timed; every contender
gets the same random draws. FLOP are those of benchmarks/work.py: for ours, the least a step can do.
On CUDA our step is also timed with its parts one after another, without priorities, with GELU in a
kernel of its own, with torch.compile in place of our own kernels, with GELU by the error function
and with 8-bit products (benchmarks/fp8.py). Where the time goes is written beside
the record, as NAME_profile.txt. benchmarks/memory.py measures the memory of a step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from benchmarks import common
from benchmarks.common import Call, matmul_rate
from benchmarks.fp8 import NarrowWeights
from benchmarks.released import ReleasedCPrompt
from benchmarks.work import Work, count_work
from cprompt.device import pick_device
from cprompt.methods.base import Method, create_method
from cprompt.methods.parts.token_prompts import SegmentsConfig, place
from cprompt.seeds import generator
from cprompt.training.learner import Learner
from cprompt.training.settings import Acceleration, Seeds, TrainingConfig
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT, Precision


@dataclass(frozen=True)
class Step:
    """The step that is timed: the last of `tasks` tasks of `classes` classes each."""

    device: str
    backbone: str = "vit_base_patch16_224"
    weights: str = "random:0"
    image_size: int | None = None
    batch: int = 16
    tasks: int = 10
    classes: int = 20
    length: int = 50

    def load(self) -> FrozenViT:
        """The frozen model, on the device."""
        backbone = load_backbone(self.backbone, self.weights, self.image_size)
        return backbone.to(self.device)

    def layers(self, backbone: FrozenViT) -> tuple[int, ...]:
        """The blocks before which prompts join."""
        return place(SegmentsConfig(self.length), backbone)

    def images(self, backbone: FrozenViT) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch of the last task: noise in [0, 1], and arrival positions."""
        rng = generator(0)
        images = torch.rand(self.batch, 3, *backbone.image_size, generator=rng)
        targets = torch.randint(self.classes, (self.batch,), generator=rng)
        return images.to(self.device), (targets + self.known).to(self.device)

    @property
    def known(self) -> int:
        """Classes of the tasks before the last."""
        return (self.tasks - 1) * self.classes

    def work(self) -> Work:
        """FLOP of the passes."""
        backbone = self.load()
        return count_work(backbone.vit, self.layers(backbone), self.length)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of every benchmark on a `Step`; see `chosen_step`."""
    options = common.parser(description)
    options.add_argument("--backbone", help="timm name (default: ViT-B/16; ViT-Ti/16 with --quick)")
    options.add_argument("--weights", default="random:0", help="file, or random:SEED (default)")
    options.add_argument("--image-size", type=int, help="pixels (default: the backbone's)")
    options.add_argument("--batch", type=int, help="images per batch")
    options.add_argument("--tasks", type=int, default=10, help="the task measured (default: 10)")
    options.add_argument("--classes", type=int, default=20, help="classes per task (default: 20)")
    options.add_argument("--length", type=int, default=50, help="tokens per segment (default: 50)")
    return options


def chosen_step(
    given: argparse.Namespace, device: torch.device, batch: int = 16, small: bool = False
) -> Step:
    """The step of these options; by default `batch` images and ViT-B/16, if `small` ViT-Ti/16."""
    usual = "vit_tiny_patch16_224" if given.quick or small else "vit_base_patch16_224"
    return Step(
        device=str(device),
        backbone=given.backbone or usual,
        weights=given.weights,
        image_size=given.image_size,
        batch=given.batch or (4 if given.quick else batch),
        tasks=given.tasks,
        classes=given.classes,
        length=given.length,
    )


# --- contenders: each builds its model at the last task and returns its step ---------------------


def released_model(step: Step, backbone: FrozenViT) -> ReleasedCPrompt:
    """The released method with the last task open."""
    model = ReleasedCPrompt(
        backbone.vit,
        [step.classes] * step.tasks,
        step.length,
        step.layers(backbone),
    )
    for _ in range(step.tasks):
        model.begin_task()
    return model


def our_method(step: Step) -> Method:
    """Our method with the last task open."""
    method = create_method("cprompt", step.load(), {"length": step.length})
    rng = generator(0)
    for task in range(step.tasks):
        if task:
            method.close_task()
        method.begin_task(step.classes, rng)
    return method.to(step.device)


def our_learner(step: Step, precision: Precision, accelerate: Acceleration) -> Learner:
    """The learner of a run, ready for the first step of the last task."""
    learner = Learner(
        our_method(step),
        TrainingConfig(batch_size=step.batch, precision=precision),
        Seeds(),
        torch.device(step.device),
        accelerate=accelerate,
    )
    return learner


def released(step: Step) -> Call:
    """The released step."""
    backbone = step.load()
    model = released_model(step, backbone)
    images, targets = step.images(backbone)
    number = 0

    def take() -> None:
        nonlocal number
        model.step(images, targets, generator(1, 0, 0, number))
        number += 1

    return take


def ours(step: Step, precision: Precision, accelerate: Acceleration) -> Call:
    """The step of a run: what the learner does with one batch."""
    learner = our_learner(step, precision, accelerate)
    return partial(learner.step, *step.images(learner.method.backbone))


RELEASED = "released, fp32"
BY_TORCH: dict[str, Any] = {"cprompt.training.acceleration.fits": lambda vit: False}
"""What to replace for blocks that torch.compile fuses, where our own kernels would."""
EXACT_GELU: dict[str, Any] = {"cprompt.vit.gelu.gelu_by_sigmoid": F.gelu}
"""What to replace for GELU by the error function in compiled passes."""
ONE_STREAM: dict[str, Any] = {
    "cprompt.training.step.run_on_streams": lambda *parts: [part() for part in parts]
}
"""What to replace for parts of the loss one after another."""
NO_PRIORITY: dict[str, Any] = {"cprompt.training.cuda_graphs.FIRST": 0}
"""What to replace for no part before the others."""
GELU_APART: dict[str, Any] = {"cprompt.vit.fused.linear_gelu": lambda x, linear: _gelu(linear(x))}
"""What to replace for GELU in a kernel of its own, in passes without gradient too."""
FP8: dict[str, Any] = {"cprompt.vit.promptable.RoundedWeights": NarrowWeights}
"""What to replace for products in 8-bit floats where no gradient is needed."""


def _gelu(hidden: torch.Tensor) -> torch.Tensor:
    from cprompt.vit import fused_kernels  # needs Triton

    found: torch.Tensor = fused_kernels.gelu(hidden)
    return found


def changed(build: Callable[[Step], Call], replaced: dict[str, Any], step: Step) -> Call:
    """A contender that is built, at its first step, and steps with `replaced`, by dotted name."""
    built: list[Call] = []

    def take() -> None:
        with ExitStack() as stack:
            for name, value in replaced.items():
                stack.enter_context(patch(name, value))
            if not built:
                built.append(build(step))
            built[0]()

    return take


def contenders(device: torch.device, compiled: bool = True) -> dict[str, Callable[[Step], Call]]:
    """All ways to take a step on this kind of device; not the compiled one unless `compiled`."""
    found: dict[str, Callable[[Step], Call]] = {
        RELEASED: released,
        "ours, fp32": partial(ours, precision="fp32", accelerate="none"),
        "ours, bf16": partial(ours, precision="bf16", accelerate="none"),
    }
    if device.type == "cuda":
        found["ours, bf16, graphs"] = partial(ours, precision="bf16", accelerate="graphs")
        if compiled:
            found["ours, bf16, compile"] = partial(ours, precision="bf16", accelerate="compile")
    return found


def variants(device: torch.device) -> dict[str, Callable[[Step], Call]]:
    """Our step on CUDA with other kernels, GELU and products."""
    if device.type != "cuda":
        return {}
    fastest = contenders(device)["ours, bf16, compile"]
    return {
        "ours, bf16, compile, one stream": partial(changed, fastest, ONE_STREAM),
        "ours, bf16, compile, no priority": partial(changed, fastest, NO_PRIORITY),
        "ours, bf16, compile, GELU apart": partial(changed, fastest, GELU_APART),
        "ours, bf16, torch.compile": partial(changed, fastest, BY_TORCH),
        "ours, bf16, torch.compile, exact GELU": partial(changed, fastest, BY_TORCH | EXACT_GELU),
        "ours, bf16, torch.compile, fp8 without gradient": partial(
            changed, fastest, BY_TORCH | FP8
        ),
    }


def that_work(takes: dict[str, Call]) -> dict[str, Call]:
    """Those whose first step succeeds; a kernel may not know this card or these shapes."""
    found = {}
    for name, take in takes.items():
        begun = perf_counter()
        try:
            take()
        except RuntimeError as error:
            print(f"{name}: left out: {str(error).strip().splitlines()[0]}", flush=True)
        else:
            found[name] = take
            print(f"{name}: first step after {perf_counter() - begun:.1f} s", flush=True)
    return found


# --- where the time goes ------------------------------------------------------------------------

PRODUCTS = ("gemm", "nvjet", "cutlass", "xmma", "splitk", "::mm", "addmm", "linear_pointwise")
ATTENTION = ("flash", "fmha", "sdpa", "attention", "_attend")


def profiled(take: Call, device: torch.device, steps: int) -> str:
    """The operations of a step that take longest, and the shares of products and attention."""
    on_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CUDA if on_cuda else ProfilerActivity.CPU]
    common.synchronize(device)
    with profile(activities=activities) as seen:
        for _ in range(steps):
            take()
        common.synchronize(device)
    times = {
        event.key: (event.self_device_time_total if on_cuda else event.self_cpu_time_total, event)
        for event in seen.key_averages()
    }
    ranked = sorted(times.items(), key=lambda item: -item[1][0])
    total = sum(time for time, _ in times.values()) or 1
    shares: dict[str, float] = {"attention": 0, "products": 0, "rest": 0}
    for name, (time, _) in ranked:
        low = name.lower()
        kinds = {"attention": ATTENTION, "products": PRODUCTS}
        kind = next((k for k, words in kinds.items() if any(w in low for w in words)), "rest")
        shares[kind] += time
    lines = [f"{total / 1e3 / steps:.2f} ms per step, added over streams"]
    lines += [f"{100 * time / total:5.1f} %  {kind}" for kind, time in shares.items()]
    lines += ["", "us/step  calls/step  operation"]
    lines += [
        f"{time / steps:7.0f}  {event.count / steps:10.1f}  {name[:110]}"
        for name, (time, event) in ranked[:25]
    ]
    return "\n".join(lines)


def write_profiles(takes: dict[str, Call], device: torch.device, path: Path) -> None:
    """Profiles of our fastest steps."""
    on_cuda = device.type == "cuda"
    names = ("ours, bf16, compile",) if on_cuda else ("ours, fp32", "ours, bf16")
    steps = 5 if on_cuda else 1
    texts = [
        f"{name}\n\n{profiled(takes[name], device, steps)}\n" for name in names if name in takes
    ]
    path.write_text("\n\n".join(texts), encoding="utf-8")
    print("\n\n".join(texts))


# --- the benchmark ------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    options = parser(__doc__)
    options.add_argument("--only", nargs="+", help="of the contenders, beside the released one")
    given = options.parse_args(argv)
    device = pick_device(given.device)
    seen = common.hardware(device)
    out = common.output("train_step", seen, given.out)
    step = chosen_step(given, device)

    builders = {**contenders(device), **variants(device)}
    if given.only:
        unknown = sorted({*given.only} - {*builders})
        if unknown:
            options.error(f"--only {unknown[0]!r}: not one of {'; '.join(builders)}")
        builders = {n: build for n, build in builders.items() if n in (RELEASED, *given.only)}
    takes = that_work({name: build(step) for name, build in builders.items()})
    rounds = common.rounds(device, given.quick)
    timings = common.interleave(takes, device, rounds)
    work = step.work()
    least = work.least(step.batch, step.tasks)
    rate = matmul_rate(device) if device.type == "cuda" else None
    limit = least / rate if rate else None

    rows, results = [], {}
    base_time = timings[RELEASED].median
    for name, timing in timings.items():
        flop = work.released(step.batch, step.tasks) if name == RELEASED else least
        faster = base_time / timing.median
        results[name] = {
            "seconds": asdict(timing),
            "times_released": faster,
            "flop": flop,
            "times_limit": timing.median / limit if limit else None,
        }
        row = {
            "step": name,
            "ms": f"{1e3 * timing.median:.2f}",
            "spread": common.spread(timing),
            "faster": f"{faster:.2f}×",
            "TFLOP": f"{flop / 1e12:.3f}",
            "TFLOP/s": f"{flop / 1e12 / timing.median:.2f}",
        }
        if limit:
            row["limit"] = f"{timing.median / limit:.2f}×"
        rows.append(row)

    notes = ["faster: than the released step; spread: half of highest - lowest."]
    if rate and limit:
        notes.append(
            f"limit: the least work, {least / 1e12:.3f} TFLOP, at this card's measured bf16 matmul "
            f"rate of {rate / 1e12:.0f} TFLOP/s takes {1e3 * limit:.2f} ms."
        )
    title = (
        f"Training step: {step.backbone}, batch {step.batch}, task {step.tasks} of "
        f"{step.classes} classes each"
    )
    common.show(title, rows, seen, notes)
    result = {
        "settings": asdict(step),
        "rounds": asdict(rounds),
        "contenders": results,
        "least_flop": least,
        "matmul_flop_per_second": rate,
        "limit_seconds": limit,
    }
    path = common.save("train_step", seen, result, out)
    write_profiles(takes, device, path.with_name(f"{path.stem}_profile.txt"))
    print(f"Written: {path}")


if __name__ == "__main__":
    main()
