"""The paper's tables: which runs each row needs, and the numbers it shows.

A table is a YAML file in recipes/tables, or a user's file in the same form. Rows name a method, a
flavour and settings. Runs are found by their settings, so tables share runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cprompt.data.registry import numbered_officially
from cprompt.errors import ConfigError
from cprompt.methods.registry import method_class
from cprompt.research.config import RunConfig, deciding_settings, flatten, merge, nest, resolve
from cprompt.research.metrics import mean_std
from cprompt.research.recipes import is_table_file, read_recipe, recipe_names
from cprompt.research.record import FILE, Record, load_record
from cprompt.research.table_file import read_table_file
from cprompt.settings import suggest

PAPER_SEEDS = (1993, 87, 1013)
"""The class orders of the released code."""


@dataclass(frozen=True)
class TableRow:
    """One line: a method, its settings, and the paper's numbers in the order of the columns.

    chosen: by benchmark, the flavour and settings that were chosen there, over those of the row.
    """

    label: str
    method: str
    flavour: str | None
    mode: str
    settings: Mapping[str, Any]
    paper: Mapping[str, Sequence[Any]]
    chosen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class TableSpec:
    """What a table shows; `columns` maps a metric's name to its heading."""

    name: str
    title: str
    paper: str | None
    benchmarks: tuple[str, ...]
    columns: Mapping[str, str]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    notes_on: Mapping[str, str] = field(default_factory=dict)
    """Notes by benchmark, shown only with its columns."""


@dataclass(frozen=True)
class Cell:
    """Our mean and std over runs (std is None for one run), and the paper's number as printed."""

    mean: float | None
    std: float | None
    runs: int
    paper: str | None


@dataclass(frozen=True)
class Table:
    """A filled table: headings, rows of (label, cells), and notes for the reader."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    notes: tuple[str, ...]


def table_names() -> list[str]:
    """Names of all tables that are lists of runs."""
    return recipe_names("tables")


def load_table(name: str) -> TableSpec:
    """The paper's table of that name, or the one in a YAML file, such as mine.yaml."""
    if is_table_file(name):
        file = Path(name)
        spec = _spec(file.stem, read_table_file(file))
        _check_runs(spec, file)
        return spec
    if name not in table_names():
        raise ConfigError(f"no table {name!r}", hint=suggest(name, table_names()))
    return _spec(name, read_recipe("tables", name))


def _spec(name: str, about: Mapping[str, Any]) -> TableSpec:
    rows = tuple(
        TableRow(
            label=row["label"],
            method=row.get("method", "cprompt"),
            flavour=row.get("flavour"),
            mode=row.get("mode", "selected"),
            settings=row.get("set", {}),
            paper=row.get("paper", {}),
            chosen=row.get("chosen", {}),
        )
        for row in about["rows"]
    )
    return TableSpec(
        name,
        about["title"],
        about.get("paper"),
        tuple(about["benchmarks"]),
        about["columns"],
        rows,
        tuple(about.get("notes", ())),
        about.get("notes_on", {}),
    )


def _check_runs(spec: TableSpec, file: Path) -> None:
    """Raise a ConfigError, with file and row, if a method, flavour or setting does not exist."""
    for row in spec.rows:
        for benchmark in spec.benchmarks:
            try:
                row_config(row, benchmark, seed=0)
            except ConfigError as error:
                raise ConfigError(
                    f"row {row.label!r} on {benchmark}: {error.message}",
                    hint=error.hint,
                    file=file,
                ) from error


def select_benchmarks(spec: TableSpec, benchmarks: Sequence[str]) -> TableSpec:
    """The table with only these benchmarks, in the table's order; all if none are given."""
    for name in benchmarks:
        if name not in spec.benchmarks:
            raise ConfigError(
                f"table {spec.name} has no benchmark {name!r}",
                hint=suggest(name, list(spec.benchmarks)),
            )
    chosen = tuple(b for b in spec.benchmarks if b in benchmarks)
    if not chosen or chosen == spec.benchmarks:
        return spec
    return replace(spec, title=f"{spec.title}, {', '.join(chosen)}", benchmarks=chosen)


def select_rows(spec: TableSpec, numbers: Sequence[int]) -> TableSpec:
    """The table with only the rows of these numbers, from 1; all if none are given."""
    for number in numbers:
        if not 1 <= number <= len(spec.rows):
            raise ConfigError(
                f"table {spec.name} has no row {number}",
                hint=f"rows are counted from 1 to {len(spec.rows)}",
            )
    chosen = tuple(row for at, row in enumerate(spec.rows, start=1) if at in numbers)
    return replace(spec, rows=chosen) if chosen else spec


