"""The tables of a report."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from cprompt.report import numbers
from cprompt.report.captions import hardware_of
from cprompt.report.definitions import METRIC_TEXTS
from cprompt.report.grid import Grid, Value
from cprompt.report.numbers import RecordsByLabel
from cprompt.report.series import Section

NAMED_CLASSES = 5
"""How many of the best, and of the worst, classes are named for each series."""

VERSIONS = ("cprompt", "torch", "torchvision", "timm", "python")
"""The versions that the table of runs shows."""


def summary_grid(section: Section) -> tuple[Grid, list[str]]:
    """Every metric of every series over its finished runs, and the names of the metrics shown."""
    cells = {
        s.label: numbers.summary_cells([run.record for run in s.finished]) for s in section.series
    }
    metrics = [
        name
        for name, text in METRIC_TEXTS.items()
        if text.meaning and any(name in row for row in cells.values())
    ]
    rows = tuple(
        (s.label, len(s.finished), *(cells[s.label].get(name) for name in metrics))
        for s in section.series
    )
    head = ("", "n", *(METRIC_TEXTS[name].title for name in metrics))
    notes = ("n: number of finished runs that the means are taken over.",)
    return Grid(f"Summary of {section.title}", head, rows, notes), metrics


def task_grid(series: RecordsByLabel) -> Grid:
    """Accuracy on every task, just learnt and at the end, and what was forgotten."""
    rows: list[tuple[Value, ...]] = []
    for label, records in series.items():
        found = numbers.forgetting_by_task(records)
        matrix = numbers.mean_matrix(records)
        for task in range(len(matrix)):
            drop = (found.best[task], found.forgetting[task]) if task < len(found.end) else None
            best, lost = (None, None) if drop is None else map(float, drop)
            learnt, end = float(matrix[task, task]), float(matrix[-1, task])
            rows.append((label, str(task + 1), learnt, best, end, lost))
    head = ("", "task", "just learnt", "best before the last task", "at the end", "forgotten")
    return Grid("Accuracy on each task, percent, mean over runs", head, tuple(rows), texts=2)


def class_grid(series: RecordsByLabel) -> Grid:
    """Every class of every series at the end, best first."""
    rows = tuple(
        (label, one.name, one.percent, one.images)
        for label, records in series.items()
        for one in numbers.classes_by_accuracy(records)
    )
    notes = ("Share of right answers at the end; test images of all runs of the series together.",)
    return Grid("Accuracy by class", ("", "class", "%", "images"), rows, notes, texts=2)


def class_lines(series: RecordsByLabel) -> list[list[str]]:
    """The names of the best and the worst classes, two lines per series; no class is in both.

    One line where it has all classes.
    """
    lines = [["", "", *(f"{i + 1}." for i in range(NAMED_CLASSES))]]
    for label, records in series.items():
        found = numbers.classes_by_accuracy(records)
        best = found[:NAMED_CLASSES]
        worst = found[len(best) :][::-1][:NAMED_CLASSES]
        named = (("best", best), ("worst", worst)) if worst else (("all, best first", best),)
        for kind, classes in named:
            names = [f"{one.name}: {one.percent:.0f} %" for one in classes]
            lines.append([label, kind, *names, *[""] * (NAMED_CLASSES - len(names))])
    return lines


def without_common(grid: Grid, first: int) -> Grid:
    """Without the text columns, from `first` on, that say the same in all rows: a note says it."""
    alike = [i for i in range(first, grid.texts) if len({row[i] for row in grid.rows}) == 1]
    said = [f"{grid.head[i]} {grid.rows[0][i]}" for i in alike if grid.rows[0][i] is not None]
    kept = [i for i in range(len(grid.head)) if i not in alike]
    return replace(
        grid,
        head=tuple(grid.head[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in grid.rows),
        notes=(*grid.notes, *([f"In every row: {'; '.join(said)}."] if said else [])),
        texts=grid.texts - len(alike),
    )


def movement_grid(series: RecordsByLabel) -> Grid:
    """How far tasks moved each group of parameters, over all tasks and runs of a series."""
    rows = []
    for label, records in series.items():
        tasks = [task for record in records for task in record.movement]
        for group in dict.fromkeys(group for task in tasks for group in task):
            found = [task[group] for task in tasks if group in task]
            first = [m[0][group] for r in records if (m := r.movement) and group in m[0]]
            rows.append(
                (
                    label,
                    group,
                    fmean(100 * m.relative for m in first) if first else None,
                    *(f(100 * m.relative for m in found) for f in (min, max)),
                    min(100 * m.relative_turn for m in found),
                )
            )
    head = ("", "group", "first task", "least", "most", "least, without scaling")
    notes = (
        "‖after - before‖ / ‖before‖ of a task, over all its values, in percent; 100 for a group "
        "that began at zero. Weight decay alone scales a group; the last column leaves that out.",
    )
    return Grid("Movement of trained parameters", head, tuple(rows), notes, texts=2)


def cost_grid(series: RecordsByLabel) -> Grid:
    """Seconds by part, peak memory, parameters, passes per test image, and hardware."""
    found = {label: numbers.measured_cost(records) for label, records in series.items()}
    parts = list(dict.fromkeys(part for c in found.values() for part in c.seconds))
    kinds = list(dict.fromkeys(kind for c in found.values() for kind in c.passes))
    rows = []
    for label, c in found.items():
        memory = [c.memory[p] / 2**30 if p in c.memory else None for p in ("process", "device")]
        rows.append(
            (
                label,
                c.hardware,
                len(series[label]),
                *(c.seconds.get(part) for part in parts),
                *memory,
                c.parameters.get("learnt"),
                c.parameters.get("backbone"),
                *(c.passes.get(kind) for kind in kinds),
            )
        )
    head = (
        "",
        "hardware",
        "runs",
        *(f"{part}, s" for part in parts),
        "peak process, GiB",
        "peak device, GiB",
        "parameters learnt",
        "backbone parameters",
        *(f"{kind} passes" for kind in kinds),
    )
    notes = (
        "Seconds: mean wall-clock time per run; training without waiting for images. Passes: "
        "through the backbone, per test image over the whole stream.",
    )
    return Grid("Cost", head, tuple(rows), notes, texts=2)


def run_grid(section: Section) -> Grid:
    """Every run with its seeds, settings, backbone, versions and hardware."""
    rows = []
    for series in section.series:
        for run in series.runs:
            record = run.record
            summary = record.summary()
            about = record.environment
            rows.append(
                (
                    run.name,
                    series.label,
                    run.seeds_text,
                    run.state,
                    series.digest,
                    record.backbone.get("name"),
                    record.backbone.get("weights"),
                    record.backbone.get("fingerprint", "")[:12] or None,
                    ", ".join(f"{name} {about[name]}" for name in VERSIONS if name in about)
                    or None,
                    hardware_of(record),
                    summary.get("last_accuracy"),
                    summary.get("average_accuracy"),
                    record.images.get("train"),
                    record.images.get("test"),
                )
            )
    head = (
        "run",
        "series",
        "seeds",
        "state",
        "settings",
        "backbone",
        "weights",
        "fingerprint",
        "versions",
        "hardware",
        "Last-acc",
        "Avg-acc",
        "train images",
        "test images",
    )
    return Grid(f"Runs of {section.title}", head, tuple(rows), texts=10)
