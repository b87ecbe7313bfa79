"""Choosing settings without the test set: what is tried for each method, and what was best.

A try is a run over the first tasks of a benchmark that learns from a part of the training images
and is judged by the rest of them. Test images are never read. What is tried is in
recipes/tune.yaml, the same number of tries for every row.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cprompt.data.registry import DATASETS
from cprompt.errors import ConfigError
from cprompt.methods.registry import method_class
from cprompt.research.config import RunConfig, config_from_dict, flatten, resolve
from cprompt.research.recipes import benchmark_recipe, read_recipe
from cprompt.research.record import Record
from cprompt.research.tables import Find, TableRow, row_config, run_folder
from cprompt.settings import suggest

METRIC = "last_accuracy"
"""What a try is judged by."""
SUMMARY = "tune.json"


@dataclass(frozen=True)
class Try:
    """One set of settings: values by dotted name, and factors of the recipe's own values."""

    flavour: str | None
    settings: Mapping[str, Any]
    times: Mapping[str, float]

    def label(self) -> str:
        """Short and readable: `official, lr × 3`."""
        parts = [] if self.flavour is None else [self.flavour]
        parts += [f"{_short(name)} {value}" for name, value in self.settings.items()]
        parts += [f"{_short(name)} × {factor:g}" for name, factor in self.times.items()]
        return ", ".join(parts) or "as in the recipe"


@dataclass(frozen=True)
class TunedRow:
    """A row of the protocol: a method, settings that are part of its name, and what is tried."""

    name: str
    label: str
    method: str
    settings: Mapping[str, Any]
    tries: tuple[Try, ...]

    @property
    def is_fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self.tries) == 1


@dataclass(frozen=True)
class TuningGrid:
    """recipes/tune.yaml: the rows and how tries are run.

    like: benchmarks that use another one's choice. settings: those of every run of the protocol.
    of_tries: what tries set instead.
    """

    validation: float
    first_tasks: int
    seed: int
    benchmarks: tuple[str, ...]
    like: Mapping[str, str]
    settings: Mapping[str, Any]
    of_tries: Mapping[str, Any]
    rows: tuple[TunedRow, ...]

    @property
    def to_choose(self) -> tuple[TunedRow, ...]:
        """The rows that are not fixed."""
        return tuple(row for row in self.rows if not row.is_fixed)

    @property
    def tries_of_each(self) -> int:
        """How many tries every row has in which something is chosen."""
        (count,) = {len(row.tries) for row in self.to_choose}
        return count

    def row(self, name: str) -> TunedRow:
        """The row of that name; a ConfigError if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        names = [row.name for row in self.rows]
        raise ConfigError(f"nothing to try for {name!r}", hint=suggest(name, names))


def load_grid() -> TuningGrid:
    """What the package tries."""
    about = read_recipe(".", "tune")
    rows = tuple(
        TunedRow(
            name,
            row["label"],
            row.get("method", name),
            row.get("set", {}),
            tuple(
                Try(one.get("flavour"), one.get("set", {}), one.get("times", {}))
                for one in row["tries"]
            ),
        )
        for name, row in about["rows"].items()
    )
    return TuningGrid(
        about["validation"],
        about["first_tasks"],
        about["seed"],
        tuple(about["benchmarks"]),
        about["like"],
        about["set"],
        about["tries"],
        rows,
    )


def settings_of_try(row: TunedRow, one: Try, benchmark: str) -> dict[str, Any]:
    """The settings of a try by dotted name, with the factors worked out for the benchmark.

    Whole numbers stay whole. The milestones of a schedule keep their place in the epochs.
    """
    settings = {**row.settings, **one.settings}
    usual = flatten(resolve(benchmark, row.method, one.flavour, overrides=settings).to_dict())
    for name, factor in one.times.items():
        settings[name] = _scaled(usual[name], factor)
        if name == "training.epochs" and usual["training.milestones"]:
            milestones = usual["training.milestones"]
            settings["training.milestones"] = [_scaled(m, factor) for m in milestones]
    return settings


def try_config(
    grid: TuningGrid,
    row: TunedRow,
    number: int,
    benchmark: str,
    overrides: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The run of try `number` (from 1): held-out training images, the first tasks only.

    A method that learns all classes at once learns those of the first tasks at once.
    """
    one = row.tries[number - 1]
    shared = {**grid.settings, **grid.of_tries}
    settings = {**shared, **settings_of_try(row, one, benchmark), **(overrides or {})}
    settings |= {"data.validation": grid.validation, "stream.first_tasks": grid.first_tasks}
    if method_class(row.method).single_task:
        classes = grid.first_tasks * benchmark_recipe(benchmark)["stream"]["increment"]
        settings |= {"stream.increment": classes, "stream.first_tasks": 1}
    table_row = TableRow(row.label, row.method, one.flavour, "selected", {}, {})
    return row_config(table_row, benchmark, grid.seed, overrides=settings)


@dataclass(frozen=True)
class Outcome:
    """A try with its run, if there is one: held-out accuracy in percent, or why it stopped."""

    number: int
    one: Try
    config: RunConfig
    record: Record | None

    @property
    def done(self) -> bool:
        """Whether the run is finished, or ended because training diverged."""
        return self.record is not None and (self.record.finished or bool(self.record.failure))

    @property
    def accuracy(self) -> float | None:
        """Last accuracy on the held-out images."""
        if self.record is None or not self.record.finished:
            return None
        return self.record.summary()[METRIC]