def row_config(
    row: TableRow,
    benchmark: str,
    seed: int,
    *,
    small: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The settings of a row's run; `seed` is used for class order, initialisation and data.

    Methods that select a prompt are always evaluated in all modes, so that tables about the right
    or the first prompt share the same runs. What was chosen for a benchmark does not suit the drawn
    images that stand in for it, except for the flavour.
    """
    settings: dict[str, Any] = dict.fromkeys(("seeds.order", "seeds.init", "seeds.data"), seed)
    if method_class(row.method).selects_task:
        settings["evaluation.modes"] = ["selected", "given", "first"]
    chosen = row.chosen.get(benchmark, {})
    if small:
        settings |= flatten(_small(row.method, benchmark))
    return resolve(
        benchmark,
        row.method,
        chosen.get("flavour", row.flavour),
        overrides={
            **settings,
            **row.settings,
            **({} if small else chosen.get("set", {})),
            **(overrides or {}),
        },
    )


def _small(method: str, benchmark: str) -> dict[str, Any]:
    about = read_recipe(".", "small")
    if benchmark not in about["benchmarks"]:
        raise ConfigError(f"benchmark {benchmark!r} has no small stand-in", hint="omit --small")
    in_place = merge(about["common"], about["benchmarks"][benchmark])
    return merge(in_place, about["methods"].get(method, {}))


Find = Callable[[RunConfig], Record | None]
"""Returns the record of a run, or None if there is none."""


def fill(
    spec: TableSpec,
    seeds: Sequence[int],
    find: Find,
    *,
    small: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> Table:
    """The table with our numbers from records and the paper's beside them."""
    several = len(spec.benchmarks) > 1
    columns = tuple(
        f"{benchmark} {heading}" if several else heading
        for benchmark in spec.benchmarks
        for heading in spec.columns.values()
    )
    rows = []
    wanted = finished = 0
    backbones: set[str] = set()
    flavours: set[str] = set()
    labelled: dict[str, list[tuple[str, Record]]] = {b: [] for b in spec.benchmarks}
    for row in spec.rows:
        cells = []
        for benchmark in spec.benchmarks:
            configs = [
                row_config(row, benchmark, seed, small=small, overrides=overrides) for seed in seeds
            ]
            flavours |= {f"{c.method} {c.flavour}" for c in configs if c.flavour}
            found = [find(config) for config in configs]
            records = [record for record in found if record is not None and record.finished]
            wanted += len(seeds)
            finished += len(records)
            backbones |= {
                f"{r.backbone.get('name', 'unknown')} ({r.backbone.get('weights', 'unknown')})"
                for r in records
            }
            labelled[benchmark] += [(row.label, record) for record in records]
            summaries = [record.summary() for record in records]
            paper = row.paper.get(benchmark, [None] * len(spec.columns))
            for metric, printed in zip(spec.columns, paper, strict=True):
                cells.append(_cell(summaries, metric, row.mode, printed))
        rows.append((row.label, tuple(cells)))
    numbers = ", ".join(map(str, seeds))
    over = f"mean ± sample std over seeds {numbers}" if len(seeds) > 1 else f"seed {numbers}"
    notes = [
        f"Ours: {over} (class order, initialisation and data); "
        f"backbone {', '.join(sorted(backbones)) or 'not run'}"
        + (f"; flavours: {', '.join(sorted(flavours))}" if flavours else "")
        + ".",
    ]
    if spec.paper:
        notes.append(
            f"Paper: as printed in the CPrompt paper, {spec.paper} (ViT-B/16, "
            "augreg_in21k_ft_in1k)."
        )
    notes += [*spec.notes, *(spec.notes_on[b] for b in spec.benchmarks if b in spec.notes_on)]
    for benchmark, runs in labelled.items():
        if odd := _numbered_otherwise(runs):
            notes.append(
                f"On {benchmark} these rows number the classes otherwise than the rest, so the "
                f"same seed is another class order there: {'; '.join(odd)}."
            )
    if changed := _deciding_overrides(overrides or {}):
        notes.insert(1, f"Ours with {changed} in place of the benchmark's own.")
    if finished < wanted:
        notes.append(f"Only {finished} of {wanted} runs are finished; the numbers are over those.")
    if small:
        notes.append(
            "--small: drawn images and the embedded backbone replace the benchmark's; "
            "these numbers only show that the code works and cannot be compared with the paper's."
        )
    title = f"{spec.title}, small stand-in" if small else spec.title
    return Table(title, columns, tuple(rows), tuple(notes))


def _numbered_otherwise(runs: Sequence[tuple[str, Record]]) -> list[str]:
    """The labels of rows with runs whose classes have other label ids than those of the others.

    Other than the official ones; where nobody can tell which these are, other than those of most
    runs. A class order is drawn over label ids, so the same seed is another order there.
    """
    numberings = Counter(tuple(record.classes) for _, record in runs)
    if len(numberings) < 2:
        return []
    odd = {tuple(r.classes) for _, r in runs if numbered_officially(r.dataset, r.classes) is False}
    if not odd or odd == set(numberings):
        odd = set(numberings) - {numberings.most_common(1)[0][0]}
    return list(dict.fromkeys(label for label, record in runs if tuple(record.classes) in odd))


def _deciding_overrides(overrides: Mapping[str, Any]) -> str:
    """Overrides that decide numbers, for a note; the backbone is in another note."""
    counts = flatten(deciding_settings(nest(overrides)))
    return ", ".join(
        f"{name} {value}"
        for name, value in sorted(overrides.items())
        if counts.get(name) == value and not name.startswith("backbone.")
    )


def _cell(summaries: Sequence[Mapping[str, float]], metric: str, mode: str, printed: Any) -> Cell:
    """A metric over the runs, in evaluation mode `mode`."""
    if isinstance(printed, float):  # YAML reads 73.10 as 73.1
        printed = f"{printed:.2f}"
    paper = None if printed is None else str(printed)
    if metric == "selection_accuracy" and mode == "given":
        values = [100.0 for _ in summaries]  # by definition
    else:
        name = metric if mode == "selected" else f"{metric}_{mode}"
        values = [summary[name] for summary in summaries if name in summary]
    if not values:
        return Cell(None, None, 0, paper)
    mean, std = mean_std(values)
    return Cell(mean, std if len(values) > 1 else None, len(values), paper)


def finder(parent: Path) -> Find:
    """A function that finds the records of runs below `parent`."""

    def find(config: RunConfig) -> Record | None:
        folder = run_folder(config, parent)
        return load_record(folder) if (folder / FILE).exists() else None

    return find


def run_folder(config: RunConfig, parent: Path) -> Path:
    """The folder of a table's run below `parent`."""
    return parent / config.default_folder().relative_to("runs")
