"""Write the committed benchmark results into docs/speed.md.

    python tools/speed_page.py

Every block between `<!-- NAME -->` and `<!-- end -->` is made from results/; the text around it
stays as it is. A test checks that the page is up to date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from page_blocks import renewed, table

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "speed.md"
RESULTS = ROOT / "results"

Result = Mapping[str, Any]
PARTS = ("preparation", "training", "evaluation")


def hardware_text(result: Result) -> str:
    hardware = result["hardware"]
    where = hardware["device"] if hardware["device"] != "cpu" else hardware["processor"]
    number = hardware["threads"]
    threads = "1 thread" if number == 1 else f"{number} threads"
    cores = "" if hardware["device"] != "cpu" else f", {threads}"
    return f"{where}{cores}, torch {hardware['torch']}, timm {hardware['timm']}"


def train_step(result: Result) -> str:
    limit = result["limit_seconds"]
    head = ["step", "TFLOP", "ms", "× released", *(["× matmul limit"] if limit else [])]
    rows = []
    for name, each in result["contenders"].items():
        row = [
            name,
            f"{each['flop'] / 1e12:.2f}",
            f"{1e3 * each['seconds']['median']:.1f}",
            f"{each['times_released']:.2f}",
        ]
        rows.append([*row, *([f"{each['times_limit']:.2f}"] if limit else [])])
    step = result["settings"]
    sizes = f"{step['backbone']}, batch {step['batch']}, task {step['tasks']}"
    return table(head, rows) + f"\n{sizes}; {hardware_text(result)}.\n"


def train_step_profile(text: str) -> str:
    """Where the time of the steps goes, from the profiles beside their record."""
    rows = []
    for name, total, shares in re.findall(
        r"^([^\n]+)\n\n([\d.]+) ms per step[^\n]*\n((?:[ \d.]+ %  \w+\n)+)", text, re.MULTILINE
    ):
        parts = {kind: float(share) for share, kind in re.findall(r"([\d.]+) %  (\w+)", shares)}
        kinds = ("products", "attention", "rest")
        each = [f"{float(total) * parts[kind] / 100:.1f}" for kind in kinds]
        rows.append([name, *each, f"{float(total):.1f}"])
    return table(["ms, added over streams", "products", "attention", "rest", "all"], rows)


def step_variants(text: str) -> str:
    """The first table of what was printed, its columns parted by two spaces or more."""
    head, *rows = (re.split(r" {2,}", line) for line in text.split("\n\n")[1].splitlines())
    each = [[name, *("–" if n == "-" else f"{float(n):.2f}" for n in ms)] for name, *ms in rows]
    return table([head[0], *(f"{name}, ms" for name in head[1:])], each)


def fp8(result: Result) -> str:
    rows = [[name, f"{100 * share:.1f} %"] for name, share in result["of_length"].items()]
    settings = result["settings"]
    images = f"{settings['images']} {'drawn images' if settings['drawn'] else 'photos'}"
    head = ["products", "features differ from float32's by"]
    return table(head, rows) + f"\n{settings['backbone']}, {images}; {hardware_text(result)}.\n"


def fp8_products(result: Result) -> str:
    timings = result["products"]
    usual = timings["bf16"]["median"]
    rows = [
        [name, f"{1e3 * each['median']:.2f}", f"{1e3 * (usual - each['median']):.2f}"]
        for name, each in timings.items()
    ]
    settings = result["settings"]
    where = f"{settings['backbone']}, batch {settings['batch']}; {hardware_text(result)}"
    return table(["products", "ms per step", "saved, ms"], rows) + f"\n{where}.\n"


def resample(result: Result) -> str:
    rows = [
        [
            name,
            f"{1e3 * each['seconds']['median']:.2f}",
            f"{each['levels_from_pil']['max']:.0f}",
            f"{each['levels_from_pil']['mean']:.2f}",
        ]
        for name, each in result["ways"].items()
    ]
    head = ["views by", "ms per batch", "largest difference to Pillow, levels", "mean"]
    return table(head, rows) + f"\n{hardware_text(result)}.\n"


def predict(result: Result) -> str:
    rows = [
        [
            name,
            f"{each['images_per_second']:.0f}"
            if each["images_per_second"] >= 100
            else f"{each['images_per_second']:.1f}",
            f"{each['times_released']:.2f}",
            f"{each['times_timm_fp32']:.2f}",
        ]
        for name, each in result["contenders"].items()
    ]
    head = ["prediction", "images/s", "× released", "× timm, fp32"]
    step = result["settings"]
    return (
        table(head, rows)
        + f"\n{step['backbone']}, batch {step['batch']}; {hardware_text(result)}.\n"
    )


def closed_form(result: Result) -> str:
    rows = [
        [name, f"{each['inputs_per_second']:.1f}", f"{each['times_timm']:.2f}"]
        for name, each in result["contenders"].items()
    ]
    step, head_ms = result["settings"], 1e3 * result["head_seconds"]["median"]
    sizes = f"{step['backbone']}, batch {step['batch']}; the head takes {head_ms:.0f} ms"
    head = ["pass", "inputs/s", "× timm in the same precision"]
    return table(head, rows) + f"\n{sizes}; {hardware_text(result)}.\n"


def from_files(result: Result) -> str:
    photos, shares = result["settings"]["photos"], result["of_the_limit"]
    rows = [
        [name, f"{photos / each['median']:.1f}", f"{shares[name]:.2f}" if name in shares else ""]
        for name, each in result["seconds"].items()
    ]
    what = f"{result['settings']['backbone']}; {hardware_text(result)}"
    return table(["from JPEG files", "photos/s", "of the limit"], rows) + f"\n{what}.\n"


def asking_memory(result: Result) -> str:
    rows = [[n, f"{peak / 1e6:.0f}"] for n, peak in result["peak_bytes"].items()]
    what = f"{result['small_backbone']}; {hardware_text(result)}"
    return table(["photos asked about", "MB at most"], rows) + f"\n{what}.\n"


def one_rank(result: Result) -> str:
    rows = [
        [
            name,
            f"{1e3 * each['median']:.2f}",
            f"{1e3 * each['low']:.2f} to {1e3 * each['high']:.2f}",
        ]
        for name, each in result["contenders"].items()
    ]
    step = result["settings"]
    sizes = f"{step['backbone']}, batch {step['batch']}, bf16, graphs"
    return table(["step", "ms", "spread"], rows) + f"\n{sizes}; {hardware_text(result)}.\n"


def together(result: Result) -> str:
    rows = [
        [runs, f"{1e3 * each['seconds']['median']:.2f}", f"{each['times_alone']:.2f}"]
        for runs, each in result["steps"].items()
    ]
    step = result["settings"]
    sizes = f"{step['backbone']}, batch {step['batch']}, task {step['tasks']}"
    head = ["runs that take turns", "ms per step", "× alone"]
    return table(head, rows) + f"\n{sizes}; {hardware_text(result)}.\n"


def epoch(result: Result) -> str:
    rows = []
    for name, each in result["pipelines"].items():
        later = each["later"]
        shares = [f"{100 * later[key]:.1f} %" for key in ("device_waits", "host_waits")]
        seconds = [f"{each['first_seconds']:.2f}", f"{later['seconds']:.2f}"]
        rows.append([name, *seconds, f"{later['images_per_second']:.0f}", *shares])
    head = ["images by", "first epoch, s", "later, s", "images/s", "device waits", "host waits"]
    step, source = result["settings"], "drawn" if result["settings"]["drawn"] else "real"
    what = f"{result['pictures']} {source} JPEGs, {step['backbone']}, batch {step['batch']}"
    return table(head, rows) + f"\n{what}; {hardware_text(result)}.\n"


def evaluate(result: Result) -> str:
    rows = [
        [
            str(each["tasks"]),
            f"{each['per_picture']:.2f}",
            f"{each['scratch_per_picture']:.0f}",
            "yes" if each["rows_that_differ"] == 0 else "no",
        ]
        for each in result["streams"]
    ]
    head = ["tasks", "passes per image", "from scratch", "same counts"]
    return table(head, rows) + f"\n{hardware_text(result)}.\n"


def memory(result: Result) -> str:
    rows = [
        [f"{what}: {name}", f"{each['bytes'] / 1e6:.0f}", f"{each['of_released']:.2f}"]
        for what, contenders in result["peaks"].items()
        for name, each in contenders.items()
    ]
    step = result["settings"]
    head = ["peak memory", "MB", "× released"]
    return (
        table(head, rows)
        + f"\n{step['backbone']}, batch {step['batch']}; {hardware_text(result)}.\n"
    )


def cars(records: Sequence[Result]) -> str:
    rows = []
    for record in records:
        tasks, epochs = len(record["stream"]["sizes"]), record["config"]["training"]["epochs"]
        seconds, test = record["seconds"], record["pictures"]["test"]
        passes = sum(record["test_passes"].values()) / test
        without = "" if record["config"]["method"]["aux_head"] else ", no auxiliary head"
        rows.append(
            [
                f"{tasks} tasks, {epochs} epochs{without}",
                *(f"{seconds[part]:.0f}" for part in PARTS),
                f"{sum(seconds[part] for part in PARTS):.0f}",
                f"{100 * seconds['waiting'] / seconds['training']:.0f} %",
                f"{passes:.2f}",
                str(1 + tasks),
            ]
        )
    head = ["Split Stanford Cars", "preparation, s", "training, s", "evaluation, s", "all, s"]
    head += ["host waits", "passes per image", "from scratch"]
    first = records[0]
    where = f"{first['environment']['gpu']}, torch {first['environment']['torch']}"
    return table(head, rows) + f"\n{first['backbone']['name']}, bf16; {where}.\n"


def precision(records: Sequence[Result]) -> str:
    by_order: dict[int, dict[str, float]] = {}
    for record in records:
        order = record["config"]["seeds"]["order"]
        kind = record["config"]["training"]["precision"]
        by_order.setdefault(order, {})[kind] = record["summary"]["last_accuracy"]
    rows = [
        [
            str(order),
            f"{each['fp32']:.2f}",
            f"{each['bf16']:.2f}",
            f"{each['bf16'] - each['fp32']:+.2f}",
        ]
        for order, each in sorted(by_order.items())
    ]
    head = ["class order", "fp32", "bf16", "difference"]
    first = records[0]
    hardware = first["environment"]
    where = hardware.get("gpu", hardware["cpu"])
    tasks = first["config"]["stream"]["first_tasks"]
    few = f"the first {tasks} tasks of " if tasks else ""
    method, benchmark = first["config"]["method"]["name"], first["config"]["benchmark"]
    what = f"{method}, {few}{benchmark}, {first['backbone']['name']}"
    return table(head, rows) + f"\nLast-acc, {what}; {where}, torch {hardware['torch']}.\n"


def predict_process(result: Result) -> str:
    rows = [
        [name, f"{each['seconds']:.1f}", f"{each['bytes'] / 1e6:.0f}"]
        for name, each in result["processes"].items()
    ]
    rows += [
        [f"cprompt serve, {name}", f"{seconds:.2f}", ""]
        for name, seconds in result["service"].items()
    ]
    where = f"{result['backbone']}, {result['classes']} classes; {hardware_text(result)}"
    return table(["process", "seconds", "MB at most"], rows) + f"\n{where}.\n"


def neighbours(result: Result) -> str:
    alone = result["seconds"]["0"]
    rows = [
        [count, f"{took:.0f}", f"{took / alone:.2f}"] for count, took in result["seconds"].items()
    ]
    head = ["other busy processes", "seconds", "× alone"]
    return table(head, rows) + f"\n{result['cores']} cores; {hardware_text(result)}.\n"


def cluster(result: Result) -> str:
    photos = result["settings"]["photos"]
    rows = [
        [what, *(f"{photos / t['median']:.1f}" for t in each.values()), f"{times:.2f}"]
        for (what, each), times in zip(
            result["seconds"].items(), result["times"].values(), strict=True
        )
    ]
    names = next(iter(result["seconds"].values()))
    head = ["photos per second", *names, "times"]
    return table(head, rows) + f"\n{result['settings']['backbone']}; {hardware_text(result)}.\n"


def serve_versions(result: Result) -> str:
    """The service's first version and today's, in turn."""
    answers = {
        name: [each["answers_a_second"] for each in rounds]
        for name, rounds in result["rounds"].items()
    }
    before = mean(answers["first version"])
    rows = [
        [name, " and ".join(f"{rate:.0f}" for rate in rates), f"{mean(rates) / before:.2f}"]
        for name, rates in answers.items()
    ]
    head = ["service", "answers/s, each round", "× first version, on average"]
    about = f"{result['clients']} clients for {result['seconds']:g} s"
    return table(head, rows) + f"\n{about}; {hardware_text(result)}.\n"


BENCHMARKS: dict[str, Callable[[Any], str]] = {
    "train_step": train_step,
    "train_step_tiny": train_step,
    "train_step_tiny_variants": train_step,
    "train_step_amx": train_step,
    "train_step_tiny_amx": train_step,
    "train_step_packed": train_step,
    "train_step_kernels": train_step,
    "train_step_tiny_kernels": train_step,
    "fp8": fp8,
    "fp8_products": fp8_products,
    "closed_form": closed_form,
    "one_rank": one_rank,
    "together": together,
    "from_files": from_files,
    "from_files#memory": asking_memory,
    "predict": predict,
    "epoch": epoch,
    "evaluate": evaluate,
    "memory": memory,
    "resample": resample,
    "predict_process": predict_process,
    "serve_versions": serve_versions,
    "neighbours": neighbours,
    "cluster": cluster,
}


TEXTS: Mapping[str, Callable[[str], str]] = {
    "train_step_profile": train_step_profile,
    "step_variants": step_variants,
}
"""What makes the table of a benchmark of which text is kept."""


def block(name: str) -> str:
    """The table of `MACHINE/BENCHMARK`, or of all records in `records/FOLDER`."""
    first, _, second = name.partition("/")
    if first == "records":
        files = sorted((RESULTS / second).glob("*.json"))
        make = cars if second == "speed/cars" else precision
        return make([json.loads(file.read_text()) for file in files])
    if second in TEXTS:
        path = RESULTS / "benchmarks" / first / f"{second}.txt"
        return TEXTS[second](path.read_text(encoding="utf-8"))
    file = second.partition("#")[0]
    result = json.loads((RESULTS / "benchmarks" / first / f"{file}.json").read_text())
    return BENCHMARKS[second](result)


def render(page: str) -> str:
    """The page with every block up to date."""
    return renewed(page, r"\S+/\S+", block)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
