"""Runs in bf16 against fp32 over three class orders: Last-acc of each.

    python -m benchmarks.precision
    python -m benchmarks.precision --benchmark cars10 --data CARS --backbone NAME --weights FILE
    python -m benchmarks.precision --method strata --orders 1993 --first-tasks 3 --benchmark ...

Runs that differ in precision and class order alone. The records of CPrompt are written to
`results/speed/precision`, those of another method beside it; `tools/speed_page.py` makes tables
from them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from benchmarks import common
from cprompt import resolve, run
from cprompt.device import pick_device
from cprompt.files import read_json, write_json
from cprompt.vit.promptable import Precision

ORDERS = (1993, 1013, 87)
FOLDER = Path("results") / "speed"


def main(argv: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    options = common.parser(__doc__)
    options.add_argument("--benchmark", default="demo", help="what is learnt (default: demo)")
    options.add_argument("--data", type=Path, help="where its images are")
    options.add_argument("--backbone", help="timm name (default: the benchmark's)")
    options.add_argument("--weights", help="file, or random:SEED")
    options.add_argument("--epochs", type=int, help="per task (default: the benchmark's)")
    options.add_argument("--method", default="cprompt", help="what learns (default: cprompt)")
    options.add_argument("--orders", type=int, nargs="+", default=ORDERS, help="class orders")
    options.add_argument("--first-tasks", type=int, help="how many (default: all)")
    given = options.parse_args(argv)
    if given.out is None:
        other = "" if given.method == "cprompt" else f"_{given.method}"
        given.out = FOLDER / f"precision{other}"
    device = pick_device(given.device)
    chosen = {
        "execution.device": device.type,
        "data.root": None if given.data is None else str(given.data),
        "backbone.name": given.backbone,
        "backbone.weights": given.weights,
        "training.epochs": 1 if given.quick else given.epochs,
        "stream.first_tasks": given.first_tasks,
    }
    overrides = {name: value for name, value in chosen.items() if value is not None}
    given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for order in given.orders[:1] if given.quick else given.orders:
        found = {p: last_accuracy(given, overrides, p, order) for p in get_args(Precision)}
        row = {"class order": str(order), **{p: f"{a:.2f}" for p, a in found.items()}}
        rows.append({**row, "difference": f"{found['bf16'] - found['fp32']:+.2f}"})
    title = f"Last-acc in both precisions: {given.benchmark}, {given.method}"
    common.show(title, rows, common.hardware(device))
    print(f"Written: {given.out}")


def last_accuracy(given: Any, overrides: dict[str, Any], precision: str, order: int) -> float:
    """Of one run, whose record is kept."""
    varied = {"training.precision": precision, "seeds.order": order}
    config = resolve(given.benchmark, given.method, overrides={**overrides, **varied})
    with tempfile.TemporaryDirectory() as folder:
        run(config, Path(folder))
        record = read_json(Path(folder) / "record.json")
    write_json(given.out / f"{precision}-{order}.json", record)
    return float(record["summary"]["last_accuracy"])


if __name__ == "__main__":
    main()
