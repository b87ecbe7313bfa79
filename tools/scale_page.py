"""Write results/benchmarks/cpu/scale.json into docs/scale.md.

    python tools/scale_page.py

Every block between `<!-- NAME -->` and `<!-- end -->` is made from the record; the text around it
stays as it is. A test checks that the page is up to date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "scale.md"
RECORD = ROOT / "results" / "benchmarks" / "cpu" / "scale.json"

DAY = 24 * 3600
MANY = (10_000_000, 1_000_000_000)
MEMORY = 64 * 2**30

COLUMNS = {
    "begin_seconds": "begin a task",
    "step_seconds_per_image": "training step, per image",
    "count_seconds_per_image": "count an image",
    "end_seconds": "end a task",
    "predict_seconds": "answer an image",
    "keys_and_heads_seconds": "of that, all classes",
    "bytes": "model",
    "load_seconds": "load",
    "peak_bytes": "memory, at most",
}
NAMES = {"strata": {"keys_and_heads_seconds": "answer a feature"}}

Record = Mapping[str, Any]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    if key.endswith("bytes"):
        return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.1f} MB"
    return f"{value:.1f} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def sizes(record: Record, name: str) -> str:
    """One row per size, and how much each cost grew in the last step to ten times the classes."""
    points = record["points"][name]
    keys = [key for key in COLUMNS if key in points[0]]
    rows = [
        [f"{p['tasks']:,}", f"{p['classes']:,}", *(shown(k, p[k]) for k in keys)] for p in points
    ]
    before, last = points[-2:]
    grown = [f"× {last[k] / before[k]:.1f}" if last[k] and before[k] else "–" for k in keys]
    rows.append(["", f"× {last['classes'] / before['classes']:.0f}", *grown])
    named = COLUMNS | NAMES.get(name, {})
    return table(["tasks", "classes", *(named[key] for key in keys)], rows)


def per_image(record: Record) -> dict[str, float]:
    """Seconds per image at the largest size, with one thread."""
    rates, points = record["rates"], record["points"]
    prompts, counts = points["cprompt"][-1], points["strata"][-1]
    seen = rates["read_seconds"] + rates["pass_seconds"]
    return {
        "learn with Strata, one view": seen + counts["count_seconds_per_image"],
        "answer with Strata": seen + counts["keys_and_heads_seconds"],
        "learn with CPrompt, per epoch": rates["read_seconds"] + prompts["step_seconds_per_image"],
        "answer with CPrompt": rates["read_seconds"] + prompts["predict_seconds"],
    }


def images(record: Record) -> str:
    rows = []
    for what, cost in per_image(record).items():
        days = [f"{count * cost / DAY:,.0f} core-days" for count in MANY]
        rows.append([what, shown("seconds", cost), *days])
    return table(["", "per image", *(f"{count:,} images" for count in MANY)], rows)


def rates(record: Record) -> str:
    found = record["rates"]
    rows = [
        ["read and shrink a JPEG of 500 × 375", shown("seconds", found["read_seconds"])],
        ["one pass of the backbone", shown("seconds", found["pass_seconds"])],
    ]
    return table(["", "per image"], rows)


def core_time(seconds: float) -> str:
    """Hours of a core, or minutes where they would read as 0.0 hours."""
    hours = seconds / 3600
    return f"{hours:.1f} core-hours" if hours >= 0.1 else f"{seconds / 60:.1f} core-minutes"


def limits(record: Record) -> str:
    """How many classes fit into memory, and what all heads of a stream take together."""
    rows = []
    for name, title in (("strata", "Strata"), ("cprompt", "CPrompt")):
        points = record["points"][name]
        last = points[-1]
        peak = last["peak_bytes"]
        fit = "–" if peak is None else f"{MEMORY * last['classes'] / peak:,.0f}"
        # A cost that grows with the classes so far is on average half of the last one.
        whole = last["tasks"] * (last["begin_seconds"] + last["end_seconds"]) / 2
        stored = f"{last['bytes'] / last['classes'] / 1e3:.1f} kB"
        rows.append([title, stored, fit, core_time(whole)])
    head = ["", "stored per class", "classes in 64 GiB of memory"]
    head.append("begin and end all tasks of the stream")
    return table(head, rows)


def about(record: Record) -> str:
    hardware, settings = record["hardware"], record["settings"]
    return (
        f"{settings['backbone']} with random weights, batches of {settings['batch']}; Strata with "
        f"width {settings['width']} and one view; {hardware['processor']}, "
        f"{hardware['threads']} thread, torch {hardware['torch']}.\n"
    )


BLOCKS = {
    "about": about,
    "cprompt": lambda record: sizes(record, "cprompt"),
    "strata": lambda record: sizes(record, "strata"),
    "rates": rates,
    "images": images,
    "limits": limits,
}


def render(page: str, record: Record | None = None) -> str:
    """The page with every block made anew."""
    known: Record = json.loads(RECORD.read_text("utf-8")) if record is None else record

    def renewed(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n\n{BLOCKS[found[1]](known)}\n<!-- end -->"

    names = "|".join(BLOCKS)
    return re.sub(rf"<!-- ({names}) -->\n.*?<!-- end -->", renewed, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text("utf-8")), "utf-8")