def outcomes(
    grid: TuningGrid,
    row: TunedRow,
    benchmark: str,
    find: Find,
    overrides: Mapping[str, Any] | None = None,
) -> list[Outcome]:
    """Every try of a row, in order."""
    configs = [
        try_config(grid, row, number, benchmark, overrides)
        for number in range(1, len(row.tries) + 1)
    ]
    tried = zip(row.tries, configs, strict=True)
    return [Outcome(n, one, config, find(config)) for n, (one, config) in enumerate(tried, 1)]


def choose(found: Sequence[Outcome]) -> Outcome | None:
    """The best try, the earlier one of equals; None until all tries are done."""
    if not all(one.done for one in found):
        return None
    judged = [one for one in found if one.accuracy is not None]
    return max(judged, key=lambda one: (one.accuracy, -one.number), default=None)


def command(config: RunConfig) -> str:
    """The `cprompt run` that makes the same run; paths of this machine as they are."""
    usual = flatten(resolve(config.benchmark, config.method, config.flavour).to_dict())
    seeds = config.seeds
    words = ["cprompt", "run", config.benchmark, "--method", config.method]
    if config.flavour is not None:
        words += ["--flavour", config.flavour]
    short = {"data.root": "--data", "backbone.name": "--backbone", "backbone.weights": "--weights"}
    for name, value in flatten(config.to_dict()).items():
        if name.startswith("seeds.") or value == usual.get(name) or name == "method.name":
            continue
        text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True)
        words += [short.get(name, f"--{name}"), text.removesuffix("\n").removesuffix("\n...")]
    assert seeds.order == seeds.init == seeds.data, "a try has one seed"
    return shlex.join([*words, "--seed", str(seeds.order)])


def summary(
    grid: TuningGrid, benchmark: str, find: Find, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """All tries on a benchmark and what was chosen, as plain values without paths."""
    rows: dict[str, Any] = {}
    for row in grid.to_choose:
        found = outcomes(grid, row, benchmark, find, overrides)
        best = choose(found)
        rows[row.name] = {
            "label": row.label,
            "method": row.method,
            "chosen": None if best is None else best.number,
            "tries": [_plain(row, one, benchmark) for one in found],
        }
    return {
        "format": "cprompt-tune",
        "version": 1,
        "benchmark": benchmark,
        "metric": METRIC,
        "validation": grid.validation,
        "first_tasks": grid.first_tasks,
        "seed": grid.seed,
        "rows": rows,
    }


def _plain(row: TunedRow, one: Outcome, benchmark: str) -> dict[str, Any]:
    record = one.record
    return {
        "number": one.number,
        "label": one.one.label(),
        "flavour": one.one.flavour,
        "settings": settings_of_try(row, one.one, benchmark),
        "run": run_folder(one.config, Path()).name,
        "accuracy": one.accuracy,
        "images": None if record is None else record.images,
        "failure": None if record is None else record.failure,
        "warnings": [] if record is None else record.warnings,
        "training_seconds": None if record is None else record.seconds.get("training"),
        "command": command(anywhere(one.config)),
    }


def anywhere(config: RunConfig) -> RunConfig:
    """The same run without paths and hardware of this machine; its images are in DATA."""
    plain = config.public()
    if DATASETS[config.data.dataset].needs_root:
        plain["data"]["root"] = "DATA"
    return config_from_dict({k: v for k, v in plain.items() if k not in ("execution", "cache")})


_HEADER = """\
# Made by `cprompt tune --write` from the records of all tries; do not edit. What is tried is in
# tune.yaml.
"""


def protocol_table(grid: TuningGrid, find: Find, overrides: Mapping[str, Any] | None = None) -> str:
    """The table of all rows under what was chosen for each benchmark, as YAML.

    A row without a choice on a benchmark keeps its first try there, and a note says so.
    """
    rows: list[dict[str, Any]] = []
    source = {**{name: name for name in grid.benchmarks}, **grid.like}
    untuned: dict[str, list[str]] = {benchmark: [] for benchmark in source}
    for row in grid.rows:
        chosen: dict[str, Any] = {}
        for benchmark, judged_on in source.items():
            best = choose(outcomes(grid, row, judged_on, find, overrides))
            if best is None and not row.is_fixed:
                untuned[benchmark].append(row.label)
            one = row.tries[0] if best is None else best.one
            flavour = {} if one.flavour is None else {"flavour": one.flavour}
            chosen[benchmark] = {**flavour, "set": settings_of_try(row, one, benchmark)}
        shared = {"label": row.label, "method": row.method, "set": dict(grid.settings)}
        rows.append({**shared, "chosen": chosen})
    notes = [
        f"Settings chosen on {100 * grid.validation:g} % of the training images, held out, of the "
        f"first {grid.first_tasks} tasks, among {grid.tries_of_each} tries for each row, unless "
        "the row's name or a note says otherwise."
    ]
    every_row = [row.label for row in grid.to_choose]
    notes_on = {
        benchmark: f"On {benchmark}, not chosen yet, so as in the recipe: "
        f"{'every row' if labels == every_row else '; '.join(labels)}."
        for benchmark, labels in untuned.items()
        if labels
    }
    table = {
        "title": "Every method at its best",
        "benchmarks": list(source),
        "columns": {
            "last_accuracy": "Last-acc",
            "average_accuracy": "Avg-acc",
            "forgetting_released": "FF",
        },
        "notes": notes,
        "notes_on": notes_on,
        "rows": rows,
    }
    return _HEADER + yaml.safe_dump(table, sort_keys=False, allow_unicode=True, width=100)


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, int):
        return max(1, round(value * factor))
    return float(f"{value * factor:.6g}")  # 0.0028125 × 0.3 is not 0.0008437499…


def _short(name: str) -> str:
    return name.rpartition(".")[2]
