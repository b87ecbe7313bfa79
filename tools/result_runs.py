"""The committed runs that the pages are made from, and how to find them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cprompt.data.registry import numbered_officially
from cprompt.research.config import RunConfig
from cprompt.research.record import FILE, Record, load_record
from cprompt.research.tables import TableRow, TableSpec, row_config, run_folder

ROOT = Path(__file__).resolve().parents[1]
RUNS = "results/vit_ti"
TRIES = "results/tune"
"""Where the runs of `cprompt tune` are."""
TRAINING_PASSES = "results/training_passes.json"
"""What tools/training_passes.py counted."""
BACKBONE = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
WEIGHTS = f"{BACKBONE}.safetensors"
SETTINGS = {
    "backbone.name": BACKBONE,
    "backbone.weights": WEIGHTS,
    "training.precision": "bf16",
}
TITLES = {"cars10": "Split Stanford Cars, 10 tasks", "cifar100": "Split CIFAR-100, 10 tasks"}
SHORT_TITLES = {"cars10": "Cars", "cifar100": "CIFAR-100"}
ORDER = 1993
"""The class order that every row was run in."""
METRICS = ("last_accuracy", "average_accuracy", "forgetting_released")


@functools.cache
def read(folder: Path) -> Record | None:
    return load_record(folder) if (folder / FILE).exists() else None


def find(config: RunConfig) -> Record | None:
    return read(run_folder(config, ROOT / RUNS))


def find_finished(config: RunConfig) -> Record | None:
    record = find(config)
    return record if record is not None and record.finished else None


def run_of(
    row: TableRow, benchmark: str, seed: int, settings: Mapping[str, Any] = SETTINGS
) -> Record | None:
    return find_finished(row_config(row, benchmark, seed, overrides=settings))


def printed(row: TableRow, benchmark: str, spec: TableSpec, metric: str) -> float:
    """The paper's number, without its ±."""
    cell = row.paper[benchmark][list(spec.columns).index(metric)]
    return float(str(cell).partition("±")[0])


def records() -> list[Record]:
    return [load_record(path) for path in sorted((ROOT / RUNS).rglob(FILE))]


def numbered_otherwise(record: Record) -> bool:
    """Whether its label ids, over which class orders are drawn, are not the official ones."""
    return numbered_officially(record.dataset, record.classes) is False
